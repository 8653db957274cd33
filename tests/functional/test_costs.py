"""The priced tree is the best one: exactly, against every alternative."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specblock_zoo.functional import tree as trees
from specblock_zoo.functional.costs import (
    KEEP,
    Calibration,
    Curve,
    Pricing,
    RoundCosts,
    Spending,
    best_count,
    best_products,
    block_profile,
    outcomes,
    path_probabilities,
)
from specblock_zoo.functional.tree import LOOKUP_BLOCK, ROOT, Growth, Node, Proposals, Start
from specblock_zoo.structures import TreeSettings, Verdict

QUICK = settings(max_examples=60, deadline=None)
MS = st.floats(0.01, 20.0)
CHANCE = st.floats(0.001, 0.999)
ANY_DEPTH = 100


@st.composite
def curves(draw: st.DrawFn, last: int = 16) -> Curve:
    """Rising, with flat stretches and jumps."""
    ms, total = {}, draw(MS)
    for size in (1, 2, 3, 5, 8, last):
        total += draw(st.one_of(st.just(0.0), MS))
        ms[size] = total
    return Curve.fitted(ms)


@st.composite
def node_lists(draw: st.DrawFn, most: int = 7) -> list[Node]:
    nodes: list[Node] = []
    for index in range(draw(st.integers(1, most))):
        parent = draw(st.integers(ROOT, index - 1))
        above, depth = (nodes[parent].log_prob, nodes[parent].depth) if parent != ROOT else (0.0, 0)
        nodes.append(Node(index, parent, above + math.log(draw(CHANCE)), 0, 0, 0, depth + 1))
    return nodes


@QUICK
@given(st.dictionaries(st.integers(2, 40), st.floats(0.0, 50.0), max_size=6), st.floats(0.0, 50.0))
def test_a_fitted_curve_never_falls_and_keeps_the_mean(measured: dict[int, float], first: float) -> None:
    measured = {1: first, **measured}
    curve = Curve.fitted(measured)
    values = [curve.at(size) for size in range(1, 60)]
    assert all(low <= high + 1e-9 for low, high in pairwise(values))
    assert sum(curve.ms) == pytest.approx(sum(measured.values()))


def test_a_curve_passes_through_rising_points_and_goes_on_straight() -> None:
    curve = Curve.fitted({1: 10.0, 4: 16.0, 8: 24.0})
    assert [curve.at(size) for size in (1, 2.5, 4, 6, 8, 12)] == [10.0, 13.0, 16.0, 20.0, 24.0, 32.0]
    assert Curve((1,), (3.0,)).at(50) == 3.0


@QUICK
@given(node_lists(), curves(), MS)
def test_no_subtree_earns_more_than_the_one_kept(nodes: list[Node], verify: Curve, price: float) -> None:
    pricing = Pricing(RoundCosts(verify, 1.0, Curve((1,), (1.0,))), price)
    kept = pricing.prune(nodes, len(nodes), ANY_DEPTH)

    def surplus(chosen: Sequence[Node]) -> float:
        return price * (1.0 + sum(math.exp(node.log_prob) for node in chosen)) - verify.at(len(chosen) + 1)

    closed = (
        chosen
        for size in range(len(nodes) + 1)
        for chosen in combinations(range(len(nodes)), size)
        if all(nodes[index].parent in (ROOT, *chosen) for index in chosen)
    )
    best = max(surplus([nodes[index] for index in chosen]) for chosen in closed)
    assert surplus(kept) == pytest.approx(best, abs=1e-4)


@QUICK
@given(node_lists(12), curves(), curves(), MS, st.integers(1, 12), st.integers(1, 4))
def test_pruning_keeps_parents_depths_and_the_bound(
    nodes: list[Node], verify: Curve, other: Curve, price: float, most: int, depth: int
) -> None:
    kept = Pricing(RoundCosts(verify, 1.0, other), price).prune(nodes, most, depth)
    assert len(kept) <= most
    assert all(node.depth <= depth and node.parent < index for index, node in enumerate(kept))
    assert all(node.depth == (1 if node.parent == ROOT else kept[node.parent].depth + 1) for node in kept)


@QUICK
@given(st.lists(CHANCE, min_size=1, max_size=15), curves(), curves(), MS, MS)
def test_costlier_nodes_never_make_a_larger_tree(
    chances: list[float], verify: Curve, extra: Curve, price: float, dearer: float
) -> None:
    """Every node costs at least what it did (a rising curve is added): not more are kept. A dearer token: not fewer."""
    ranked = sorted(chances, reverse=True)
    cheap = [verify.at(size) for size in range(1, len(ranked) + 2)]
    costly = [low + extra.at(size) for size, low in enumerate(cheap, start=1)]
    few, many = (best_count(ranked, price, table, len(ranked))[0] for table in (costly, cheap))
    assert few <= many
    assert best_count(ranked, price + dearer, cheap, len(ranked))[0] >= many


def test_a_step_is_climbed_only_for_enough() -> None:
    """The first node beyond a step does not pay for it; five do. A test node by node would never get there."""
    verify = [10.0, 14.0, 14.0, 14.0, 14.0, 14.0]
    assert best_count([0.3], 10.0, verify, 5) == (0, 0.0)
    assert best_count([0.3] * 5, 10.0, verify, 5)[0] == 5


# One forward that proposes: `widths` candidates a slot, the same for every start of a later block.
Odds = list[list[float]]


@st.composite
def odds(draw: st.DrawFn) -> Odds:
    """Two slots of three candidates, descending, together at most 1."""
    slots = []
    for _ in range(2):
        weights = sorted((draw(CHANCE) for _ in range(3)), reverse=True)
        scale = draw(CHANCE) / sum(weights)
        slots.append([weight * scale for weight in weights])
    return slots


def proposals(slots: Odds, rows: int, block: int) -> Proposals:
    """Tokens differ from row to row and block to block, so that nothing merges."""
    tokens = [
        [[1000 * block + 100 * row + 10 * slot + rank for rank in range(3)] for slot in range(2)] for row in range(rows)
    ]
    scores = [[math.log(chance) for chance in slot] for slot in slots]
    return Proposals(tokens, [scores] * rows, [[1, 1]] * rows)


LIMITS = TreeSettings(num_blocks=3, max_nodes=16, beam_width=3, branching=(3, 3, 3, 3))
Grown = tuple[float, float]
"""Expected tokens and milliseconds of a round."""


def grown(first: Odds, later: Odds, costs: RoundCosts, chosen: TreeSettings, pricing: Pricing | None) -> Grown:
    """One round, as `inference.grow.grow_tree` makes it, with its exact expectation."""
    growth, spent = trees.grow_block(Growth(), proposals(first, 1, 0), chosen, 0), []
    for block in range(1, chosen.num_blocks):
        growth = trees.select_starts(growth, chosen, block, 2, ANY_DEPTH)
        if pricing is not None:
            growth = pricing.choose_starts(growth, chosen.num_blocks - block, chosen.max_nodes)
        if not growth.starts:
            break
        spent.append(len(growth.starts))
        growth = trees.grow_block(growth, proposals(later, spent[-1], block), chosen, block)
    nodes = (
        trees.prune(growth.nodes, chosen, ANY_DEPTH)
        if pricing is None
        else pricing.prune(growth.nodes, chosen.max_nodes, ANY_DEPTH)
    )
    return 1.0 + sum(math.exp(node.log_prob) for node in nodes), costs.of(len(nodes), spent)


def rate(rounds: Sequence[Grown]) -> float:
    return sum(tokens for tokens, _ in rounds) / sum(ms for _, ms in rounds)


def outlook_of(later: Odds) -> tuple[float, ...]:
    nodes = trees.grow_block(Growth(), proposals(later, 1, 0), LIMITS, 0).nodes
    return tuple(sorted((math.exp(node.log_prob) for node in nodes), reverse=True))


@settings(max_examples=80, deadline=None)
@given(st.lists(odds(), min_size=1, max_size=3), odds(), curves(), MS, curves(8))
def test_the_priced_tree_is_never_slower_than_the_best_fixed_one(
    firsts: list[Odds], later: Odds, verify: Curve, first_block: float, branch: Curve
) -> None:
    """Rounds differ in their first block; the price is the one that the rounds themselves lead to."""
    costs = RoundCosts(verify, first_block, branch)
    pricing = Pricing(costs, costs.plain, outlook=outlook_of(later))
    best = 0.0
    for _ in range(12):
        rounds = [grown(first, later, costs, LIMITS, pricing) for first in firsts]
        best, pricing = rate(rounds), replace(pricing, price=1.0 / rate(rounds))
    fixed = {
        (blocks, budget): rate([grown(first, later, costs, chosen, None) for first in firsts])
        for blocks in (1, 2, 3)
        for budget in (1, 2, 3, 4, 6, 8, 12, 16)
        for chosen in [replace(LIMITS, num_blocks=blocks, max_nodes=budget)]
    }
    assert best >= max(fixed.values()) * (1.0 - 1e-6), max(fixed, key=fixed.__getitem__)


def test_the_price_settles_at_what_a_token_costs() -> None:
    costs = RoundCosts(Curve((1, 2), (10.0, 11.0)), 2.0, Curve((1,), (3.0,)))
    spending = Spending()
    assert spending.pricing(costs).price == costs.plain
    for _ in range(400):
        spending = spending.after(costs.of(4, []), 2, [])
    assert spending.pricing(costs).price == pytest.approx(costs.of(4, []) / 2, rel=1e-3)
    hopeless = Spending(ms=1000.0, tokens=10.0)
    assert hopeless.pricing(costs).price == costs.plain, "the target alone writes at this price"


def test_rows_share_a_forward() -> None:
    costs = RoundCosts(Curve((1, 8), (10.0, 17.0)), 2.0, Curve((1,), (3.0,)))
    assert costs.of(1, [], rows=4) == pytest.approx(17.0 / 4 + 2.0)
    assert costs.of(3, [2, 5]) == pytest.approx(13.0 + 2.0 + 6.0)


@pytest.mark.parametrize(("slope", "offset"), [(0.5, -0.5), (1.0, 0.0), (1.4, 0.6)])
def test_calibration_finds_out_how_often_the_target_agrees(slope: float, offset: float) -> None:
    true = Calibration(slope, offset)
    generator = torch.Generator().manual_seed(0)
    found = Calibration()
    for _ in range(600):
        drafted = torch.rand(6, generator=generator).clamp(0.01, 0.99).log().tolist()
        drawn = torch.rand(6, generator=generator).tolist()
        found = found.after([(q, u < true.probability(q)) for q, u in zip(drafted, drawn, strict=True)], keep=0.995)
    for chance in (0.05, 0.3, 0.7, 0.95):
        assert found.probability(math.log(chance)) == pytest.approx(true.probability(math.log(chance)), abs=0.06)


@QUICK
@given(st.lists(st.tuples(st.floats(-20.0, 0.0), st.booleans()), max_size=30), node_lists(12))
def test_whatever_was_seen_probabilities_stay_ordered(seen: list[tuple[float, bool]], nodes: list[Node]) -> None:
    line = Calibration()
    for outcome in seen:
        line = line.after([outcome], keep=0.98)
    scores = [line.probability(score) for score in (-20.0, -8.0, -1.0, -0.1, 0.0)]
    assert scores == sorted(scores)
    chances = path_probabilities(nodes, line)
    assert all(
        0.0 <= chances[i] <= (chances[node.parent] if node.parent != ROOT else 1.0) for i, node in enumerate(nodes)
    )


def test_what_was_learned_is_forgotten_towards_the_identity() -> None:
    line = Calibration(0.5, -1.0, (2.0, 0.0, 2.0))
    for _ in range(400):
        line = line.after([], keep=0.9)
    assert (line.slope, line.offset) == pytest.approx((1.0, 0.0), abs=1e-3)


def test_outcomes_are_the_children_of_every_node_the_text_reached() -> None:
    scores = [math.log(chance) for chance in (0.5, 0.2, 0.4, 0.1, 0.05)]
    parents = (ROOT, ROOT, 0, 0, 1)
    nodes = [
        Node(10 + i, parent, score, 0, 0, 0, 1) for i, (parent, score) in enumerate(zip(parents, scores, strict=True))
    ]
    seen = outcomes(trees.flatten(nodes), Verdict((0, 3), (10, 13, 99), False))
    assert [(round(math.exp(score), 3), taken) for score, taken in seen] == [
        (0.5, True),
        (0.2, False),
        (0.8, False),
        (0.2, True),
    ]


def test_copies_keep_their_own_chance_and_teach_the_calibration_nothing() -> None:
    half = math.log(0.5)
    nodes = [Node(10, ROOT, half, 0, 0, 0, 1, True), Node(11, ROOT, half, 0, 0, 0, 1)]
    nodes += [Node(13, 0, 2 * half, LOOKUP_BLOCK, 1, 0, 2, True), Node(14, 0, 2 * half, 0, 1, 0, 2)]
    chances = path_probabilities(nodes, Calibration(1.0, -1.0))
    drafted = Calibration(1.0, -1.0).probability(half)
    assert chances == pytest.approx([0.5, drafted, 0.25, 0.5 * drafted])
    seen = outcomes(trees.flatten(nodes), Verdict((0, 2), (10, 13, 99), False))
    assert [(round(log_prob, 4), taken) for log_prob, taken in seen] == [(round(half, 4), False)] * 2


def test_a_round_without_the_drafter_does_not_cost_it() -> None:
    costs = RoundCosts(Curve((1, 9), (10.0, 18.0)), 3.0, Curve((1,), (2.0,)))
    assert (costs.of(4, []), costs.of(4, [1, 1]), costs.of(4, [], drafted=False)) == (17.0, 21.0, 14.0)


def test_a_profile_is_relative_to_its_start() -> None:
    nodes = [
        Node(0, ROOT, 0.0, 0, 0, 0, 1),
        Node(1, 0, 0.0, 1, 0, 0, 2),
        Node(2, 1, 0.0, 1, 1, 0, 3),
        Node(3, ROOT, 0.0, 0, 0, 0, 1),
    ]
    chances = [0.5, 0.25, 0.05, 0.4]
    assert block_profile(nodes, [Start(0, 0, 0), Start(3, 0, 0)], 1, chances) == pytest.approx([0.25, 0.05])
    spending = Spending().with_profile([0.5, 0.1]).with_profile([0.3])
    assert spending.pricing(RoundCosts(Curve((1,), (1.0,)), 1.0, Curve((1,), (1.0,)))).outlook == pytest.approx(
        (0.4, 0.05)
    )


def test_a_later_block_is_run_only_where_it_pays() -> None:
    first: Odds = [[0.9, 0.05, 0.01], [0.8, 0.1, 0.01]]
    growth = trees.grow_block(Growth(), proposals(first, 1, 0), LIMITS, 0)
    verify = Curve((1, 16), (20.0, 25.0))
    for ms, runs in ((1.0, True), (60.0, False)):
        pricing = Pricing(RoundCosts(verify, 2.0, Curve((1, 8), (ms, 2 * ms))), 15.0)
        assert bool(pricing.choose_starts(growth, 1, 16).starts) is runs
    assert pricing.choose_starts(Growth(growth.nodes, ()), 1, 16).starts == ()


@QUICK
@given(st.lists(CHANCE, max_size=9), st.lists(CHANCE, max_size=9), st.integers(1, 30))
def test_best_products_are_the_best_of_all(first: list[float], second: list[float], most: int) -> None:
    first, second = sorted(first, reverse=True), sorted(second, reverse=True)
    every = sorted((one * other for one in first for other in second), reverse=True)
    assert best_products(first, second, most) == every[:most]


@QUICK
@given(node_lists(most=12), st.data())
def test_a_tree_weighed_while_it_grows_and_changes_has_the_same_chances(nodes: list[Node], data: st.DataObject) -> None:
    pricing = Pricing(RoundCosts(Curve((1,), (1.0,)), 1.0, Curve((1,), (1.0,))), 1.0, Calibration(0.7, -0.3))
    for size in sorted(data.draw(st.lists(st.integers(0, len(nodes)), max_size=4))):
        assert pricing.chances(nodes[:size]) == path_probabilities(nodes[:size], pricing.calibration)
        assert pricing.chances(tuple(nodes[:size])) == path_probabilities(nodes[:size], pricing.calibration)
        if size:
            place = data.draw(st.integers(0, size - 1))
            nodes[place] = nodes[place]._replace(log_prob=nodes[place].log_prob / 2)


def test_a_round_that_was_not_drafted_says_nothing_of_the_drafter() -> None:
    drafted = Spending().after(50.0, 2, [(-0.1, True)]).with_profile([0.5])
    spared = drafted.after(60.0, 3, None)
    assert (spared.calibration, spared.outlook, spared.blocks) == (drafted.calibration, drafted.outlook, drafted.blocks)
    assert (spared.ms, spared.tokens) == (KEEP * drafted.ms + 60.0, KEEP * drafted.tokens + 3)
