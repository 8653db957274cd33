"""Provenance of a measurement."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

from specblock_zoo.bench import host
from specblock_zoo.inference.prepack import can_prepack, optimize_for_cpu
from specblock_zoo.targets.llama import LLAMA
from specblock_zoo.targets.local import fast_dtype
from tests.support import REPOSITORY


def test_versions_name_what_is_installed() -> None:
    assert host.versions()["torch"] == torch.__version__
    assert "python" in host.versions()


def test_cpu_capability_says_whether_bfloat16_is_native() -> None:
    assert ("no native" in host.cpu_capability()) == (fast_dtype("cpu") is not torch.bfloat16)


def test_device_has_a_name() -> None:
    assert host.device_name(torch.device("cpu"))


def test_peak_memory_never_falls_and_follows_an_allocation() -> None:
    before = host.peak_memory_mib()
    held = torch.ones(1 << 25)
    after = host.peak_memory_mib()
    assert after >= before > 50
    del held
    assert host.peak_memory_mib() >= after


def test_commit_is_a_hash_or_unknown() -> None:
    assert re.fullmatch(r"unknown|[0-9a-f]{40}(-dirty)?", host.source_commit())


def test_commit_is_unknown_outside_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], returncode=128, stdout="", stderr="not a git repository")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: failed)
    assert host.source_commit() == "unknown"


def test_the_command_keeps_checkout_paths_and_shortens_others(tmp_path: Path) -> None:
    arguments = [
        "/somewhere/bin/specblock",
        "bench",
        "--config",
        str(REPOSITORY / "configs" / "bench" / "tiny.yaml"),
        f"--tasks_dir={tmp_path}",
        "--out=/scratch/not-there-yet",
        "--threads=2",
    ]
    expected = f"specblock bench --config configs/bench/tiny.yaml --tasks_dir={tmp_path.name} --out=not-there-yet"
    assert host.public_command(arguments) == f"{expected} --threads=2"
    assert host.public_command(["scripts/seal_entry.py", "x"]) == "python scripts/seal_entry.py x"


def test_circumstances_say_whether_weights_are_packed() -> None:
    model = LLAMA.tiny_model()
    assert host.circumstances(model)["packed"] is False
    assert host.circumstances(model)["dtype"] == "float32"
    if can_prepack():
        assert host.circumstances(optimize_for_cpu(model))["packed"] is True
