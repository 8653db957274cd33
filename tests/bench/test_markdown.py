"""The report says what was measured, and flags what must not be."""

from pathlib import Path

from specblock_zoo.bench.cost import CostPoint
from specblock_zoo.bench.markdown import report
from specblock_zoo.bench.report import DRAFTED, PLAIN, PLAIN_MASKED
from specblock_zoo.bench.summary import summarize_records
from tests.support.measured import prompt, record, run

RECORDS = [*prompt(), *prompt("code", 0, 1.7)]


def test_the_report_holds_the_figures_the_command_and_the_pictures() -> None:
    described = run().model_copy(update={"verify_cost": (CostPoint(rows=1, ms=20.0, low=19.0, high=21.0),)})
    text = report(summarize_records(described, RECORDS), [Path("x/speedup_T0.png"), Path("x/verify_cost.png")])
    assert "| drafted | 1.60 [1.60, 1.60] | 1.90 | 10.0 | 28.0 | 2.0 | 25% | 8.0 | 1.0 |" in text
    assert "specblock bench --config configs/bench/smollm2-135m.yaml" in text
    assert "![speedup_T0](speedup_T0.png)" in text
    assert "![verify_cost](verify_cost.png)" in text
    assert "| ms | 20.0 |" in text
    assert "Unfinished" not in text
    assert "**differs**" not in text


def test_differing_texts_and_unfinished_runs_are_flagged() -> None:
    changed = record(DRAFTED, "code", answers=((1,),))
    text = report(summarize_records(run(), [*prompt(), record(PLAIN, "code"), changed]), [])
    assert "| greedy | drafted | 1/1 |" in text or "**differs**" in text
    assert "**Unfinished: 1 of 6 answers are still to be measured.**" in text
    full = [*prompt(), record(PLAIN, "code"), record(PLAIN_MASKED, "code"), changed]
    assert "| greedy | drafted | 1/2 | **differs** |" in report(summarize_records(run(), full), [])


def test_sampled_texts_of_transformers_own_speculation_are_not_expected_to_be_equal() -> None:
    lookup = record("lookup", kind="prompt_lookup", temperature=1.0, answers=((1,),))
    plain = record(PLAIN, temperature=1.0)
    described = run().model_copy(update={"methods": {PLAIN: "plain", "lookup": "prompt_lookup"}})
    assert "not expected to be equal" in report(summarize_records(described, [plain, lookup]), [])


def test_variants_are_a_table_beside_the_reference() -> None:
    dearer = [
        each.model_copy(update={"method": "eagle", "draft_ms": 200.0}) for each in RECORDS if each.kind == "drafter"
    ]
    described = run().model_copy(update={"reference": DRAFTED, "methods": {**run().methods, "eagle": "drafter"}})
    text = report(summarize_records(described, [*RECORDS, *dearer]), [])
    assert "| eagle | 1.00 [1.00, 1.00] | +0.00 [+0.00, +0.00] | 200% |" in text
