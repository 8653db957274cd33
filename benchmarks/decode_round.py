"""Does judging a tree cost more than the target's bare forward of the same width? Ends with one JSON line.

Usage: python benchmarks/decode_round.py [--drafter NAME] [--threads 1] [--rounds 15]

Verify is what a decode round runs: ids, positions and tree mask built, tapped layers recorded, the cache put back.
Bare is the target's forward alone, its inputs ready and nothing recorded; the cache is put back too. Both take turns
in one process; medians with quartiles, and the median of the paired ratios. The floor reads every weight of the linear
layers once, or multiplies by them, at rates measured first.
"""

import json
from typing import Any

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveInt
from rich.console import Console
from rich.table import Table

from specblock_zoo.bench.floors import floor_ms, linear_weights, measure_machine
from specblock_zoo.bench.timing import paired_ratios, summarize, thread_limit
from specblock_zoo.cli.demo import DEFAULT_DRAFTER
from specblock_zoo.cli.generate import DEFAULT_TARGET, DtypeName, dtype_of
from specblock_zoo.cli.tune import load_pair
from specblock_zoo.functional.masks import additive, tree_mask
from specblock_zoo.inference.measure import Workbench, milliseconds
from specblock_zoo.inference.modes import form_of
from specblock_zoo.inference.versions import CACHE_NAME

WIDTHS = (1, 8, 16, 32)


class RoundBench(Workbench):
    """A workbench that can run the target's forward alone."""

    def inputs(self, tokens: int) -> dict[str, Any]:
        """What the bare forward of a chain of `tokens` tokens takes, built beforehand."""
        device = self.verifier.model.device
        seen = tree_mask(torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril(), self.context)
        return {
            "input_ids": torch.zeros(1, tokens, dtype=torch.int64, device=device),
            "position_ids": torch.arange(self.context, self.context + tokens, device=device)[None],
            "attention_mask": additive(seen, self.verifier.model.dtype)[None, None],
            CACHE_NAME: self.verifier.cache,
            "use_cache": True,
        }

    def bare(self, inputs: dict[str, Any]) -> None:
        """One forward and the cache as it was."""
        self.verifier.model(**inputs)
        self.take_back(inputs["input_ids"].shape[1])


def main(
    drafter: str = DEFAULT_DRAFTER,
    target: str = DEFAULT_TARGET,
    dtype: DtypeName = "float32",
    threads: PositiveInt = 1,
    packed: bool = True,
    rounds: PositiveInt = 15,
) -> None:
    """Times both over several widths.

    Args:
        drafter: name in the zoo or a folder; its tapped layers are recorded.
        target: name of an embedded target, a model folder or a Hub repository.
        dtype: of both models.
        threads: of torch; one is timed by its own clock, which other programs do not disturb.
        packed: prepacked weights.
        rounds: timed turns of each, one more before them.
    """
    with thread_limit(threads):
        model, assistant = load_pair(target, drafter, dtype_of(dtype), packed)
        machine = measure_machine(model.dtype, model.device)
        bench = RoundBench(model, assistant, form_of(model))
        taken: dict[tuple[str, int], list[float]] = {(kind, n): [] for n in WIDTHS for kind in ("verify", "bare")}
        ready = {tokens: bench.inputs(tokens) for tokens in WIDTHS}
        for _ in range(rounds + 1):
            for (kind, tokens), values in taken.items():
                work: Any = bench.verify if kind == "verify" else lambda tokens: bench.bare(ready[tokens])
                values.append(milliseconds(work, tokens, model.device))
    table = Table("tokens", "verify ms", "quartiles", "bare ms", "quartiles", "verify / bare", "floor ms")
    ratios = {}
    for tokens in WIDTHS:
        verify, bare = (taken[kind, tokens][1:] for kind in ("verify", "bare"))
        ratios[str(tokens)] = round(summarize(paired_ratios(verify, bare)).median, 3)
        floor = floor_ms(linear_weights(model), tokens, model.dtype, machine)
        cells = [
            f"{text:.2f}" for each in map(summarize, (verify, bare)) for text in (each.median, each.low, each.high)
        ]
        table.add_row(
            str(tokens), cells[0], f"{cells[1]}-{cells[2]}", cells[3], f"{cells[4]}-{cells[5]}",
            f"{ratios[str(tokens)]:.3f}", f"{floor:.2f}",
        )  # fmt: skip
    Console().print(table)
    rates = {"gb_per_s": round(machine.bandwidth / 1e9, 2), "gflop_per_s": round(machine.peak / 1e9, 1)}
    print(json.dumps({"verify_over_bare": ratios, **rates}))


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    auto_cli(main, as_positional=False)
