"""How much of drafting is the drafter's matrix products, and how much is everything around? Ends with one JSON line.

Usage: python benchmarks/draft_forward.py [--drafter NAME] [--threads 1] [--rounds 25]

Draft is what a decode round runs: refresh with two pairs, first block, proposals, tree; then later blocks by their
number of start nodes. Linears are the same linear layers called with inputs of the same shapes and nothing else. Both
take turns in one process; medians with quartiles, and the median of the paired ratios. The floor reads every weight
that was used once, at a rate measured first.
"""

import json
from collections.abc import Callable
from typing import Any

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveInt
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from specblock_zoo.bench.floors import linear_weights, measure_machine
from specblock_zoo.bench.timing import paired_ratios, summarize, thread_limit
from specblock_zoo.cli.demo import DEFAULT_DRAFTER
from specblock_zoo.cli.generate import DEFAULT_TARGET, DtypeName, dtype_of
from specblock_zoo.cli.tune import load_pair
from specblock_zoo.inference.measure import Workbench, milliseconds
from specblock_zoo.inference.modes import form_of

STARTS = (1, 4, 8)

Work = Callable[[int], Any]


def linear_calls(drafter: nn.Module, work: Work, size: int) -> list[tuple[nn.Module, Tensor]]:
    """Every call of a linear layer, plain or packed, that `work(size)` makes, with its input."""
    calls: list[tuple[nn.Module, Tensor]] = []
    layers = [each for each in drafter.modules() if hasattr(each, "in_features")]
    handles = [each.register_forward_pre_hook(lambda layer, args: calls.append((layer, args[0]))) for each in layers]
    work(size)
    for handle in handles:
        handle.remove()
    return calls


def replayed(calls: list[tuple[nn.Module, Tensor]]) -> Work:
    """A case that makes these calls and nothing else."""

    def replay(_: int) -> None:
        for layer, inputs in calls:
            layer(inputs)

    return replay


def main(
    drafter: str = DEFAULT_DRAFTER,
    target: str = DEFAULT_TARGET,
    dtype: DtypeName = "float32",
    threads: PositiveInt = 1,
    packed: bool = True,
    rounds: PositiveInt = 25,
) -> None:
    """Times both for the first block and for later ones.

    Args:
        drafter: name in the zoo or a folder.
        target: name of an embedded target, a model folder or a Hub repository.
        dtype: of both models.
        threads: of torch; one is timed by its own clock, which other programs do not disturb.
        packed: prepacked weights.
        rounds: timed turns of each, one more before them.
    """
    with thread_limit(threads):
        model, assistant = load_pair(target, drafter, dtype_of(dtype), packed)
        machine = measure_machine(model.dtype, model.device)
        bench = Workbench(model, assistant, form_of(model))
        works: dict[str, tuple[Work, int]] = {"first block": (bench.first_block, 1)}
        works |= {f"from {starts} starts": (bench.branch, starts) for starts in STARTS}
        calls = {name: linear_calls(assistant, work, size) for name, (work, size) in works.items()}
        taken: dict[tuple[str, str], list[float]] = {
            (name, kind): [] for name in works for kind in ("draft", "linears")
        }
        for _ in range(rounds + 1):
            for (name, kind), values in taken.items():
                work, size = works[name] if kind == "draft" else (replayed(calls[name]), 0)
                values.append(milliseconds(work, size, model.device))
    table = Table("forward", "draft ms", "quartiles", "linears ms", "draft / linears", "floor ms")
    ratios = {}
    for name in works:
        draft, linears = (taken[name, kind][1:] for kind in ("draft", "linears"))
        ratios[name] = round(summarize(paired_ratios(draft, linears)).median, 3)
        weights = sum(linear_weights(layer) for layer in {layer for layer, _ in calls[name]})
        floor = 1000.0 * weights * model.dtype.itemsize / machine.bandwidth
        whole, parts = summarize(draft), summarize(linears)
        quartiles = f"{whole.low:.2f}-{whole.high:.2f}"
        table.add_row(
            name, f"{whole.median:.2f}", quartiles, f"{parts.median:.2f}", f"{ratios[name]:.2f}", f"{floor:.2f}"
        )
    Console().print(table)
    print(json.dumps({"draft_over_linears": ratios, "gb_per_s": round(machine.bandwidth / 1e9, 2)}))


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    auto_cli(main, as_positional=False)
