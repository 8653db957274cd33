"""Measures what one accelerator makes of the method, with random weights, and writes one results file.

Usage: scripts/gpu_check.sh [--out gpu_check.json] [--seconds 480] [--shapes llama-3.1-8b]

Each part runs in a process of its own and is written down as it ends, so that one that fails, hangs or runs out of
memory costs its own figures and no others. `--shapes tiny` runs everything on any machine within a minute.
"""

import json
import shlex
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveInt
from transformers import AutoConfig

from specblock_zoo.bench.gpu import PARTS, Bench, tiny
from specblock_zoo.bench.host import cpu_capability, device_name, source_commit, versions
from specblock_zoo.bench.records import write_atomically
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.targets.registry import FAMILIES

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "configs" / "targets" / "meta-llama" / "Llama-3.1-8B-Instruct"
LAWS, LAW_TESTS = "laws", "tests/laws/test_devices.py"
BUDGETS = {"forwards": 120, "decoding": 200, LAWS: 150, "captured": 150, "training": 90}
"""Seconds that each part may take; what one leaves, the next may use."""
REPORTED_LINES = 15
Shapes = Literal["llama-3.1-8b", "tiny"]


def check(out: Path = Path("gpu_check.json"), shapes: Shapes = "llama-3.1-8b", seconds: PositiveInt = 480) -> None:
    """Runs all parts and writes the results file after each.

    Args:
        out: the results file.
        shapes: of the target and its drafters.
        seconds: for everything together.

    Raises:
        ConfigurationError: the file's folder does not exist, or there is no accelerator for the large shapes.
    """
    if not out.absolute().parent.is_dir():
        raise ConfigurationError(f"{out} lies in a folder that does not exist.", "Make the folder first.")
    bench_of(shapes)
    commands = {part: [sys.executable, __file__, f"--shapes={shapes}", f"--part={part}"] for part in BUDGETS}
    results: dict[str, Any] = {"provenance": provenance(shapes), "parts": {}}

    def note(part: str, outcome: dict[str, Any]) -> None:
        results["parts"][part] = outcome
        write_atomically(out, json.dumps(results, indent=2, allow_nan=False) + "\n")
        print(f"{part}: {outcome['status']} in {outcome['seconds']} s")

    supervise(commands, seconds, note)


def supervise(
    commands: Mapping[str, list[str]],
    seconds: float,
    note: Callable[[str, dict[str, Any]], None],
    budgets: Mapping[str, float] = BUDGETS,
) -> None:
    """Runs each command within its budget and what earlier ones left, and hands its outcome to `note` at once."""
    ends, spare = time.monotonic() + seconds, 0.0
    for part, command in commands.items():
        before = time.monotonic()
        allowed = min(budgets[part] + spare, ends - before)
        outcome = run_part(command, allowed) if allowed > 0 else {"status": "no time left"}
        used = time.monotonic() - before
        spare = max(0.0, allowed - used)
        note(part, {**outcome, "seconds": round(used, 1)})


def run_part(command: list[str], seconds: float) -> dict[str, Any]:
    """A command's last line as JSON, or why there is none."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"status": "out of time", "allowed_seconds": round(seconds, 1)}
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        said = (done.stdout + done.stderr).splitlines()
        return {"status": "failed", "exit_code": done.returncode, "output": said[-REPORTED_LINES:]}
    return {"status": "done", "result": json.loads(lines[-1])}


def bench_of(shapes: Shapes) -> Bench:
    """What is measured. Raises `ConfigurationError` for large shapes without an accelerator."""
    accelerated = torch.cuda.is_available()
    device = torch.device("cuda" if accelerated else "cpu")
    if shapes == "tiny":
        small = {"vocab_size": 96, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
        config = FAMILIES["llama"].tiny_config(**small, tie_word_embeddings=False, max_position_embeddings=512)
        return tiny(Bench(config, device, torch.float32, compiled=False))
    if not accelerated:
        raise ConfigurationError(
            f"No accelerator is available; the shapes of {shapes} need one with 40 GiB.", "Take --shapes tiny."
        )
    return Bench(AutoConfig.from_pretrained(TARGET), device, torch.bfloat16)


def provenance(shapes: Shapes) -> dict[str, Any]:
    """Where, when and how."""
    bench = bench_of(shapes)
    return {
        "commit": source_commit(),
        "command": shlex.join(["scripts/gpu_check.sh", *sys.argv[1:]]),
        "shapes": shapes,
        "device": device_name(bench.device),
        "device_type": bench.device.type,
        "cpu_capability": cpu_capability(),
        "dtype": str(bench.dtype).removeprefix("torch."),
        "weights": "random",
        "versions": versions(),
    }


def laws(device: str) -> dict[str, Any]:
    """The float32 law tests on one device: how many passed, were skipped and failed, the failed ones by name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "laws.xml"
        marks = "gpu" if device == "cuda" else "not gpu"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, LAW_TESTS]
        subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT, capture_output=True, check=False)
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [case.get("name") for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    passed = len(cases) - len(failed) - skipped
    return {"device": device, "passed": passed, "skipped": skipped, "failed": failed}


def main(
    out: Path = Path("gpu_check.json"),
    shapes: Shapes = "llama-3.1-8b",
    seconds: PositiveInt = 480,
    part: Literal["forwards", "decoding", "training", "captured", "laws"] | None = None,
) -> None:
    """Measures one accelerator.

    Args:
        out: the results file.
        shapes: of the target and its drafters.
        seconds: for everything together.
        part: run this part alone, here, and print its figures as one JSON line.
    """
    if part is None:
        check(out, shapes, seconds)
        return
    bench = bench_of(shapes)
    found = laws(bench.device.type) if part == LAWS else PARTS[part](bench)
    print(json.dumps(found, allow_nan=False))


if __name__ == "__main__":
    try:
        auto_cli(main, as_positional=False)
    except ConfigurationError as error:
        sys.exit(f"error: {error}")
