"""Training runs of several processes on the loopback device, started as a user would start them."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from tests.support import REPOSITORY

LIMIT_S = 240


class NoteBatches(Callback):
    """Appends one line per training batch, `step rank: first tokens of each sequence`, to `folder/rank-R.txt`."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"rank-{trainer.global_rank}.txt").open("a") as file:
            file.write(f"{trainer.global_step}: {batch['input_ids'].tolist()}\n")


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_fits(options: Sequence[str], environments: Sequence[Mapping[str, str]]) -> None:
    """Starts `specblock fit` once per environment, all at the same time, and waits; fails with what they said."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    common = {**plain, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "specblock_zoo.cli.main", "fit", *options]
    started = [
        subprocess.Popen(
            command, env={**common, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for environment in environments
    ]
    try:
        said = [process.communicate(timeout=LIMIT_S)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * len(started), "\n".join(said)
