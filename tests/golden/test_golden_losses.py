"""Losses, masks and labels of the authors' release, number for number."""

import pytest
import torch

from specblock_zoo.functional.buckets import rank_of, rank_to_bucket
from specblock_zoo.functional.losses import ordinal_cross_entropy, ordinal_labels
from specblock_zoo.functional.masks import valid_prefix_mask
from specblock_zoo.functional.objective import release_objective
from specblock_zoo.structures import DraftBlock
from tests.support import golden_tensors

SLOTS = 4


@pytest.fixture
def golden(golden_dir):
    return golden_tensors(golden_dir, "loss")


@pytest.fixture
def t2d(golden_dir):
    return golden_tensors(golden_dir, "model")["t2d"]


@pytest.fixture
def block(golden):
    return DraftBlock(torch.empty(0), golden["b0.logits"], golden["b0.rank_logits"])


def objective_of(block, golden, t2d, teacher_top=None):
    loss_mask = golden["loss_mask"].squeeze(-1).bool()
    return release_objective([block], golden["target_logits"], loss_mask, t2d, [0], teacher_top)


def draft_means(report):
    return (report.draft_loss / report.rows.clamp(min=1))[0]


def hits_of(golden):
    """Which slots are right, false past the end."""
    best = golden["target_p"].argmax(-1)
    ahead = torch.stack([torch.nn.functional.pad(best[:, k:], (0, k), value=-1) for k in range(SLOTS)], dim=-1)
    return golden["b0.logits"].argmax(-1) == ahead


def test_the_teacher_is_the_target_over_the_draft_vocabulary(golden, t2d):
    torch.testing.assert_close(golden["target_logits"][..., t2d].softmax(-1), golden["target_p"])
    counted = golden["loss_mask"].squeeze(-1).bool() & t2d[golden["target_logits"].argmax(-1)]
    assert torch.equal(counted.long(), golden["position_mask"].squeeze(-1))


def test_valid_prefix_mask(golden):
    start = golden["position_mask"].squeeze(-1).bool()
    hits = hits_of(golden)
    mask = valid_prefix_mask(start, hits)
    assert torch.equal(mask.float(), golden["b0.valid_prefix_mask"])
    assert torch.equal((mask & hits)[..., -1].float(), golden["b0.valid_prefix_mask_after_last"])


def test_rank_labels(golden):
    best, length = golden["target_p"].argmax(-1), golden["target_p"].shape[1]
    for slot in range(SLOTS):
        inside = length - slot
        labels = rank_to_bucket(rank_of(golden["b0.logits"][:, :inside, slot], best[:, slot:]))
        assert torch.equal(labels, golden["b0.rank_labels"][:, :inside, slot])
        assert golden["b0.rank_labels"][:, inside:, slot].eq(-1).all()


def test_draft_loss(block, golden, t2d):
    torch.testing.assert_close(draft_means(objective_of(block, golden, t2d)), golden["b0.draft_loss"])


def test_draft_loss_against_a_cut_teacher(block, golden, t2d):
    torch.testing.assert_close(draft_means(objective_of(block, golden, t2d, 5)), golden["b0.draft_loss_topk5"])


def test_rank_loss(block, golden, t2d):
    report = objective_of(block, golden, t2d)
    torch.testing.assert_close(report.rank_loss.sum() / report.rank_weight.sum(), golden["b0.rank_loss"])
    assert torch.equal(report.confusion.sum((0, 1, 3)).float(), golden["b0.rank_count_per_class"])


def test_rank_accuracy_per_class(block, golden, t2d):
    confusion = objective_of(block, golden, t2d).confusion.sum((0, 1)).float()
    shares = confusion.diagonal() / confusion.sum(1).clamp(min=1)
    torch.testing.assert_close(shares, golden["b0.rank_acc_per_class"])


def test_rank_loss_without_class_weights(golden):
    labels, counted = golden["b0.rank_labels"], golden["position_mask"].squeeze(-1).bool()
    ahead = torch.stack([torch.nn.functional.pad(counted[:, k:], (0, k)) for k in range(SLOTS)], dim=-1)
    rows = valid_prefix_mask(counted, golden["b0.rank_logits"].argmax(-1) == labels) & ahead
    losses = ordinal_cross_entropy(golden["b0.rank_logits"][rows], labels[rows])
    torch.testing.assert_close(losses.mean(), golden["b0.rank_loss_no_reweight"])


def test_smoothed_labels(golden):
    torch.testing.assert_close(ordinal_labels(), golden["ordinal_smooth_table"])
