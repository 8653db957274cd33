"""The picture of a card: accepted length and speedup of each task, drawn from `results.json` as plain SVG."""

from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from specblock_zoo.bench.records import Results, TaskResult

PLOT_FILE = "results.svg"
TEMPLATE = "results.svg.jinja"
ROW, TOP, LABELS, PANEL, GAP = 26, 34, 130, 220, 70
"""Pixels: height of a row, of the head, width of the task names, of a panel, between the panels."""


@dataclass(frozen=True)
class Bar:
    """One bar: task, value, and the interval around it, all in the figure's unit; none is an empty row."""

    task: str
    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Panel:
    """One figure: its name, where it starts in pixels, its bars, and the largest value its width stands for."""

    name: str
    left: int
    bars: tuple[Bar, ...]
    scale: float

    def x(self, value: float) -> float:
        """Pixel of a value."""
        return round(self.left + PANEL * value / self.scale, 1)


def panel(name: str, left: int, bars: tuple[Bar, ...]) -> Panel:
    """A panel wide enough for its largest value or interval, and for 1."""
    shown = [value for bar in bars for value in (bar.value, bar.high) if value is not None]
    return Panel(name, left, bars, scale=max([1.0, *shown]))


def results_svg(results: Results) -> str:
    """The picture: tau, and speedup with its 95 % interval and a line at 1, one row per task and one for all."""
    tasks = (*results.tasks, results.overall)
    panels = (
        panel("tau: committed tokens per round", LABELS, tuple(Bar(task.task, task.tau) for task in tasks)),
        panel("speedup over plain decoding, 95 % interval", LABELS + PANEL + GAP, tuple(map(_speedup, tasks))),
    )
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    drawn: str = environment.get_template(TEMPLATE).render(
        panels=panels,
        row=ROW,
        top=TOP,
        width=LABELS + 2 * PANEL + GAP + 50,
        height=TOP + ROW * len(tasks) + 8,
        title=f"{results.drafter}, {results.provenance.dtype}, {results.provenance.device}",
    )
    return drawn.rstrip() + "\n"


def _speedup(task: TaskResult) -> Bar:
    return Bar(task.task, task.speedup.median, task.speedup.low, task.speedup.high)
