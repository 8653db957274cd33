"""What tells a sound drafter from one with a good mean: acceptance slot by slot, its rank head, its probabilities.

Every share comes with its count, every tau with a bootstrap interval over prompts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean
from typing import Any

from specblock_zoo.bench.trace import fates
from specblock_zoo.functional.acceptance import Place
from specblock_zoo.functional.costs import Calibration, outcomes, path_probabilities
from specblock_zoo.functional.tree import Node
from specblock_zoo.structures import DraftTree, Round

BINS = 10
FEWEST_ROWS = 30
"""A slot that was reached less often is not judged."""
SURE = 2.0
"""Standard errors that a difference must exceed to be one."""
NEWTON_STEPS = 20
CERTAIN = 1e-12
"""Chances are kept that far from 0 and 1: a wrong one that is certain in float64 would cost infinitely much."""

Outcome = tuple[float, bool]
"""(log-probability of a token given its path, whether the target took it)"""


@dataclass(frozen=True)
class SlotFigure:
    """P(slot right | everything before it right), and how often that was asked."""

    block: int
    slot: int
    alpha: float
    rows: int

    @property
    def variance(self) -> float:
        """Of alpha; of a share that is 0 or 1, of one that is off by half a row."""
        share = min(max(self.alpha, 0.5 / self.rows), 1 - 0.5 / self.rows)
        return share * (1 - share) / self.rows


def acceptance_curve(offered: Mapping[Place, int], hit: Mapping[Place, int]) -> tuple[SlotFigure, ...]:
    """One figure per (block, slot) that was ever reached, in drafting order."""
    reached = [(place, int(rows)) for place, rows in sorted(offered.items()) if rows]
    return tuple(SlotFigure(*place, hit.get(place, 0) / rows, rows) for place, rows in reached)


def judge_curve(curve: Sequence[SlotFigure]) -> dict[str, Any]:
    """Does alpha fall from slot to slot of a block, and rise again where a block begins?

    Returns:
        `rises`: places within a block whose alpha is above the one before by more than chance; `monotone`: there is
        none; `boundaries`: difference of the first slot of a block to the last one of the block before, and whether it
        is above chance (`recovers`; none where a slot was reached too rarely).
    """
    pairs = list(pairwise(curve))
    rises = [f"b{b.block}.s{b.slot}" for a, b in pairs if a.block == b.block and _gain(a, b) is True]
    boundaries = [
        {"block": b.block, "gain": b.alpha - a.alpha, "recovers": _gain(a, b)} for a, b in pairs if a.block != b.block
    ]
    return {"monotone": not rises, "rises": rises, "boundaries": boundaries}


def _gain(before: SlotFigure, after: SlotFigure) -> bool | None:
    """Whether alpha rose by more than chance; none where too little was seen to say."""
    if min(before.rows, after.rows) < FEWEST_ROWS:
        return None
    return after.alpha - before.alpha > SURE * math.sqrt(before.variance + after.variance)


def rank_figures(counts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The rank head's confusion, each true bucket's row summing to 1, and its accuracy beside the majority's.

    Args:
        counts: slots by true bucket (rows) and predicted bucket (columns).
    """
    totals = [sum(row) for row in counts]
    rows = sum(totals)
    shares = [[count / total if total else 0.0 for count in row] for row, total in zip(counts, totals, strict=True)]
    right = sum(row[bucket] for bucket, row in enumerate(counts))
    return {
        "rows": rows,
        "confusion": shares,
        "accuracy": right / rows if rows else None,
        "majority_accuracy": max(totals) / rows if rows else None,
    }


def tau_figures(answers: Sequence[tuple[int, int]], seed: int = 0) -> dict[str, Any]:
    """Tokens per round over all answers, with a 95 % percentile bootstrap interval over them.

    Args:
        answers: committed tokens and rounds of each; those without a round are left out.
    """
    counted = [pair for pair in answers if pair[1]]
    if not counted:
        return {"n": 0, "rounds": 0, "tau": None, "interval": None}
    committed, rounds = zip(*counted, strict=True)
    tau = sum(committed) / sum(rounds)
    interval = [tau, tau]
    if len({each / count for each, count in counted}) > 1:
        import scipy.stats  # here, so that only a measurement needs it

        drawn = scipy.stats.bootstrap(
            (committed, rounds),
            lambda tokens, made, axis: tokens.sum(axis=axis) / made.sum(axis=axis),
            n_resamples=2000,
            paired=True,
            vectorized=True,
            method="percentile",
            rng=seed,
        ).confidence_interval
        interval = [float(drawn.low), float(drawn.high)]
    return {"n": len(counted), "rounds": sum(rounds), "tau": tau, "interval": interval}


def calibration_figures(prompts: Sequence[Sequence[Round]]) -> dict[str, Any]:
    """Are the drafted probabilities the shares that the target accepts?

    Given its path: log-loss in nats per token looked at. Of whole paths: bins of the predicted probability with the
    accepted share, and the expected calibration error (ECE). Both as drafted and after a logistic line, which is fitted
    to the other half of the prompts.

    Args:
        prompts: the rounds of each; what was looked up in the text has no such probability and is left out.
    """
    halves = [[round_ for rounds in prompts[half::2] for round_ in rounds] for half in (0, 1)]
    seen = [[each for round_ in half for each in outcomes(round_.tree, round_.verdict)] for half in halves]
    lines = [fit_line(seen[1]), fit_line(seen[0])]
    as_drafted = Calibration()
    return {
        "outcomes": len(seen[0]) + len(seen[1]),
        "log_loss": _over(seen, [as_drafted, as_drafted]),
        "log_loss_fitted": _over(seen, lines),
        "line": vars(fit_line(seen[0] + seen[1])) | {"information": None},
        "paths": path_figures([each for half in halves for each in path_outcomes(half, as_drafted)]),
        "paths_fitted": path_figures(
            [each for half, line in zip(halves, lines, strict=True) for each in path_outcomes(half, line)]
        ),
    }


def fit_line(seen: Sequence[Outcome]) -> Calibration:
    """The likeliest logistic line, by the account's own Newton step repeated on all outcomes."""
    line = Calibration()
    for _ in range(NEWTON_STEPS if seen else 0):
        line = replace(line, information=(0.0, 0.0, 0.0)).after(seen, keep=1.0)
    return line


def log_loss(seen: Sequence[Outcome], line: Calibration) -> float:
    """Mean nats per outcome under a line."""
    chances = [(min(max(line.probability(log_prob), CERTAIN), 1.0 - CERTAIN), taken) for log_prob, taken in seen]
    return -mean(math.log(chance if taken else 1.0 - chance) for chance, taken in chances)


def _over(halves: Sequence[Sequence[Outcome]], lines: Sequence[Calibration]) -> float | None:
    count = sum(map(len, halves))
    pairs = zip(halves, lines, strict=True)
    return sum(len(half) * log_loss(half, line) for half, line in pairs if half) / count if count else None


def path_outcomes(rounds: Sequence[Round], line: Calibration) -> list[tuple[float, bool]]:
    """Predicted probability that the text runs through a node, and whether it did, for each drafted node."""
    found: list[tuple[float, bool]] = []
    for round_ in rounds:
        nodes = nodes_of(round_.tree)
        verdicts = fates(round_.tree, round_.verdict)
        for node, chance, fate in zip(nodes, path_probabilities(nodes, line), verdicts, strict=True):
            if not node.looked_up:
                found.append((chance, fate in ("accepted", "duplicate")))
    return found


def nodes_of(tree: DraftTree) -> list[Node]:
    """The tree as it was grown."""
    names = ("tokens", "parents", "log_probs", "blocks", "slots", "buckets", "depths", "looked_up")
    return [Node(*values) for values in zip(*(getattr(tree, name).tolist() for name in names), strict=True)]


def path_figures(paths: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    """Bins of equal width that hold something, and the expected calibration error over them."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for chance, hit in paths:
        bins[min(int(chance * BINS), BINS - 1)].append((chance, hit))
    rows = [
        {
            "from": index / BINS,
            "to": (index + 1) / BINS,
            "nodes": len(held),
            "predicted": mean(chance for chance, _ in held),
            "accepted": mean(hit for _, hit in held),
        }
        for index, held in enumerate(bins)
        if held
    ]
    off = sum(row["nodes"] * abs(row["predicted"] - row["accepted"]) for row in rows)
    return {"nodes": len(paths), "ece": off / len(paths) if paths else None, "bins": rows}
