"""What happens around training: export, averaged weights, compilation."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from transformers import PreTrainedModel

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.decoder import FeedForward


def save_folder(drafter: PreTrainedModel, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Writes the drafter to `folder`, file by file in place of what is there; no reader ever sees half a file.

    Weights keep their dtype; token embeddings are the target's and are not written.

    Args:
        weights: its state dict where that is not what the module holds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as draft:
        drafter.save_pretrained(draft, state_dict=None if weights is None else dict(weights))
        # config.json sorts before the weights, so that new weights never meet an old configuration.
        for file in sorted(Path(draft).iterdir()):
            os.replace(file, folder / file.name)


class ExportDrafter(Callback):
    """Saves the drafter of each checkpoint in Hugging Face format beside it.

    Args:
        folder: where to; by default `drafter/` in the folder of the run's first `ModelCheckpoint`.

    Raises:
        ConfigurationError: there is neither a folder nor a `ModelCheckpoint`.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.folder is None and trainer.checkpoint_callback is None and not getattr(trainer, "fast_dev_run", False):
            raise ConfigurationError(
                "ExportDrafter has no folder and the trainer no ModelCheckpoint: there is no place to export to.",
                "Give ExportDrafter a folder, or set --trainer.enable_checkpointing=true.",
            )

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if not trainer.is_global_zero:
            return
        callbacks: list[Callback] = cast(Any, trainer).callbacks
        averages = [callback for callback in callbacks if isinstance(callback, AverageWeights)]
        weights = averages[0].drafter_weights() if averages else None
        save_folder(cast(PreTrainedModel, pl_module.drafter), self.destination(trainer), weights)

    def destination(self, trainer: Trainer) -> Path:
        """The folder of this run."""
        return Path(self.folder or Path(cast(ModelCheckpoint, trainer.checkpoint_callback).dirpath or ".") / "drafter")


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

    def drafter_weights(self) -> dict[str, Tensor] | None:
        """The averaged state dict of the drafter; None before training."""
        average: Any = self._average_model
        return None if average is None else average.module.drafter.state_dict()

    def _build(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._average_model is None and trainer.state.fn == TrainerFn.FITTING:
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
