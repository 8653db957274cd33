"""A floor is what reading the weights, or multiplying by them, takes at the machine's rates."""

import torch
from torch import nn

from specblock_zoo.bench.floors import Machine, floor_ms, linear_weights, measure_machine
from specblock_zoo.inference.prepack import can_prepack, optimize_for_cpu


def test_reading_binds_narrow_forwards_and_multiplying_wide_ones() -> None:
    machine = Machine(bandwidth=4e9, peak=1e10)
    assert floor_ms(1_000_000, 1, torch.float32, machine) == 1.0
    assert floor_ms(1_000_000, 1, torch.bfloat16, machine) == 0.5
    assert floor_ms(1_000_000, 50, torch.float32, machine) == 10.0


def test_linear_weights_are_counted_packed_or_not() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 2, bias=False)).eval()
    assert linear_weights(model) == 25
    if can_prepack():
        assert linear_weights(optimize_for_cpu(model)) == 25


def test_the_machine_has_rates() -> None:
    machine = measure_machine(torch.float32, torch.device("cpu"), tries=1, read_bytes=1 << 20)
    assert machine.bandwidth > 0.0
    assert machine.peak > 0.0
