"""Columns remember which token they hold, so that windows, padding and holes are seen as plain decoding sees them."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.functional.tree import Node, ancestor_matrix, flatten
from specblock_zoo.inference.columns import HIDDEN, gather_order, lined_up, text_columns, visible, with_rows


def test_padding_is_hidden_and_counted() -> None:
    mask = torch.tensor([[False, True, True], [True, True, True]])
    assert text_columns(2, 3, mask).tolist() == [[HIDDEN, 1, 2], [0, 1, 2]]
    assert text_columns(1, 3, None).tolist() == [[0, 1, 2]]


def test_rows_that_keep_less_get_holes() -> None:
    grown = with_rows(torch.tensor([[0, 1], [0, 1]]), first=[2, 2], counts=[1, 3])
    assert grown.tolist() == [[0, 1, 2, HIDDEN, HIDDEN], [0, 1, 2, 3, 4]]
    assert with_rows(grown, first=[3, 5], counts=[2, 1]).tolist()[0] == [0, 1, 2, HIDDEN, HIDDEN, 3, 4]


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4))
def test_gathering_keeps_every_visible_column_in_its_order(holes: list[list[bool]]) -> None:
    columns = torch.arange(5).repeat(len(holes), 1).masked_fill(torch.tensor(holes), HIDDEN)
    longest = int((columns >= 0).sum(1).max())
    moved = columns.gather(1, gather_order(columns, longest))
    for before, after in zip(columns.tolist(), moved.tolist(), strict=True):
        kept = [token for token in before if token != HIDDEN]
        assert after == kept + (longest - len(kept)) * [HIDDEN]


def test_trees_are_filled_up_with_nodes_that_nobody_sees() -> None:
    long = flatten([Node(7, -1, 0.0, 0, 0, 0, 1), Node(8, 0, 0.0, 0, 0, 0, 2)])
    tokens, depths, ancestors = lined_up([flatten(()), long], len(long))
    assert (tokens, depths) == ([[0, 0], [7, 8]], [[0, 1, 1], [0, 1, 2]])
    assert torch.equal(ancestors[0], torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool())
    assert torch.equal(ancestors[1], ancestor_matrix([-1, 0]))


@given(st.integers(1, 9), st.integers(0, 12), st.sampled_from([None, 1, 2, 4]))
def test_a_chain_sees_what_a_causal_mask_with_a_window_shows(nodes: int, held: int, window: int | None) -> None:
    chain = ancestor_matrix(list(range(-1, nodes - 2)))[None]
    indices = torch.arange(held, held + nodes)[None]
    found = visible(torch.arange(held)[None], indices, chain, window)
    query, key = torch.arange(held, held + nodes)[:, None], torch.arange(held + nodes)
    expected = (key <= query) & (key > query - (window or 10**6))
    assert torch.equal(found[0], expected)
