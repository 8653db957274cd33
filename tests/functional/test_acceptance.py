"""The walk follows the target's tokens and nothing else; its counters divide what happened."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.functional.acceptance import (
    AcceptanceCounts,
    count_round,
    count_rounds,
    greedy_walk,
    sampled_walk,
    walk,
)
from specblock_zoo.functional.tree import ROOT, Node, flatten, path_to
from specblock_zoo.structures import DraftTree, Verdict

VOCAB = 3


def tree_of(*nodes: tuple[int, int]) -> DraftTree:
    """A tree from (token, parent) pairs; places and scores do not matter to the walk."""
    depths: list[int] = []
    for _, parent in nodes:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return flatten(
        [Node(token, parent, 0.0, 0, depth - 1, 0, depth) for (token, parent), depth in zip(nodes, depths, strict=True)]
    )


TREE = tree_of((1, ROOT), (2, 0), (0, 0), (0, ROOT), (1, 2))
trees_strategy = st.lists(st.tuples(st.integers(0, VOCAB - 1), st.integers(0, 10**6)), max_size=12).map(
    lambda draws: tree_of(*((token, number % (index + 1) - 1) for index, (token, number) in enumerate(draws)))
)


def test_the_walk_follows_children_and_ends_with_the_bonus() -> None:
    assert greedy_walk(TREE, [1, 0, 9, 1, 9, 7]) == Verdict((0, 2, 4), (1, 0, 1, 7), False)
    assert greedy_walk(TREE, [5, 0, 0, 0, 0, 0]) == Verdict((), (5,), False)


def test_an_empty_tree_yields_the_bonus_alone() -> None:
    assert greedy_walk(flatten(()), [4]) == Verdict((), (4,), False)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_walk_stops_where_the_text_ends(length: int) -> None:
    target, seen = [1, 0, 9, 1, 9, 7], []

    def choose(row: int) -> tuple[int, bool]:
        seen.append(row)
        return target[row], len(seen) == length

    verdict = walk(TREE, choose)
    assert verdict.finished
    assert verdict.committed_tokens == (1, 0, 1)[:length]
    assert verdict.accepted_nodes == (0, 2, 4)[:length], "an accepted last token counts as accepted"
    assert len(seen) == length


def test_repeated_siblings_are_followed_together() -> None:
    tree = tree_of((1, ROOT), (1, ROOT), (2, 1))
    assert greedy_walk(tree, [1, 2, 2, 0]) == Verdict((1, 2), (1, 2, 0), False)


@given(trees_strategy, st.lists(st.integers(0, VOCAB - 1), min_size=13, max_size=13))
def test_greedy_walk_takes_the_longest_path_the_target_would_write(tree: DraftTree, by_depth: list[int]) -> None:
    """Slow twin: of all root-to-node paths that equal the target's text, the longest."""
    rows = [by_depth[0], *(by_depth[depth] for depth in tree.depths.tolist())]
    verdict = greedy_walk(tree, rows)
    parents, tokens = tree.parents.tolist(), tree.tokens.tolist()
    every = [path_to(parents, node) for node in range(-1, len(tree))]
    matching = [path for path in every if [tokens[node] for node in path] == by_depth[: len(path)]]
    assert len(verdict.accepted_nodes) == max(len(path) for path in matching)
    assert list(verdict.committed_tokens) == by_depth[: len(verdict.accepted_nodes) + 1]
    assert list(verdict.accepted_nodes) in matching


def test_sampled_walk_draws_once_per_committed_token() -> None:
    probs = torch.tensor([[0.2, 0.5, 0.3]] * 6)
    for seed in range(20):
        verdict = sampled_walk(TREE, probs, torch.Generator().manual_seed(seed))
        generator = torch.Generator().manual_seed(seed)
        plain = [int(torch.multinomial(probs[0], 1, generator=generator)) for _ in verdict.committed_tokens]
        assert list(verdict.committed_tokens) == plain


def test_counts_of_a_round() -> None:
    counts = count_round(TREE, Verdict((0, 2), (1, 0, 2), False))
    assert (counts.rounds, counts.committed, counts.accepted) == (1, 3, 2)
    assert counts.offered == Counter({(0, 0): 1, (0, 1): 1, (0, 2): 1})
    assert counts.hit == Counter({(0, 0): 1, (0, 1): 1})
    assert counts.alpha_by_depth == {1: 1.0, 2: 1.0, 3: 0.0}


def test_a_leaf_offers_nothing() -> None:
    counts = count_round(TREE, Verdict((3,), (0, 2), False))
    assert counts.alpha == {(0, 0): 1.0}
    assert counts.alpha_by_depth == {1: 1.0}


def test_counts_add_up_and_divide_once() -> None:
    rounds = [(TREE, Verdict((0, 2), (1, 0, 2), False)), (TREE, Verdict((), (2,), True))]
    counts = count_rounds(rounds)
    assert counts.tau == pytest.approx(4 / 2)
    assert counts.alpha[0, 0] == pytest.approx(1 / 2)
    assert counts.alpha[0, 1] == 1.0
    assert counts.alpha_by_depth == {1: 0.5, 2: 1.0, 3: 0.0}
    assert math.isnan(AcceptanceCounts().tau)


@given(trees_strategy, st.lists(st.integers(0, VOCAB - 1), min_size=13, max_size=13))
def test_what_was_hit_had_been_offered(tree: DraftTree, rows: list[int]) -> None:
    counts = count_round(tree, greedy_walk(tree, rows))
    assert all(counts.hit[place] <= counts.offered[place] for place in counts.hit)
    assert sum(counts.depth_hit.values()) == counts.accepted == counts.committed - 1
