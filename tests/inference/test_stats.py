"""A generate call's record counts rounds, not the prefill."""

import math

import pytest

from specblock_zoo.functional.tree import Node, flatten
from specblock_zoo.inference.stats import DecodeStats, tau_of
from specblock_zoo.structures import Round, Verdict

TREE = flatten([Node(5, -1, -0.1, 0, 0, 0, 1), Node(6, 0, -0.2, 0, 1, 0, 2)])
HISTORY = (
    Round(TREE, Verdict((0, 1), (5, 6, 7), False), draft_ms=1.0, verify_ms=6.0, other_ms=1.0, drafter_calls=2),
    Round(TREE, Verdict((), (8,), True), draft_ms=1.0, verify_ms=6.0, other_ms=1.0, drafter_calls=1),
)


def test_sums_over_rounds() -> None:
    stats = DecodeStats(HISTORY, prefill_ms=100.0)
    assert (stats.rounds, stats.committed, stats.accepted_per_round) == (2, 4, (2, 0))
    assert stats.drafter_tau == stats.tau
    assert (stats.tau, stats.nodes, stats.drafter_calls) == (2.0, 4, 3)
    assert (stats.draft_ms, stats.verify_ms, stats.other_ms) == (2.0, 12.0, 2.0)
    assert stats.draft_share == pytest.approx(1 / 8)
    assert stats.alpha == {(0, 0): 0.5, (0, 1): 1.0}
    assert stats.alpha_by_depth == {1: 0.5, 2: 1.0}


def test_what_was_copied_is_told_from_what_was_drafted() -> None:
    nodes = [Node(5, -1, -0.1, 0, 0, 0, 1, True), *(Node(6 + n, n, -0.2, -1, n + 1, 0, n + 2, True) for n in range(3))]
    copied = flatten([Node(8, -1, -0.3, -1, 0, 0, 1, True)])
    history = (
        Round(flatten(nodes), Verdict((0, 1, 2), (5, 6, 7, 1), False), 1.0, 6.0, 1.0, drafter_calls=1),
        Round(copied, Verdict((0,), (8, 9), False), 0.0, 6.0, 1.0),
        Round(flatten(()), Verdict((), (8,), True), 0.0, 6.0, 1.0),
    )
    stats = DecodeStats(history, prefill_ms=1.0)
    assert (stats.lookup_nodes, stats.lookup_accepted, stats.undrafted_rounds) == (4, 3, 1)
    assert stats.drafter_tau == 1.5, "three of five tokens in the two rounds that were not copied"
    assert math.isnan(DecodeStats(history[1:2], prefill_ms=1.0).drafter_tau)
    assert stats.alpha == {(0, 0): 1.0}, "copies are no block of the drafter"
    assert stats.alpha_by_depth == {1: 1.0, 2: 1.0, 3: 1.0, 4: 0.0}


def test_tau_of_several_calls_divides_once() -> None:
    calls = [DecodeStats(HISTORY[:1], 0.0), DecodeStats(HISTORY[1:], 0.0), DecodeStats(HISTORY[1:], 0.0)]
    assert tau_of(calls) == pytest.approx(5 / 3)


def test_no_round_has_no_tau() -> None:
    empty = DecodeStats((), 3.0)
    assert math.isnan(empty.tau)
    assert math.isnan(empty.draft_share)
    assert empty.committed == 0
