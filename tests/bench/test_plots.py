"""Every plot is drawn where there is data for it, and only there."""

from pathlib import Path

import pytest

from specblock_zoo.bench.cost import CostPoint
from specblock_zoo.bench.plots import PER_TEMPERATURE, _spread_out, draw_all
from specblock_zoo.bench.report import DRAFTED
from specblock_zoo.bench.summary import summarize_records
from tests.support.measured import prompt, record, run

pytest.importorskip("matplotlib")
RECORDS = [*prompt(), *prompt("code", 0, 1.7)]


def test_a_full_run_yields_every_plot(tmp_path: Path) -> None:
    costs = tuple(CostPoint(rows=rows, ms=20.0 + rows, low=19.0 + rows, high=22.0 + rows) for rows in (1, 4, 16))
    described = run().model_copy(
        update={
            "reference": DRAFTED,
            "verify_cost": costs,
            "methods": {**run().methods, "no_merge": "drafter"},
            "drafters": {DRAFTED: "a", "no_merge": "a"},
        }
    )
    records = [*RECORDS, record("no_merge"), record("no_merge", "code")]
    drawn = draw_all(summarize_records(described, records), tmp_path)
    assert [path.stem for path in drawn] == [*(f"{name}_T0" for name in PER_TEMPERATURE), "verify_cost"]
    for path in drawn:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_run_of_plain_methods_yields_only_its_times(tmp_path: Path) -> None:
    plain = [each for each in RECORDS if each.kind != "drafter"]
    assert [path.stem for path in draw_all(summarize_records(run(), plain), tmp_path)] == ["round_time_T0"]


def test_labels_keep_their_distance_and_their_order() -> None:
    assert _spread_out([0.5, 0.5, 0.1]) == pytest.approx([0.5, 0.55, 0.1])
