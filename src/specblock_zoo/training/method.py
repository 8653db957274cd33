"""What a kind of drafter brings to training: its forward, its first weights, and what it costs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specblock_zoo.errors import check_values
from specblock_zoo.functional.objective import LossReport
from specblock_zoo.training.rollout import RolloutSettings
from specblock_zoo.training.teachers import Teacher


@dataclass(frozen=True)
class Assumptions:
    """What a plan cannot know.

    Attributes:
        train_tokens: tokens of one epoch, prompts included.
        supervised: share of them that are answer tokens, 0..1.
        alpha: share of rows that survive a slot, 0..1; real drafters reach 0.4 to 0.8.
        device_tflops: dense peak of one device in the training precision, 1e12 operations a second (A100, bf16: 312).
        utilisation: share of the peak that training reaches, 0..1.
    """

    train_tokens: int = 100_000_000
    supervised: float = 0.8
    alpha: float = 0.6
    device_tflops: float = 312.0
    utilisation: float = 0.3

    def __post_init__(self) -> None:
        check_values(
            self,
            {
                "train_tokens": (self.train_tokens >= 1, "an integer from 1"),
                "supervised": (0 < self.supervised <= 1, "a share above 0, at most 1"),
                "alpha": (0 <= self.alpha <= 1, "a share, 0..1"),
                "device_tflops": (self.device_tflops > 0, "a number above 0"),
                "utilisation": (0 < self.utilisation <= 1, "a share above 0, at most 1"),
            },
        )


@dataclass(frozen=True)
class Work:
    """What one token of a batch costs.

    Attributes:
        graded: rows that reach each block and slot, per token of the batch.
        dense: rows a token costs the layers in the pass over all positions.
        advanced: rows that are advanced one by one, each attending to the whole context.
        layer_parameters: matrix entries that a row multiplies, draft head left out.
        values_per_row: numbers that autograd keeps of a row, all layers together.
        layers: layers whose attention weights an advanced row keeps.
    """

    graded: Sequence[Sequence[float]]
    dense: float
    advanced: float
    layer_parameters: int
    values_per_row: int
    layers: int


class RunBatch(Protocol):
    """One batch through a drafter."""

    def __call__(
        self,
        drafter: Any,
        batch: Mapping[str, Tensor],
        teacher: Teacher,
        settings: RolloutSettings,
        generator: torch.Generator | None = None,
    ) -> LossReport:
        """Sums of every block and slot of one batch (schema: `data.collate`); `generator` draws what is drawn."""


@dataclass(frozen=True)
class TrainingMethod:
    """How one kind of drafter is trained.

    Attributes:
        rollout: the training forward.
        initialise: (drafter, target, training batches): sets first weights in place. The drafter's vocabulary map is
            set and it is attached to the target's embeddings.
        report_shape: (drafter configuration, objective) -> blocks and slots of its reports.
        work: (drafter configuration, objective, assumptions) -> what a token costs.
    """

    rollout: RunBatch
    initialise: Callable[[Any, PreTrainedModel, Iterable[Mapping[str, Tensor]]], None]
    report_shape: Callable[[Any, RolloutSettings], tuple[int, int]]
    work: Callable[[Any, RolloutSettings, Assumptions], Work]


def blocks_and_slots(config: Any, settings: RolloutSettings) -> tuple[int, int]:
    """Shape of a report with one entry per block of the rollout and per slot of the drafter."""
    return 1 + len(settings.block_sampling), config.block_width
