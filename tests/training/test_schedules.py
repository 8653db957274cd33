"""Warm-up, then a cosine to zero."""

import math

import pytest
import torch

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.training.schedules import resize, warmup_cosine


def rates(total: float, fraction: float) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = warmup_cosine(optimizer, total, fraction)
    found = []
    for _ in range(int(total)):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return [*found, optimizer.param_groups[0]["lr"]]


def test_rate_rises_linearly_then_falls_as_a_cosine_to_zero() -> None:
    found = rates(20, 0.2)
    rise = [2.0 * step / 4 for step in range(4)]
    fall = [2.0 * 0.5 * (1 + math.cos(math.pi * step / 16)) for step in range(17)]
    assert found == pytest.approx(rise + fall)


def test_without_warmup_the_first_rate_is_the_peak() -> None:
    assert rates(5, 0.0)[0] == 2.0


def test_any_warmup_lasts_at_least_one_update() -> None:
    assert rates(5, 0.001)[:2] == [0.0, 2.0]


@pytest.mark.parametrize(("total", "fraction"), [(math.inf, 0.1), (0, 0.1), (10, -0.1), (10, 1.1)])
def test_a_run_without_end_or_a_fraction_out_of_range_is_refused(total: float, fraction: float) -> None:
    with pytest.raises(ConfigurationError, match=r"inf|0 updates|warmup_fraction"):
        warmup_cosine(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0), total, fraction)


def test_a_resized_schedule_goes_on_as_one_of_the_new_length() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (2.0, 1.0)]
    optimizer = torch.optim.SGD(groups)
    schedule = warmup_cosine(optimizer, 1000, 0.2)
    for update in range(1, 21):
        if update == 6:
            resize(schedule, 20, 0.2)
        optimizer.step()
        schedule.step()
        if update >= 6:
            assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(
                [rates(20, 0.2)[update], rates(20, 0.2)[update] / 2]
            )
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0)
