"""Where a number was measured: device, CPU capability, versions, commit and peak memory."""

import importlib.metadata
import platform
import resource
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from specblock_zoo.inference.costs import cpu_name
from specblock_zoo.inference.prepack import is_packed
from specblock_zoo.targets.local import fast_dtype

CHECKOUT = Path(__file__).parents[3]
REPORTED_PACKAGES = ("torch", "transformers", "specblock-zoo")


def cpu_capability() -> str:
    """The instruction set torch dispatches to and whether bfloat16 is native, e.g. `AVX512, no native bfloat16`."""
    native = "native" if fast_dtype("cpu") is torch.bfloat16 else "no native"
    return f"{torch.backends.cpu.get_cpu_capability()}, {native} bfloat16"


def device_name(device: torch.device) -> str:
    """The processor's model name, or the accelerator's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_name() or platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages a measurement depends on; a package that is not installed is left out."""
    found = {"python": platform.python_version()}
    for package in REPORTED_PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def circumstances(model: PreTrainedModel) -> dict[str, Any]:
    """What every record of a measurement on `model` says of dtype, threads, weights, commit and versions."""
    return {
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "packed": is_packed(model),
        "commit": source_commit(),
        "versions": versions(),
    }


def source_commit() -> str:
    """Commit of the checkout this package runs from, with `-dirty` for uncommitted changes; `unknown` outside one."""
    here = Path(__file__).parent
    git = ["git", "-C", str(here)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode != 0:
        return "unknown"
    changes = subprocess.run([*git, "status", "--porcelain", "--", "."], capture_output=True, text=True, check=False)
    return head.stdout.strip() + ("-dirty" if changes.stdout.strip() else "")


def public_command(arguments: Sequence[str]) -> str:
    """A command line with its program, and with paths outside the checkout, cut to their names: where they lay means
    nothing elsewhere."""

    def shorten(argument: str) -> str:
        flag, equals, value = argument.rpartition("=")
        path = Path(value).resolve()
        if not (value.startswith("/") or ("/" in value and path.exists())):
            return argument
        return flag + equals + (str(path.relative_to(CHECKOUT)) if path.is_relative_to(CHECKOUT) else path.name)

    program, *rest = arguments
    words = ["python", shorten(program)] if program.endswith(".py") else [Path(program).name]
    return shlex.join([*words, *map(shorten, rest)])


def peak_memory_mib() -> float:
    """Largest resident size of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def status_mib(field: str) -> float:
    """A field of this process's memory, in MiB (Linux). Unlike `ru_maxrss` it does not start at the parent's peak."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return float(lines[field].split()[0]) / 1024
