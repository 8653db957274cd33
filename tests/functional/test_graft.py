"""A tree with a copy in it is a tree: nothing twice, nothing lost, nothing likelier than what it hangs from."""

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.functional import tree as trees
from specblock_zoo.functional.graft import expected_tokens, graft, likelier_chain
from specblock_zoo.functional.lookup import NOTHING, Copied
from specblock_zoo.functional.tree import LOOKUP_BLOCK, ROOT, Node
from specblock_zoo.structures import TreeSettings


def random_tree(seed: int, count: int, distinct: bool) -> list[Node]:
    draw = random.Random(seed)
    nodes: list[Node] = []
    for _ in range(count):
        parent = draw.randrange(-1, len(nodes))
        above, depth = (nodes[parent].log_prob, nodes[parent].depth) if parent != ROOT else (0.0, 0)
        node = Node(draw.randrange(4), parent, above - draw.choice([0.0, 0.1, 0.7, 3.0]), 0, depth, 1, depth + 1)
        if not distinct or all((each.parent, each.token) != (node.parent, node.token) for each in nodes):
            nodes.append(node)
    return nodes


def given_parent(nodes: Sequence[Node], index: int) -> float:
    node = nodes[index]
    return node.log_prob - (nodes[node.parent].log_prob if node.parent != ROOT else 0.0)


def on(nodes: Sequence[Node], tokens: Sequence[int]) -> list[int]:
    """The nodes along `tokens` from the root, as far as the tree holds them."""
    path, parent = [], ROOT
    for token in tokens:
        parent = next((n for n, node in enumerate(nodes) if (node.parent, node.token) == (parent, token)), -2)
        if parent == -2:
            break
        path.append(parent)
    return path


copies = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.05, 0.4, 0.9])), max_size=6).map(
    lambda steps: Copied(tuple(token for token, _ in steps), tuple(chance for _, chance in steps))
)


@given(seed=st.integers(0, 999), count=st.integers(0, 20), distinct=st.booleans(), copied=copies)
def test_a_graft_holds_both_and_stays_a_tree(seed: int, count: int, distinct: bool, copied: Copied) -> None:
    nodes = random_tree(seed, count, distinct)
    merged = graft(nodes, copied)
    path = on(merged, copied.tokens)
    assert len(path) == len(copied.tokens), "the whole copy is in the tree"
    kept = on(nodes, copied.tokens)
    assert len(merged) == len(nodes) + len(copied.tokens) - len(kept), "and nothing twice"
    for index, (node, before) in enumerate(zip(merged, nodes, strict=False)):
        assert node._replace(log_prob=0.0, looked_up=False) == before._replace(log_prob=0.0)
        assert node.looked_up == (index in kept)
        expected = math.exp(given_parent(nodes, index))
        if node.looked_up:
            expected = 1.0 - (1.0 - expected) * (1.0 - copied.chances[kept.index(index)])
        assert math.exp(given_parent(merged, index)) == pytest.approx(expected)
    for place, node in enumerate(merged[len(nodes) :], start=len(kept)):
        assert math.exp(given_parent(merged, path[place])) == pytest.approx(copied.chances[place])
        assert (node.block, node.slot, node.bucket, node.looked_up) == (LOOKUP_BLOCK, place, 0, True)
    for index, node in enumerate(merged):
        assert node.parent < index
        assert node.depth == (merged[node.parent].depth if node.parent != ROOT else 0) + 1
        assert node.log_prob <= (merged[node.parent].log_prob if node.parent != ROOT else 0.0)


@given(seed=st.integers(0, 999), count=st.integers(0, 20), copied=copies, budget=st.integers(1, 9))
def test_budget_and_depth_bound_copies_too(seed: int, count: int, copied: Copied, budget: int) -> None:
    settings = TreeSettings(max_nodes=budget, min_path_prob=0.1)
    tree = trees.flatten(trees.prune(graft(random_tree(seed, count, True), copied), settings, max_depth=3))
    assert len(tree) <= budget
    assert all(depth <= 3 for depth in tree.depths.tolist())
    assert all(log_prob >= math.log(0.1) - 1e-6 for log_prob in tree.log_probs.tolist())


def test_no_copy_changes_nothing() -> None:
    nodes = random_tree(3, 9, True)
    assert graft(nodes, NOTHING) == tuple(nodes)
    assert likelier_chain(nodes, NOTHING) == tuple(nodes)


def test_of_two_chains_the_one_that_promises_more_is_judged() -> None:
    drafted = (Node(1, ROOT, math.log(0.5), 0, 0, 0, 1), Node(2, 0, math.log(0.4), 0, 1, 0, 2))
    assert expected_tokens(drafted) == pytest.approx(0.9)
    long, short = Copied((3, 4, 5), (0.6, 0.6, 0.6)), Copied((3,), (0.8,))
    assert [node.token for node in likelier_chain(drafted, long)] == [3, 4, 5]
    assert likelier_chain(drafted, short) == drafted
