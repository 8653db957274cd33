"""Where a number was measured: device, CPU capability, versions, commit and peak memory."""

import importlib.metadata
import platform
import resource
import subprocess
import sys
from pathlib import Path

import torch

from specblock_zoo.targets.local import fast_dtype

REPORTED_PACKAGES = ("torch", "transformers", "specblock-zoo")


def cpu_capability() -> str:
    """The instruction set torch dispatches to and whether bfloat16 is native, e.g. `AVX512, no native bfloat16`."""
    native = "native" if fast_dtype("cpu") is torch.bfloat16 else "no native"
    return f"{torch.backends.cpu.get_cpu_capability()}, {native} bfloat16"


def device_name(device: torch.device) -> str:
    """The processor's model name, or the accelerator's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return str(torch.cpu.get_capabilities().get("cpu_name") or platform.processor() or platform.machine())


def versions() -> dict[str, str]:
    """Versions of Python and of the packages a measurement depends on; a package that is not installed is left out."""
    found = {"python": platform.python_version()}
    for package in REPORTED_PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def source_commit() -> str:
    """Commit of the checkout this package runs from, with `-dirty` for uncommitted changes; `unknown` outside one."""
    here = Path(__file__).parent
    git = ["git", "-C", str(here)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode != 0:
        return "unknown"
    changes = subprocess.run([*git, "status", "--porcelain", "--", "."], capture_output=True, text=True, check=False)
    return head.stdout.strip() + ("-dirty" if changes.stdout.strip() else "")


def peak_memory_mib() -> float:
    """Largest resident size of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
