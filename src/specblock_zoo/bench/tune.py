"""Measure the cost curve of a target and drafter: interleaved rounds, medians, a table and a plot."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table
from transformers import PreTrainedModel

from specblock_zoo.bench.timing import Summary, summarize
from specblock_zoo.errors import MissingPackageError, UnsupportedOptionError
from specblock_zoo.functional.costs import RoundCosts
from specblock_zoo.inference.measure import Workbench, milliseconds, round_costs
from specblock_zoo.inference.verify import Form
from specblock_zoo.models.base import Drafter

VERIFY_SIZES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
BRANCH_STARTS = (1, 2, 4, 8, 16)
VERIFY, FIRST, BRANCH = "verify", "first block", "branch"

Case = tuple[str, int]
"""(what runs, its size)"""


@dataclass(frozen=True)
class Tuning:
    """Every case's median and quartiles in milliseconds, and the curve through the medians."""

    summaries: dict[Case, Summary]
    costs: RoundCosts


@torch.no_grad()
def tune(
    model: PreTrainedModel,
    drafter: Drafter,
    form: Form,
    rounds: int = 9,
    advance: Callable[[], None] = lambda: None,
) -> Tuning:
    """Times every case once per round, one warm-up round before; slow seconds of the host hit all cases alike.

    Args:
        form: how the target's attention is told who sees whom (`inference.modes.form_of`).
        rounds: timed rounds, from 1.
        advance: called after each round, the warm-up included.
    """
    bench = Workbench(model, drafter, form)
    works: dict[str, Callable[[int], None]] = {VERIFY: bench.verify, FIRST: bench.first_block, BRANCH: bench.branch}
    taken: dict[Case, list[float]] = {case: [] for case in cases_of(can_branch(bench))}
    for _ in range(rounds + 1):
        for (kind, size), values in taken.items():
            values.append(milliseconds(works[kind], size, model.device))
        advance()
    return tuning_of({case: values[1:] for case, values in taken.items()})


def can_branch(bench: Workbench) -> bool:
    """Whether the drafter drafts later blocks at all, whatever its settings say now."""
    try:
        bench.branch(1)
    except UnsupportedOptionError:
        return False
    return True


def cases_of(branches: bool) -> list[Case]:
    """What is timed; later blocks only where the drafter can draft them."""
    cases = [(VERIFY, size) for size in VERIFY_SIZES] + [(FIRST, 1)]
    return cases + ([(BRANCH, starts) for starts in BRANCH_STARTS] if branches else [])


def tuning_of(taken: Mapping[Case, Sequence[float]]) -> Tuning:
    """Medians, quartiles and the curve of timed cases."""
    summaries = {case: summarize(values) for case, values in taken.items()}

    def medians(wanted: str) -> dict[int, float]:
        return {size: each.median for (kind, size), each in summaries.items() if kind == wanted}

    costs = round_costs(medians(VERIFY), medians(FIRST)[1], medians(BRANCH) or {1: 0.0})
    return Tuning(summaries, costs)


def table_of(tuning: Tuning) -> Table:
    """Milliseconds, spread, and what one more node costs at that width, in tokens of plain decoding."""
    table = Table("forward", "size", "ms", "quartiles", "fitted ms", "next one, in plain tokens")
    costs = tuning.costs
    for (kind, size), each in tuning.summaries.items():
        curve = {VERIFY: costs.verify, BRANCH: costs.branch}.get(kind)
        fitted = "" if curve is None else f"{curve.at(size):.2f}"
        step = "" if curve is None else f"{(curve.at(size + 1) - curve.at(size)) / costs.plain:.3f}"
        table.add_row(kind, str(size), f"{each.median:.2f}", f"{each.low:.2f} - {each.high:.2f}", fitted, step)
    return table


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def plot(tuning: Tuning, file: Path) -> None:
    """Draws both curves over their sizes, quartiles as bars.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    if not can_plot():
        raise MissingPackageError("The plot needs the package matplotlib.", "Run: pip install matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for kind in (VERIFY, BRANCH):
        points = [(size, each) for (name, size), each in tuning.summaries.items() if name == kind]
        if points:
            sizes, summaries = zip(*points, strict=True)
            below = [max(0.0, each.median - each.low) for each in summaries]
            above = [max(0.0, each.high - each.median) for each in summaries]
            medians = [each.median for each in summaries]
            label = "verify, by tokens" if kind == VERIFY else "later block, by starts"
            axes.errorbar(sizes, medians, yerr=(below, above), marker="o", capsize=2, label=label)
    axes.axhline(tuning.costs.first_block, linestyle=":", color="grey", label="first block")
    axes.set(xlabel="tokens or start nodes", ylabel="milliseconds", ylim=(0, None))
    axes.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
