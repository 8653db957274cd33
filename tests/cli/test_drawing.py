"""A drawn round shows every node under its parent, what was accepted, and the target's own token."""

import io
import math
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from specblock_zoo.cli.drawing import ACCEPTED, BONUS, REJECTED, draw_round, progress
from specblock_zoo.functional.tree import LOOKUP_BLOCK
from specblock_zoo.structures import DraftTree, Round, Verdict

WORDS = {1: "root", 10: "a", 11: "b", 12: "[red]c", 20: "own"}
PARENTS, PROBABILITIES = [-1, 0, -1], [0.5, 0.25, 0.2]


def one_round() -> Round:
    zeros = torch.zeros(3, dtype=torch.int64)
    log_probs = torch.tensor([math.log(0.5), math.log(0.5 * 0.25), math.log(0.2)])
    tree = DraftTree(
        torch.tensor([10, 11, 12]),
        torch.tensor(PARENTS),
        log_probs,
        *(zeros, zeros, zeros),
        torch.tensor([1, 2, 1]),
        zeros.bool(),
    )
    return Round(tree, Verdict((0, 1), (10, 11, 20), False), 1.0, 2.0, 0.5)


def label(node: Tree) -> Text:
    assert isinstance(node.label, Text)
    return node.label


def test_nodes_hang_under_their_parents_with_their_own_probability() -> None:
    drawn = draw_round(one_round(), 1, WORDS.__getitem__)
    assert [label(child).plain for child in drawn.children] == ["'a' 0.50", "'[red]c' 0.20"]
    assert label(drawn.children[0].children[0]).plain == "'b' 0.25"


def test_copies_from_the_text_are_marked() -> None:
    drawn = one_round()
    copied = replace(drawn, tree=replace(drawn.tree, blocks=torch.tensor([0, 0, LOOKUP_BLOCK])))
    children = draw_round(copied, 1, WORDS.__getitem__).children
    assert [label(child).plain for child in children] == ["'a' 0.50", "'[red]c' 0.20, copied"]


def test_accepted_bonus_and_rejected_nodes_differ() -> None:
    drawn = draw_round(one_round(), 1, WORDS.__getitem__)
    first, rejected = drawn.children
    second = first.children[0]
    bonus = second.children[0]
    styles = [str(label(node).spans[0].style) for node in (first, second, bonus, rejected)]
    assert styles == [ACCEPTED, ACCEPTED, BONUS, REJECTED]
    assert label(bonus).plain.startswith("'own' bonus")


def test_without_acceptance_the_bonus_hangs_under_the_root() -> None:
    drawn = draw_round(replace(one_round(), verdict=Verdict((), (20,), False)), 1, WORDS.__getitem__)
    assert [label(child).plain for child in drawn.children][-1].startswith("'own' bonus")


def test_a_text_that_ended_on_an_accepted_node_has_no_bonus() -> None:
    drawn = draw_round(replace(one_round(), verdict=Verdict((0,), (10,), True)), 1, WORDS.__getitem__)
    assert "bonus" not in _render(drawn)


def test_token_text_is_never_read_as_markup() -> None:
    assert "[red]c" in _render(draw_round(one_round(), 1, WORDS.__getitem__))


@pytest.mark.parametrize("total", [1, 3])
def test_the_progress_bar_counts_and_vanishes(total: int) -> None:
    out = io.StringIO()
    with progress("working", total, Console(file=out, force_terminal=True, width=80)) as advance:
        for _ in range(total):
            advance()
    assert "100%" in out.getvalue()


def _render(tree: Tree) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(tree)
    return out.getvalue()
