"""What happens around training: the drafter is kept as a folder that `from_pretrained` reads."""

import os
import tempfile
from pathlib import Path
from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import PreTrainedModel

from specblock_zoo.errors import ConfigurationError


def save_folder(drafter: PreTrainedModel, folder: Path) -> None:
    """Writes the drafter to `folder`, file by file in place of what is there; no reader ever sees half a file.

    Weights keep their dtype; token embeddings are the target's and are not written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as draft:
        drafter.save_pretrained(draft)
        # config.json sorts before the weights, so that new weights never meet an old configuration.
        for file in sorted(Path(draft).iterdir()):
            os.replace(file, folder / file.name)


class ExportDrafter(Callback):
    """Saves `module.drafter` in Hugging Face format beside each checkpoint.

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
        if trainer.is_global_zero:
            save_folder(cast(PreTrainedModel, pl_module.drafter), self.destination(trainer))

    def destination(self, trainer: Trainer) -> Path:
        """The folder of this run."""
        return Path(self.folder or Path(cast(ModelCheckpoint, trainer.checkpoint_callback).dirpath or ".") / "drafter")
