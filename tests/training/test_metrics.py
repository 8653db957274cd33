"""Sums first, one division last, equal to torchmetrics on the same rows."""

import pytest
import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_f1_score, multiclass_precision, multiclass_recall

from specblock_zoo.functional.objective import LossReport, bucket_confusion
from specblock_zoo.training.metrics import ReportMetric, bucket_scores, chain_tau, summarise

BLOCKS, SLOTS = 2, 3


def random_report(seed: int) -> LossReport:
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randint(1, 50, (BLOCKS, SLOTS), generator=draw)
    return LossReport(
        draft_loss=torch.rand(BLOCKS, SLOTS, generator=draw) * rows,
        rows=rows,
        rank_loss=torch.rand(BLOCKS, SLOTS, generator=draw),
        rank_weight=torch.rand(BLOCKS, SLOTS, generator=draw) + 0.1,
        hits=(rows * torch.rand(BLOCKS, SLOTS, generator=draw)).long(),
        confusion=torch.randint(0, 9, (BLOCKS, SLOTS, 4, 4), generator=draw),
    )


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


def test_updates_add_up_to_the_summary_of_the_summed_report() -> None:
    reports = [random_report(seed) for seed in range(3)]
    metric = ReportMetric(BLOCKS, SLOTS, 0.8, 0.5)
    for report in reports:
        metric.update(report)
    assert_same(metric.compute(), summarise(reports[0] + reports[1] + reports[2], 0.8, 0.5))


def test_counts_weigh_batches_by_their_rows_not_equally() -> None:
    small, large = random_report(0), random_report(1)
    metric = ReportMetric(BLOCKS, SLOTS, 0.8, 1.0)
    metric.update(small)
    metric.update(large)
    expected = (small.hits[0, 0] + large.hits[0, 0]) / (small.rows[0, 0] + large.rows[0, 0])
    assert metric.compute()["alpha_b0_s0"] == expected
    assert metric.compute()["alpha_b0_s0"] != (small.alpha()[0, 0] + large.alpha()[0, 0]) / 2


def test_reset_forgets_the_epoch_and_nothing_is_saved() -> None:
    metric = ReportMetric(BLOCKS, SLOTS, 0.8, 1.0)
    metric.update(random_report(0))
    metric.reset()
    assert int(metric.rows.sum()) == 0
    assert metric.state_dict() == {}


def test_bucket_scores_equal_torchmetrics_on_the_same_rows() -> None:
    draw = torch.Generator().manual_seed(0)
    true, guess = torch.randint(4, (200,), generator=draw), torch.randint(4, (200,), generator=draw)
    scores = bucket_scores(bucket_confusion(true, guess))
    for name, reference in {
        "precision": multiclass_precision,
        "recall": multiclass_recall,
        "f1": multiclass_f1_score,
    }.items():
        torch.testing.assert_close(scores[name], reference(guess, true, num_classes=4, average="none"))


def test_shares_and_confusion_are_parts_of_all_rows() -> None:
    report = random_report(2)
    counts = report.confusion.sum((0, 1))
    scalars = summarise(report, 0.8, 1.0)
    assert float(scalars["confusion_1_3"]) == pytest.approx(int(counts[1, 3]) / int(counts.sum()))
    assert float(scalars["share_2"]) == pytest.approx(int(counts[2].sum()) / int(counts.sum()))
    for name, size in (("confusion", 16), ("share", 4)):
        parts = [value for key, value in scalars.items() if key.startswith(f"{name}_")]
        assert len(parts) == size
        assert float(sum(parts)) == pytest.approx(1)


def test_empty_buckets_score_zero() -> None:
    for row in bucket_scores(torch.zeros(4, 4, dtype=torch.int64)).values():
        assert row.tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("alpha", "tau"),
    [
        ([[0.0, 1.0], [1.0, 1.0]], 1.0),
        ([[1.0, 1.0], [1.0, 1.0]], 5.0),
        ([[0.5, 0.5], [0.0, 1.0]], 1.75),
        ([[1.0, 1.0], [0.5, 0.5]], 3.75),
    ],
)
def test_chain_tau_is_one_plus_the_expected_right_prefix(alpha: list[list[float]], tau: float) -> None:
    assert float(chain_tau(torch.tensor(alpha))) == pytest.approx(tau)
