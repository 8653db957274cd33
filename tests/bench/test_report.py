"""Sums first, one division last."""

import pytest

from specblock_zoo.bench.report import (
    DRAFTED,
    PLAIN,
    PLAIN_MASKED,
    PROMPT_LOOKUP,
    alpha,
    better_baseline,
    speedup,
    summarize_run,
    task_result,
    tau,
)
from tests.support.measured import record


def test_tau_is_the_ratio_of_sums_and_not_the_mean_of_ratios() -> None:
    assert tau([record(), record(looping=True)]) == pytest.approx(38 / 15)
    assert tau([]) is None


def test_alpha_adds_counts_before_dividing() -> None:
    second = record().model_copy(update={"offered": {"0.0": 30, "1.0": 2}, "hit": {"0.0": 30}})
    assert alpha([record(), second]) == {"0.0": 34 / 40, "0.1": 0.25, "1.0": 0.0}


def test_the_speedup_has_to_beat_the_better_plain_baseline() -> None:
    records = [record(speedup=ratio) for ratio in (1.2, 1.4, 1.9)]
    assert better_baseline(records) == PLAIN_MASKED
    against_better, against_worse = speedup(records, DRAFTED, PLAIN_MASKED), speedup(records, DRAFTED, PLAIN)
    assert against_better.median == pytest.approx(1.4)
    assert against_worse.median == pytest.approx(1.4 * 2.0 / 1.6)
    assert against_better.low <= against_better.median <= against_better.high


def test_the_speedup_compares_throughputs_and_not_times() -> None:
    short = record().model_copy(update={"tokens": {PLAIN: 20, PLAIN_MASKED: 20, DRAFTED: 10}})
    assert speedup([short], DRAFTED, PLAIN_MASKED).median == pytest.approx(0.75)


def test_loops_are_counted_and_left_out_of_the_second_tau() -> None:
    result = task_result("chat", [record(), record(looping=True)], PLAIN)
    assert result.loop_share == 0.5
    assert result.tau_without_loops == pytest.approx(1.9)
    assert task_result("chat", [record(looping=True)], PLAIN).tau_without_loops is None


def test_times_are_per_round_and_the_draft_share_is_of_the_round() -> None:
    result = task_result("chat", [record(), record()], PLAIN)
    assert (result.draft_ms, result.verify_ms, result.other_ms) == (10.0, 28.0, 2.0)
    assert result.draft_share == pytest.approx(0.25)


def test_prompt_lookup_is_reported_where_it_ran() -> None:
    assert task_result("chat", [record()], PLAIN).prompt_lookup_speedup is None
    beside = record().model_copy(
        update={"seconds": {**record().seconds, PROMPT_LOOKUP: 1.0}, "tokens": {**record().tokens, PROMPT_LOOKUP: 20}}
    )
    ratio = task_result("chat", [beside], PLAIN).prompt_lookup_speedup
    assert ratio is not None
    assert ratio.median == pytest.approx(2.0)


def test_all_tasks_share_one_baseline() -> None:
    slow_mask = record("code").model_copy(update={"seconds": {PLAIN: 1.5, PLAIN_MASKED: 1.6, DRAFTED: 1.0}})
    overall, tasks = summarize_run([[record(), record(number=1)], [slow_mask]])
    assert {result.baseline for result in (overall, *tasks)} == {PLAIN_MASKED}
    assert [result.task for result in tasks] == ["chat", "code"]
    assert overall.prompts == 3


def test_an_answer_without_a_round_has_no_tau() -> None:
    silent = record().model_copy(
        update={"rounds": 0, "committed": 0, "draft_ms": 0.0, "verify_ms": 0.0, "other_ms": 0.0}
    )
    result = task_result("chat", [silent], PLAIN)
    assert (result.tau, result.draft_share) == (None, 0.0)
