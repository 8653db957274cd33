"""Slot terms, reports and the authors' objective against loops that read like their definitions."""

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specblock_zoo.functional.buckets import rank_of, rank_to_bucket
from specblock_zoo.functional.losses import LOSSES, RANK_LOSSES, cross_entropy, ordinal_cross_entropy
from specblock_zoo.functional.objective import LossReport, release_objective
from specblock_zoo.structures import DraftBlock
from tests.support.scores import plain_terms

seeds = st.integers(0, 2**16)
few = settings(max_examples=25)


def slot_rows(seed, rows=30, vocab=16):
    generator = torch.Generator().manual_seed(seed)
    teacher = 2 * torch.randn(rows, vocab, generator=generator)
    logits = (teacher + torch.randn(rows, vocab, generator=generator)).requires_grad_()
    rank_logits = torch.randn(rows, 4, generator=generator).requires_grad_()
    return logits, rank_logits, teacher, torch.rand(rows, generator=generator) < 0.7


def slot_twin(logits, rank_logits, teacher, supervised, loss, rank_loss):
    """Slow twin of `slot_terms`: row by row."""
    rows = [row for row in range(len(logits)) if supervised[row]]
    truth = {row: int(teacher[row].argmax()) for row in rows}
    hit = {row: torch.tensor(int(logits[row].argmax()) == truth[row]) for row in rows}
    bucket = {row: int(rank_to_bucket(1 + (logits[row] > logits[row, truth[row]]).sum())) for row in rows}
    weight = {row: min(1.0, 10 / sum(bucket[other] == bucket[row] for other in rows)) for row in rows}
    confusion = torch.zeros(4, 4, dtype=torch.int64)
    for row in rows:
        confusion[bucket[row], int(rank_logits[row].argmax())] += 1
    draft = [LOSSES[loss](logits[[row]], teacher[[row]].softmax(-1)).sum() for row in rows]
    rank = [weight[row] * RANK_LOSSES[rank_loss](rank_logits[[row]], torch.tensor([bucket[row]])).sum() for row in rows]
    return {
        "draft_loss": sum(draft, torch.zeros(())),
        "rows": torch.tensor(len(rows)),
        "rank_loss": sum(rank, torch.zeros(())),
        "rank_weight": torch.tensor(sum(weight.values())),
        "hits": sum((hit[row] for row in rows), torch.tensor(0)),
        "confusion": confusion,
    }


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rank_loss", RANK_LOSSES)
@few
@given(seed=seeds)
def test_slot_terms_equal_their_twin(loss, rank_loss, seed):
    inputs = slot_rows(seed)
    terms = plain_terms(*inputs, loss, rank_loss)
    expected = slot_twin(*inputs, loss, rank_loss)
    for name, value in expected.items():
        torch.testing.assert_close(getattr(terms, name), value, rtol=1e-5, atol=1e-5, check_dtype=False)
    fast = torch.autograd.grad(2 * terms.draft_loss + terms.rank_loss, inputs[:2])
    slow = torch.autograd.grad(2 * expected["draft_loss"] + expected["rank_loss"], inputs[:2])
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-6)


def test_a_slot_without_rows_is_zero_and_differentiable():
    logits, rank_logits = torch.zeros(0, 8, requires_grad=True), torch.zeros(0, 4, requires_grad=True)
    terms = plain_terms(logits, rank_logits, torch.zeros(0, 8), torch.zeros(0, dtype=torch.bool))
    total = LossReport.stack([[terms]]).total()
    total.backward()
    assert (total.item(), terms.rows.item()) == (0.0, 0)


def test_unsupervised_rows_are_in_no_sum():
    logits, rank_logits, teacher, supervised = slot_rows(0)
    none = plain_terms(logits, rank_logits, teacher, torch.zeros_like(supervised))
    assert (none.rows.item(), none.hits.item(), none.draft_loss.item(), none.confusion.sum().item()) == (0, 0, 0.0, 0)


def report_of(seed, blocks=2, slots=3):
    return LossReport.stack(
        [[plain_terms(*slot_rows(seed + 10 * block + slot)) for slot in range(slots)] for block in range(blocks)]
    )


def test_parts_of_an_update_keep_the_weights_of_slots_if_min_rows_is_parted_too():
    """What docs/scaling.md says of smaller batches: 1,400 to 250 rows, whole and as two halves, one nat a row."""

    def of(rows):
        empty = report_of(0, blocks=1, slots=len(rows[0]))
        none = torch.zeros_like(empty.rank_loss)
        counted = torch.tensor(rows)
        return replace(empty, draft_loss=counted.float(), rows=counted, rank_loss=none, rank_weight=none)

    whole, half = of([[1400, 800, 450, 250]]), of([[700, 400, 225, 125]])
    total = whole.total(1.0, min_rows=1000)
    assert torch.isclose(half.total(1.0, min_rows=500), total)
    assert half.total(1.0, min_rows=1000) < 0.6 * total


@few
@given(seeds, seeds)
def test_reports_add_up(first, second):
    summed = report_of(first) + report_of(second)
    for field in fields(LossReport):
        parts = getattr(report_of(first), field.name) + getattr(report_of(second), field.name)
        assert torch.equal(getattr(summed, field.name), parts)


@few
@given(seeds, st.integers(0, 30))
def test_a_split_batch_has_the_mean_of_the_whole(seed, cut):
    logits, rank_logits, teacher, supervised = slot_rows(seed)
    rows = (slice(0, cut), slice(cut, None))
    parts = [plain_terms(*(tensor[piece] for tensor in (logits, rank_logits, teacher, supervised))) for piece in rows]
    whole = LossReport.stack([[plain_terms(logits, rank_logits, teacher, supervised)]])
    added = LossReport.stack([[parts[0]]]) + LossReport.stack([[parts[1]]])
    torch.testing.assert_close(added.total(rank_weight=0.0), whole.total(rank_weight=0.0))
    torch.testing.assert_close(added.alpha(), whole.alpha())
    assert torch.equal(added.confusion, whole.confusion)


@few
@given(seeds, st.floats(0.1, 1), st.floats(0, 2))
def test_total_weighs_slots_and_sums_blocks(seed, slot_weight, rank_weight):
    report = report_of(seed).detach()
    expected = 0.0
    for block in range(2):
        for slot in range(3):
            expected += slot_weight**slot * float(report.draft_loss[block, slot] / report.rows[block, slot])
        expected += rank_weight * float(report.rank_loss[block].sum() / report.rank_weight[block].sum())
    assert report.total(slot_weight, rank_weight).item() == pytest.approx(expected, rel=1e-5)


def test_metrics_and_detached_reports_carry_no_graph():
    report = report_of(0)
    assert report.total().requires_grad
    assert not any(value.requires_grad for value in report.metrics().values())
    torch.testing.assert_close(report.detach().total(), report.total().detach())
    assert set(report.metrics()) == {field.name for field in fields(LossReport)}


def release_twin(blocks, target_logits, loss_mask, t2d, offsets):
    """Slow twin of the authors' loss: position by position, slot by slot, along each path until its first miss."""
    batch, length, slots, _ = blocks[0].logits.shape
    teacher = target_logits[..., t2d].softmax(-1)
    counted = loss_mask & t2d[target_logits.argmax(-1)]
    total = torch.zeros(())
    for block, offset in zip(blocks, offsets, strict=True):
        draft = [[] for _ in range(slots)]
        ranked = [[] for _ in range(slots)]
        for b, i in ((b, i) for b in range(batch) for i in range(length) if counted[b, i]):
            path_right = buckets_right = True
            for k in range(min(slots, length - i - offset)):
                row = i + offset + k
                logits, best = block.logits[b, i, k], int(teacher[b, row].argmax())
                bucket = rank_to_bucket(rank_of(logits[None], torch.tensor([best])))
                guess = block.rank_logits[b, i, k][None]
                if path_right and counted[b, row]:
                    draft[k].append(cross_entropy(logits[None], teacher[b, row][None]).sum())
                if buckets_right and counted[b, row]:
                    ranked[k].append((int(bucket), ordinal_cross_entropy(guess, bucket).sum()))
                path_right &= int(logits.argmax()) == best
                buckets_right &= int(guess.argmax()) == int(bucket)
        total = total + sum(0.8**k * sum(values) / len(values) for k, values in enumerate(draft) if values)
        terms = [
            (min(1, 10 / sum(other == bucket for other, _ in slot)), loss) for slot in ranked for bucket, loss in slot
        ]
        total = total + sum(weight * loss for weight, loss in terms) / max(sum(weight for weight, _ in terms), 1e-9)
    return total


def release_inputs(seed, batch=2, length=9, slots=3, vocab=8):
    generator = torch.Generator().manual_seed(seed)
    t2d = torch.tensor([True, False] + [True] * (vocab - 2))
    target_logits = 2 * torch.randn(batch, length, vocab, generator=generator)
    offsets = (0, 2)
    blocks = []
    for offset in offsets:
        ahead = [target_logits.roll(-offset - k, 1)[..., t2d] for k in range(slots)]
        logits = torch.stack(ahead, 2) + torch.randn(batch, length, slots, vocab - 1, generator=generator)
        rank_logits = torch.randn(batch, length, slots, 4, generator=generator) + torch.tensor([1.0, 0, 0, 0])
        blocks.append(DraftBlock(torch.empty(0), logits.requires_grad_(), rank_logits.requires_grad_()))
    loss_mask = torch.rand(batch, length, generator=generator) < 0.8
    return blocks, target_logits, loss_mask, t2d, offsets


@few
@given(seeds)
def test_the_authors_objective_equals_its_twin(seed):
    inputs = release_inputs(seed)
    leaves = [tensor for block in inputs[0] for tensor in (block.logits, block.rank_logits)]
    fast, slow = release_objective(*inputs).total(), release_twin(*inputs)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)
    gradients = (torch.autograd.grad(loss, leaves, materialize_grads=True) for loss in (fast, slow))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_cutting_the_teacher_changes_only_the_draft_loss():
    inputs = release_inputs(5)
    whole, cut = release_objective(*inputs), release_objective(*inputs, teacher_top=2)
    assert (cut.draft_loss < whole.draft_loss).any()
    assert (cut.draft_loss <= whole.draft_loss).all()
    for name in ("rows", "hits", "rank_loss", "rank_weight", "confusion"):
        assert torch.equal(getattr(cut, name), getattr(whole, name))


def test_slots_with_few_rows_weigh_less_in_proportion():
    terms = [
        plain_terms(torch.randn(n, 8), torch.randn(n, 4), torch.randn(n, 8), torch.ones(n, dtype=torch.bool))
        for n in (6, 2)
    ]
    report = LossReport.stack([terms])
    few = LossReport.stack([[terms[0], replace(terms[1], draft_loss=terms[1].draft_loss * 0.5)]])
    torch.testing.assert_close(report.total(rank_weight=0.0, min_rows=4), few.total(rank_weight=0.0))
