"""`report.md`: the tables of a run, in words that need no other file."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from specblock_zoo.bench.plots import how
from specblock_zoo.bench.records import Ratio, TaskResult
from specblock_zoo.bench.summary import Outcome, Summary, divergences, expected

Cell = Callable[[TaskResult], str]


def report(summary: Summary, pictures: Sequence[Path]) -> str:
    """The whole report; `pictures` lie beside it."""
    parts = [head(summary), equality(summary)]
    for temperature, found in summary.outcomes.items():
        parts += [
            f"## {how(temperature).capitalize()}",
            f"Speedups are over `{summary.baselines[temperature]}`, the better plain baseline of this run: the median "
            "over prompts, over several tasks the mean of the tasks' medians, with its 95 % bootstrap interval.",
            overall(found),
            by_task("Speedup", found, lambda task: interval(task.speedup)),
            by_task("Tau (without looping answers)", found, taus),
            loops(summary, found, temperature),
            alphas(found),
            variants(summary, temperature),
        ]
        parts += [f"![{path.stem}]({path.name})" for path in pictures if path.stem.endswith(f"_T{temperature:g}")]
    parts += [verify_cost(summary)]
    parts += [f"![{path.stem}]({path.name})" for path in pictures if "_T" not in path.stem]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def head(summary: Summary) -> str:
    """What was measured, where, and how to repeat it."""
    run, made = summary.run, summary.run.provenance
    packed = "prepacked weights on all sides" if made.packed else "plain weights"
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    missing = expected(summary) - len(summary.records)
    unfinished = f"\n\n**Unfinished: {missing} of {expected(summary)} answers are still to be measured.**"
    return (
        f"# Benchmark of {run.target}\n\n{made.dtype}, {packed}, {made.threads} threads, {made.device} "
        f"({made.cpu_capability}); at most {made.max_new_tokens} new tokens per answer; methods in turn, prompt by "
        f"prompt, each warmed up; the drafter's refresh counts as drafting.\n\n```bash\n{made.command}\n```\n\n"
        f"Commit `{made.commit}`; {versions}; run `{run.sha256[:12]}`." + (unfinished if missing > 0 else "")
    )


def equality(summary: Summary) -> str:
    """How many texts equal plain decoding's."""
    rows = []
    differs = "**differs**" if summary.run.provenance.dtype == "float32" else "differs"
    for temperature, name, equal, total in divergences(summary):
        drawn = temperature > 0 and summary.run.methods[name] in ("prompt_lookup", "assistant")
        remark = "other draws: not expected to be equal" if drawn else ("" if equal == total else differs)
        rows.append((how(temperature), name, f"{equal}/{total}", remark))
    exact = "must equal" if summary.run.provenance.dtype == "float32" else "may differ at near ties from"
    return f"In {summary.run.provenance.dtype}, greedy texts {exact} plain decoding's.\n\n" + table(
        ("decoding", "method", "answers equal to plain", ""), rows
    )


def overall(found: dict[str, Outcome]) -> str:
    """The main table: one line per method."""
    header = ("method", "speedup [95 %]", "tau", "draft ms", "verify ms", "other ms", "draft share", "nodes", "calls")
    return table(header, ((name, *overall_cells(outcome.overall)) for name, outcome in found.items()))


def overall_cells(task: TaskResult) -> tuple[str, ...]:
    """Cells of one method, per round."""
    return (
        interval(task.speedup),
        number(task.tau),
        *(f"{each:.1f}" for each in (task.draft_ms, task.verify_ms, task.other_ms)),
        f"{task.draft_share:.0%}",
        f"{task.nodes:.1f}",
        f"{task.drafter_calls:.1f}",
    )


def by_task(title: str, found: dict[str, Outcome], cell: Cell) -> str:
    """A table of one figure: a line per method, a column per task."""
    names = list(dict.fromkeys(task.task for outcome in found.values() for task in outcome.tasks))
    rows = []
    for method, outcome in found.items():
        cells = {task.task: cell(task) for task in outcome.tasks}
        rows.append((method, *(cells.get(name, "-") for name in names), cell(outcome.overall)))
    return f"### {title}\n\n" + table(("method", *names, "all"), rows)


def loops(summary: Summary, found: dict[str, Outcome], temperature: float) -> str:
    """Share of plain answers that fall into a loop, which flatters every drafter."""
    plain = found[summary.baselines[temperature]]
    shares = ", ".join(f"{task.task} {task.loop_share:.0%}" for task in plain.tasks)
    return f"Answers that fall into a loop: {shares}; all {plain.overall.loop_share:.0%}."


def alphas(found: dict[str, Outcome]) -> str:
    """Conditional acceptance by position, and by block and slot."""
    rows = [
        (name, _places(outcome.overall.alpha_by_depth), _places(outcome.overall.alpha))
        for name, outcome in found.items()
        if outcome.overall.alpha_by_depth
    ]
    return "### alpha\n\n" + table(("method", "by position", "by block.slot"), rows) if rows else ""


def _places(shares: dict[str, float]) -> str:
    return ", ".join(f"{place}: {share:.3f}" for place, share in shares.items()) or "-"


def variants(summary: Summary, temperature: float) -> str:
    """The table of an ablation."""
    found = summary.outcomes[temperature]
    rows = [
        (
            each.name,
            interval(each.ratio),
            "{:+.2f} [{:+.2f}, {:+.2f}]".format(*each.tau_gain),
            share(found[each.name].overall.draft_ms, found[str(summary.run.reference)].overall.draft_ms),
        )
        for each in summary.variants[temperature]
    ]
    if not rows:
        return ""
    header = ("variant", "throughput / reference's [95 %]", "tau - reference's [95 %]", "draft ms / reference's")
    return f"### Variants beside {summary.run.reference}\n\n" + table(header, rows)


def verify_cost(summary: Summary) -> str:
    """The cost curve."""
    points = summary.run.verify_cost
    if not points:
        return ""
    rows = [("ms", *(f"{point.ms:.1f}" for point in points))]
    return "## Cost of one target forward\n\n" + table(("tokens", *(str(point.rows) for point in points)), rows)


def taus(task: TaskResult) -> str:
    """Tau, and in brackets without looping answers."""
    return f"{number(task.tau)} ({number(task.tau_without_loops)})"


def share(part: float, whole: float) -> str:
    """A ratio in per cent, or a dash."""
    return f"{part / whole:.0%}" if whole else "-"


def number(value: float | None) -> str:
    """Two decimals, or a dash."""
    return "-" if value is None else f"{value:.2f}"


def interval(ratio: Ratio) -> str:
    """Value and interval, e.g. `1.31 [1.25, 1.40]`."""
    return f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
