"""What a run came to: `summary.json`, `details.json` and `report.md`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specblock_zoo.bench.folder import Run, provenance_of
from specblock_zoo.bench.records import AnswerRecord, Ratio, TaskResult
from specblock_zoo.bench.report import (
    Records,
    better_baseline,
    equal_count,
    names_of,
    pairs,
    per_prompt,
    speedup,
    summarize_run,
)
from specblock_zoo.bench.timing import interval_of_mean

FIGURES = ("tau", "draft_ms", "verify_ms", "draft_share")


@dataclass(frozen=True)
class Outcome:
    """A method at a temperature: all tasks together, and each task."""

    overall: TaskResult
    tasks: tuple[TaskResult, ...]


@dataclass(frozen=True)
class Variant:
    """A method beside the run's reference: ratio of throughputs, and by how much tau differs, with its interval."""

    name: str
    ratio: Ratio
    tau_gain: tuple[float, float, float]


@dataclass(frozen=True)
class Summary:
    """Everything a report shows.

    Attributes:
        run, records: what was read.
        outcomes: temperature -> method -> its outcome; methods in the order of the configuration.
        baselines: temperature -> plain method that speedups are taken against.
        variants: temperature -> comparisons with the reference; empty without one.
    """

    run: Run
    records: tuple[AnswerRecord, ...]
    outcomes: dict[float, dict[str, Outcome]]
    baselines: dict[float, str]
    variants: dict[float, tuple[Variant, ...]]

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks."""
        return list(dict.fromkeys(record.task for record in self.records))

    def at(self, temperature: float) -> list[AnswerRecord]:
        """Records at a temperature."""
        return [record for record in self.records if record.temperature == temperature]


def summarize_records(run: Run, records: Sequence[AnswerRecord]) -> Summary:
    """Adds a run up, also one that is not finished: only places that the baseline has answered count."""
    run = run.model_copy(update={"provenance": provenance_of(run, records)})
    outcomes: dict[float, dict[str, Outcome]] = {}
    baselines, variants = {}, {}
    for temperature in sorted({record.temperature for record in records}):
        here = [record for record in records if record.temperature == temperature]
        if not names_of(here, ("plain", "plain_masked")):
            continue
        baseline = baselines[temperature] = better_baseline(here)
        answered = [name for name in run.methods if pairs(here, name, baseline)]
        outcomes[temperature] = {
            name: Outcome(*summarize_run(here, name, baseline, run.provenance.seed)) for name in answered
        }
        reference = run.reference
        others = [name for name in answered if run.methods[name] == "drafter" and name != reference]
        variants[temperature] = tuple(variant(here, name, reference) for name in others) if reference else ()
    return Summary(run, tuple(records), outcomes, baselines, variants)


def variant(records: Records, name: str, reference: str) -> Variant:
    """One method beside the reference; the interval of tau is of the median difference, prompt by prompt."""
    gains = [
        (one, one.committed / one.rounds - two.committed / two.rounds)
        for one, two in pairs(records, name, reference)
        if one.rounds and two.rounds
    ]
    by_task = per_prompt(gains).values()
    return Variant(name, speedup(records, name, reference), interval_of_mean(list(by_task) or [[0.0]]))


def label(temperature: float) -> str:
    """`T0` for greedy decoding."""
    return f"T{temperature:g}"


def summary_json(summary: Summary) -> dict[str, Any]:
    """The content of `summary.json`: methods -> temperature -> figures, the same per task, and provenance."""
    methods: dict[str, Any] = {name: {} for name in summary.run.methods}
    for temperature, found in summary.outcomes.items():
        for name, outcome in found.items():
            each = {task.task: _figures(task) for task in outcome.tasks}
            methods[name][label(temperature)] = {**_figures(outcome.overall), "tasks": each}
    return {"methods": methods, "provenance": _provenance(summary)}


def _figures(result: TaskResult) -> dict[str, Any]:
    ratio = result.speedup
    return {"speedup": ratio.median, "speedup_ci": [ratio.low, ratio.high]} | {
        name: getattr(result, name) for name in FIGURES
    }


def _provenance(summary: Summary) -> dict[str, Any]:
    run = summary.run
    return {
        **run.provenance.model_dump(mode="json"),
        "run_sha256": run.sha256,
        "target": run.target,
        "drafters": run.drafters,
        "baselines": {label(temperature): name for temperature, name in summary.baselines.items()},
        "records": len(summary.records),
        "records_expected": expected(summary),
    }


def expected(summary: Summary) -> int:
    """Records of the finished run."""
    return summary.run.places * len(summary.run.methods)


def details_json(summary: Summary) -> dict[str, Any]:
    """The content of `details.json`: every sum behind the report, per method, temperature and task."""
    return {
        "outcomes": {
            label(temperature): {
                name: [each.model_dump(mode="json") for each in (outcome.overall, *outcome.tasks)]
                for name, outcome in found.items()
            }
            for temperature, found in summary.outcomes.items()
        },
        "verify_cost": [point.model_dump() for point in summary.run.verify_cost],
    }


def divergences(summary: Summary) -> Iterator[tuple[float, str, int, int]]:
    """(temperature, method, answers equal to plain, answers) of every method but the baseline."""
    for temperature, found in summary.outcomes.items():
        here, baseline = summary.at(temperature), summary.baselines[temperature]
        for name in found:
            if name != baseline:
                yield temperature, name, equal_count(here, name, baseline), len(pairs(here, name, baseline))
