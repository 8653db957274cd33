"""The figures of a drafter's health on numbers that are known."""

import math
import random

import pytest
import torch

from specblock_zoo.bench.health import (
    SlotFigure,
    acceptance_curve,
    calibration_figures,
    fit_line,
    judge_curve,
    log_loss,
    path_figures,
    path_outcomes,
    rank_figures,
    tau_figures,
)
from specblock_zoo.functional.costs import Calibration
from specblock_zoo.structures import DraftTree, Round, Verdict


def chain(probabilities: list[float], committed: int, looked_up: bool = False) -> Round:
    """A round whose chain 1, 2, 3, ... has these conditional probabilities, of which `committed` - 1 were accepted."""
    count = len(probabilities)
    line = torch.arange(count)
    tree = DraftTree(
        tokens=line + 1,
        parents=line - 1,
        log_probs=torch.tensor(probabilities).log().cumsum(0),
        blocks=torch.zeros_like(line),
        slots=line,
        buckets=torch.zeros_like(line),
        depths=line + 1,
        looked_up=torch.full((count,), looked_up),
    )
    accepted = tuple(range(committed - 1))
    return Round(tree, Verdict(accepted, (*(node + 1 for node in accepted), 99), False), 1.0, 1.0, 1.0, 1)


def test_a_curve_has_a_figure_for_every_slot_that_was_reached() -> None:
    curve = acceptance_curve({(0, 1): 40, (0, 0): 100, (1, 0): 0}, {(0, 0): 60, (0, 1): 10})
    assert curve == (SlotFigure(0, 0, 0.6, 100), SlotFigure(0, 1, 0.25, 40))


def test_a_rise_within_a_block_counts_beyond_chance_only() -> None:
    falling = [SlotFigure(0, 0, 0.6, 1000), SlotFigure(0, 1, 0.4, 600), SlotFigure(0, 2, 0.41, 240)]
    assert judge_curve(falling)["monotone"]
    rising = [*falling[:2], SlotFigure(0, 2, 0.6, 240)]
    assert judge_curve(rising)["rises"] == ["b0.s2"]
    assert judge_curve([*falling[:2], SlotFigure(0, 2, 0.6, 20)])["monotone"], "seen too rarely to be judged"


@pytest.mark.parametrize(("first", "rows", "recovers"), [(0.78, 300, True), (0.45, 300, False), (0.78, 12, None)])
def test_the_boundary_recovers_where_the_next_block_begins_higher(
    first: float, rows: int, recovers: bool | None
) -> None:
    curve = [SlotFigure(0, 0, 0.7, 900), SlotFigure(0, 1, 0.465, 600), SlotFigure(1, 0, first, rows)]
    found = judge_curve(curve)
    assert found["monotone"], "a rise at a boundary is no rise within a block"
    assert found["boundaries"] == [{"block": 1, "gain": pytest.approx(first - 0.465), "recovers": recovers}]


def test_the_rank_head_is_held_against_always_saying_the_commonest_bucket() -> None:
    found = rank_figures([[60, 15, 0, 0], [5, 5, 0, 0], [0, 0, 0, 0], [5, 0, 0, 10]])
    assert found["rows"] == 100
    assert found["confusion"] == [[0.8, 0.2, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0, 0], [1 / 3, 0, 0, 2 / 3]]
    assert (found["accuracy"], found["majority_accuracy"]) == (0.75, 0.75)
    assert rank_figures([[0] * 4] * 4)["accuracy"] is None


def test_tau_is_the_ratio_of_sums_inside_its_interval() -> None:
    found = tau_figures([(20, 10), (30, 10), (90, 30), (0, 0)])
    assert (found["n"], found["rounds"], found["tau"]) == (3, 50, 2.8)
    low, high = found["interval"]
    assert 2.0 <= low < 2.8 < high <= 3.0
    assert tau_figures([(20, 10), (20, 10), (30, 10)]) == tau_figures([(20, 10), (20, 10), (30, 10)])
    assert tau_figures([(20, 10)])["interval"] == [2.0, 2.0]
    assert tau_figures([(0, 0)])["tau"] is None


def test_paths_are_binned_by_what_was_predicted() -> None:
    found = path_figures([(0.05, False), (0.95, True), (1.0, True), (0.92, False), (0.55, True)])
    assert [(row["from"], row["nodes"], row["accepted"]) for row in found["bins"]] == [
        (0.0, 1, 0),
        (0.5, 1, 1),
        (0.9, 3, pytest.approx(2 / 3)),
    ]
    assert found["ece"] == pytest.approx((0.05 + 0.45 + 3 * (0.95666667 - 2 / 3)) / 5)
    assert path_figures([])["ece"] is None


def test_a_path_is_a_hit_while_the_text_runs_through_it() -> None:
    found = path_outcomes([chain([0.5, 0.5, 0.5], committed=3)], Calibration())
    assert [chance for chance, _ in found] == pytest.approx([0.5, 0.25, 0.125])
    assert [hit for _, hit in found] == [True, True, False]
    assert path_outcomes([chain([0.5], committed=1, looked_up=True)], Calibration()) == []


def test_an_overconfident_drafter_is_found_out_and_corrected() -> None:
    draw = random.Random(0)
    drafted = [draw.choice((0.6, 0.8, 0.95)) for _ in range(1200)]
    # The truth has half the log-odds.
    true = [1 / (1 + math.exp(-0.5 * math.log(p / (1 - p)))) for p in drafted]
    rounds = [chain([p], committed=2 if draw.random() < q else 1) for p, q in zip(drafted, true, strict=True)]
    prompts = [rounds[start : start + 100] for start in range(0, 1200, 100)]
    found = calibration_figures(prompts)
    assert found["outcomes"] == 1200
    assert found["line"]["slope"] == pytest.approx(0.5, abs=0.15)
    assert found["line"]["offset"] == pytest.approx(0.0, abs=0.3)
    assert found["log_loss_fitted"] < found["log_loss"]
    assert found["paths_fitted"]["ece"] < 0.05 < found["paths"]["ece"]


def test_a_certain_draft_that_was_wrong_costs_much_and_not_infinitely_much() -> None:
    # Log-odds are cut at 14; tripled, they leave the contrary no chance that float64 could tell from 0.
    steep = Calibration(slope=3.0, offset=3.0)
    assert steep.probability(0.0) == 1.0
    assert 20 < log_loss([(0.0, False)], steep) < 40
    assert 0 <= log_loss([(0.0, True)], steep) < 1e-9


def test_the_fitted_line_is_the_likeliest_one() -> None:
    draw = random.Random(1)
    seen = [(math.log(p), draw.random() < 0.4 + 0.3 * p) for p in (draw.random() * 0.9 + 0.05 for _ in range(400))]
    line = fit_line(seen)
    best = log_loss(seen, line)
    for slope, offset in ((0.02, 0), (-0.02, 0), (0, 0.02), (0, -0.02)):
        assert log_loss(seen, Calibration(line.slope + slope, line.offset + offset)) > best
    assert fit_line([]) == Calibration()
    assert calibration_figures([])["log_loss"] is None
