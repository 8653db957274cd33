"""Losses of one row: draft losses against the target's distribution, rank losses against the true bucket.

A draft loss is `loss(logits [rows, draft_vocab], target_probs [rows, draft_vocab]) -> [rows]`; a rank loss is
`loss(rank_logits [rows, 4], buckets [rows]) -> [rows]`. Both in float32 nats (total variation: a probability).
"""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from specblock_zoo.functional.buckets import NUM_BUCKETS

DraftLoss = Callable[[Tensor, Tensor], Tensor]
RankLoss = Callable[[Tensor, Tensor], Tensor]

# Below this overlap of the two distributions the logarithm stays constant: -log(1e-12) = 27.6 nats is the worst value.
OVERLAP_FLOOR = 1e-12
# Rows per class and slot that keep full weight in the rank loss (release: rank_budget_per_class).
CLASS_BUDGET = 10
# Elements worked on at once: a piece stays in cache on a CPU and is large enough to fill an accelerator.
CHUNK_ELEMENTS = 1 << 18


def cross_entropy(
    logits: Float[Tensor, "rows draft_vocab"], target_probs: Float[Tensor, "rows draft_vocab"]
) -> Float32[Tensor, " rows"]:
    """Soft cross-entropy -sum(target_probs * log draft_probs); `target_probs` may be cut and sum to less than one."""
    scores = logits.float()
    return scores.logsumexp(-1) * target_probs.sum(-1) - (target_probs * scores).sum(-1)


def total_variation(
    logits: Float[Tensor, "rows draft_vocab"], target_probs: Float[Tensor, "rows draft_vocab"]
) -> Float32[Tensor, " rows"]:
    """One minus the overlap of the distributions: the rejection probability of one sampled draft token, 0..1."""
    return 1 - _overlap(logits, target_probs)


def log_overlap(
    logits: Float[Tensor, "rows draft_vocab"], target_probs: Float[Tensor, "rows draft_vocab"]
) -> Float32[Tensor, " rows"]:
    """-log of the overlap, i.e. of the acceptance probability; 0..-log(OVERLAP_FLOOR)."""
    return -_overlap(logits, target_probs).clamp(OVERLAP_FLOOR, 1).log()


def _overlap(logits: Tensor, target_probs: Tensor) -> Tensor:
    return torch.minimum(logits.softmax(-1, dtype=torch.float32), target_probs).sum(-1)


def bucket_cross_entropy(
    rank_logits: Float[Tensor, "rows 4"], buckets: Int64[Tensor, " rows"]
) -> Float32[Tensor, " rows"]:
    """Cross-entropy of the rank head against the true bucket (paper)."""
    return torch.nn.functional.cross_entropy(rank_logits.float(), buckets, reduction="none")


def ordinal_cross_entropy(
    rank_logits: Float[Tensor, "rows 4"], buckets: Int64[Tensor, " rows"]
) -> Float32[Tensor, " rows"]:
    """Cross-entropy against labels smoothed along the bucket order, weighted by the prediction's distance (release)."""
    smoothed = ordinal_labels(rank_logits.device)[buckets]
    distance = 1 + bucket_distance(buckets, rank_logits.argmax(-1))
    return distance * torch.nn.functional.cross_entropy(rank_logits.float(), smoothed, reduction="none")


def bucket_distance(true: Int64[Tensor, "*rows"], guess: Int64[Tensor, "*rows"]) -> Int64[Tensor, "*rows"]:
    """Buckets between guess and truth, counted twice where the guess is too optimistic."""
    return (true - guess).abs() + (true - guess).clamp(min=0)


def ordinal_labels(device: torch.device | None = None) -> Float32[Tensor, "4 4"]:
    """Smoothed label distribution for each true bucket (rows): 1 / (1 + distance)^2, normalised."""
    true, guess = torch.meshgrid(*[torch.arange(NUM_BUCKETS, device=device)] * 2, indexing="ij")
    closeness = (1.0 + bucket_distance(true, guess)).pow(-2)
    return closeness / closeness.sum(-1, keepdim=True)


def class_weights(buckets: Int64[Tensor, " rows"]) -> Float32[Tensor, " rows"]:
    """Weight min(1, CLASS_BUDGET / rows of the same bucket) of each row (release).

    A bucket with more rows than the budget weighs as much as the budget, so frequent buckets are balanced against each
    other, while a bucket with a handful of rows cannot dominate the step.
    """
    counts = torch.bincount(buckets, minlength=NUM_BUCKETS)
    return (CLASS_BUDGET / counts.clamp(min=CLASS_BUDGET))[buckets]


LOSSES: dict[str, DraftLoss] = {
    "cross_entropy": cross_entropy,
    "total_variation": total_variation,
    "log_overlap": log_overlap,
}
RANK_LOSSES: dict[str, RankLoss] = {"valid_prefix": bucket_cross_entropy, "ordinal": ordinal_cross_entropy}


def keep_top(probs: Float[Tensor, "*rows vocab"], top: int) -> Float[Tensor, "*rows vocab"]:
    """The `top` largest entries; the rest become zero and nothing is renormalised (release: draft-loss-topk)."""
    values, indices = probs.topk(min(top, probs.shape[-1]))
    return torch.zeros_like(probs).scatter(-1, indices, values)


def loss_and_gradient(
    loss: DraftLoss,
    logits: Float[Tensor, "rows draft_vocab"],
    target_probs: Float[Tensor, "rows draft_vocab"],
    weights: Float[Tensor, " rows"],
    gradient: Float[Tensor, "rows draft_vocab"] | None,
) -> Float32[Tensor, ""]:
    """sum(weights * loss(logits, target_probs)), without graph; its gradient to `logits` is written into `gradient`.

    Works on a few rows at a time, so that no float32 copy of the whole matrix is made. Twin: the formula above.
    """
    total = torch.zeros((), dtype=torch.float32, device=logits.device)
    for piece in _pieces(logits):
        with torch.set_grad_enabled(gradient is not None):
            scores = logits[piece].detach().float().requires_grad_(gradient is not None)
            piece_sum = (loss(scores, target_probs[piece]) * weights[piece]).sum()
        if gradient is not None:
            gradient[piece] = torch.autograd.grad(piece_sum, scores)[0]
        total += piece_sum.detach()
    return total


def _pieces(matrix: Tensor) -> Iterator[slice]:
    rows = max(1, CHUNK_ELEMENTS // matrix.shape[-1])
    return (slice(start, start + rows) for start in range(0, matrix.shape[0], rows))
