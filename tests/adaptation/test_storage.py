"""A version is whole or was never there."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from specblock_zoo.adaptation.storage import (
    current_version,
    flat_optimizer,
    has_version,
    load_flat_optimizer,
    new_version,
    write_tensors,
)
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.folders import read_file

WRITER = """
import sys, torch
from pathlib import Path
from specblock_zoo.adaptation.storage import new_version, write_tensors
for number in range(10**6):
    with new_version(Path(sys.argv[1])) as scratch:
        for file in ("a", "b"):
            write_tensors(scratch / f"{file}.safetensors", {"x": torch.full((200_000,), float(number))})
    print(number, flush=True)
"""


def write(folder: Path, value: float) -> None:
    with new_version(folder) as scratch:
        write_tensors(scratch / "a.safetensors", {"x": torch.tensor(value)})


def fail_half_way(folder: Path) -> None:
    with new_version(folder) as scratch:
        write_tensors(scratch / "a.safetensors", {"x": torch.tensor(2.0)})
        raise OSError(28, "No space left on device")


def value_of(folder: Path) -> float:
    return float(read_file(current_version(folder) / "a.safetensors")["x"])


def test_the_newest_version_is_current_and_the_only_one(tmp_path: Path) -> None:
    for number in range(12):
        write(tmp_path / "state", number)
    assert value_of(tmp_path / "state") == 11
    assert len(list((tmp_path / "state").iterdir())) == 2


def test_a_disk_that_is_full_is_an_os_error_and_leaves_the_version_before(tmp_path: Path) -> None:
    """Not one of our making: safetensors has an error of its own for what the system says."""
    write(tmp_path, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match="could not be written"), new_version(tmp_path) as scratch:
            write_tensors(scratch / "a.safetensors", {"x": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert value_of(tmp_path) == 1


def test_an_interrupted_write_leaves_the_version_before(tmp_path: Path) -> None:
    write(tmp_path, 1)
    with pytest.raises(OSError, match="No space left"):
        fail_half_way(tmp_path)
    assert value_of(tmp_path) == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_a_kill_at_any_moment_leaves_a_whole_version(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        for _ in range(3):
            assert writer.stdout.readline()
        time.sleep(0.003)
        os.kill(writer.pid, signal.SIGKILL)
    first, second = (read_file(current_version(tmp_path) / f"{file}.safetensors")["x"] for file in ("a", "b"))
    assert torch.equal(first, second)
    assert len(first.unique()) == 1
    with new_version(tmp_path) as scratch:
        write_tensors(scratch / "a.safetensors", {"x": torch.tensor(-1.0)})
    assert value_of(tmp_path) == -1
    assert len(list(tmp_path.iterdir())) == 2, "what the killed writer left behind is gone"


def test_nothing_saved(tmp_path: Path) -> None:
    assert not has_version(tmp_path)
    with pytest.raises(ConfigurationError, match="holds no saved adaptation"):
        current_version(tmp_path)


def test_an_optimizer_comes_back() -> None:
    weights = [torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(3))]
    first, second = (torch.optim.AdamW(weights, lr=0.1) for _ in range(2))
    sum(weight.square().sum() for weight in weights).backward()
    first.step()
    load_flat_optimizer(second, {**flat_optimizer(first, "head"), "full.0.step": torch.tensor(9.0)}, "head")
    assert str(second.state_dict()["state"]) == str(first.state_dict()["state"])
