"""What one head update costs, teaches and spoils: settings beside each other, on slots of real queries.

Usage: python benchmarks/head_update.py --tasks FOLDER [--run.prompts 40] [--settings '{"name": {"least_pull": 0.0}}']

A drafter that does not adapt answers prompts of each task; the first half of the first task's queries teaches. Printed
for each setting: milliseconds of the update (median, settings in turn), and by how much the head's first choice is more
often the target's on the slots that taught, on the rest of that task, and on the other tasks. Ends with one JSON line.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveInt

from specblock_zoo.adaptation.bandit import BanditSettings
from specblock_zoo.adaptation.buffers import HeadRows
from specblock_zoo.adaptation.events import Action
from specblock_zoo.adaptation.session import AdaptiveDrafter, checked
from specblock_zoo.adaptation.settings import AdaptationConfig
from specblock_zoo.adaptation.updater import Updater, UpdateSettings
from specblock_zoo.bench.replay import Ask, asker
from specblock_zoo.bench.tasks import encode_prompt, read_task
from specblock_zoo.cli.demo import DEFAULT_DRAFTER
from specblock_zoo.cli.generate import DEFAULT_TARGET
from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.inference.prepack import can_prepack, optimize_for_cpu
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.targets.local import load_target

WHOLE_HEAD: dict[str, Any] = {"least_pull": 0.0, "head_beta": 0.1, "head_epochs": 2}
GRID: dict[str, dict[str, Any]] = {
    "every row, beta 0.1, 2 passes": WHOLE_HEAD,
    "pulled rows, beta 0.1, 2 passes": {**WHOLE_HEAD, "least_pull": 0.1},
    "pulled rows, beta 0.1, 4 passes": {"head_beta": 0.1},
    "as shipped": {},
    "every row, else as shipped": {"least_pull": 0.0},
}


@dataclass(frozen=True)
class HeadRun:
    """How much is asked and timed.

    Attributes:
        tasks: the first teaches.
        prompts: of each task.
        repeats: times each setting trains, for its milliseconds.
    """

    tasks: list[str] = field(default_factory=lambda: ["natural_questions", "math500", "alpaca", "wmt23", "humaneval"])
    prompts: PositiveInt = 24
    max_new_tokens: PositiveInt = 24
    repeats: PositiveInt = 5


RUN = HeadRun()


def slots_of(drafter: SpecBlockDrafter, ask: Ask, folder: Path, name: str, run: HeadRun) -> list[HeadRows]:
    """The slots of the first and of the second half of a task's queries."""
    never = AdaptationConfig(bandit=BanditSettings(policy="never"), head_capacity=10**9, prepack=can_prepack())
    prompts = read_task(folder / f"{name}.jsonl", run.prompts).prompts
    halves = []
    for half in (prompts[: len(prompts) // 2], prompts[len(prompts) // 2 :]):
        adaptive = AdaptiveDrafter(drafter, never)
        for prompt in half:
            ask(adaptive, prompt)
        halves.append(adaptive.head_buffer.rows())
    return halves


@torch.no_grad()
def right(drafter: SpecBlockDrafter, slots: HeadRows) -> float:
    """Share of slots where the head's first choice is the target's."""
    return float((drafter.lm_head(slots.normed.float()).argmax(-1) == slots.target.ids[:, 0]).float().mean())


def compare(
    drafter: SpecBlockDrafter, slots: Mapping[str, HeadRows], settings: Mapping[str, UpdateSettings], repeats: int
) -> dict[str, dict[str, Any]]:
    """Trains a fresh copy under each setting, `repeats` times in turn, on the first of `slots`."""
    taught = next(iter(slots.values()))
    before = {name: right(drafter, each) for name, each in slots.items()}
    times: dict[str, list[float]] = {name: [] for name in settings}
    gains: dict[str, dict[str, float]] = {}
    for _ in range(repeats):
        for name, each in settings.items():
            updater = Updater(drafter, each, prepack=can_prepack())
            times[name].append(updater.update(Action.HEAD, taught).seconds * 1000)
            gains[name] = {part: round(right(updater.shadow, rows) - before[part], 3) for part, rows in slots.items()}
    return {name: {"ms": round(median(times[name])), **gains[name]} for name in settings}


def main(
    tasks: str,
    target: str = DEFAULT_TARGET,
    drafter: str = DEFAULT_DRAFTER,
    run: HeadRun = RUN,
    settings: dict[str, dict[str, Any]] = GRID,
) -> int:
    """Runs the comparison in float32 and prints it.

    Args:
        tasks: folder of task files (JSON lines of id, category, turns).
        settings: name -> what differs from `UpdateSettings()`.
    """
    model, tokenizer = load_target(target, dtype=torch.float32)
    plain = checked(load_drafter(drafter, dtype=torch.float32))
    if can_prepack():
        optimize_for_cpu(model)
    ask = asker(model, partial(encode_prompt, tokenizer), run.max_new_tokens)
    halves = {name: slots_of(plain, ask, Path(tasks), name, run) for name in run.tasks}
    first = run.tasks[0]
    slots = {"taught": halves[first][0], f"{first}, unseen": halves[first][1]}
    slots |= {name: halves[name][1] for name in run.tasks[1:]}
    chosen = {name: replace(UpdateSettings(), **each) for name, each in settings.items()}
    found = compare(plain, slots, chosen, run.repeats)
    for name, row in found.items():
        print(f"{name:34s}", "  ".join(f"{part} {value:+g}" for part, value in row.items()))
    print(json.dumps({"slots": {name: len(rows) for name, rows in slots.items()}, "settings": found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(auto_cli(main, as_positional=False))
