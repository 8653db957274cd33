"""Whatever interrupts a run, its last checkpoint can be loaded, and `last` finds it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jsonargparse import Namespace
from lightning.pytorch import Trainer

from specblock_zoo.training.checkpoints import WholeCheckpoints, newest_last

KILLED = """
import os, signal, sys
import torch
from specblock_zoo.training.checkpoints import WholeCheckpoints

def dies_in_the_middle(checkpoint, file):
    file.write_bytes(b"half a checkpoint")
    os.kill(os.getpid(), signal.SIGKILL)

torch.save = dies_in_the_middle
WholeCheckpoints().save_checkpoint({"global_step": 2}, sys.argv[1])
"""


def test_a_kill_in_mid_checkpoint_leaves_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "new" / "last.ckpt"
    WholeCheckpoints().save_checkpoint({"global_step": 1, "weights": torch.ones(2)}, file)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert WholeCheckpoints().load_checkpoint(file, weights_only=True)["global_step"] == 1


def test_the_trainer_writes_through_it(tmp_path: Path) -> None:
    plugin = WholeCheckpoints()
    trainer = Trainer(default_root_dir=tmp_path, plugins=[plugin], accelerator="cpu", logger=False, barebones=False)
    assert trainer.strategy.checkpoint_io is plugin


def write(file: Path, age: int) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    os.utime(file, ns=(10**18 - age, 10**18 - age))
    return file


def logger(folder: Path) -> Namespace:
    return Namespace(class_path="CSVLogger", init_args=Namespace(save_dir=str(folder), name="run", version=None))


def test_the_newest_of_all_versions_is_the_last(tmp_path: Path) -> None:
    write(tmp_path / "run" / "version_1" / "checkpoints" / "last.ckpt", age=2)
    newest = write(tmp_path / "run" / "version_0" / "checkpoints" / "last-v1.ckpt", age=1)
    write(tmp_path / "run" / "version_2" / "checkpoints" / "epoch=0-step=9.ckpt", age=0)
    write(tmp_path / "run" / "version_2" / "checkpoints" / ".last.ckpt.tmp", age=0)
    write(tmp_path / "another" / "version_0" / "checkpoints" / "last.ckpt", age=0)
    assert newest_last({"logger": logger(tmp_path), "callbacks": None}) == newest


@pytest.mark.parametrize("switch", [None, True, False])
def test_without_a_logger_of_its_own_a_run_lies_where_lightning_puts_it(tmp_path: Path, switch: bool | None) -> None:
    options = {"logger": switch, "default_root_dir": str(tmp_path)}
    assert newest_last(options) is None
    place = "checkpoints" if switch is False else "lightning_logs/version_3/checkpoints"
    file = write(tmp_path / place / "last.ckpt", age=0)
    assert newest_last(options) == file


def test_a_folder_given_to_the_callback_is_looked_into(tmp_path: Path) -> None:
    file = write(tmp_path / "kept" / "last.ckpt", age=0)
    callback = Namespace(class_path="ModelCheckpoint", init_args=Namespace(dirpath=str(tmp_path / "kept")))
    plain = Namespace(class_path="ExportDrafter")
    assert newest_last({"callbacks": [plain, callback], "default_root_dir": str(tmp_path)}) == file


def test_a_run_without_a_logger_never_takes_up_one_that_had_one(tmp_path: Path) -> None:
    write(tmp_path / "lightning_logs" / "version_0" / "checkpoints" / "last.ckpt", age=0)
    assert newest_last({"logger": False, "default_root_dir": str(tmp_path)}) is None
