"""The summary has the documented shape, and an unfinished run has one too."""

import json

import pytest

from specblock_zoo.bench.report import DRAFTED, PLAIN, PLAIN_MASKED, summarize_run
from specblock_zoo.bench.summary import details_json, divergences, expected, label, summarize_records, summary_json
from tests.support.measured import prompt, record, run

RECORDS = [*prompt(), *prompt("code", 0, 1.7)]
FIGURES = {"speedup", "speedup_ci", "tau", "draft_ms", "verify_ms", "draft_share"}


def test_the_summary_has_the_documented_shape() -> None:
    found = json.loads(json.dumps(summary_json(summarize_records(run(), RECORDS)), allow_nan=False))
    assert set(found) == {"methods", "provenance"}
    assert set(found["methods"]) == {PLAIN, PLAIN_MASKED, DRAFTED}
    drafted = found["methods"][DRAFTED]
    assert set(drafted) == {"T0"}
    assert set(drafted["T0"]) == FIGURES | {"tasks"}
    assert {name: set(task) for name, task in drafted["T0"]["tasks"].items()} == {"chat": FIGURES, "code": FIGURES}
    overall, _ = summarize_run(RECORDS)
    assert drafted["T0"]["speedup"] == pytest.approx(1.6) == overall.speedup.median
    assert found["methods"][PLAIN_MASKED]["T0"]["speedup"] == 1.0
    assert found["provenance"]["baselines"] == {"T0": PLAIN_MASKED}
    assert (found["provenance"]["records"], found["provenance"]["records_expected"]) == (6, 6)


def test_an_unfinished_run_is_summed_over_what_the_baseline_has_answered() -> None:
    summary = summarize_records(run(), [*prompt(), record(DRAFTED, "code")])
    assert [task.task for task in summary.outcomes[0.0][DRAFTED].tasks] == ["chat"]
    assert len(summary.records) < expected(summary)


def test_a_method_without_records_yet_has_no_figures() -> None:
    records = [each for each in RECORDS if each.method != DRAFTED]
    assert summary_json(summarize_records(run(), records))["methods"][DRAFTED] == {}


def test_temperatures_are_kept_apart() -> None:
    sampled = [each.model_copy(update={"temperature": 1.0, "rounds": 19}) for each in RECORDS]
    found = summary_json(summarize_records(run(), [*RECORDS, *sampled]))["methods"][DRAFTED]
    assert (found["T0"]["tau"], found["T1"]["tau"]) == (1.9, 1.0)
    assert label(0.7) == "T0.7"


def test_variants_are_compared_with_the_reference_prompt_by_prompt() -> None:
    slower = [
        each.model_copy(update={"method": "no_merge", "seconds": 2 * each.seconds, "rounds": 19})
        for each in RECORDS
        if each.method == DRAFTED
    ]
    described = run().model_copy(update={"reference": DRAFTED, "methods": {**run().methods, "no_merge": "drafter"}})
    (variant,) = summarize_records(described, [*RECORDS, *slower]).variants[0.0]
    assert variant.name == "no_merge"
    assert variant.ratio.median == pytest.approx(0.5)
    assert variant.tau_gain == pytest.approx((1.0 - 1.9, 1.0 - 1.9, 1.0 - 1.9))


def test_divergences_are_counted_against_the_baseline() -> None:
    changed = record(DRAFTED, "code", answers=((1,),))
    records = [*prompt(), record(PLAIN, "code"), record(PLAIN_MASKED, "code"), changed]
    found = {name: (equal, total) for _, name, equal, total in divergences(summarize_records(run(), records))}
    assert found == {PLAIN: (2, 2), DRAFTED: (1, 2)}


def test_details_hold_every_sum() -> None:
    found = json.loads(json.dumps(details_json(summarize_records(run(), RECORDS)), allow_nan=False))
    assert [each["task"] for each in found["outcomes"]["T0"][DRAFTED]] == ["all", "chat", "code"]
    assert found["outcomes"]["T0"][DRAFTED][0]["rank_confusion"] == {"0.0": 6, "0.3": 2, "3.0": 4}
