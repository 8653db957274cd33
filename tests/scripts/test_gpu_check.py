"""One part's failure costs its own figures and no others, and the file on disk is whole at every moment."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from specblock_zoo.errors import ConfigurationError
from tests.support import REPOSITORY
from tests.support.scripts import load_script

script = load_script("gpu_check")


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_each_part_is_noted_whatever_the_others_do() -> None:
    commands = {
        "good": python("print('noise'); print('{\"ms\": 1.5}')"),
        "broken": python("raise SystemExit('out of memory')"),
        "silent": python(""),
        "hanging": python("import time; time.sleep(60)"),
        "last": python("print('{}')"),
    }
    noted: dict[str, dict[str, Any]] = {}
    budgets = {**dict.fromkeys(commands, 20.0), "hanging": -59.0}
    script.supervise(commands, 100.0, noted.__setitem__, budgets)
    assert {part: outcome["status"] for part, outcome in noted.items()} == {
        "good": "done",
        "broken": "failed",
        "silent": "failed",
        "hanging": "out of time",
        "last": "done",
    }
    assert noted["good"]["result"] == {"ms": 1.5}
    assert noted["broken"]["output"] == ["out of memory"]


def test_parts_beyond_the_time_are_named() -> None:
    noted: dict[str, dict[str, Any]] = {}
    script.supervise({"late": python("print('{}')")}, 0.0, noted.__setitem__, {"late": 10.0})
    assert noted["late"]["status"] == "no time left"


def test_a_part_alone_prints_one_json_line() -> None:
    command = [sys.executable, str(REPOSITORY / "scripts" / "gpu_check.py"), "--shapes=tiny", "--part=training"]
    outcome = script.run_part(command, 250.0)
    assert outcome["status"] == "done", outcome
    assert outcome["result"]["tokens_per_s"] > 0


@pytest.mark.slow
def test_the_whole_check_runs_on_any_machine(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    command = [str(REPOSITORY / "scripts" / "gpu_check.sh"), "--shapes=tiny", f"--out={out}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    assert {part: each["status"] for part, each in results["parts"].items()} == dict.fromkeys(script.BUDGETS, "done")
    laws = results["parts"]["laws"]["result"]
    assert laws["failed"] == []
    assert laws["passed"] > 20
    assert results["provenance"]["device_type"] == ("cuda" if torch.cuda.is_available() else "cpu")
    assert list(tmp_path.iterdir()) == [out]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHON": sys.executable}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator")
def test_large_shapes_want_an_accelerator_before_anything_runs(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    with pytest.raises(ConfigurationError, match="need one with 40 GiB"):
        script.check(out)
    with pytest.raises(ConfigurationError, match="does not exist"):
        script.check(tmp_path / "missing" / "found.json", "tiny")
    assert list(tmp_path.iterdir()) == []
