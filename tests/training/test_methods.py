"""Every kind of drafter is trained by the same command on the same cache."""

import csv
from pathlib import Path

import pytest

from specblock_zoo import load_drafter
from specblock_zoo.models.registry import DRAFTERS
from specblock_zoo.training.methods import METHODS
from specblock_zoo.training.module import DrafterModule
from tests.support.fit import QUIET, fit
from tests.support.tiny import TinyRun

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]
FLAGS = [
    "--trainer.max_steps=16",
    # A copied start is near what can be learned of a random target.
    "--model.initialise=scratch",
    "--model.adamw.learning_rate=0.005",
    "--model.objective.block_sampling=[]",
    "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint",
    "--trainer.callbacks.save_last=true",
    "--trainer.callbacks+=specblock_zoo.training.callbacks.ExportDrafter",
]


@pytest.mark.parametrize("kind", METHODS)
def test_the_loss_falls_and_the_export_is_of_that_kind(kind: str, tiny_run: TinyRun, tmp_path: Path) -> None:
    assert fit(tiny_run, tmp_path, *FLAGS, f"--model.drafter.model_type={kind}") == 0
    version = tmp_path / "run" / "version_0"
    with (version / "metrics.csv").open() as lines:
        losses = [float(row["train_loss_nats"]) for row in csv.DictReader(lines) if row["train_loss_nats"]]
    assert sum(losses[-3:]) / 3 < 0.95 * losses[0]
    assert type(load_drafter(version / "checkpoints" / "drafter")) is DRAFTERS[kind].model
    module = DrafterModule.load_from_checkpoint(version / "checkpoints" / "last.ckpt", map_location="cpu")
    assert type(module.drafter) is DRAFTERS[kind].model


def test_an_unknown_kind_is_refused_before_training(tiny_run: TinyRun, tmp_path: Path) -> None:
    assert fit(tiny_run, tmp_path, "--trainer.max_steps=1", "--model.drafter.model_type=nothing") == 2
