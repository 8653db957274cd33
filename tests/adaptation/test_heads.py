"""A head update on the rows it pulls on is one on the whole head: loss, gradient, ranks."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specblock_zoo.adaptation.buffers import HeadRows, top_rows
from specblock_zoo.adaptation.heads import PIECE, HeadProblem, head_problem
from specblock_zoo.functional.buckets import rank_of, rank_to_bucket
from specblock_zoo.functional.losses import bucket_cross_entropy, class_weights, cross_entropy
from specblock_zoo.models.specblock import SpecBlockDrafter
from tests.support.drafters import DRAFT_VOCAB, HIDDEN, tiny_drafter


def slots(count: int = 40, top: int = 8, seed: int = 1) -> HeadRows:
    generator = torch.Generator().manual_seed(seed)
    flags, scores = torch.ones(count, dtype=torch.bool), torch.randn(count, DRAFT_VOCAB, generator=generator) * 4
    return HeadRows(torch.randn(count, HIDDEN, generator=generator).half(), top_rows(scores, top), flags, flags)


def dense_loss(
    weight: Tensor, drafter: SpecBlockDrafter, good: SpecBlockDrafter, rows: HeadRows, beta: float, rank_weight: float
) -> Tensor:
    """The loss as the formulas say it, from logits of the whole head."""
    normed, ids = rows.normed.float(), rows.target.ids.long()
    rest = rows.target.tail / max(1, DRAFT_VOCAB - ids.shape[1])
    probs = rest[:, None].expand(-1, DRAFT_VOCAB).scatter(1, ids, rows.target.log_probs.float().exp())
    logits = normed @ weight.T
    draft = cross_entropy(logits, probs) + beta * cross_entropy(logits, good.lm_head(normed).softmax(-1))
    buckets = rank_to_bucket(rank_of(logits, ids[:, 0]))
    ranks = bucket_cross_entropy(drafter.rank_head.score(normed, logits, drafter.config.rank_top), buckets)
    weights = class_weights(buckets)
    return draft.mean() + rank_weight * (weights * ranks).sum() / weights.sum()


def sharp_drafter(seed: int = 0, **changes: object) -> SpecBlockDrafter:
    """A drafter that is certain enough to have rows nobody pulls on."""
    made = tiny_drafter(seed=seed, **changes)
    with torch.no_grad():
        made.lm_head.weight.mul_(40 / made.lm_head.weight.norm(dim=1, keepdim=True) / HIDDEN**0.5)
    return made.requires_grad_(False)


def moved(problem: HeadProblem, drafter: SpecBlockDrafter, size: float) -> tuple[Tensor, Tensor]:
    """New weights of the rows that train, and the whole head with them."""
    noise = torch.randn(len(problem.rows), HIDDEN, generator=torch.Generator().manual_seed(5)) * size
    trained = (drafter.lm_head.weight[problem.rows] + noise).requires_grad_()
    whole = drafter.lm_head.weight.clone()
    return trained, whole.index_copy(0, problem.rows, trained.detach()).requires_grad_()


@given(
    st.sampled_from([0.0, 0.05, 0.2, 10.0]),
    st.sampled_from([0.0, 0.4]),
    st.booleans(),
    st.sampled_from([3, PIECE + 9]),
    st.sampled_from([1, 20, DRAFT_VOCAB + 1]),
)
def test_loss_and_gradients_are_those_of_the_whole_head(
    least_pull: float, size: float, is_kept: bool, count: int, rank_top: int
) -> None:
    drafter, rows = sharp_drafter(rank_top=rank_top), slots(count)
    good = drafter if is_kept else sharp_drafter(seed=3)
    drafter.rank_head.requires_grad_(True)
    problem = head_problem(drafter, good, rows, beta=0.5, least_pull=least_pull)
    assert len(problem.rows) == DRAFT_VOCAB or least_pull > 0.0
    trained, whole = moved(problem, drafter, size)
    found = problem.loss(trained, drafter.rank_head, torch.arange(count), rank_weight=2.0)
    expected = dense_loss(whole, drafter, good, rows, beta=0.5, rank_weight=2.0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    ranks = list(drafter.rank_head.parameters())
    ours, theirs = (torch.autograd.grad(loss, ranks, retain_graph=True) for loss in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    found.backward()
    expected.backward()
    torch.testing.assert_close(trained.grad, whole.grad[problem.rows], rtol=1e-3, atol=1e-5)


def test_what_stays_has_no_pull() -> None:
    drafter, rows = sharp_drafter(), slots(4)
    problem = head_problem(drafter, drafter, rows, beta=0.5, least_pull=0.2)
    assert 0 < len(problem.rows) < DRAFT_VOCAB
    logits = (rows.normed.float() @ drafter.lm_head.weight.T).requires_grad_()
    ids = rows.target.ids.long()
    rest = rows.target.tail / (DRAFT_VOCAB - ids.shape[1])
    probs = rest[:, None].expand(-1, DRAFT_VOCAB).scatter(1, ids, rows.target.log_probs.float().exp())
    (cross_entropy(logits, probs) + 0.5 * cross_entropy(logits, logits.detach().softmax(-1))).sum().backward()
    staying = torch.ones(DRAFT_VOCAB, dtype=torch.bool)
    staying[problem.rows] = False
    assert logits.grad[:, staying].abs().max() < 0.2
    assert set(ids[:, 0].tolist()) <= set(problem.rows.tolist()), "the target's best can always be learned"


def test_some_slots_of_a_problem_are_a_problem_of_their_own() -> None:
    drafter, rows, index = sharp_drafter(), slots(), torch.tensor([3, 17, 5])
    problem = head_problem(drafter, drafter, rows, beta=1.0, least_pull=0.0)
    target = type(rows.target)(*(each[index] for each in vars(rows.target).values()))
    chosen = replace(rows, normed=rows.normed[index], target=target)
    weight = drafter.lm_head.weight
    torch.testing.assert_close(
        problem.loss(weight[problem.rows], drafter.rank_head, index, 1.0),
        dense_loss(weight, drafter, drafter, chosen, 1.0, 1.0),
    )


@pytest.mark.parametrize(("certain", "rank_weight"), [(40, 1.0), (2, 3.0)])
def test_common_buckets_weigh_no_more_in_an_update_than_in_training(certain: int, rank_weight: float) -> None:
    """Slots whose token is the best one, and two whose token is the second best."""
    drafter, count = tiny_drafter(), certain + 2
    normed = torch.randn(count, HIDDEN).half()
    order = drafter.lm_head(normed.float()).argsort(-1, descending=True)
    order[certain:] = order[certain:].roll(-1, -1)
    scores = torch.zeros(count, DRAFT_VOCAB).scatter(1, order, -torch.arange(DRAFT_VOCAB).float().expand(count, -1))
    flags = torch.ones(count, dtype=torch.bool)
    problem = head_problem(drafter, drafter, HeadRows(normed, top_rows(scores, 8), flags, flags), 1.0, 0.0)
    ranks = F.cross_entropy(
        drafter.rank_head.score(normed.float(), drafter.lm_head(normed.float()), drafter.config.rank_top),
        torch.tensor([0] * certain + [1] * 2),
        reduction="none",
    )
    budget = min(certain, 10)
    expected = rank_weight * (ranks[:certain].sum() * budget / certain + ranks[certain:].sum()) / (budget + 2)
    weight, every = drafter.lm_head.weight[problem.rows], torch.arange(count)
    found = problem.loss(weight, drafter.rank_head, every, rank_weight) - problem.loss(
        weight, drafter.rank_head, every, 0.0
    )
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
