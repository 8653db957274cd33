"""Sums first, one division last."""

import pytest

from specblock_zoo.bench.records import AnswerRecord
from specblock_zoo.bench.report import (
    DRAFTED,
    PLAIN,
    PLAIN_MASKED,
    alpha,
    alpha_by_depth,
    better_baseline,
    confusion,
    equal_count,
    speedup,
    summarize_run,
    task_result,
    tau,
)
from tests.support.measured import prompt, record


def test_tau_is_the_ratio_of_sums_and_not_the_mean_of_ratios() -> None:
    assert tau([record(), record(rounds=5)]) == pytest.approx(38 / 15)
    assert tau([]) is None


def test_alpha_adds_counts_before_dividing() -> None:
    second = record(offered={"0.0": 30, "1.0": 2}, hit={"0.0": 30})
    assert alpha([record(), second]) == {"0.0": 34 / 40, "0.1": 0.25, "1.0": 0.0}
    deep = record(depth_offered={"1": 10, "10": 2}, depth_hit={"1": 6})
    assert list(alpha_by_depth([record(), deep]).items()) == [("1", 0.5), ("2", 0.25), ("10", 0.0)]


def test_confusion_adds_up() -> None:
    assert confusion([record(), record(rank_confusion={"3.0": 1})]) == {"0.0": 3, "0.3": 1, "3.0": 3}


def test_the_speedup_has_to_beat_the_better_plain_baseline() -> None:
    records = [each for number, ratio in enumerate((1.2, 1.4, 1.9)) for each in prompt("chat", number, ratio)]
    assert better_baseline(records) == PLAIN_MASKED
    against_better, against_worse = speedup(records, DRAFTED, PLAIN_MASKED), speedup(records, DRAFTED, PLAIN)
    assert against_better.median == pytest.approx(1.4)
    assert against_worse.median == pytest.approx(1.4 * 2.0 / 1.6)
    assert against_better.low <= against_better.median <= against_better.high


def test_over_tasks_the_speedup_is_the_mean_of_the_tasks_medians() -> None:
    chat = [each for number, ratio in enumerate((1.0, 1.2, 3.0)) for each in prompt("chat", number, ratio)]
    records = [*chat, *prompt("code", 0, 2.0)]
    ratio = speedup(records, DRAFTED, PLAIN_MASKED)
    assert ratio.median == pytest.approx((1.2 + 2.0) / 2)
    assert (1.0 + 2.0) / 2 <= ratio.low < ratio.median < ratio.high <= (3.0 + 2.0) / 2


def test_the_speedup_compares_throughputs_and_not_times() -> None:
    short = [record(PLAIN_MASKED), record(DRAFTED, answers=((1,) * 10,), seconds=1.6)]
    assert speedup(short, DRAFTED, PLAIN_MASKED).median == pytest.approx(0.5)


def test_only_places_that_both_have_answered_are_compared() -> None:
    records = [*prompt(), record(DRAFTED, number=1, seconds=0.01), record(DRAFTED, seed=9, seconds=0.01)]
    assert speedup(records, DRAFTED, PLAIN_MASKED).median == pytest.approx(1.5)
    assert task_result("chat", records, PLAIN).prompts == 1


def test_a_changed_text_is_not_called_equal() -> None:
    changed = record(DRAFTED, number=1, answers=((1, 2, 3),))
    records = [*prompt(), record(PLAIN, number=1), changed]
    assert equal_count(records, DRAFTED, PLAIN) == 1
    assert task_result("chat", records, PLAIN).equal == 1


def test_loops_are_counted_and_left_out_of_the_second_tau() -> None:
    result = task_result("chat", [*prompt(), *prompt(number=1, looping=True)], PLAIN)
    assert result.loop_share == 0.5
    assert result.tau_without_loops == pytest.approx(1.9)
    assert task_result("chat", prompt(looping=True), PLAIN).tau_without_loops is None


def test_times_are_per_round_and_the_draft_share_is_of_the_round() -> None:
    result = task_result("chat", [*prompt(), *prompt(number=1)], PLAIN)
    assert (result.draft_ms, result.verify_ms, result.other_ms, result.commit_ms) == (10.0, 28.0, 2.0, 0.5)
    assert result.draft_share == pytest.approx(0.25)
    assert (result.drafter_calls, result.nodes) == (1.0, 8.0)


def test_prompt_lookup_is_reported_where_it_ran() -> None:
    assert task_result("chat", prompt(), PLAIN).prompt_lookup_speedup is None
    beside = record("lookup", kind="prompt_lookup", seconds=1.0)
    ratio = task_result("chat", [*prompt(), beside], PLAIN).prompt_lookup_speedup
    assert ratio is not None
    assert ratio.median == pytest.approx(2.0)


def test_all_tasks_share_one_baseline() -> None:
    slow_mask = [record(PLAIN, "code", seconds=1.5), record(PLAIN_MASKED, "code"), record(DRAFTED, "code")]
    overall, tasks = summarize_run([*prompt(), *prompt(number=1), *slow_mask])
    assert {result.baseline for result in (overall, *tasks)} == {PLAIN_MASKED}
    assert [result.task for result in tasks] == ["chat", "code"]
    assert overall.prompts == 3


def test_an_answer_without_a_round_has_no_tau() -> None:
    nothing = {"rounds": 0, "committed": 0, "draft_ms": 0.0, "verify_ms": 0.0, "other_ms": 0.0, "commit_ms": 0.0}
    result = task_result("chat", [record(PLAIN), record(DRAFTED, **nothing)], PLAIN)
    assert (result.tau, result.draft_share) == (None, 0.0)


def test_several_seeds_of_a_prompt_are_one_prompt_to_the_interval() -> None:
    def asked(number: int, seed: int, ratio: float) -> list[AnswerRecord]:
        return [each.model_copy(update={"seed": seed}) for each in prompt(number=number, speedup=ratio)]

    once = [each for number, ratio in enumerate((1.0, 2.0, 1.5)) for each in asked(number, 0, ratio)]
    again = [each for number, ratio in enumerate((1.0, 2.0, 1.5)) for each in asked(number, 1, ratio)]
    assert speedup([*once, *again], DRAFTED, PLAIN_MASKED) == speedup(once, DRAFTED, PLAIN_MASKED)
