"""The pictures of a run, each a function of its summary; all of them in one table."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specblock_zoo.bench.records import TaskResult
from specblock_zoo.bench.style import FAINT, GRID, INK, PHASES, Dot, Panel, canvas, colours, dot_panels, dots, headline
from specblock_zoo.bench.summary import Outcome, Summary
from specblock_zoo.functional.buckets import NUM_BUCKETS

BUCKETS = ("1", "2-4", "5-10", "> 10")


def draw_all(summary: Summary, folder: Path) -> list[Path]:
    """Draws every plot for which there is data; returns the files in the order of a report."""
    drawn = []
    for temperature in summary.outcomes:
        for name, draw in PER_TEMPERATURE.items():
            path = folder / f"{name}_T{temperature:g}.png"
            if draw(summary, temperature, path):
                drawn.append(path)
    cost = folder / "verify_cost.png"
    if verify_cost(summary, cost):
        drawn.append(cost)
    return drawn


def note(summary: Summary) -> str:
    """One line under each plot: target, dtype, threads, device."""
    made = summary.run.provenance
    packed = ", prepacked weights" if made.packed else ""
    return (
        f"{summary.run.target}, {made.dtype}{packed}, {made.threads} threads, {made.device}; "
        f"at most {made.max_new_tokens} new tokens; commit {made.commit[:8]}"
    )


def how(temperature: float) -> str:
    """How tokens were chosen, in words."""
    return "greedy" if temperature == 0 else f"sampled at temperature {temperature:g}"


def speculative(summary: Summary, temperature: float) -> dict[str, Outcome]:
    """Outcomes of all methods but the plain baselines."""
    kinds = summary.run.methods
    return {
        name: found
        for name, found in summary.outcomes[temperature].items()
        if kinds[name] not in ("plain", "plain_masked")
    }


def panels_of(outcomes: Mapping[str, Outcome], dot: Callable[[TaskResult], Dot | None], mean: str) -> list[Panel]:
    """One panel for all tasks together, then one per task."""
    tasks = list(dict.fromkeys(task.task for outcome in outcomes.values() for task in outcome.tasks))
    panels: list[Panel] = [(mean, _dots({name: outcome.overall for name, outcome in outcomes.items()}, dot))]
    for task in tasks:
        results = {name: each for name, outcome in outcomes.items() for each in outcome.tasks if each.task == task}
        panels.append((task, _dots(results, dot)))
    return panels


def _dots(results: Mapping[str, TaskResult], dot: Callable[[TaskResult], Dot | None]) -> dict[str, Dot]:
    found = {name: dot(result) for name, result in results.items()}
    return {name: each for name, each in found.items() if each is not None}


def speedup(summary: Summary, temperature: float, path: Path) -> bool:
    """Speedup of each method, its bootstrap interval, per task and over all."""
    outcomes = speculative(summary, temperature)

    def dot(result: TaskResult) -> Dot:
        return Dot(result.speedup.median, result.speedup.low, result.speedup.high)

    title = f"Speedup over {summary.baselines[temperature]}, {how(temperature)}; 95 % interval"
    if outcomes:
        panels = panels_of(outcomes, dot, "mean of tasks")
        dot_panels(path, panels, list(outcomes), colours(summary.run.methods), (title, note(summary), 1.0))
    return bool(outcomes)


def tau(summary: Summary, temperature: float, path: Path) -> bool:
    """Accepted length of each method; hollow: over answers that do not loop."""
    outcomes = speculative(summary, temperature)

    def dot(result: TaskResult) -> Dot | None:
        return None if result.tau is None else Dot(result.tau, hollow=result.tau_without_loops)

    title = f"Tau: committed tokens per round, {how(temperature)}; hollow: answers that do not loop"
    if outcomes:
        panels = panels_of(outcomes, dot, "all")
        dot_panels(path, panels, list(outcomes), colours(summary.run.methods), (title, note(summary), 1.0))
    return bool(outcomes)


def draft_share(summary: Summary, temperature: float, path: Path) -> bool:
    """Share of a round that the drafter takes."""
    drafted = {name: each for name, each in speculative(summary, temperature).items() if each.overall.draft_ms > 0}

    def dot(result: TaskResult) -> Dot:
        return Dot(100 * result.draft_share, digits=0)

    title = f"Draft share: drafter time / round time, per cent, {how(temperature)}"
    if drafted:
        panels = panels_of(drafted, dot, "all")
        dot_panels(path, panels, list(drafted), colours(summary.run.methods), (title, note(summary), None))
    return bool(drafted)


def round_time(summary: Summary, temperature: float, path: Path) -> bool:
    """Where the milliseconds of a round go."""
    outcomes = summary.outcomes[temperature]
    with canvas(path, (8.5, 1.5 + 0.42 * len(outcomes))) as (figure, axes):
        axis = axes[0, 0]
        axis.set_ylim(len(outcomes) - 0.4, -1.0)
        axis.set_yticks(range(len(outcomes)), list(outcomes))
        axis.grid(axis="x")
        for row, outcome in enumerate(outcomes.values()):
            _stacked(axis, row, outcome.overall)
        axis.set_xlabel("milliseconds per round", loc="left")
        for index, (name, colour) in enumerate(PHASES.items()):
            axis.text(index * 0.12, 1.0, f"\N{BLACK SQUARE} {name}", color=colour, transform=axis.transAxes, fontsize=9)
        headline(figure, f"Where a round's time goes, {how(temperature)}", note(summary))
    return True


def _stacked(axis: Any, row: int, result: TaskResult) -> None:
    parts = {
        "draft": result.draft_ms,
        "verify": result.verify_ms,
        "commit": result.commit_ms,
        "other": max(0.0, result.other_ms - result.commit_ms),
    }
    total = sum(parts.values())
    left = 0.0
    for name, value in parts.items():
        axis.barh(row, value, left=left, height=0.62, color=PHASES[name])
        if value > 0.08 * total:
            axis.text(left + value / 2, row, f"{value:.1f}", ha="center", va="center", color="white", fontsize=8)
        left += value
    axis.text(left, row, f"  {total:.1f} ms, tau {result.tau or 1:.2f}", va="center", fontsize=8, color=INK)


def alpha_by_position(summary: Summary, temperature: float, path: Path) -> bool:
    """Conditional acceptance by position along the accepted chain."""
    curves = {
        name: found.overall.alpha_by_depth
        for name, found in speculative(summary, temperature).items()
        if found.overall.alpha_by_depth
    }
    if not curves:
        return False
    colour = colours(summary.run.methods)
    with canvas(path, (7.5, 4.2)) as (figure, axes):
        axis = axes[0, 0]
        axis.grid(axis="y")
        for name, curve in curves.items():
            axis.plot([int(depth) for depth in curve], list(curve.values()), "-o", markersize=4, color=colour[name])
        for place, name in zip(_spread_out([list(each.values())[-1] for each in curves.values()]), curves, strict=True):
            last = max(int(depth) for depth in curves[name])
            axis.annotate(
                name, (last, list(curves[name].values())[-1]), (last + 0.25, place), color=colour[name], va="center"
            )
        deepest = max(int(depth) for curve in curves.values() for depth in curve)
        axis.set_xlim(0.7, deepest + 2.4)
        axis.set_ylim(-0.03, 1.05)
        axis.set_xticks(range(1, deepest + 1))
        axis.set_xlabel("position along the accepted chain", loc="left")
        headline(figure, f"alpha: P(accepted here | accepted before), {how(temperature)}", note(summary))
    return True


def _spread_out(values: list[float], gap: float = 0.05) -> list[float]:
    """Heights for labels: the values, pushed apart where they would overlap."""
    placed = dict[int, float]()
    lowest = -1.0
    for index in sorted(range(len(values)), key=lambda each: values[each]):
        lowest = placed[index] = max(values[index], lowest + gap)
    return [placed[index] for index in range(len(values))]


def alpha_by_slot(summary: Summary, temperature: float, path: Path) -> bool:
    """Conditional acceptance by block and slot: does a new block recover what the last slot of the one before lost?"""
    drafted = {
        name: found.overall.alpha
        for name, found in summary.outcomes[temperature].items()
        if len(found.overall.alpha) > 1
    }
    if not drafted:
        return False
    colour = colours(summary.run.methods)
    widest = max(max(_positions(shares)) for shares in drafted.values())
    with canvas(path, (8.0, 0.9 + 1.55 * len(drafted)), (len(drafted), 1), sharey=True) as (figure, axes):
        for axis, (name, shares) in zip(axes[:, 0], drafted.items(), strict=True):
            _bars_by_slot(axis, shares, colour[name])
            axis.set_xlim(-0.7, widest + 0.7)
            axis.set_title(name)
        headline(figure, f"alpha by block and slot, {how(temperature)}", note(summary))
    return True


def _bars_by_slot(axis: Any, shares: Mapping[str, float], colour: str) -> None:
    axis.grid(axis="y")
    axis.set_ylim(0, 1.12)
    positions = _positions(shares)
    axis.bar(positions, list(shares.values()), width=0.82, color=colour, alpha=0.9)
    for position, value in zip(positions, shares.values(), strict=True):
        axis.text(position, value + 0.02, f"{value:.2f}", ha="center", fontsize=7.5)
    places = [place.split(".") for place in shares]
    axis.set_xticks(positions, [f"block {block}\nslot {slot}" for block, slot in places], fontsize=7.5)
    axis.tick_params(axis="x", length=0)
    axis.set_yticks([0, 0.5, 1])


def _positions(shares: Mapping[str, float]) -> list[float]:
    """Where bars stand: side by side within a block, half a bar's gap before each new one."""
    return [index + 0.5 * int(place.partition(".")[0]) for index, place in enumerate(shares)]


def rank_confusion(summary: Summary, temperature: float, path: Path) -> bool:
    """Predicted against true rank bucket, in shares of what was predicted."""
    # Methods with one drafter share its rank head; the first of them shows it.
    shown = {drafter: name for name, drafter in reversed(summary.run.drafters.items())}
    drafted = {
        name: found.overall.rank_confusion
        for name, found in summary.outcomes[temperature].items()
        if found.overall.rank_confusion and name in shown.values()
    }
    if not drafted:
        return False
    with canvas(path, (max(7.0, 1.0 + 3.1 * len(drafted)), 4.0), (1, len(drafted)), sharey=True) as (figure, axes):
        for axis, (name, counts) in zip(axes[0], drafted.items(), strict=True):
            _heat(axis, counts)
            axis.set_title(name)
            axis.set_xlabel("true rank of the target's token", loc="left")
        axes[0, 0].set_ylabel("predicted rank", loc="top")
        headline(figure, f"Rank head: what came true, {how(temperature)}", note(summary))
    return True


def _heat(axis: Any, counts: Mapping[str, int]) -> None:
    table = [[counts.get(f"{row}.{column}", 0) for column in range(NUM_BUCKETS)] for row in range(NUM_BUCKETS)]
    shares = [[each / max(1, sum(row)) for each in row] for row in table]
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axis.set_xticks(range(NUM_BUCKETS), BUCKETS)
    axis.set_yticks(range(NUM_BUCKETS), BUCKETS)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    for row in range(NUM_BUCKETS):
        for column in range(NUM_BUCKETS):
            share, count = shares[row][column], table[row][column]
            text = f"{share:.0%}\n{count}" if count else "-"
            shade = "white" if share > 0.55 else INK
            axis.text(column, row, text, ha="center", va="center", color=shade, fontsize=7.5)


def variants(summary: Summary, temperature: float, path: Path) -> bool:
    """Each variant beside the reference: ratio of throughputs, and difference in tau."""
    found = summary.variants[temperature]
    if not found:
        return False
    rows = [each.name for each in found]
    colour = dict.fromkeys(rows, colours(summary.run.methods)[str(summary.run.reference)])
    ratio = {each.name: Dot(each.ratio.median, each.ratio.low, each.ratio.high) for each in found}
    gain = {each.name: Dot(*each.tau_gain) for each in found}
    with canvas(path, (8.5, 1.4 + 0.42 * len(rows)), (1, 2), sharey=True) as (figure, axes):
        dots(axes[0, 0], ("throughput / reference's", ratio), rows, colour, 1.0)
        dots(axes[0, 1], ("tau - reference's", gain), rows, colour, 0.0)
        headline(figure, f"Variants beside {summary.run.reference}, {how(temperature)}; 95 % interval", note(summary))
    return True


def verify_cost(summary: Summary, path: Path) -> bool:
    """What one target forward costs by the number of tokens it judges."""
    points = summary.run.verify_cost
    if not points:
        return False
    rows = [point.rows for point in points]
    with canvas(path, (7.0, 4.0)) as (figure, axes):
        axis = axes[0, 0]
        axis.grid(axis="y")
        axis.fill_between(rows, [each.low for each in points], [each.high for each in points], color=GRID)
        axis.plot(rows, [each.ms for each in points], "-o", color=PHASES["verify"], markersize=4)
        for point in points[::2]:
            axis.annotate(
                f"{point.ms:.0f}", (point.rows, point.ms), (0, 7), textcoords="offset points", ha="center", fontsize=8
            )
        axis.axhline(points[0].ms, color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)))
        axis.text(rows[-1], points[0].ms, "one token", ha="right", va="bottom", fontsize=8, color=FAINT)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("tokens judged in one target forward (root and nodes)", loc="left")
        headline(figure, "Cost of verifying, milliseconds; band: quartiles", note(summary))
    return True


PER_TEMPERATURE: dict[str, Callable[[Summary, float, Path], bool]] = {
    "speedup": speedup,
    "tau": tau,
    "draft_share": draft_share,
    "round_time": round_time,
    "alpha_by_position": alpha_by_position,
    "alpha_by_slot": alpha_by_slot,
    "rank_confusion": rank_confusion,
    "variants": variants,
}
