"""`kill -9` at random moments of a real `fit`, resumed with `--ckpt_path=last`: the same weights as without."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.support import REPOSITORY
from tests.support.fit import run_options
from tests.support.tiny import TinyRun, tiny_run

__all__ = ["tiny_run"]

STEPS, KILLS, LIMIT_S = 40, 5, 900


def start(run: TinyRun, folder: Path) -> subprocess.Popen[bytes]:
    """A fit that writes a checkpoint after each of its updates, so that kills in mid-checkpoint are likely."""
    flags = [
        f"--trainer.max_steps={STEPS}",
        "--data.batch_tokens=120",
        "--ckpt_path=last",
        "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint",
        "--trainer.callbacks.save_last=true",
        "--trainer.callbacks.every_n_train_steps=1",
        "--trainer.callbacks+=specblock_zoo.training.callbacks.ExportDrafter",
    ]
    versions = [flag for flag in run_options(run, folder) if "logger.version" not in flag]
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    return subprocess.Popen(
        [sys.executable, "-m", "specblock_zoo.cli.main", "fit", *versions, *flags],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def newest(folder: Path) -> Path | None:
    found = sorted(folder.glob("run/*/checkpoints/last.ckpt"), key=lambda file: file.stat().st_mtime_ns)
    return found[-1] if found else None


def wait_for_an_update(process: subprocess.Popen[bytes], folder: Path, before: int) -> None:
    """Until a checkpoint later than `before` is there: kills while importing would show nothing."""
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        file = newest(folder)
        if file is not None and file.stat().st_mtime_ns > before:
            return
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(4000)
def test_a_fit_killed_at_random_moments_ends_bit_for_bit_where_it_would_have(tiny_run: TinyRun, tmp_path: Path) -> None:
    assert start(tiny_run, tmp_path / "whole").wait(LIMIT_S) == 0
    folder, draw, reached = tmp_path / "killed", random.Random(3), []
    for _ in range(KILLS):
        file = newest(folder)
        process = start(tiny_run, folder)
        wait_for_an_update(process, folder, file.stat().st_mtime_ns if file else 0)
        time.sleep(draw.uniform(0.0, 1.0))
        assert process.poll() is None, "it ended before it was killed"
        process.kill()
        process.wait()
        last = newest(folder)
        assert last is not None
        reached.append(torch.load(last, weights_only=True)["global_step"])
    assert reached == sorted(set(reached)), "a resumed run went on from the checkpoint before"
    assert start(tiny_run, folder).wait(LIMIT_S) == 0
    whole, killed = (torch.load(newest(tmp_path / name), weights_only=True) for name in ("whole", "killed"))
    assert whole["global_step"] == killed["global_step"] == STEPS
    assert whole["state_dict"].keys() == killed["state_dict"].keys()
    for name, tensor in whole["state_dict"].items():
        assert torch.equal(tensor, killed["state_dict"][name]), name
