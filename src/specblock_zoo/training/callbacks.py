"""What happens around training: export, averaged weights, compilation."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from transformers import PreTrainedModel

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.decoder import FeedForward

EXPORTS = {"last": "drafter", "best": "drafter-best"}


def save_folder(
    drafter: PreTrainedModel, folder: Path, weights: Mapping[str, Tensor] | None = None, **options: Any
) -> None:
    """Writes the drafter to `folder`, file by file in place of what is there; no reader ever sees half a file.

    Weights keep their dtype; token embeddings are the target's and are not written. Files of an earlier save that was
    split otherwise are removed once the new ones lie there.

    Args:
        weights: its state dict where that is not what the module holds.
        options: of `save_pretrained`, such as `max_shard_size` (bytes).
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as draft:
        drafter.save_pretrained(draft, state_dict=None if weights is None else dict(weights), **options)
        # config.json sorts before the weights, so that new weights never meet an old configuration.
        files = sorted(Path(draft).iterdir())
        for file in files:
            # safetensors gives its files to their writer alone.
            file.chmod(0o644)
            os.replace(file, folder / file.name)
    # From the end of the alphabet: an index goes before the shards it names.
    for stale in sorted(set(folder.glob("model*.safetensors*")) - {folder / file.name for file in files}, reverse=True):
        stale.unlink()


def store_rest(trainer: Trainer) -> None:
    """Stores the updates after the last regular checkpoint where `save_last` asks for the last one.

    Lightning does so only for runs that have stored none, and after an average took the place of the weights; a
    schedule would miss its end.
    """
    for callback in trainer.checkpoint_callbacks:
        if not isinstance(callback, ModelCheckpoint) or not callback.save_last:
            continue
        if callback._last_global_step_saved == trainer.global_step:
            continue
        if callback.last_model_path:
            callback._last_global_step_saved = trainer.global_step
            trainer.save_checkpoint(callback.last_model_path, callback.save_weights_only)
        else:
            callback._save_last_checkpoint(trainer, callback._monitor_candidates(trainer))


class ExportDrafter(Callback):
    """Saves drafters of checkpoints in Hugging Face format beside them, and says at the end which one lies there.

    Before that, it sees to it that the last checkpoint is of the last update (`store_rest`).

    Args:
        which: `last` is the drafter of the newest checkpoint; `best` is that of the best one by the monitor of the
            first `ModelCheckpoint` that has a monitor.
        folder: where to; by default `drafter/`, or `drafter-best/`, in the folder of that `ModelCheckpoint`.

    Raises:
        ConfigurationError: `which` is neither; there is no monitor for `best`; or neither a folder nor a
            `ModelCheckpoint`.
    """

    def __init__(self, folder: str | None = None, which: str = "last") -> None:
        if which not in EXPORTS:
            raise ConfigurationError(
                f"ExportDrafter.which is {which!r}; expected {' or '.join(EXPORTS)}.", "Choose one."
            )
        self.folder = folder
        self.which = which
        self.step: int | None = None
        self.score: float | None = None

    @property
    def state_key(self) -> str:
        """One for each use of the callback."""
        return self._generate_state_key(which=self.which, folder=self.folder)

    def state_dict(self) -> dict[str, Any]:
        """Which drafter was exported: its step, and its score where it was the best."""
        return {"step": self.step, "score": self.score}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes up where a run stopped."""
        self.step, self.score = state_dict["step"], state_dict["score"]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.folder is None and trainer.checkpoint_callback is None and not getattr(trainer, "fast_dev_run", False):
            raise ConfigurationError(
                "ExportDrafter has no folder and the trainer no ModelCheckpoint: there is no place to export to.",
                "Give ExportDrafter a folder, or set --trainer.enable_checkpointing=true.",
            )
        if self.which == "best" and self._source(trainer) is None:
            raise ConfigurationError(
                "ExportDrafter.which is 'best' and no ModelCheckpoint has a monitor.",
                "Add one, e.g. with --config configs/callbacks/tau.yaml, or export the last.",
            )

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self.which == "best":
            score = cast(ModelCheckpoint, self._source(trainer)).best_model_score
            # Set before its checkpoint is written; other checkpoints of the same step leave it as it is.
            if score is None or float(score) == self.score:
                return
            self.score = float(score)
        self.step = trainer.global_step
        # Lightning has gathered the states of callbacks before it calls this.
        checkpoint["callbacks"][self.state_key] = self.state_dict()
        if trainer.is_global_zero:
            callbacks: list[Callback] = cast(Any, trainer).callbacks
            averages = [callback for callback in callbacks if isinstance(callback, AverageWeights)]
            weights = averages[0].drafter_weights() if averages else None
            save_folder(cast(PreTrainedModel, pl_module.drafter), self.destination(trainer), weights)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        store_rest(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.step is not None:
            source = self._source(trainer)
            best = "" if self.which == "last" or source is None else f", {source.monitor} {self.score:.4g}"
            rank_zero_info(f"{self.destination(trainer)}: drafter of update {self.step} ({self.which}{best})")

    def destination(self, trainer: Trainer) -> Path:
        """The folder of this run."""
        source = self._source(trainer)
        return Path(self.folder or Path((source and source.dirpath) or ".") / EXPORTS[self.which])

    def _source(self, trainer: Trainer) -> ModelCheckpoint | None:
        found = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
        if self.which == "best":
            found = [callback for callback in found if callback.monitor is not None]
        return found[0] if found else None


class AverageWeights(EMAWeightAveraging):
    """Exponential moving average of the drafter's weights: validated, probed, stored as the checkpoint's, exported.

    Lightning's callback, but built once the drafter exists, and in place until validation has quite ended, so that its
    place in the list of callbacks does not matter. The copy holds the borrowed embeddings too.

    Args:
        decay: share of the old average kept at each update, 0..1.
        update_every_n_steps: optimizer updates between two updates of the average.
        device: of the average; the module's when not given.
    """

    def __init__(self, decay: float = 0.999, update_every_n_steps: int = 1, device: str | None = None) -> None:
        super().__init__(device=device, use_buffers=False, decay=decay, update_every_n_steps=update_every_n_steps)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Nothing: the drafter is built after this hook."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._build(trainer, pl_module)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._build(trainer, pl_module)
        super().on_load_checkpoint(trainer, pl_module, checkpoint)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing: a probe listed later has yet to decode."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_epoch_end(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # The average takes the place of the weights here, which a checkpoint must tell apart.
        store_rest(trainer)
        super().on_train_end(trainer, pl_module)

    def drafter_weights(self) -> dict[str, Tensor] | None:
        """The averaged state dict of the drafter; None before training."""
        average: Any = self._average_model
        return None if average is None else average.module.drafter.state_dict()

    def _build(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._average_model is None and trainer.state.fn == TrainerFn.FITTING:
            # A checkpoint is loaded before the module comes to its device.
            self._device = self._device or trainer.strategy.root_device
            super().setup(trainer, pl_module, "fit")


class CompileFeedForward(Callback):
    """Compiles the drafter's feed-forwards with `torch.compile`; state dicts and exports do not change.

    They are two thirds of a layer and see every row count there is, so they are compiled for any. Attention is left
    out: which keys a row may see is a Python function.

    Args:
        backend: of `torch.compile`.
    """

    def __init__(self, backend: str = "inductor") -> None:
        self.backend = backend

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for module in cast(Any, pl_module).drafter.modules():
            if isinstance(module, FeedForward):
                module.compile(backend=self.backend, dynamic=True)
