"""The plain twin of `score_slot`: whole logits, autograd, no pieces."""

import torch
from torch import Tensor

from specblock_zoo.functional.buckets import rank_of, rank_summary
from specblock_zoo.functional.head import SlotScores
from specblock_zoo.functional.losses import LOSSES
from specblock_zoo.functional.objective import SlotTerms, slot_terms


def plain_scores(
    logits: Tensor, target_probs: Tensor, weights: Tensor, loss: str = "cross_entropy", rank_top: int = 20
) -> SlotScores:
    """Scores of one slot from its logits `[rows, draft_vocab]`."""
    taught = target_probs.argmax(-1)
    return SlotScores(
        draft_loss=(weights * LOSSES[loss](logits, target_probs)).sum(),
        drafted=logits.argmax(-1),
        taught=taught,
        target_rank=rank_of(logits.detach(), taught),
        summary=rank_summary(logits.detach(), rank_top),
    )


def plain_terms(
    logits: Tensor,
    rank_logits: Tensor,
    teacher_logits: Tensor,
    supervised: Tensor,
    loss: str = "cross_entropy",
    rank_loss: str = "valid_prefix",
) -> SlotTerms:
    """`slot_terms` of the plain scores."""
    scores = plain_scores(logits, teacher_logits.softmax(-1, torch.float32), supervised.float(), loss)
    return slot_terms(scores, rank_logits, supervised, rank_loss)
