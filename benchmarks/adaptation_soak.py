"""Many short queries in a row to a drafter that adapts: is memory flat, and is every text plain greedy's?

Usage: python benchmarks/adaptation_soak.py --tasks FOLDER [--run.queries 2000] [--adaptation.bandit.policy always]

Questions are asked without a chat template, so that a query is short. Every `check_every`-th text is compared with the
target's own; one that differs ends the run with status 1. Ends with one JSON line.
"""

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveInt
from torch import Tensor

from specblock_zoo.adaptation.session import AdaptiveDrafter
from specblock_zoo.adaptation.settings import AdaptationConfig, memory_bound
from specblock_zoo.bench.host import status_mib
from specblock_zoo.bench.replay import asker
from specblock_zoo.bench.tasks import Prompt, read_task
from specblock_zoo.cli.demo import DEFAULT_DRAFTER
from specblock_zoo.cli.generate import DEFAULT_TARGET
from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.inference.prepack import can_prepack, optimize_for_cpu
from specblock_zoo.targets.local import load_target

PARTS = 10
"""Points in the run at which memory is looked at, and over which the accepted length is averaged."""


@dataclass(frozen=True)
class Soak:
    """How long it runs.

    Attributes:
        queries: at most, and `seconds` at most.
        check_every: of how many texts one is compared.
    """

    queries: PositiveInt = 2000
    seconds: float = 3600.0
    max_new_tokens: PositiveInt = 6
    check_every: PositiveInt = 10


SOAK, ADAPTATION = Soak(), AdaptationConfig()


@dataclass
class Seen:
    """What the queries so far have shown."""

    rounds: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    resident_mib: list[float] = field(default_factory=list)
    synced: Counter[str] = field(default_factory=Counter)
    checked: int = 0
    differing: list[str] = field(default_factory=list)

    def taus(self) -> list[float]:
        """Accepted length of each part of the run."""
        size = max(1, len(self.rounds) // PARTS)
        starts = range(0, len(self.rounds), size)
        return [sum(self.committed[at : at + size]) / max(1, sum(self.rounds[at : at + size])) for at in starts]


def soak(adaptive: AdaptiveDrafter, ask: Any, prompts: list[Prompt], settings: Soak) -> Seen:
    """Asks one prompt after the other, from the first again after the last."""
    seen, started = Seen(), time.monotonic()
    for number in range(settings.queries):
        if time.monotonic() - started > settings.seconds:
            break
        prompt = prompts[number % len(prompts)]
        text = ask(adaptive, prompt)
        seen.rounds.append(adaptive.last_stats.rounds)
        seen.committed.append(adaptive.last_stats.committed)
        seen.synced.update([str(adaptive.last_report.synced)] if adaptive.last_report.synced else [])
        if number % settings.check_every == 0:
            seen.checked += 1
            if not torch.equal(text, ask(None, prompt)):
                seen.differing.append(prompt.id)
        if number % max(1, settings.queries // (5 * PARTS)) == 0:
            seen.resident_mib.append(round(status_mib("VmRSS"), 1))
    return seen


def report(adaptive: AdaptiveDrafter, seen: Seen, settings: Soak) -> dict[str, Any]:
    """The figures of a run."""
    finite = all(bool(each.isfinite().all()) for each in adaptive.updater.shadow.parameters())
    return {
        "queries": len(seen.rounds),
        "checked": seen.checked,
        "differing": seen.differing,
        "updates": dict(seen.synced),
        "weights_finite": finite,
        "tau": [round(tau, 3) for tau in seen.taus()],
        "resident_mib": seen.resident_mib,
        "buffer_bytes": adaptive.head_buffer.nbytes + adaptive.text_buffer.nbytes,
        "buffer_bound": sum(memory_bound(adaptive.settings, adaptive.config).values()),
        "settings": asdict(settings),
    }


def main(
    tasks: str,
    task: str = "natural_questions",
    target: str = DEFAULT_TARGET,
    drafter: str = DEFAULT_DRAFTER,
    run: Soak = SOAK,
    adaptation: AdaptationConfig = ADAPTATION,
) -> int:
    """Runs the soak in float32 and prints its figures.

    Args:
        tasks: folder of task files (JSON lines of id, category, turns).
        task: name of the file whose first turns are asked.
    """
    model, tokenizer = load_target(target, dtype=torch.float32)
    adaptive = AdaptiveDrafter(load_drafter(drafter, dtype=torch.float32), adaptation)
    if adaptation.prepack and can_prepack():
        optimize_for_cpu(model)

    def encode(text: str) -> Tensor:
        ids: Tensor = tokenizer(text, return_tensors="pt").input_ids
        return ids

    prompts = list(read_task(Path(tasks) / f"{task}.jsonl").prompts)
    seen = soak(adaptive, asker(model, encode, run.max_new_tokens), prompts, run)
    adaptive.close()
    print(json.dumps(report(adaptive, seen, run)))
    return int(bool(seen.differing))


if __name__ == "__main__":
    raise SystemExit(auto_cli(main, as_positional=False))
