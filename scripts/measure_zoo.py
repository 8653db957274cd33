"""Measures a drafter on task files and writes `records.jsonl` and `results.json`.

Usage: python scripts/measure_zoo.py --drafter NAME --tasks+=mt_bench.jsonl --tasks+=humaneval.jsonl --limit=20
Task files are JSON lines of `id`, `category`, `turns`; only the first turn is asked. 40 prompts of 128 new tokens take
about 12 minutes on two cores.
"""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from jsonargparse import auto_cli
from rich.console import Console

from specblock_zoo.bench.host import cpu_capability, device_name, source_commit, versions
from specblock_zoo.bench.records import Provenance, Results, write_records, write_results
from specblock_zoo.bench.report import summarize_run
from specblock_zoo.bench.runner import Pair, RunSettings, compare
from specblock_zoo.bench.tasks import read_task
from specblock_zoo.bench.timing import thread_limit
from specblock_zoo.cli.drawing import progress
from specblock_zoo.cli.generate import DEFAULT_TARGET, DtypeName, dtype_of
from specblock_zoo.hub.zoo import load_drafter, resolve
from specblock_zoo.targets.local import load_target

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Conditions:
    """Under which a measurement runs.

    Attributes:
        max_new_tokens: at most that many per answer.
        dtype: of both models; float32 is where equality is exact.
        threads: of torch.
        packed: prepack the linear layers of both models (`optimize_for_cpu`), plain decoding included.
        seed: of the bootstrap.
        prompt_lookup: also time transformers' prompt lookup.
    """

    max_new_tokens: int = 128
    dtype: DtypeName = "float32"
    threads: int = 2
    packed: bool = True
    seed: int = 0
    prompt_lookup: bool = True


CONDITIONS = Conditions()


def measure(
    drafter: str,
    tasks: list[Path],
    target: str = DEFAULT_TARGET,
    limit: int | None = None,
    output: Path | None = None,
    conditions: Conditions = CONDITIONS,
) -> None:
    """Decodes task prompts plainly and with a drafter, interleaved, and writes records and results.

    Args:
        drafter: name in the zoo or a folder.
        tasks: task files.
        target: name of an embedded target, a model folder or a Hub repository.
        limit: prompts per task, spread over the file; default all.
        output: folder of `records.jsonl` and `results.json`; default the drafter's.
        conditions: lengths, dtype, threads, seed.
    """
    chosen = [read_task(path, limit) for path in tasks]
    folder = output or resolve(drafter)
    folder.mkdir(parents=True, exist_ok=True)
    settings = RunSettings(conditions.max_new_tokens, conditions.prompt_lookup)
    console = Console(stderr=True)
    with thread_limit(conditions.threads):
        model, tokenizer = load_target(target, dtype=dtype_of(conditions.dtype))
        pair = Pair(model, tokenizer, load_drafter(drafter, dtype=model.dtype))
        if conditions.packed:
            pair.prepack()
        measured = []
        for task in chosen:
            with progress(task.name, len(task.prompts) * len(pair.cases(settings.prompt_lookup)), console) as advance:
                measured.append(compare(pair, task, settings, advance).records)
            # After each task, so that a run that is cut short keeps what it measured.
            write_records([record for records in measured for record in records], folder / "records.jsonl")
    overall, results = summarize_run(measured, conditions.seed)
    provenance = provenance_of(conditions, model.device, model.dtype)
    write_results(
        Results(
            drafter=resolve(drafter).name, target=target, provenance=provenance, overall=overall, tasks=tuple(results)
        ),
        folder,
    )
    console.print(overall.model_dump())


def provenance_of(conditions: Conditions, device: torch.device, dtype: torch.dtype) -> Provenance:
    """Where and how this process measures."""
    return Provenance(
        commit=source_commit(),
        command=public_command(sys.argv),
        device=device_name(device),
        cpu_capability=cpu_capability(),
        threads=conditions.threads,
        packed=conditions.packed,
        dtype=str(dtype).removeprefix("torch."),
        seed=conditions.seed,
        max_new_tokens=conditions.max_new_tokens,
        versions=versions(),
    )


def public_command(arguments: list[str]) -> str:
    """The command line with paths outside the checkout cut to their names: where they lay means nothing elsewhere."""

    def shorten(argument: str) -> str:
        flag, equals, value = argument.rpartition("=")
        path = Path(value).resolve()
        if "/" not in value or not path.exists():
            return argument
        return flag + equals + (str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name)

    return shlex.join(["python", *map(shorten, arguments)])


if __name__ == "__main__":
    auto_cli(measure, as_positional=False)
