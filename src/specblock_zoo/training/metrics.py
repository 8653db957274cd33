"""torchmetrics over `LossReport`: sums stay sums across batches and processes, and are divided once, in `compute`."""

from dataclasses import fields

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torchmetrics import Metric

from specblock_zoo.functional.buckets import NUM_BUCKETS
from specblock_zoo.functional.objective import LossReport

COUNTS = ("rows", "hits", "confusion")


class ReportMetric(Metric):
    """Adds up the `LossReport`s of an epoch.

    Args:
        blocks, slots: shape of the reports.
        slot_weight, rank_weight, block_weight: as in training: `loss_nats` is the same function there.
    """

    full_state_update = False

    def __init__(
        self, blocks: int, slots: int, slot_weight: float, rank_weight: float, block_weight: float = 1.0
    ) -> None:
        super().__init__()
        self.weights = (slot_weight, rank_weight, block_weight)
        for field in fields(LossReport):
            shape = (blocks, slots, NUM_BUCKETS, NUM_BUCKETS) if field.name == "confusion" else (blocks, slots)
            dtype = torch.int64 if field.name in COUNTS else torch.float32
            self.add_state(field.name, default=torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")

    def update(self, report: LossReport) -> None:
        """Adds one batch's sums and counts."""
        for name, value in report.metrics().items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def report(self) -> LossReport:
        """What has been added so far, on this process."""
        return LossReport(**{field.name: getattr(self, field.name) for field in fields(LossReport)})

    def compute(self) -> dict[str, Tensor]:
        """The epoch's scalars, see `summarise`."""
        return summarise(self.report, *self.weights)


def summarise(
    report: LossReport, slot_weight: float, rank_weight: float, block_weight: float = 1.0
) -> dict[str, Tensor]:
    """Scalars by name; this is where each is defined.

    - `loss_nats`: the training objective over all rows at once, plain means.
    - `rows`: supervised rows of block 0, slot 0.
    - `alpha_b{block}_s{slot}`: P(slot right | earlier slots right), 0..1, along the text.
    - `tau_teacher_forced`: see `chain_tau`. Not `tau`, which decoding measures (`bench.probe.TauProbe`): committed
      tokens over decode rounds, prefill excluded.
    - `share_{bucket}`: share of rows whose true bucket it is, over all blocks and slots (paper: 0.752 for bucket 0).
    - `confusion_{true}_{predicted}`: share of all rows by true and predicted bucket; the sixteen sum to one.
    - `precision_{bucket}`, `recall_{bucket}`, `f1_{bucket}` of the rank head (paper: precision_0 0.978, f1_3 0.822).
    """
    alpha, counts = report.alpha(), report.confusion.sum((0, 1))
    scores, confusion = bucket_scores(counts), counts / counts.sum().clamp(min=1)
    scores["share"] = confusion.sum(1)
    return {
        "loss_nats": report.total(slot_weight, rank_weight, block_weight=block_weight),
        "rows": report.rows[0, 0].float(),
        "tau_teacher_forced": chain_tau(alpha),
        **{
            f"alpha_b{block}_s{slot}": value
            for block, row in enumerate(alpha.unbind())
            for slot, value in enumerate(row.unbind())
        },
        **{f"{name}_{bucket}": value for name, row in scores.items() for bucket, value in enumerate(row.unbind())},
        **{
            f"confusion_{true}_{predicted}": value
            for true, row in enumerate(confusion.unbind())
            for predicted, value in enumerate(row.unbind())
        },
    }


def chain_tau(alpha: Float[Tensor, "blocks slots"]) -> Float[Tensor, ""]:
    """Tokens a round would commit if it drafted the greedy chain: the target's own one plus the expected right prefix.

    An estimate from teacher-forced shares: rows whose target token lies outside the draft vocabulary are not counted,
    and later blocks start at sampled slots. Decoding measures the real `tau`.
    """
    return 1 + alpha.flatten().cumprod(0).sum()


def bucket_scores(confusion: Int64[Tensor, "4 4"]) -> dict[str, Float[Tensor, " 4"]]:
    """Precision, recall and F1 of each bucket from counts (true, predicted bucket); 0 where nothing was counted."""
    right = confusion.diagonal().float()
    true, predicted = confusion.sum(1), confusion.sum(0)
    return {
        "precision": right / predicted.clamp(min=1),
        "recall": right / true.clamp(min=1),
        "f1": 2 * right / (true + predicted).clamp(min=1),
    }
