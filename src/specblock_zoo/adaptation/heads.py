"""What buffered slots ask of the draft head, on the rows of its weight that they pull on; all other rows stay.

A softmax over the draft vocabulary costs what the vocabulary is large, and a few hundred slots have an opinion on a
few hundred tokens. Logits of rows that stay are constants of the update: their log-sum-exp and the best of them are
taken once, and from then on loss, gradient and ranks are exactly those over the whole vocabulary.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from specblock_zoo.adaptation.buffers import HeadRows
from specblock_zoo.functional.buckets import BUCKET_EDGES, rank_to_bucket, summary_of_best
from specblock_zoo.functional.head import TeacherRows
from specblock_zoo.functional.losses import bucket_cross_entropy, class_weights
from specblock_zoo.functional.vocab import target_to_draft
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.models.specblock.rank_head import RankHead
from specblock_zoo.training.teachers import TopTeacher

PIECE = 128
"""Slots whose distributions exist at once; only logits are held for all of them."""


@dataclass(frozen=True)
class HeadProblem:
    """n slots and the u rows of the head's weight that they train.

    Attributes:
        rows: draft ids that train, ascending.
        normed: what the heads read.
        wanted: target's probabilities plus beta times the reference's, of the rows that train.
        mass: the same, summed over the whole draft vocabulary.
        outside: log-sum-exp of the logits that stay.
        best_outside: the best of them, descending, enough for the rank head's summary and for every bucket.
        rest: part of the loss that no row that trains can change, nats.
        taught: place in `rows` of the target's best draft token.
        rank_top: logits that the rank head's summary reads.
    """

    rows: Int64[Tensor, " u"]
    normed: Float32[Tensor, "n hidden"]
    wanted: Float32[Tensor, "n u"]
    mass: Float32[Tensor, " n"]
    outside: Float32[Tensor, " n"]
    best_outside: Float32[Tensor, "n top"]
    rest: Float32[Tensor, " n"]
    taught: Int64[Tensor, " n"]
    rank_top: int

    def __len__(self) -> int:
        return self.normed.shape[0]

    def loss(
        self, weight: Float32[Tensor, "u hidden"], rank_head: RankHead, index: Int64[Tensor, " m"], rank_weight: float
    ) -> Float32[Tensor, ""]:
        """Mean over slots of KL(target || draft) + beta KL(good || draft), up to what no weight changes, + rank loss.

        The rank loss has training's class weights (`functional.losses.class_weights`). Twin: logits of the whole head.

        Args:
            weight: of the rows that train, with gradient.
            index: slots that take part.
        """
        normed = self.normed[index]
        logits = normed @ weight.T
        total = torch.logaddexp(self.outside[index], logits.logsumexp(-1))
        draft = total * self.mass[index] - (self.wanted[index] * logits).sum(-1) + self.rest[index]
        summary, buckets = self._ranks(logits.detach(), index)
        # As in training: most tokens are in the first bucket, and the head is to tell the others.
        weights = class_weights(buckets)
        ranks = bucket_cross_entropy(rank_head.read(normed, summary), buckets)
        return draft.mean() + rank_weight * (weights * ranks).sum() / weights.sum()

    def _ranks(self, logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Summary and bucket, of the logits that train and the best of those that stay: no other can be among them."""
        outside = self.best_outside[index]
        best = torch.cat((logits.topk(min(self.rank_top, logits.shape[1])).values, outside), -1)
        taught = logits.gather(1, self.taught[index, None])
        greater = (logits > taught).sum(-1) + (outside > taught).sum(-1)
        return summary_of_best(best.topk(min(self.rank_top, best.shape[1])).values), rank_to_bucket(greater + 1)


@torch.no_grad()
def head_problem(
    shadow: SpecBlockDrafter, good: SpecBlockDrafter, slots: HeadRows, beta: float, least_pull: float
) -> HeadProblem:
    """What `slots` ask of the shadow's head.

    Args:
        good: the reference's.
        beta: weight of KL(reference draft || draft).
        least_pull: a row trains if the gradient of some slot's loss to its logit is as large, or if it is the target's
            best somewhere; with 0 every row trains.
    """
    normed, head = slots.normed.to(shadow.device, torch.float32), shadow.lm_head
    logits, best = head(normed), slots.target.ids[:, 0].long().to(shadow.device)
    # Heads are equal most often: once an update was kept.
    reference = logits if torch.equal(head.weight, good.lm_head.weight) else good.lm_head(normed)
    taught, pieces = _taught(shadow, slots), [slice(at, at + PIECE) for at in range(0, len(slots), PIECE)]

    def wanted(piece: slice) -> Tensor:
        return taught(piece) + beta * reference[piece].softmax(-1)

    trains = torch.zeros_like(logits[0], dtype=torch.bool)
    for piece in pieces:
        aim = wanted(piece)
        pull = logits[piece].softmax(-1) * aim.sum(-1, keepdim=True) - aim
        trains |= (pull.abs() >= least_pull).any(0)
    trains[best] = True
    rows, top = trains.nonzero()[:, 0], max(shadow.config.rank_top, BUCKET_EDGES[-1])
    parts = [_split(logits[piece], wanted(piece), trains, top) for piece in pieces]
    aims, mass, outside, best_outside, rest = map(torch.cat, zip(*parts, strict=True))
    taught_at = torch.searchsorted(rows, best)
    return HeadProblem(rows, normed, aims, mass, outside, best_outside, rest, taught_at, shadow.config.rank_top)


def _split(logits: Tensor, wanted: Tensor, trains: Tensor, top: int) -> tuple[Tensor, ...]:
    """`wanted`, `mass`, `outside`, `best_outside` and `rest` of some slots."""
    staying, left = logits[:, ~trains], wanted[:, ~trains]
    best = staying.topk(min(top, staying.shape[1])).values
    return wanted[:, trains], wanted.sum(-1), staying.logsumexp(-1), best, -(left * staying).sum(-1)


def _taught(shadow: SpecBlockDrafter, slots: HeadRows) -> TeacherRows:
    """The target's distributions over the draft vocabulary."""
    teacher = TopTeacher(shadow.lm_head.weight.detach(), target_to_draft(shadow.t2d))
    every = torch.arange(len(slots), device=shadow.device)
    batch = {name: column[None].to(shadow.device) for name, column in slots.target.batch().items()}
    return teacher.rows(batch, torch.zeros_like(every), every)
