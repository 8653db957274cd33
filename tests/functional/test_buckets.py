"""Ranks fall into four buckets, and the summary says what the head of a distribution looks like."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.functional import tree as trees
from specblock_zoo.functional.buckets import (
    ABSENT_LOG_RATIO,
    NUM_BUCKETS,
    SUMMARY_SIZE,
    rank_of,
    rank_summary,
    rank_to_bucket,
    reads_buckets,
)
from specblock_zoo.structures import TreeSettings

scores = st.lists(st.integers(-20, 20).map(lambda value: value / 4), min_size=1, max_size=30)


def summary_twin(logits, top):
    """Slow twin for one row with at least ten entries: the definition, number by number."""
    best = sorted(logits, reverse=True)[:top]
    log_norm = math.log(sum(math.exp(value) for value in best))
    log_probs = [value - log_norm for value in best]
    entropy = -sum(math.exp(value) * value for value in log_probs)
    gaps = [best[0] - best[other] for other in (1, 2, 4)]
    return [*log_probs[:10], *gaps, math.exp(log_probs[0]), entropy]


@pytest.mark.parametrize(
    ("rank", "bucket"), [(1, 0), (2, 1), (4, 1), (5, 2), (10, 2), (11, 3), (10**6, 3)], ids=lambda value: str(value)
)
def test_bucket_edges(rank, bucket):
    assert rank_to_bucket(torch.tensor(rank)).item() == bucket


@given(scores, st.data())
def test_rank_counts_the_strictly_better(logits, data):
    index = data.draw(st.integers(0, len(logits) - 1))
    rank = rank_of(torch.tensor(logits)[None], torch.tensor([index]))
    assert rank.tolist() == [1 + sum(other > logits[index] for other in logits)]


def test_equals_share_the_better_rank():
    logits = torch.tensor([[2.0, 2.0, 1.0]] * 3)
    assert rank_of(logits, torch.tensor([0, 1, 2])).tolist() == [1, 1, 3]


@given(st.lists(st.floats(-20, 20, width=32), min_size=10, max_size=40), st.integers(10, 25))
def test_summary_equals_its_twin(logits, top):
    fast = rank_summary(torch.tensor(logits), top)
    torch.testing.assert_close(fast, torch.tensor(summary_twin(logits, top)), atol=1e-4, rtol=1e-5)


@given(scores, st.floats(-50, 50))
def test_summary_is_finite_and_blind_to_a_constant(logits, constant):
    row = torch.tensor(logits, dtype=torch.float64)
    summary = rank_summary(row)
    assert summary.shape == (SUMMARY_SIZE,)
    assert summary.isfinite().all()
    torch.testing.assert_close(summary, rank_summary(row + constant), atol=1e-4, rtol=1e-4)


def test_summary_looks_at_the_head_only():
    logits = torch.linspace(3, -3, 64)
    changed = logits.clone()
    changed[20:] -= 100
    torch.testing.assert_close(rank_summary(logits), rank_summary(changed), atol=0, rtol=0)
    assert not torch.equal(rank_summary(logits, 25), rank_summary(changed, 25))


def test_absent_candidates_are_as_good_as_impossible():
    summary = rank_summary(torch.tensor([1.0, 0.0, -1.0]))
    torch.testing.assert_close(summary[:3], torch.tensor([1.0, 0.0, -1.0]).log_softmax(0))
    torch.testing.assert_close(summary[3:10], (summary[0] + ABSENT_LOG_RATIO).expand(7))


def test_summary_carries_no_gradient_and_is_float32():
    logits = torch.randn(2, 3, 32, dtype=torch.bfloat16, requires_grad=True)
    summary = rank_summary(logits)
    assert (summary.requires_grad, summary.dtype, tuple(summary.shape)) == (False, torch.float32, (2, 3, 15))


WIDTHS = st.integers(0, 3)
SETTINGS = st.builds(
    TreeSettings,
    num_blocks=st.integers(1, 2),
    max_nodes=st.just(30),
    beam_width=st.integers(1, 3),
    branching=st.one_of(st.tuples(WIDTHS, WIDTHS, WIDTHS, WIDTHS), WIDTHS.map(lambda width: (width,) * NUM_BUCKETS)),
    chain=st.booleans(),
    independent_slots=st.booleans(),
    confident_slots=st.booleans(),
)


def grown(settings: TreeSettings, buckets: list[list[list[int]]]) -> list[tuple[int, int, float]]:
    """Tokens, parents and scores of a tree of two blocks whose slots fall into these buckets."""
    growth = trees.Growth()
    for block in range(settings.num_blocks):
        rows, slots, width = len(growth.starts), len(buckets[block][0]), trees.candidate_width(settings)
        row = [[10 * slot + rank for rank in range(width)] for slot in range(slots)]
        scores = [[-0.01 - slot - rank for rank in range(width)] for slot in range(slots)]
        proposals = trees.Proposals([row] * rows, [scores] * rows, buckets[block] * rows)
        growth = trees.grow_block(growth, proposals, settings, block)
        growth = trees.select_starts(growth, settings, block + 1, slots, 100)
    return [(node.token, node.parent, node.log_prob) for node in growth.nodes]


@given(SETTINGS, st.data())
def test_trees_of_settings_that_read_no_buckets_do_not_depend_on_them(settings: TreeSettings, data: st.DataObject):
    slots = data.draw(st.integers(1, 3))
    buckets = st.lists(st.integers(0, NUM_BUCKETS - 1), min_size=slots, max_size=slots)
    one, other = ([[data.draw(buckets)] for _ in range(2)] for _ in range(2))
    if not reads_buckets(settings):
        assert grown(settings, one) == grown(settings, other)


@pytest.mark.parametrize(
    ("changes", "reads"),
    [
        ({}, True),
        ({"chain": True}, True),
        ({"chain": True, "independent_slots": True}, False),
        ({"independent_slots": True}, False),
        ({"branching": (3, 3, 3, 3)}, False),
        ({"branching": (1, 1, 1, 1), "num_blocks": 1}, False),
        ({"branching": (2, 2, 2, 2), "num_blocks": 2, "beam_width": 1}, True),
        ({"branching": (1, 1, 1, 1), "num_blocks": 2}, True),
        ({"branching": (0, 0, 0, 0), "num_blocks": 1}, True),
    ],
)
def test_which_settings_read_buckets(changes, reads):
    assert reads_buckets(TreeSettings(**changes)) is reads
