"""Rank of the target token in the draft distribution, its bucket, and the summary the rank head reads."""

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from specblock_zoo.structures import TreeSettings

BUCKET_EDGES = (1, 4, 10)
NUM_BUCKETS = len(BUCKET_EDGES) + 1
SUMMARY_SIZE = 15
SUMMARY_TOP = 10
# A draft vocabulary smaller than the summary is padded with candidates this far (nats) below the best one.
ABSENT_LOG_RATIO = -30.0


def reads_buckets(settings: TreeSettings) -> bool:
    """Whether trees of these settings depend on rank buckets; where not, nobody need predict any.

    Chains do not, but record them, as the release's do.
    """
    if settings.independent_slots:
        return False
    if settings.chain:
        return True
    # Widths of one alone still leave it to the bucket of a chain whether the next block grows from its end.
    least = 1 if settings.num_blocks == 1 else 2
    return len(set(settings.branching)) > 1 or min(settings.branching[0], settings.beam_width) < least


def rank_to_bucket(target_rank: Int64[Tensor, "*rows"]) -> Int64[Tensor, "*rows"]:
    """Bucket 0..3 of a 1-based rank: 1, 2-4, 5-10, above 10 (paper, rank head)."""
    return torch.bucketize(target_rank, torch.tensor(BUCKET_EDGES, device=target_rank.device))


def rank_of(logits: Float[Tensor, "*rows vocab"], index: Int64[Tensor, "*rows"]) -> Int64[Tensor, "*rows"]:
    """1-based rank of the entry `index`: entries strictly greater, plus one, so equals share the better rank."""
    greater = logits > logits.gather(-1, index.unsqueeze(-1))
    # An int32 sum of booleans is five times as fast as the default int64 one (CPU, 600 x 8192).
    return greater.sum(-1, dtype=torch.int32).long() + 1


@torch.no_grad()
def rank_summary(logits: Float[Tensor, "*rows vocab"], top: int = 20) -> Float32[Tensor, "*rows 15"]:
    """Fifteen numbers describing the head of a draft distribution; never carries a gradient.

    Ten best log-probabilities, gaps of the best logit to the 2nd, 3rd and 5th, mass of the best, entropy (nats), all
    normalised over the `top` best logits only. Finite for finite logits and any vocabulary size.

    Args:
        logits: draft scores.
        top: logits that take part, >= 10 (release: 20 in training, 10 in decoding; ours: 20 in both).
    """
    return summary_of_best(logits.topk(min(top, logits.shape[-1])).values)


@torch.no_grad()
def summary_of_best(best: Float[Tensor, "*rows top"]) -> Float32[Tensor, "*rows 15"]:
    """The same from the best logits alone, descending."""
    best = best.float()
    if best.shape[-1] < SUMMARY_TOP:
        absent = (best[..., :1] + ABSENT_LOG_RATIO).expand(*best.shape[:-1], SUMMARY_TOP - best.shape[-1])
        best = torch.cat([best, absent], dim=-1)
    log_probs = best.log_softmax(-1)
    probs = log_probs.exp()
    # Slices, since a list of indices would be a transfer to the device.
    gaps = best[..., :1] - torch.cat((best[..., 1:3], best[..., 4:5]), dim=-1)
    entropy = -(probs * log_probs).sum(-1, keepdim=True)
    return torch.cat([log_probs[..., :SUMMARY_TOP], gaps, probs[..., :1], entropy], dim=-1)
