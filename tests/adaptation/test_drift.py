"""A lasting fall is noticed soon, chance seldom, a rise never."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.adaptation.drift import DriftSettings, Fall, Moments
from specblock_zoo.errors import ConfigurationError

MEMORY = 200
SETTINGS = DriftSettings()


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=30))
def test_moments_are_those_of_the_samples(pairs: list[tuple[float, float]]) -> None:
    moments = Moments()
    for x, y in pairs:
        moments = moments.add(x, y, memory=1000)
    count = len(pairs)
    mean_x, mean_y = (sum(pair[side] for pair in pairs) / count for side in (0, 1))
    cov = sum((x - mean_x) * (y - mean_y) for x, y in pairs) / count
    assert (moments.mean_x, moments.mean_y) == pytest.approx((mean_x, mean_y), abs=1e-9)
    assert moments.cov == pytest.approx(cov, abs=1e-8)
    assert moments.var_x == pytest.approx(sum((x - mean_x) ** 2 for x, _ in pairs) / count, abs=1e-8)


def until_alarm(numbers: list[float], settings: DriftSettings = SETTINGS, fall: Fall | None = None) -> int | None:
    """How many numbers it took."""
    fall = fall or Fall()
    for count, number in enumerate(numbers, 1):
        fall = fall.add(number, settings, MEMORY)
        if fall.is_alarm(settings):
            return count
    return None


def noise(seed: int, count: int, mean: float = 0.0) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(mean, 1.0) for _ in range(count)]


def test_false_alarms_are_as_rare_as_stated() -> None:
    found = [until_alarm(noise(seed, 500)) is not None for seed in range(100)]
    # Once in about 1,000 queries: 100 times 500 have about 40.
    assert 20 <= sum(found) <= 60


def test_a_fall_of_two_deviations_is_noticed_as_soon_as_stated() -> None:
    delays = []
    for seed in range(50):
        fall = Fall()
        for number in noise(seed, 40):
            fall = fall.add(number, SETTINGS, MEMORY)
        delays.append(until_alarm(noise(seed + 1000, 40, mean=-2.0), fall=fall) or 40)
    assert sorted(delays)[25] <= 5


@given(st.lists(st.floats(0, 1), min_size=12, max_size=60), st.floats(2, 9))
def test_a_rise_is_none(numbers: list[float], higher: float) -> None:
    fall = Fall()
    for number in numbers:
        fall = fall.add(number, DriftSettings(alarm=1e9), MEMORY)
    for _ in range(20):
        after = fall.add(higher, SETTINGS, MEMORY)
        assert after.sum <= fall.sum
        fall = after


@given(st.lists(st.floats(-5, 5), max_size=60))
def test_the_sum_is_never_negative_and_the_run_counts_since_it_was_zero(numbers: list[float]) -> None:
    fall, zeros = Fall(), 0
    for count, number in enumerate(numbers, 1):
        fall = fall.add(number, SETTINGS, MEMORY)
        zeros = count if fall.sum == 0 else zeros
        assert fall.sum >= 0
        assert fall.run == count - zeros


def test_nothing_is_judged_before_there_is_a_level() -> None:
    assert until_alarm([1.0] * (SETTINGS.after - 1) + [-9.0]) is None
    assert until_alarm([1.0] * SETTINGS.after + [-9.0] * 2) == SETTINGS.after + 2


def test_one_odd_number_is_no_alarm() -> None:
    assert until_alarm([0.0, 0.2] * 10 + [-100.0] + [0.1] * 5) is None


@pytest.mark.parametrize("changes", [{"slack": -1.0}, {"alarm": 0.0}, {"after": 1}])
def test_settings_out_of_range(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(changes))):
        DriftSettings(**changes)


@pytest.mark.parametrize("size", [0.01, 0.02])
def test_a_text_without_deviation_does_not_alarm_at_trifles(size: float) -> None:
    assert until_alarm([1.0] * 20 + [1.0 - size] * 20) is None
