"""Draft head, its loss and everything else that is read off the logits, one piece of rows at a time.

`[rows, draft_vocab]` is the largest matrix of training and wanted several times over: draft logits, target
probabilities, their gradient. Here only one piece of each exists. A small slot keeps its gradient for the backward
pass, a large one keeps its inputs and computes the pieces again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from specblock_zoo.functional.buckets import rank_of, rank_summary
from specblock_zoo.functional.losses import DraftLoss, loss_and_gradient

# Logits per piece. A CPU wants its caches to hold a piece, an accelerator wants large matrix products.
CPU_PIECE = 1 << 21
ACCELERATOR_PIECE = 1 << 26


class TeacherRows(Protocol):
    """The target's side of a slot's rows, asked for piece by piece, possibly twice (again in the backward pass)."""

    def __call__(self, piece: slice) -> Float32[Tensor, "rows draft_vocab"]:
        """Probabilities over the draft vocabulary of the rows in `piece`; they sum to one at most. No gradient."""


@dataclass(frozen=True)
class HeadSettings:
    """How a slot is scored.

    Attributes:
        loss: the draft loss, an entry of `LOSSES`.
        rank_top: logits over which the summary is normalised; 0: no rank head will read one, and it is empty.
        kept_logits: slots with at most so many logits keep their gradient from forward to backward; larger ones compute
            their logits again, which costs two more matrix products and saves `rows * draft_vocab` numbers.
    """

    loss: DraftLoss
    rank_top: int
    kept_logits: int


@dataclass(frozen=True)
class SlotScores:
    """What the logits of one slot were wanted for.

    Attributes:
        draft_loss: weighted sum of the draft loss over the rows, nats, carries the gradient to states and head.
        drafted: the drafter's best draft id of each row.
        taught: the target's best draft id of each row.
        target_rank: 1-based rank of `taught` among the drafter's scores.
        summary: what the rank head reads beside the state (`rank_summary`), `[rows, 0]` where nobody does.
    """

    draft_loss: Float32[Tensor, ""]
    drafted: Int64[Tensor, " rows"]
    taught: Int64[Tensor, " rows"]
    target_rank: Int64[Tensor, " rows"]
    summary: Float32[Tensor, "rows numbers"]


def score_slot(
    states: Float[Tensor, "rows hidden"],
    head: Float[Tensor, "draft_vocab hidden"],
    teacher: TeacherRows,
    weights: Float[Tensor, " rows"],
    settings: HeadSettings,
) -> SlotScores:
    """Scores the rows of one slot; under autocast the products run in its dtype.

    Twin: `logits = states @ head.T`, then `sum(weights * loss(logits, teacher))`, `argmax`, `rank_of`, `rank_summary`.

    Args:
        states: what the head reads (after the final norm), with gradient.
        head: the head's weight, with gradient.
        weights: of each row in the sum; zero for rows that only continue a path.
    """
    dtype = product_dtype(states)
    trains = torch.is_grad_enabled() and (states.requires_grad or head.requires_grad)
    kept = trains and states.shape[0] * head.shape[0] <= settings.kept_logits
    found: tuple[Tensor, ...] = _ScoreSlot.apply(  # type: ignore[no-untyped-call]  # torch leaves `apply` untyped
        states.to(dtype), head.to(dtype), weights, teacher, (settings, kept)
    )
    return SlotScores(*found)


def product_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype a matrix product of `tensor` has here: autocast's where it is on, else the tensor's own."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


class _ScoreSlot(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        head: Tensor,
        weights: Tensor,
        teacher: TeacherRows,
        how: tuple[HeadSettings, bool],
    ) -> tuple[Tensor, ...]:
        settings, kept = how
        gradient = states.new_empty(states.shape[0], head.shape[0]) if kept else None
        total = torch.zeros((), dtype=torch.float32, device=states.device)
        facts = []
        with torch.autocast(states.device.type, enabled=False):
            for piece in pieces(states, head):
                logits, probs = states[piece] @ head.T, teacher(piece)
                into = None if gradient is None else gradient[piece]
                total += loss_and_gradient(settings.loss, logits, probs, weights[piece], into)
                facts.append(_facts(logits, probs, settings.rank_top))
        ctx.save_for_backward(states, head, weights, gradient)
        ctx.teacher, ctx.settings = teacher, settings
        drafted, taught, rank, summary = (torch.cat(column) for column in zip(*facts, strict=True))
        ctx.mark_non_differentiable(drafted, taught, rank, summary)
        return total, drafted, taught, rank, summary

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, scale: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
        states, head, weights, gradient = ctx.saved_tensors
        with torch.autocast(states.device.type, enabled=False):
            if gradient is not None:
                to_states, to_head = gradient @ head, gradient.T @ states
            else:
                to_states, to_head = _recomputed(states, head, weights, ctx.teacher, ctx.settings.loss)
        # Scaling the products instead of the gradient saves a pass over the largest matrix.
        return (to_states * scale).to(states.dtype), (to_head * scale).to(head.dtype), None, None, None


def _recomputed(
    states: Tensor, head: Tensor, weights: Tensor, teacher: TeacherRows, loss: DraftLoss
) -> tuple[Tensor, Tensor]:
    to_states = torch.empty_like(states)
    # Float32, because many pieces add up here.
    to_head = torch.zeros_like(head, dtype=torch.float32)
    for piece in pieces(states, head):
        logits = states[piece] @ head.T
        gradient = torch.empty_like(logits)
        loss_and_gradient(loss, logits, teacher(piece), weights[piece], gradient)
        to_states[piece] = gradient @ head
        to_head += gradient.T @ states[piece]
    return to_states, to_head


def _facts(logits: Tensor, probs: Tensor, rank_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # `max` instead of `argmax`: a quarter of the time on bfloat16 rows (CPU, 600 x 8192).
    taught = probs.max(-1).indices
    summary = rank_summary(logits, rank_top) if rank_top else logits.new_empty(logits.shape[0], 0, dtype=torch.float32)
    return logits.max(-1).indices, taught, rank_of(logits, taught), summary


def pieces(states: Tensor, head: Tensor) -> Iterator[slice]:
    """Row ranges whose logits fit one piece; at least one range, possibly empty."""
    logits = CPU_PIECE if states.device.type == "cpu" else ACCELERATOR_PIECE
    rows = max(1, logits // head.shape[0])
    return (slice(start, start + rows) for start in range(0, max(1, states.shape[0]), rows))
