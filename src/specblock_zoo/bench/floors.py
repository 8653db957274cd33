"""What a forward cannot be faster than: its weights read once, or its products at the machine's best rate."""

import time
from dataclasses import dataclass

import torch
from torch import nn

from specblock_zoo.bench.timing import summarize, synchronize

READ_BYTES = 256 << 20
"""Larger than the caches of common processors, so that a read of it comes from memory."""
SQUARE = 1024


@dataclass(frozen=True)
class Machine:
    """Rates measured on the spot: bytes read per second, and floating-point operations per second of one dtype."""

    bandwidth: float
    peak: float


def measure_machine(dtype: torch.dtype, device: torch.device, tries: int = 5, read_bytes: int = READ_BYTES) -> Machine:
    """Medians of a few reads of a large buffer and of a few square matrix products, torch's threads as they are set."""
    buffer = torch.ones(read_bytes // 4, device=device)
    left, right = (torch.ones(SQUARE, SQUARE, dtype=dtype, device=device) for _ in range(2))
    reads, products = [], []
    for _ in range(tries + 1):
        marks = [_now()]
        buffer.sum()
        marks.append(_now())
        left @ right
        marks.append(_now())
        reads.append(marks[1] - marks[0])
        products.append(marks[2] - marks[1])
    read, product = (summarize(each[1:]).median for each in (reads, products))
    return Machine(read_bytes / read, 2 * SQUARE**3 / product)


def _now() -> float:
    synchronize()
    return time.perf_counter()


def linear_weights(model: nn.Module) -> int:
    """Entries of the weights of all linear layers, prepacked ones included."""
    sizes = ((getattr(each, "in_features", 0), getattr(each, "out_features", 0)) for each in model.modules())
    return sum(int(inputs) * int(outputs) for inputs, outputs in sizes)


def floor_ms(weights: int, tokens: int, dtype: torch.dtype, machine: Machine) -> float:
    """Milliseconds of a forward of `tokens` tokens over that many weight entries; attention and norms not counted."""
    read = weights * dtype.itemsize / machine.bandwidth
    return 1000.0 * max(read, 2 * weights * tokens / machine.peak)
