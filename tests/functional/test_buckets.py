"""Ranks fall into four buckets, and the summary says what the head of a distribution looks like."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.functional.buckets import ABSENT_LOG_RATIO, SUMMARY_SIZE, rank_of, rank_summary, rank_to_bucket

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
