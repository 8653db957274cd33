"""Probabilities in float32, candidates without a full copy, one draw per token."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.functional.sampling import capped, draw, log_probs, top_candidates

seeds = st.integers(0, 2**16)


@given(seeds, st.integers(1, 12), st.integers(1, 15))
def test_candidates_are_the_head_of_the_distribution(seed, vocab, width):
    logits = torch.randn(2, 3, vocab, generator=torch.Generator().manual_seed(seed))
    values, indices = top_candidates(logits, width)
    every = log_probs(logits)
    assert values.shape == indices.shape == (2, 3, min(width, vocab))
    torch.testing.assert_close(values, every.sort(descending=True).values[..., :width])
    torch.testing.assert_close(values, every.gather(-1, indices))


def test_half_precision_scores_give_float32_probabilities():
    logits = torch.randn(4, 5000, dtype=torch.bfloat16)
    assert log_probs(logits).dtype == top_candidates(logits, 3)[0].dtype == torch.float32
    torch.testing.assert_close(log_probs(logits).exp().sum(-1), torch.ones(4), atol=1e-4, rtol=0)


@given(seeds, st.sampled_from([2.0, 30.0]))
def test_a_cap_bounds_the_logits_and_keeps_their_order(seed, cap):
    logits = 3 * torch.randn(3, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = capped(logits, cap)
    assert found.abs().amax() < cap
    torch.testing.assert_close(cap * torch.atanh(found / cap), logits)
    assert capped(logits, None) is logits


@given(seeds)
def test_a_draw_is_one_multinomial_call(seed):
    probs = torch.rand(4, 7, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    drawn = draw(probs, torch.Generator().manual_seed(seed))
    expected = torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(seed)).squeeze(1)
    assert torch.equal(drawn, expected)
    torch.manual_seed(seed)
    assert torch.equal(draw(probs), expected)


def test_draws_keep_their_shape_and_never_take_the_impossible():
    probs = torch.tensor([0.0, 0.5, 0.0, 0.5]).expand(2, 50, 4)
    drawn = draw(probs, torch.Generator().manual_seed(0))
    assert drawn.shape == (2, 50)
    assert set(drawn.flatten().tolist()) == {1, 3}


def test_draws_follow_the_distribution():
    probs, draws = torch.tensor([0.6, 0.3, 0.1]), 20_000
    drawn = draw(probs.expand(draws, 3), torch.Generator().manual_seed(1))
    shares = torch.bincount(drawn, minlength=3) / draws
    assert ((shares - probs).abs() < 4 * (probs * (1 - probs) / draws).sqrt()).all()
