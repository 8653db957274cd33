"""Everything an adapting drafter knows, to and from disk."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from specblock_zoo.adaptation.bandit import BanditState
from specblock_zoo.adaptation.events import Action
from specblock_zoo.adaptation.storage import (
    current_version,
    flat_optimizer,
    load_flat_optimizer,
    new_version,
    write_tensors,
)
from specblock_zoo.adaptation.updater import Updater
from specblock_zoo.errors import ConfigurationError, WeightsMismatchError
from specblock_zoo.models.folders import check_shapes, read_file, read_tensors
from specblock_zoo.models.specblock import SpecBlockDrafter

if TYPE_CHECKING:
    from specblock_zoo.adaptation.session import AdaptiveDrafter

DRAFTER, GOOD, OPTIMIZER, STATE = "drafter", "good.safetensors", "optimizer.safetensors", "state.json"
BUFFERS = {"head_buffer": "head_buffer.safetensors", "text_buffer": "text_buffer.safetensors"}


class Saved(BaseModel):
    """What is no tensor; `base`: `base_of` the drafter it began from (older saves do not say)."""

    model_config = ConfigDict(extra="forbid")

    bandit: BanditState
    trigger: int
    updates: int
    base: str | None = None


@dataclass(frozen=True)
class Captured:
    """What serving goes on changing, as it was at one moment; the buffers' tensors are never written to again."""

    buffers: dict[str, dict[str, Tensor]]
    saved: Saved


def base_of(drafter: SpecBlockDrafter) -> str:
    """Tells drafters apart, loaded in float32 or bfloat16: a digest of all weights, rounded to bfloat16."""
    digest = hashlib.sha256()
    for tensor in drafter.state_dict().values():
        digest.update(tensor.detach().cpu().bfloat16().contiguous().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def captured(adaptive: "AdaptiveDrafter") -> Captured:
    """Takes no time to speak of, so that the caller may hold the session's lock."""
    saved = Saved(
        bandit=adaptive.bandit, trigger=adaptive.trigger, updates=adaptive.updater.updates, base=adaptive.base
    )
    return Captured({name: getattr(adaptive, name).state() for name in BUFFERS}, saved)


def save(updater: Updater, now: Captured, folder: Path) -> None:
    """Writes a version of the state; `drafter` in it is a drafter's folder like any other. No job may train meanwhile.

    Raises:
        OSError, ConfigurationError: as `storage.new_version`; the version before stays current.
    """
    with new_version(folder) as scratch:
        updater.shadow.save_pretrained(scratch / DRAFTER)
        write_tensors(scratch / GOOD, dict(updater.good.named_parameters()))
        write_tensors(scratch / OPTIMIZER, flat_optimizer(updater.optimizer, Action.FULL))
        for name, file in BUFFERS.items():
            write_tensors(scratch / file, now.buffers[name])
        (scratch / STATE).write_text(now.saved.model_dump_json())


def restore(adaptive: "AdaptiveDrafter", folder: Path) -> None:
    """Reads the current version into the training side of `adaptive`; nothing changes if a file is wrong.

    Raises:
        ConfigurationError: nothing was saved there, or with another `capture.top`.
        WeightsMismatchError: it is another drafter's, or not whole.
    """
    version, updater = current_version(folder), adaptive.updater
    try:
        weights, good = read_tensors(version / DRAFTER), read_file(version / GOOD)
        optimizer, buffers = read_file(version / OPTIMIZER), {n: read_file(version / f) for n, f in BUFFERS.items()}
        saved = Saved.model_validate_json((version / STATE).read_bytes())
    except (ValidationError, OSError) as cause:
        raise WeightsMismatchError(f"{version} is not a saved state ({cause}).", "Use another save.") from cause
    check_shapes(shapes(updater.shadow.state_dict()), shapes(weights), version / DRAFTER)
    check_shapes(shapes(dict(updater.good.named_parameters())), shapes(good), version / GOOD)
    if saved.base not in (None, adaptive.base):
        raise WeightsMismatchError(
            f"{version} began from a drafter {saved.base[:12]}...; this one is {adaptive.base[:12]}....",
            "Restore it into the drafter it began from, or go on without it.",
        )
    check_top(buffers.values(), min(adaptive.settings.capture.top, updater.shadow.config.draft_vocab_size))
    updater.shadow.load_state_dict(weights)
    updater.good.load_state_dict(good, strict=False)
    load_flat_optimizer(updater.optimizer, optimizer, Action.FULL)
    for name, tensors in buffers.items():
        getattr(adaptive, name).load(tensors)
    # An update that was decided but not yet trained ended with the process that saved.
    adaptive.bandit = replace(saved.bandit, pending=None)
    adaptive.trigger, updater.updates = saved.trigger, saved.updates


def check_top(buffers: Iterable[dict[str, Tensor]], top: int) -> None:
    """Raises `ConfigurationError` when saved distributions have another number of tokens than new ones will have."""
    saved = {tensor.shape[-1] for each in buffers for name, tensor in each.items() if name.endswith("target.ids")}
    if saved - {top}:
        raise ConfigurationError(
            f"Distributions were saved with {', '.join(map(str, sorted(saved)))} tokens each; here it is {top}.",
            "Set capture.top to what it was.",
        )


def shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Shapes by name."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
