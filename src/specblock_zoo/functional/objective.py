"""Weights x losses x valid-prefix mask -> sums and counts, divided once at the end."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from specblock_zoo.functional.buckets import NUM_BUCKETS, rank_of, rank_to_bucket
from specblock_zoo.functional.head import SlotScores
from specblock_zoo.functional.losses import RANK_LOSSES, class_weights, cross_entropy, keep_top
from specblock_zoo.functional.masks import valid_prefix_mask
from specblock_zoo.structures import DraftBlock

SLOT_WEIGHT = 0.8


@dataclass(frozen=True)
class SlotTerms:
    """Sums over the supervised rows of one slot of one block.

    Attributes:
        draft_loss: sum of the draft loss, nats, carries a gradient.
        rows: supervised rows, int64.
        rank_loss: sum of class weight x rank loss, nats, carries a gradient.
        rank_weight: sum of class weights.
        hits: rows whose best draft token is the target's best token, int64.
        confusion: rows by true bucket (first axis) and predicted bucket (second axis), int64.
    """

    draft_loss: Float32[Tensor, ""]
    rows: Int64[Tensor, ""]
    rank_loss: Float32[Tensor, ""]
    rank_weight: Float32[Tensor, ""]
    hits: Int64[Tensor, ""]
    confusion: Int64[Tensor, "4 4"]


@dataclass(frozen=True)
class LossReport:
    """`SlotTerms` of every block and slot. Reports of batches add up; divisions happen in `total` and `alpha` only."""

    draft_loss: Float32[Tensor, "blocks slots"]
    rows: Int64[Tensor, "blocks slots"]
    rank_loss: Float32[Tensor, "blocks slots"]
    rank_weight: Float32[Tensor, "blocks slots"]
    hits: Int64[Tensor, "blocks slots"]
    confusion: Int64[Tensor, "blocks slots 4 4"]

    @classmethod
    def stack(cls, terms: Sequence[Sequence[SlotTerms]]) -> "LossReport":
        """Report of `terms[block][slot]`; every block has the same number of slots."""
        return cls(
            **{
                field.name: torch.stack([torch.stack([getattr(slot, field.name) for slot in block]) for block in terms])
                for field in fields(SlotTerms)
            }
        )

    def __add__(self, other: "LossReport") -> "LossReport":
        return LossReport(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(LossReport)}
        )

    def detach(self) -> "LossReport":
        """The same numbers without their graph."""
        return LossReport(**self.metrics())

    def total(
        self,
        slot_weight: float = SLOT_WEIGHT,
        rank_weight: float = 1.0,
        min_rows: int = 1,
        block_weight: float = 1.0,
    ) -> Float32[Tensor, ""]:
        """Scalar training loss: sum over blocks of [sum over slots of slot_weight^slot x mean draft loss + rank loss].

        The rank loss of a block is one weighted mean over all its slots. A slot or block without rows contributes zero.

        Args:
            min_rows: a slot with fewer rows is divided by this many (1: paper). With small batches late slots have a
                handful of rows; as plain means their noise would outweigh slots with a thousand (ours).
            block_weight: the draft loss of block m weighs block_weight^m beside that (SpecBlock: 1, EAGLE-3: 0.8).
        """
        draft = self.draft_loss / self.rows.clamp(min=min_rows)
        slots = torch.arange(draft.shape[-1], device=draft.device)
        blocks = torch.arange(draft.shape[0], device=draft.device)[:, None]
        rank = _ratio(self.rank_loss.sum(-1), self.rank_weight.sum(-1))
        return (draft * slot_weight**slots * block_weight**blocks).sum() + rank_weight * rank.sum()

    def alpha(self) -> Float32[Tensor, "blocks slots"]:
        """Share of supervised rows the drafter gets right given a right prefix; 0 where there is no row."""
        return self.hits / self.rows.clamp(min=1)

    def metrics(self) -> dict[str, Tensor]:
        """Sums and counts by name, without graph, on the device they were made on."""
        return {field.name: getattr(self, field.name).detach() for field in fields(self)}


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    return numerator / torch.where(denominator > 0, denominator, 1)


def slot_terms(
    scores: SlotScores,
    rank_logits: Float[Tensor, "rows 4"] | None,
    supervised: Bool[Tensor, " rows"],
    rank_loss: str = "valid_prefix",
) -> SlotTerms:
    """Sums of one slot over rows whose earlier slots are all right.

    Args:
        scores: of all rows, with `supervised` as their weights.
        rank_logits: the rank head's scores, with gradient; None without a rank head: no loss, and bucket 0 predicted.
        supervised: rows that enter sums and counts; the others only continue the path.
        rank_loss: key of `RANK_LOSSES`; the rows are those given, i.e. `ordinal` differs from the release in its mask.
    """
    buckets = rank_to_bucket(scores.target_rank)[supervised]
    return SlotTerms(
        draft_loss=scores.draft_loss,
        rows=supervised.sum(),
        hits=((scores.drafted == scores.taught) & supervised).sum(),
        **(
            _no_rank_terms(buckets) if rank_logits is None else _rank_terms(rank_logits[supervised], buckets, rank_loss)
        ),
    )


def _no_rank_terms(buckets: Tensor) -> dict[str, Tensor]:
    nothing = torch.zeros((), dtype=torch.float32, device=buckets.device)
    confusion = bucket_confusion(buckets, torch.zeros_like(buckets))
    return {"rank_loss": nothing, "rank_weight": nothing, "confusion": confusion}


def _rank_terms(rank_logits: Tensor, buckets: Tensor, rank_loss: str) -> dict[str, Tensor]:
    weights = class_weights(buckets)
    return {
        "rank_loss": (weights * RANK_LOSSES[rank_loss](rank_logits, buckets)).sum(),
        "rank_weight": weights.sum(),
        "confusion": bucket_confusion(buckets, rank_logits.argmax(-1)),
    }


def bucket_confusion(true: Int64[Tensor, " rows"], guess: Int64[Tensor, " rows"]) -> Int64[Tensor, "4 4"]:
    """Number of rows by true bucket (first axis) and predicted bucket (second axis)."""
    return torch.bincount(true * NUM_BUCKETS + guess, minlength=NUM_BUCKETS**2).view(NUM_BUCKETS, NUM_BUCKETS)


def release_objective(
    blocks: Sequence[DraftBlock],
    target_logits: Float[Tensor, "batch seq target_vocab"],
    loss_mask: Bool[Tensor, "batch seq"],
    t2d: Bool[Tensor, " target_vocab"],
    offsets: Sequence[int],
    teacher_top: int | None = None,
) -> LossReport:
    """The authors' training objective, kept for parity with published weights; its `total()` is their loss.

    Differs from the rows of `slot_terms`: the loss mask is not shifted with the tokens, every block starts afresh at
    every counted position, and the rank loss is `ordinal` and breaks off after the first wrong rank prediction.

    Args:
        blocks: drafted at every position: `logits [batch, seq, slots, draft_vocab]`, `rank_logits` likewise; `hidden`
            is not read.
        target_logits: row j is the target's distribution after token j + 1 (one step left, zero last row).
        loss_mask: supervised tokens, not moved.
        t2d: target tokens inside the draft vocabulary.
        offsets: start depth of each block; slot k of block m is judged by row i + offsets[m] + k.
        teacher_top: keep only so many entries of the target's distribution, not renormalised.
    """
    full = target_logits[..., t2d].softmax(-1, dtype=torch.float32)
    truth = _Truth(
        probs=full if teacher_top is None else keep_top(full, teacher_top),
        token=full.argmax(-1),
        counted=loss_mask & t2d[target_logits.argmax(-1)],
    )
    return LossReport.stack(
        [_release_block(block, truth, offset) for block, offset in zip(blocks, offsets, strict=True)]
    )


@dataclass(frozen=True)
class _Truth:
    """What the target says at every row: `probs [batch, seq, draft_vocab]`; best draft id and mask `[batch, seq]`."""

    probs: Tensor
    token: Tensor
    counted: Tensor


def _release_block(block: DraftBlock, truth: _Truth, offset: int) -> list[SlotTerms]:
    depths = range(offset, offset + block.logits.shape[2])
    token = torch.stack([_ahead(truth.token, depth) for depth in depths], dim=-1)
    counted = torch.stack([_ahead(truth.counted, depth) for depth in depths], dim=-1)
    hits = block.logits.argmax(-1) == token
    buckets = rank_to_bucket(rank_of(block.logits.detach(), token))
    rows = valid_prefix_mask(truth.counted, hits) & counted
    rank_rows = valid_prefix_mask(truth.counted, block.rank_logits.argmax(-1) == buckets) & counted
    terms = []
    for slot, depth in enumerate(depths):
        used, ranked = rows[:, :, slot], rank_rows[:, :, slot]
        losses = cross_entropy(block.logits[:, :, slot][used], _ahead(truth.probs, depth)[used])
        rank = _rank_terms(block.rank_logits[:, :, slot][ranked], buckets[:, :, slot][ranked], "ordinal")
        terms.append(SlotTerms(losses.sum(), used.sum(), hits=(hits[:, :, slot] & used).sum(), **rank))
    return terms


def _ahead(values: Tensor, depth: int) -> Tensor:
    """Row i holds what row i + depth held; zero (false) past the end."""
    moved = torch.zeros_like(values)
    moved[:, : max(values.shape[1] - depth, 0)] = values[:, depth:]
    return moved
