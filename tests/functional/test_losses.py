"""Draft and rank losses: readable twins, gradients, and the boundary cases."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.functional import losses
from specblock_zoo.functional.losses import (
    CLASS_BUDGET,
    LOSSES,
    OVERLAP_FLOOR,
    RANK_LOSSES,
    bucket_distance,
    class_weights,
    cross_entropy,
    keep_top,
    log_overlap,
    loss_and_gradient,
    ordinal_cross_entropy,
    ordinal_labels,
    total_variation,
)

seeds = st.integers(0, 2**16)
every_loss = pytest.mark.parametrize("name", LOSSES)
DISJOINT = (torch.tensor([[200.0, -200.0]]), torch.tensor([[0.0, 1.0]]))


def random_rows(seed, rows=5, vocab=7, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(rows, vocab, generator=generator) for _ in range(2)]


def twin(name, logits, target_probs):
    """Slow twins of all draft losses: one row, one token at a time, in float64."""
    rows = []
    for scores, probs in zip(logits.double().tolist(), target_probs.double().tolist(), strict=True):
        norm = math.log(sum(math.exp(score - max(scores)) for score in scores)) + max(scores)
        draft = [score - norm for score in scores]
        overlap = sum(min(math.exp(log_prob), prob) for log_prob, prob in zip(draft, probs, strict=True))
        value = {
            "cross_entropy": -sum(prob * log_prob for log_prob, prob in zip(draft, probs, strict=True)),
            "total_variation": 1 - overlap,
            "log_overlap": -math.log(overlap),
        }
        rows.append(value[name])
    return torch.tensor(rows)


@every_loss
@given(seed=seeds)
def test_losses_equal_their_twins(name, seed):
    logits, teacher = random_rows(seed)
    probs = teacher.softmax(-1)
    torch.testing.assert_close(LOSSES[name](logits, probs), twin(name, logits, probs), atol=1e-5, rtol=1e-5)


@given(seed=seeds)
def test_a_cut_target_is_not_renormalised(seed):
    logits, teacher = random_rows(seed)
    probs = keep_top(teacher.softmax(-1), 2)
    expected = twin("cross_entropy", logits, probs)
    torch.testing.assert_close(cross_entropy(logits, probs), expected, atol=1e-5, rtol=1e-5)


@every_loss
@given(seed=seeds)
def test_no_draft_beats_the_target_itself(name, seed):
    logits, teacher = random_rows(seed)
    probs = teacher.softmax(-1)
    assert (LOSSES[name](teacher + 3.0, probs) <= LOSSES[name](logits, probs) + 1e-6).all()


@every_loss
@given(seed=seeds)
def test_a_step_against_the_gradient_helps(name, seed):
    logits, teacher = random_rows(seed)
    logits.requires_grad_()
    probs = teacher.softmax(-1)
    before = LOSSES[name](logits, probs).sum()
    (slope,) = torch.autograd.grad(before, logits)
    after = LOSSES[name](logits.detach() - 1e-3 * slope, probs).sum()
    assert after <= before + 1e-5


@given(seed=seeds)
def test_cross_entropy_gradient_is_draft_minus_target(seed):
    logits, teacher = random_rows(seed)
    logits.requires_grad_()
    probs = teacher.softmax(-1)
    cross_entropy(logits, probs).sum().backward()
    torch.testing.assert_close(logits.grad, logits.softmax(-1) - probs)


@every_loss
def test_zero_overlap_is_finite_and_the_worst_value(name):
    worst = LOSSES[name](*DISJOINT)
    milder = LOSSES[name](DISJOINT[0] / 50, DISJOINT[1])
    assert worst.isfinite().all()
    assert worst > milder


def test_worst_values_are_as_stated():
    assert total_variation(*DISJOINT).item() == 1
    assert log_overlap(*DISJOINT).item() == pytest.approx(-math.log(OVERLAP_FLOOR))


@every_loss
def test_a_perfect_certain_draft_costs_nothing(name):
    loss = LOSSES[name](torch.tensor([[100.0, -100.0]]), torch.tensor([[1.0, 0.0]]))
    assert loss.item() == pytest.approx(0, abs=1e-6)


@given(seed=seeds, top=st.integers(1, 9))
def test_keep_top_keeps_and_does_not_renormalise(seed, top):
    probs = random_rows(seed)[0].softmax(-1)
    cut = keep_top(probs, top)
    assert ((cut == 0) | (cut == probs)).all()
    assert ((cut > 0).sum(-1) == min(top, 7)).all()
    torch.testing.assert_close(cut.sum(-1), probs.sort(descending=True).values[:, :top].sum(-1))


@every_loss
@pytest.mark.parametrize("elements", [1, 15, 10**6], ids=["row by row", "pieces", "whole"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_sum_in_pieces_equals_plain_autograd(name, elements, dtype, monkeypatch):
    monkeypatch.setattr(losses, "CHUNK_ELEMENTS", elements)
    logits, teacher = (rows.to(dtype) for rows in random_rows(3))
    weights = torch.tensor([1.0, 0.0, 0.5, 1.0, 2.0])
    plain, probs, gradient = (
        logits.clone().requires_grad_(),
        teacher.softmax(-1, torch.float32),
        torch.ones(5, 7).to(dtype),
    )
    value = loss_and_gradient(LOSSES[name], logits, probs, weights, gradient)
    expected = (weights * LOSSES[name](plain, probs)).sum()
    expected.backward()
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(gradient, plain.grad)
    assert gradient[1].eq(0).all()
    assert loss_and_gradient(LOSSES[name], logits, probs, weights, None) == value


@pytest.mark.parametrize("name", RANK_LOSSES)
def test_rank_losses_prefer_the_true_bucket(name):
    truth = torch.arange(4)
    confident = 10 * torch.eye(4)
    right = RANK_LOSSES[name](confident, truth)
    for miss in range(1, 4):
        assert (RANK_LOSSES[name](confident, (truth + miss) % 4) > right).all()


def test_too_optimistic_a_bucket_costs_more():
    guess = 5 * torch.eye(4)
    optimistic, pessimistic = ordinal_cross_entropy(guess[[0, 3]], torch.tensor([3, 0]))
    assert optimistic > pessimistic


def test_ordinal_labels_are_distributions_peaked_at_the_truth():
    labels = ordinal_labels()
    torch.testing.assert_close(labels.sum(-1), torch.ones(4))
    assert labels.argmax(-1).tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(labels[1] / labels[1, 1], torch.tensor([1 / 9, 1, 1 / 4, 1 / 9]))


def test_distance_counts_optimism_twice():
    assert bucket_distance(torch.tensor([3, 0, 2]), torch.tensor([1, 2, 2])).tolist() == [4, 2, 0]


@given(st.lists(st.integers(0, 3), max_size=80))
def test_no_bucket_outweighs_the_budget(buckets):
    weights = class_weights(torch.tensor(buckets, dtype=torch.int64))
    for bucket in set(buckets):
        mine = weights[torch.tensor(buckets) == bucket]
        assert mine.sum().item() == pytest.approx(min(buckets.count(bucket), CLASS_BUDGET))
        assert mine.unique().numel() == 1
