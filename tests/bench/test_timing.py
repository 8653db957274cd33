"""Fair timing: interleaving, medians, intervals, loops and the masked baseline."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.bench.timing import (
    LOOP_MAX_PERIOD,
    explicit_mask,
    interleave,
    interval_of_mean,
    is_looping,
    loop_share,
    paired_ratios,
    summarize,
    thread_limit,
    time_call,
    turn_order,
)
from specblock_zoo.targets.llama import LLAMA
from tests.support.decoding import target_of


def test_cases_take_turns_item_by_item_after_one_untimed_warm_up() -> None:
    calls: list[str] = []

    def case(name: str):
        return lambda item: calls.append(f"{name}{item}") or f"{name}{item}"

    timings = interleave({"a": case("a"), "b": case("b")}, [1, 2], warm_up=0)
    taken = [f"{name}{item}" for turn, item in enumerate([1, 2]) for name in turn_order(["a", "b"], turn)]
    assert calls == ["a0", "b0", *taken]
    assert {name: [timed.outcome for timed in runs] for name, runs in timings.items()} == {
        "a": ["a1", "a2"],
        "b": ["b1", "b2"],
    }


@pytest.mark.parametrize("count", range(1, 9))
def test_every_name_has_every_place_and_comes_after_every_other_equally_often(count: int) -> None:
    names = list("abcdefgh"[:count])
    turns = [turn_order(names, turn) for turn in range(4 * count)]
    for cycle in range(4):
        of_cycle = turns[cycle * count : (cycle + 1) * count]
        assert all(sorted(places) == names for places in (*of_cycle, *zip(*of_cycle, strict=True)))
    for start in range(0, 4 * count, count if count % 2 == 0 else 2 * count):
        square = turns[start : start + (count if count % 2 == 0 else 2 * count)]
        followers = Counter(pair for turn in square for pair in itertools.pairwise(turn))
        expected = 1 if count % 2 == 0 else 2
        assert set(followers.values()) <= {expected}
        assert len(followers) == count * (count - 1), "every one comes after every other one"


def test_the_order_depends_on_the_series_and_the_turn_alone() -> None:
    names = list("abcdefgh")
    orders = {(series, turn): turn_order(names, turn, series) for series in ("chat 0", "code 0") for turn in range(32)}
    assert orders["code 0", 17] == turn_order(names, 17, "code 0")
    assert orders["chat 0", 3] != orders["code 0", 3]
    assert len({tuple(order) for order in orders.values()}) == 64, "no two prompts have one order"


def test_time_call_measures_wall_time() -> None:
    import time

    timed = time_call(time.sleep, 0.02)
    assert 0.02 <= timed.seconds < 2.0


def test_thread_limit_is_restored_even_after_an_error() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []

    def fail() -> None:
        with thread_limit(before + 1):
            seen.append(torch.get_num_threads())
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


def test_summary_is_median_and_quartiles() -> None:
    summary = summarize([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (summary.low, summary.median, summary.high, summary.count) == (2.0, 3.0, 4.0, 5)
    assert summary.spread == pytest.approx(2 / 3)
    assert summarize([7.0]).spread == 0.0


def test_ratios_are_paired_and_need_equal_lengths() -> None:
    assert paired_ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="zip"):
        paired_ratios([1.0], [1.0, 2.0])


def test_the_interval_holds_the_median_and_repeats_with_its_seed() -> None:
    values = [1.0, 1.2, 1.3, 1.4, 1.5, 1.9, 1.1, 1.35]
    middle, low, high = interval_of_mean([values], seed=3)
    assert middle == summarize(values).median
    assert min(values) <= low <= middle <= high <= max(values)
    assert low < high
    assert interval_of_mean([values], seed=3) == (middle, low, high)
    assert interval_of_mean([[2.0]]) == interval_of_mean([[2.0, 2.0]]) == (2.0, 2.0, 2.0)


def test_the_interval_of_groups_is_narrower_than_that_of_all_values_together() -> None:
    slow, fast = [1.0, 1.1, 1.2, 1.3], [3.0, 3.1, 3.2, 3.3]
    middle, low, high = interval_of_mean([slow, fast])
    _, mixed_low, mixed_high = interval_of_mean([slow + fast])
    assert middle == pytest.approx((1.15 + 3.15) / 2)
    assert high - low < (mixed_high - mixed_low) / 2
    # A group of one value moves the mean and not the width.
    alone, alone_low, alone_high = interval_of_mean([slow, [9.0]])
    assert alone == pytest.approx((1.15 + 9.0) / 2)
    assert alone_low < alone < alone_high


@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=LOOP_MAX_PERIOD, unique=True),
    st.lists(st.integers(2 * 10**6, 3 * 10**6), max_size=20, unique=True),
)
def test_a_repeated_phrase_is_a_loop_from_three_repeats_and_24_tokens_on(phrase: list[int], lead: list[int]) -> None:
    period = len(phrase)
    needed = max(24, 3 * period)
    repeated = phrase * (needed // period + 1)
    assert is_looping([*lead, *repeated[:needed], -1])
    assert not is_looping([*lead, *repeated[: needed - 1], -1])


def test_loop_share_counts_texts() -> None:
    assert loop_share([[1] * 24, list(range(50))]) == 0.5
    assert loop_share([]) == 0.0


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_explicit_mask_lets_a_text_outgrow_its_window(family: str) -> None:
    """Layers with a window keep fewer keys than a mask of the whole text has columns."""
    model = target_of(family, sliding_window=8)
    ids = torch.arange(1, 6)[None]
    plain = model.generate(ids, max_new_tokens=16, do_sample=False)
    with explicit_mask(model):
        masked = model.generate(ids, max_new_tokens=16, do_sample=False)
    assert torch.equal(plain, masked)


@pytest.mark.parametrize("visible", [(1, 1, 1, 1), (0, 1, 1, 1)])
def test_explicit_mask_changes_the_kernel_and_not_the_logits(visible: tuple[int, ...]) -> None:
    model, ids, mask = LLAMA.tiny_model(), torch.tensor([[5, 6, 7, 8]]), torch.tensor([visible])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    shapes: list[tuple[int, ...] | None] = []

    def note(module: torch.nn.Module, args: object, kwargs: dict[str, torch.Tensor | None]) -> None:
        given = kwargs["attention_mask"]
        shapes.append(None if given is None else tuple(given.shape))

    def last_logits() -> torch.Tensor:
        read = model(input_ids=ids[:, :3], attention_mask=mask[:, :3], position_ids=positions[:, :3], use_cache=True)
        return model(
            input_ids=ids[:, 3:], attention_mask=mask, position_ids=positions[:, 3:], cache=read["cache"]
        ).logits

    model.get_decoder().layers[0].register_forward_pre_hook(note, with_kwargs=True)
    plain = last_logits()
    with explicit_mask(model):
        masked = last_logits()
    torch.testing.assert_close(masked, plain)
    assert shapes[3] == (1, 1, 1, 4)
    if all(visible):
        assert shapes[1] is None
    assert not model._forward_pre_hooks
