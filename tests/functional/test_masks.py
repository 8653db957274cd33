"""Masks show what decoding shows, and never the future."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.functional.masks import additive, block_branch_mask, block_causal_mask, tree_mask, valid_prefix_mask


@st.composite
def grids(draw, max_transitions=3):
    positions, slots = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    depths = draw(st.lists(st.integers(1, slots), min_size=1, max_size=max_transitions))
    return positions, slots, depths, draw(st.integers(1, slots))


def causal_twin(positions, slots, kept):
    """Slow twin of `block_causal_mask`, query by query, key by key."""
    cells = list(product(range(positions), range(slots)))
    return torch.tensor([[(p < i and s < kept) or (p == i and s <= k) for p, s in cells] for i, k in cells])


def branch_twin(positions, slots, depths, kept, same_depth_keys):
    """Slow twin of `block_branch_mask`."""
    cells = list(product(range(positions), range(slots)))
    number = len(depths)

    def sees(query, block, key):
        (i, k), (p, s) = query, key
        if block == number:
            return (p == i and s <= k) or (same_depth_keys and p < i)
        return (p == i and s < depths[block]) or (block == 0 and p < i and s < kept)

    return torch.tensor([[sees(query, block, key) for block in range(number + 1) for key in cells] for query in cells])


@given(grids())
def test_first_block_mask_equals_its_twin(grid):
    positions, slots, _, kept = grid
    assert torch.equal(block_causal_mask(positions, slots, kept), causal_twin(positions, slots, kept))
    assert torch.equal(block_causal_mask(positions, slots), causal_twin(positions, slots, slots))


@given(grids(), st.booleans())
def test_branch_mask_equals_its_twin(grid, same_depth_keys):
    positions, slots, depths, kept = grid
    mask = block_branch_mask(positions, slots, depths, kept, same_depth_keys)
    assert torch.equal(mask, branch_twin(positions, slots, depths, kept, same_depth_keys))
    every = block_branch_mask(positions, slots, depths, None, same_depth_keys)
    assert torch.equal(every, branch_twin(positions, slots, depths, slots, same_depth_keys))


@given(grids(), st.booleans())
def test_no_slot_sees_the_future(grid, same_depth_keys):
    """A key made from token t is visible only to slots whose own input token is t or later."""
    positions, slots, depths, kept = grid
    position = torch.arange(positions).repeat_interleave(slots)
    start = [sum(depths[:block]) for block in range(len(depths) + 1)]
    masks = [block_causal_mask(positions, slots, kept)]
    masks += [block_branch_mask(positions, slots, depths[:m], kept, same_depth_keys) for m in range(1, len(start))]
    for block, mask in enumerate(masks):
        newest_own = position + start[block]
        newest_key = torch.cat([position + start[earlier] for earlier in range(block + 1)])
        assert (newest_key[None] <= newest_own[:, None])[mask].all()


@given(grids())
def test_what_a_visible_slot_saw_is_visible(grid):
    positions, slots, _, kept = grid
    mask = block_causal_mask(positions, slots, kept).int()
    assert ((mask @ mask > 0) <= (mask > 0)).all()


@given(grids())
def test_a_branch_row_sees_no_other_branch(grid):
    """Blocks after the first are independent across positions, so that training may sample them."""
    positions, slots, depths, kept = grid
    mask = block_branch_mask(positions, slots, depths, kept).unflatten(1, (-1, positions, slots))
    for query, later in product(range(positions * slots), range(1, len(depths) + 1)):
        assert mask[query, later].any(-1).nonzero().flatten().tolist() == [query // slots]


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5), st.data())
def test_valid_prefix_equals_its_twin(hits, data):
    start = data.draw(st.lists(st.booleans(), min_size=len(hits), max_size=len(hits)))
    expected = [[begins and all(row[:slot]) for slot in range(4)] for begins, row in zip(start, hits, strict=True)]
    assert valid_prefix_mask(torch.tensor(start), torch.tensor(hits)).tolist() == expected


def test_the_last_hit_does_not_matter():
    start, hits = torch.ones(2, dtype=torch.bool), torch.tensor([[True, True], [True, False]])
    assert valid_prefix_mask(start, hits).all()


def test_a_tree_sees_the_text_and_its_ancestors():
    ancestors = torch.tensor([[True, False], [True, True]])
    assert tree_mask(ancestors, 3).int().tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_additive_mask_removes_the_hidden_and_stays_finite(dtype):
    visible = torch.tensor([[True, False, True]])
    mask = additive(visible, dtype)
    assert mask.dtype == dtype
    assert mask.isfinite().all()
    assert (torch.randn(1, 3, dtype=dtype) + mask).softmax(-1)[~visible].eq(0).all()
    assert mask[visible].eq(0).all()
