"""Two processes train one drafter: the same run however they are started, and the same run when it is resumed.

They meet through gloo on the loopback device: two devices of one node, two nodes, two tasks of a batch system.
"""

from pathlib import Path

import pytest
import torch

from tests.support.fit import run_options
from tests.support.processes import free_port, run_fits
from tests.support.tiny import TinyRun, tiny_run

__all__ = ["tiny_run"]

pytestmark = pytest.mark.distributed

STEPS, MIDDLE = 6, 3
ONE_NODE = ["--trainer.devices=2", "--trainer.num_nodes=1"]
TWO_NODES = ["--trainer.devices=1", "--trainer.num_nodes=2"]


def options(run: TinyRun, folder: Path) -> list[str]:
    """Two batches an epoch and process, so that the middle of the run is the middle of an epoch."""
    return [
        *run_options(run, folder),
        "--data.batch_tokens=90",
        f"--trainer.max_steps={STEPS}",
        "--trainer.strategy=ddp",
        "--trainer.callbacks+=tests.support.processes.NoteBatches",
        f"--trainer.callbacks.folder={folder / 'notes'}",
        "--trainer.callbacks+=specblock_zoo.bench.probe.TauProbe",
        f"--trainer.callbacks.prompts={run.records}",
        "--trainer.callbacks.num_prompts=1",
        "--trainer.callbacks.max_new_tokens=4",
        "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint",
        "--trainer.callbacks.every_n_train_steps=1",
        "--trainer.callbacks.save_top_k=-1",
        "--trainer.callbacks.filename={step}",
        "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint",
        "--trainer.callbacks.monitor=tau",
        "--trainer.callbacks.mode=max",
        "--trainer.callbacks.filename=best",
        "--trainer.callbacks.save_on_train_epoch_end=false",
    ]


def checkpoint(folder: Path, name: str) -> Path:
    return folder / "run" / "version_0" / "checkpoints" / f"{name}.ckpt"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(checkpoint(folder, f"step={STEPS}"), weights_only=True)["state_dict"]


def notes(folder: Path) -> list[list[str]]:
    """What each process was given, in order."""
    return [(folder / "notes" / f"rank-{rank}.txt").read_text().splitlines() for rank in (0, 1)]


def assert_same_run(first: Path, second: Path) -> None:
    assert notes(first) == notes(second)
    expected, found = weights(first), weights(second)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


@pytest.fixture(scope="module")
def whole(tiny_run: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two devices, uninterrupted."""
    folder = tmp_path_factory.mktemp("whole")
    run_fits([*options(tiny_run, folder), *ONE_NODE], [{}])
    return folder


def test_processes_share_the_batches_and_the_best_tau_is_kept(whole: Path) -> None:
    first, second = notes(whole)
    assert len(first) == len(second) == STEPS
    assert not set(first) & set(second), "a batch was given twice in the same step"
    assert checkpoint(whole, "best").is_file()


def test_a_resumed_run_goes_on_in_the_same_order_on_both(tiny_run: TinyRun, whole: Path, tmp_path: Path) -> None:
    middle = checkpoint(whole, f"step={MIDDLE}")
    run_fits([*options(tiny_run, tmp_path), *ONE_NODE, f"--ckpt_path={middle}"], [{}])
    assert notes(tmp_path) == [lines[MIDDLE:] for lines in notes(whole)]
    expected = weights(whole)
    for name, tensor in weights(tmp_path).items():
        assert torch.equal(tensor, expected[name]), name


def test_two_nodes_are_two_devices(tiny_run: TinyRun, whole: Path, tmp_path: Path) -> None:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    nodes = [{**meeting, "NODE_RANK": str(rank)} for rank in (0, 1)]
    run_fits([*options(tiny_run, tmp_path), *TWO_NODES], nodes)
    assert_same_run(whole, tmp_path)


def test_two_tasks_of_a_batch_system_are_two_devices(tiny_run: TinyRun, whole: Path, tmp_path: Path) -> None:
    job = {
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NAME": "fit",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_NNODES": "2",
        "SLURM_NODELIST": "127.0.0.1",
        "SLURM_LOCALID": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    tasks = [{**job, "SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank)} for rank in (0, 1)]
    run_fits([*options(tiny_run, tmp_path), *TWO_NODES], tasks)
    assert_same_run(whole, tmp_path)
