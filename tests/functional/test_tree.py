"""Trees: the rules one by one, and laws over random proposals, each fast piece against a slow twin."""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.functional import tree as trees
from specblock_zoo.functional.tree import ROOT, Growth, Node, Proposals, Start
from specblock_zoo.structures import TreeSettings

SLOTS, VOCAB, WIDTH = 3, 7, 5
SETTINGS = TreeSettings(num_blocks=3, max_nodes=12, beam_width=3, branching=(2, 3, 5, 0))
ANY_DEPTH = 1000


def random_proposals(rows: int, seed: int) -> Proposals:
    """Distinct tokens per slot, best first; some probabilities equal, some candidates unknown to the target."""
    draw = random.Random(seed)
    tokens, log_probs, buckets = [], [], []
    for _ in range(rows):
        tokens.append([draw.sample([*range(VOCAB - 1), -1], WIDTH) for _ in range(SLOTS)])
        scores = [
            sorted((-draw.choice([0.0, 0.1, 0.1, 1.0, 3.0]) for _ in range(WIDTH)), reverse=True) for _ in range(SLOTS)
        ]
        log_probs.append(scores)
        buckets.append([draw.randrange(4) for _ in range(SLOTS)])
    return Proposals(tokens, log_probs, buckets)


def grow(settings: TreeSettings, seed: int, select: bool = True) -> Growth:
    """A tree of all blocks from random proposals."""
    growth = Growth()
    for block in range(settings.num_blocks):
        if block and select:
            growth = trees.select_starts(growth, settings, block, SLOTS, ANY_DEPTH)
        growth = trees.grow_block(growth, random_proposals(len(growth.starts), seed + block), settings, block)
    return growth


def proposals(tokens: Sequence[Sequence[int]], probs: Sequence[Sequence[float]], buckets: Sequence[int]) -> Proposals:
    """One row, from probabilities."""
    return Proposals([tokens], [[[math.log(prob) for prob in slot] for slot in probs]], [buckets])


ONE_ROW = proposals(
    [[1, 2, 3], [4, 5, 6], [1, 5, 2]], [[0.9, 0.06, 0.01], [0.96, 0.02, 0.01], [0.5, 0.3, 0.1]], [0, 1, 3]
)
settings_strategy = st.builds(
    TreeSettings,
    num_blocks=st.integers(1, 3),
    max_nodes=st.integers(1, 30),
    beam_width=st.integers(1, 5),
    branching=st.sampled_from([(2, 4, 5, 0), (1, 2, 3, 4), (2, 3, 5, 2)]),
    confident_root=st.booleans(),
    confident_slots=st.booleans(),
    merge_duplicates=st.booleans(),
    chain=st.booleans(),
    bound_all_starts=st.booleans(),
    min_path_prob=st.sampled_from([0.0, 0.05, 0.5]),
    independent_slots=st.booleans(),
)


def test_first_block_is_the_chain_then_siblings() -> None:
    growth = trees.grow_block(Growth(), ONE_ROW, replace(SETTINGS, branching=(2, 2, 5, 0)), block=0)
    assert [node.token for node in growth.nodes] == [1, 4, 1, 2, 3, 5]
    assert [node.parent for node in growth.nodes] == [ROOT, 0, 1, ROOT, ROOT, 0]
    assert [node.depth for node in growth.nodes] == [1, 2, 3, 1, 1, 2]
    assert [node.slot for node in growth.nodes] == [0, 1, 2, 0, 0, 1]


def test_first_slot_is_as_wide_as_the_beam_whatever_its_bucket() -> None:
    assert trees.slot_widths(ONE_ROW, 0, SETTINGS, first=True) == [3, 3, 1]
    assert trees.slot_widths(ONE_ROW, 0, SETTINGS, first=False) == [2, 3, 1]


def test_last_bucket_stops_branching_from_its_slot_on_only_where_its_width_is_zero() -> None:
    early = replace(ONE_ROW, buckets=[[3, 1, 0]])
    assert trees.slot_widths(early, 0, SETTINGS, first=False) == [1, 1, 1]
    assert trees.slot_widths(early, 0, replace(SETTINGS, branching=(2, 3, 5, 4)), first=False) == [4, 3, 2]


def test_confidence_caps_widths() -> None:
    wide = replace(SETTINGS, beam_width=9, branching=(9, 9, 9, 9), confident_root=True, confident_slots=True)
    assert trees.slot_widths(ONE_ROW, 0, wide, first=True) == [3, 2, 9]
    assert trees.slot_widths(ONE_ROW, 0, wide, first=False) == [3, 2, 9]


@pytest.mark.parametrize(("greedy_prob", "width"), [(0.9, 3), (0.8, 5), (0.6, 8), (0.59, 9)])
def test_confident_root_widths(greedy_prob: float, width: int) -> None:
    row = proposals([[1]], [[greedy_prob + 1e-9]], [0])
    assert trees.slot_widths(row, 0, replace(SETTINGS, beam_width=9, confident_root=True), first=True) == [width]


def test_starts_are_branching_chain_nodes_siblings_and_the_hitchhiking_tail() -> None:
    growth = trees.grow_block(Growth(), replace(ONE_ROW, buckets=[[0, 1, 3]]), SETTINGS, block=0)
    assert growth.starts[:2] == (Start(0, 0, 0), Start(1, 0, 1))
    assert growth.starts[-1] == Start(2, 0, 2), "bucket 3 is not the first uncertain slot, so the tail hitchhikes"
    doubtful = trees.grow_block(Growth(), replace(ONE_ROW, buckets=[[0, 3, 1]]), SETTINGS, block=0)
    assert Start(2, 0, 2) not in doubtful.starts


def test_a_later_block_that_gave_up_sends_no_tail() -> None:
    first = replace(trees.grow_block(Growth(), ONE_ROW, SETTINGS, block=0), starts=(Start(0, 0, 0),))
    kept = trees.grow_block(first, replace(ONE_ROW, buckets=[[0, 0, 0]]), replace(SETTINGS, branching=(1, 1, 1, 0)), 1)
    gave_up = trees.grow_block(
        first, replace(ONE_ROW, buckets=[[0, 3, 0]]), replace(SETTINGS, branching=(1, 1, 1, 0)), 1
    )
    assert [start.slot for start in kept.starts] == [2]
    assert gave_up.starts == ()


def test_chain_mode_is_one_path_over_all_blocks() -> None:
    growth = grow(replace(SETTINGS, chain=True), seed=3)
    assert [node.parent for node in growth.nodes] == list(range(-1, len(growth.nodes) - 1))
    assert trees.candidate_width(replace(SETTINGS, chain=True)) == 1


def test_unknown_tokens_end_the_chain_and_are_no_siblings() -> None:
    row = proposals([[1, -1, 3], [-1, 5, 6], [1, 5, 2]], [[0.5, 0.3, 0.1]] * 3, [1, 1, 1])
    growth = trees.grow_block(Growth(), row, SETTINGS, block=0)
    assert [node.token for node in growth.nodes] == [1, 3]


def test_merging_keeps_one_node_with_the_better_score_and_first_place() -> None:
    first = trees.grow_block(Growth(), ONE_ROW, SETTINGS, block=0)
    again = replace(first, starts=(Start(0, 0, 0),))
    better = proposals([[4, 9], [7, 8], [6, 5]], [[0.999, 0.0001]] * 3, [0, 0, 0])
    merged = trees.grow_block(again, better, SETTINGS, block=1)
    assert [node.token for node in merged.nodes if node.parent == 0].count(4) == 1
    assert merged.nodes[1].log_prob == pytest.approx(math.log(0.9 * 0.999))
    assert merged.nodes[1].block == 0
    both = trees.grow_block(again, better, replace(SETTINGS, merge_duplicates=False), block=1)
    assert [node.token for node in both.nodes if node.parent == 0].count(4) == 2


@given(settings_strategy, st.integers(0, 10_000))
def test_trees_are_well_formed(settings: TreeSettings, seed: int) -> None:
    growth = grow(settings, seed)
    for index, node in enumerate(growth.nodes):
        parent = growth.nodes[node.parent] if node.parent != ROOT else None
        assert ROOT <= node.parent < index
        assert node.depth == (parent.depth + 1 if parent else 1)
        assert node.log_prob <= (parent.log_prob if parent else 0.0)
        assert node.token >= 0
    if settings.merge_duplicates and not settings.chain:
        assert len({(node.parent, node.token) for node in growth.nodes}) == len(growth.nodes)


@given(settings_strategy, st.integers(0, 10_000), st.integers(1, 9))
def test_pruning_keeps_the_best_nodes_and_every_ancestor(settings: TreeSettings, seed: int, max_depth: int) -> None:
    nodes = grow(settings, seed).nodes
    kept = trees.prune(nodes, settings, max_depth)
    assert len(kept) <= settings.max_nodes
    assert all(node.depth <= max_depth and node.log_prob >= trees.log_floor(settings) for node in kept)
    assert kept == slow_prune(nodes, settings, max_depth)
    for index, node in enumerate(kept):
        assert ROOT <= node.parent < index
        assert node.depth == (kept[node.parent].depth + 1 if node.parent != ROOT else 1)


def slow_prune(nodes: Sequence[Node], settings: TreeSettings, max_depth: int) -> tuple[Node, ...]:
    """Takes away the worst leaf, the later one among equals, until the bounds hold."""
    left = dict(enumerate(nodes))

    def leaves() -> list[int]:
        inner = {node.parent for node in left.values()}
        return [index for index in left if index not in inner]

    def out_of_bounds(index: int) -> bool:
        return left[index].depth > max_depth or left[index].log_prob < trees.log_floor(settings)

    while outside := [index for index in leaves() if out_of_bounds(index)]:
        del left[outside[0]]
    while len(left) > settings.max_nodes:
        del left[min(leaves(), key=lambda index: (left[index].log_prob, -index))]
    order = list(left)
    return tuple(
        node._replace(parent=order.index(node.parent) if node.parent != ROOT else ROOT) for node in left.values()
    )


@given(settings_strategy, st.integers(0, 10_000))
def test_starts_that_cannot_survive_the_budget_are_not_grown(settings: TreeSettings, seed: int) -> None:
    """Without merging, leaving them out changes no tree of two blocks: what they would add is pruned."""
    settings = replace(settings, num_blocks=2, merge_duplicates=False, bound_all_starts=True, beam_width=WIDTH)
    settings = replace(settings, chain=False, independent_slots=False)
    first = trees.grow_block(Growth(), random_proposals(1, seed), settings, block=0)
    selected = trees.select_starts(first, replace(settings, beam_width=1000), 1, SLOTS, ANY_DEPTH)
    every = random_proposals(len(first.starts), seed + 1)
    rows = [first.starts.index(start) for start in selected.starts]
    chosen = Proposals(*([column[row] for row in rows] for column in (every.tokens, every.log_probs, every.buckets)))
    lean = trees.grow_block(selected, chosen, settings, block=1)
    full = trees.grow_block(first, every, settings, block=1)
    assert trees.prune(lean.nodes, settings, ANY_DEPTH) == trees.prune(full.nodes, settings, ANY_DEPTH)


def test_release_bounds_starts_by_beam_and_budget_from_the_second_block_on() -> None:
    settings = replace(SETTINGS, bound_all_starts=False, max_nodes=20, beam_width=3, merge_duplicates=False)
    nodes = tuple(Node(0, ROOT, -float(index), 0, 0, 0, 1) for index in range(11))
    growth = Growth(nodes, tuple(Start(index, 0, 0) for index in range(10, -1, -1)))
    assert trees.select_starts(growth, settings, 1, SLOTS, ANY_DEPTH).starts == growth.starts
    best = trees.select_starts(growth, settings, 2, SLOTS, ANY_DEPTH).starts
    assert [start.node for start in best] == [0, 1, 2], "min(beam 3, (20 - 11) // 3 slots)"
    tight = trees.select_starts(growth, replace(settings, max_nodes=12), 2, SLOTS, ANY_DEPTH).starts
    assert [start.node for start in tight] == [0], "at least one"


def test_starts_too_deep_or_too_unlikely_are_dropped() -> None:
    nodes = (Node(0, ROOT, -0.1, 0, 0, 0, 1), Node(1, 0, -0.2, 0, 1, 0, 2), Node(2, 0, -9.0, 0, 1, 0, 2))
    growth = Growth(nodes, (Start(0, 0, 0), Start(1, 0, 1), Start(2, 0, 1)))
    assert [s.node for s in trees.select_starts(growth, SETTINGS, 1, SLOTS, 2).starts] == [0]
    likely = replace(SETTINGS, min_path_prob=0.01)
    assert [s.node for s in trees.select_starts(growth, likely, 1, SLOTS, ANY_DEPTH).starts] == [0, 1]


@given(st.integers(0, 10_000), st.integers(1, 40), st.booleans())
def test_independent_slots_give_the_likeliest_paths_of_all_combinations(seed: int, budget: int, merge: bool) -> None:
    draw = random.Random(seed)
    scores = [sorted((-5 * draw.random() for _ in range(WIDTH)), reverse=True) for _ in range(SLOTS)]
    row = replace(random_proposals(1, seed), log_probs=[scores])
    settings = replace(SETTINGS, independent_slots=True, max_nodes=budget, merge_duplicates=merge)
    growth = trees.grow_block(Growth(), row, settings, block=0)
    parents = [node.parent for node in growth.nodes]
    found = {
        tuple(growth.nodes[each].token for each in trees.path_to(parents, index)): node.log_prob
        for index, node in enumerate(growth.nodes)
    }
    assert found == pytest.approx(slow_product(row, budget))
    assert [start.node for start in growth.starts] == list(range(len(growth.nodes)))
    assert all((start.row, start.slot) == (0, growth.nodes[start.node].slot) for start in growth.starts)


def slow_product(row: Proposals, budget: int) -> dict[tuple[int, ...], float]:
    """Every combination of candidates of the first slots, and the `budget` likeliest of them."""
    ranks = itertools.chain.from_iterable(itertools.product(range(WIDTH), repeat=depth + 1) for depth in range(SLOTS))
    known = {}
    for path in ranks:
        tokens = tuple(row.tokens[0][slot][rank] for slot, rank in enumerate(path))
        if trees.NO_TOKEN not in tokens:
            known[tokens] = sum(row.log_probs[0][slot][rank] for slot, rank in enumerate(path))
    return dict(sorted(known.items(), key=lambda item: -item[1])[:budget])


def test_independent_slots_propose_a_repeated_token_once() -> None:
    """A broken vocabulary map that names one token only must not send growth through all combinations."""
    row = proposals([[4] * 10] * 6, [[0.1] * 10] * 6, [0] * 6)
    growth = trees.grow_block(Growth(), row, replace(SETTINGS, independent_slots=True), block=0)
    assert [node.parent for node in growth.nodes] == [ROOT, 0, 1, 2, 3, 4]


def test_a_chain_of_independent_slots_is_the_greedy_one() -> None:
    settings = replace(SETTINGS, chain=True)
    assert grow(replace(settings, independent_slots=True), seed=4) == grow(settings, seed=4)


parents_strategy = st.lists(st.integers(0, 10**6), max_size=14).map(
    lambda draws: [draw % (index + 1) - 1 for index, draw in enumerate(draws)]
)


@given(parents_strategy)
def test_ancestor_matrix_equals_walking_up(parents: list[int]) -> None:
    slow = torch.zeros(len(parents) + 1, len(parents) + 1, dtype=torch.bool)
    for row in range(len(parents) + 1):
        column = row
        while column != 0:
            slow[row, column] = True
            column = parents[column - 1] + 1
        slow[row, 0] = True
    assert torch.equal(trees.ancestor_matrix(parents), slow)


@given(parents_strategy)
def test_paths_end_in_every_leaf_once_and_step_from_parent_to_child(parents: list[int]) -> None:
    rows = [[entry for entry in row if entry >= 0] for row in trees.paths(parents).tolist()]
    inner = set(parents) if parents else set()
    assert sorted(row[-1] - 1 for row in rows) == [n for n in range(-1, len(parents)) if n not in inner]
    assert rows == sorted(rows)
    for row in rows:
        assert row[0] == 0
        assert all(parents[child - 1] + 1 == parent for parent, child in itertools.pairwise(row))
        assert trees.path_to(parents, row[-1] - 1) == [entry - 1 for entry in row[1:]]


def test_flatten_keeps_every_column() -> None:
    nodes = grow(SETTINGS, seed=5).nodes
    tree = trees.flatten(nodes)
    columns = (tree.tokens, tree.parents, tree.log_probs, tree.blocks, tree.slots, tree.buckets, tree.depths)
    columns += (tree.looked_up,)
    expected = [torch.tensor(column) for column in zip(*nodes, strict=True)]
    for found, wanted in zip(columns, expected, strict=True):
        assert torch.equal(found, wanted.to(found.dtype))
    assert len(trees.flatten(())) == 0
