"""SpecBlock's lean training forward equals the dense reference, in value and in gradient."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specblock_zoo.functional.losses import LOSSES, RANK_LOSSES
from specblock_zoo.functional.masks import valid_prefix_mask
from specblock_zoo.functional.objective import LossReport, SlotTerms
from specblock_zoo.functional.vocab import target_to_draft
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.models.specblock.dense import dense_blocks
from specblock_zoo.training.rollout import RolloutSettings
from specblock_zoo.training.specblock import rollout
from specblock_zoo.training.teachers import Teacher
from tests.support.drafters import DRAFT_VOCAB, HIDDEN, VOCAB, WIDTH, tiny_drafter
from tests.support.scores import plain_terms


def make_drafter(**changes: object) -> SpecBlockDrafter:
    drafter = tiny_drafter(**changes)
    # The drafter then says one of its last two tokens almost always, and `make_batch` writes little else.
    drafter.lm_head.weight.data[:-2] *= 0.05
    return drafter


def make_batch(drafter: SpecBlockDrafter, lengths: tuple[int, ...] = (24, 13, 19)) -> dict[str, Tensor]:
    longest = max(lengths)
    features = torch.randn(len(lengths), longest, 3 * HIDDEN)
    frequent = drafter.draft_tokens[DRAFT_VOCAB - 2 + torch.randint(2, (len(lengths), longest))]
    tokens = torch.where(torch.rand(frequent.shape) < 0.9, frequent, torch.randint(VOCAB, frequent.shape))
    inside = torch.arange(longest) < torch.tensor(lengths)[:, None]
    loss_mask = inside & (torch.arange(longest) >= 3)
    batch = {"input_ids": tokens, "features": features, "attention_mask": inside, "loss_mask": loss_mask}
    batch["last_hidden"] = torch.randn(len(lengths), longest, HIDDEN)
    return batch


def dense_report(
    drafter: SpecBlockDrafter, batch: Mapping[str, Tensor], teacher: Teacher, depths: tuple[int, ...]
) -> LossReport:
    """Plain loops over what `dense_blocks` computed, masked by `valid_prefix_mask`."""
    tokens = batch["input_ids"]
    blocks = dense_blocks(drafter, batch["features"][:, :-1], tokens[:, 1:], depths)
    draft_tokens = teacher.draft_ids[tokens]
    counted = F.pad(batch["loss_mask"] & (draft_tokens >= 0), (0, 40))
    entering = counted[:, 2 : 1 + tokens.shape[1], None]
    report, depth = [], 0
    for number, block in enumerate(blocks):
        rows = entering[..., depths[number - 1] - 1] if number else entering[..., 0]
        depth += depths[number - 1] if number else 0
        pairs = torch.arange(rows.shape[1])
        reached = pairs[:, None] + 2 + depth + torch.arange(WIDTH)
        supervised = counted[:, reached]
        said = F.pad(draft_tokens, (0, 40), value=-1)[:, reached]
        hits = (block.logits.argmax(-1) == said) & supervised
        entering = valid_prefix_mask(rows & supervised[..., 0], hits) & supervised
        report.append([row_terms(block, batch, teacher, slot, entering[..., slot], depth) for slot in range(WIDTH)])
    return LossReport.stack(report)


def row_terms(block, batch, teacher, slot: int, rows: Tensor, depth: int) -> SlotTerms:
    sequence, position = rows.nonzero(as_tuple=True)
    states = batch["last_hidden"][sequence, position + 1 + depth + slot]
    logits, ranks = block.logits[sequence, position, slot], block.rank_logits[sequence, position, slot]
    return plain_terms(logits, ranks, states @ teacher.head.T, torch.ones(len(sequence), dtype=torch.bool))


@pytest.mark.parametrize("kept", [1, 2, 3])
@pytest.mark.parametrize("shift", ["every_layer", "between_layers", "none"])
def test_lean_forward_equals_dense_reference(kept: int, shift: str) -> None:
    drafter = make_drafter(context_slots=kept, shift=shift, advance_positions=kept != 2)
    batch = make_batch(drafter)
    teacher = Teacher(torch.randn(DRAFT_VOCAB, HIDDEN), target_to_draft(drafter.t2d))
    settings = RolloutSettings(block_sampling=(1.0, 1.0))
    reached = set()
    for seed in range(4):
        depths = drawn_depths(drafter, batch, teacher, settings, seed)
        lean = rollout(drafter, batch, teacher, settings, torch.Generator().manual_seed(seed))
        dense = dense_report(drafter, batch, teacher, depths)
        for name, value in lean.metrics().items():
            torch.testing.assert_close(value, dense.metrics()[name], atol=1e-4, rtol=1e-4, msg=name)
        assert_same_gradient(drafter, lean, dense)
        reached |= {(block, slot) for block, slot in lean.rows.nonzero().tolist()}
    assert reached == {(block, slot) for block in range(3) for slot in range(WIDTH)}, "a slot was never trained"


def drawn_depths(drafter, batch, teacher, settings, seed: int) -> tuple[int, ...]:
    """The start slots that a rollout with this seed draws."""
    seen: list[int] = []
    generator = torch.Generator().manual_seed(seed)
    original = torch.randint

    def spy(*args, **kwargs):
        value = original(*args, **kwargs)
        seen.append(int(value) + 1)
        return value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randint", spy)
        rollout(drafter, batch, teacher, settings, generator)
    return tuple(seen)


def assert_same_gradient(drafter: SpecBlockDrafter, lean: LossReport, dense: LossReport) -> None:
    names, parameters = zip(*drafter.named_parameters(), strict=True)
    gradients = [torch.autograd.grad(report.total(), parameters, allow_unused=True) for report in (lean, dense)]
    for name, first, second in zip(names, *gradients, strict=True):
        torch.testing.assert_close(first, second, atol=1e-4, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("rank_loss", RANK_LOSSES)
@pytest.mark.parametrize("draft_loss", LOSSES)
def test_every_loss_is_the_same_with_kept_and_with_recomputed_logits(draft_loss: str, rank_loss: str) -> None:
    drafter = make_drafter()
    batch = make_batch(drafter)
    teacher = Teacher(torch.randn(DRAFT_VOCAB, HIDDEN), target_to_draft(drafter.t2d))
    plain = RolloutSettings(draft_loss, rank_loss, block_sampling=(0.5,), kept_logits=0)
    reports = [
        rollout(drafter, batch, teacher, settings, torch.Generator().manual_seed(1))
        for settings in (plain, replace(plain, kept_logits=10**6))
    ]
    assert_same_gradient(drafter, *reports)
    assert torch.equal(reports[0].confusion, reports[1].confusion)
    other = "ordinal" if rank_loss == "valid_prefix" else "valid_prefix"
    changed = rollout(drafter, batch, teacher, replace(plain, rank_loss=other), torch.Generator().manual_seed(1))
    assert torch.equal(changed.draft_loss, reports[0].draft_loss)
    assert not torch.equal(changed.rank_loss, reports[0].rank_loss), "the rank loss that was asked for is not used"


def test_sampling_later_blocks_leaves_the_first_block_alone() -> None:
    drafter = make_drafter()
    batch = make_batch(drafter)
    teacher = Teacher(torch.randn(DRAFT_VOCAB, HIDDEN), target_to_draft(drafter.t2d))
    reports = [
        rollout(drafter, batch, teacher, RolloutSettings(block_sampling=(share,)), torch.Generator().manual_seed(1))
        for share in (0.1, 1.0)
    ]
    torch.testing.assert_close(reports[0].draft_loss[0], reports[1].draft_loss[0])
    assert int(reports[0].rows[1, 0]) < int(reports[1].rows[1, 0])


def test_without_valid_prefix_every_supervised_slot_counts() -> None:
    drafter = make_drafter()
    batch = make_batch(drafter, (12,))
    teacher = Teacher(torch.randn(DRAFT_VOCAB, HIDDEN), target_to_draft(drafter.t2d))
    everything = batch["loss_mask"].clone().fill_(True)
    batch = {**batch, "loss_mask": everything, "input_ids": drafter.draft_tokens[batch["input_ids"] % DRAFT_VOCAB]}
    report = rollout(drafter, batch, teacher, RolloutSettings(block_sampling=(), valid_prefix=False))
    assert report.rows.tolist() == [[10, 9, 8]]
