"""What an adapting drafter is told, and what it may hold in memory."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from specblock_zoo.adaptation.bandit import BanditSettings
from specblock_zoo.adaptation.feedback import CaptureSettings
from specblock_zoo.adaptation.updater import UpdateSettings
from specblock_zoo.errors import ConfigurationError, check_values
from specblock_zoo.models.specblock import SpecBlockConfig

Place = Literal["inline", "worker"]
Clock = Literal["seconds", "rounds"]
HALF, FULL, FLAG = 2, 4, 1
"""Bytes of a float16, bfloat16; of a float32 or int32; of a bool."""


@dataclass(frozen=True)
class AdaptationConfig:
    """How a drafter adapts while it serves.

    Attributes:
        bandit: when to update.
        update: how to train.
        capture: what to keep of a query.
        head_capacity, head_needed: slots the head buffer holds; rejected ones among them that fill it.
        head_read: slots that one update reads, the new ones first: what it costs must not grow with the buffer (ours).
        alert_needed: of them enough while the bandit is on the alert; `alert_steps`: of a head update then, at least
            (ours).
        text_capacity, text_needed: tokens the text buffer holds; positions rejected outside the tree that fill it.
        deployment: `inline` trains between queries where it serves, `worker` beside it in a thread of its own.
        train_device: of a worker, e.g. `cuda:1`; default the drafter's.
        prepack: lay serving weights out for the CPU's kernels; give the drafter unpacked.
        clock: `seconds` measures throughput; `rounds` counts each round as equally long, for machines whose timing is
            noisier than the gains (ours).
        folder: save the whole state here after every update.
        seed: of exploration.
    """

    bandit: BanditSettings = field(default_factory=BanditSettings)
    update: UpdateSettings = field(default_factory=UpdateSettings)
    capture: CaptureSettings = field(default_factory=CaptureSettings)
    head_capacity: int = 2048
    head_needed: int = 128
    head_read: int = 512
    alert_needed: int = 48
    alert_steps: int = 8
    text_capacity: int = 8192
    text_needed: int = 256
    deployment: Place = "inline"
    train_device: str | None = None
    prepack: bool = False
    clock: Clock = "seconds"
    folder: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        words = {"deployment": get_args(Place), "clock": get_args(Clock)}
        check_values(self, {name: (getattr(self, name) in known, " or ".join(known)) for name, known in words.items()})
        sizes = ("head_capacity", "head_needed", "head_read", "alert_needed", "text_capacity", "text_needed")
        low = {name: getattr(self, name) for name in sizes if getattr(self, name) < 1}
        if low:
            raise ConfigurationError(f"Buffers of size {low}; expected at least 1.", "Correct the settings.")
        if self.alert_steps < 0:
            raise ConfigurationError(
                f"alert_steps is {self.alert_steps}; expected at least 0.",
                "Correct the settings; 0 asks for no more steps.",
            )
        if self.capture.max_length > self.text_capacity:
            raise ConfigurationError(
                f"A text may have {self.capture.max_length} tokens, the text buffer {self.text_capacity}.",
                "Raise text_capacity or lower capture.max_length.",
            )


def memory_bound(settings: AdaptationConfig, drafter: SpecBlockConfig) -> dict[str, int]:
    """The most bytes each buffer can hold."""
    top = min(settings.capture.top, drafter.draft_vocab_size)
    distribution = top * (FULL + HALF) + FULL
    slot = drafter.hidden_size * HALF + distribution + 2 * FLAG + FULL
    features = len(drafter.tap_layers or (0, 0, 0)) * drafter.target_hidden_size * HALF
    token = features + distribution + FULL + FLAG
    return {"head_buffer": settings.head_capacity * slot, "text_buffer": settings.text_capacity * token}
