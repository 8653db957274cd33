"""One look for every plot: colours by method, direct labels, nothing that carries no information."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specblock_zoo.errors import MissingPackageError

INK, FAINT, GRID = "#22272e", "#8a929c", "#e3e6ea"
PALETTE = ("#0b6e99", "#d1495b", "#3a8f5c", "#e08e1b", "#7d5ba6", "#5f9ea0", "#b0587f", "#6b7b3a", "#2f4b7c", "#a05d2f")
PHASES = {"draft": "#e08e1b", "verify": "#0b6e99", "commit": "#3a8f5c", "other": "#b9bfc7"}
RC: Any = {
    "figure.dpi": 150,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "xtick.color": FAINT,
    "ytick.color": INK,
    "ytick.major.size": 0,
    "xtick.major.size": 3,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
}


@dataclass(frozen=True)
class Dot:
    """A value with its interval, written with `digits` decimals; `hollow` is a second value on the same line."""

    value: float
    low: float | None = None
    high: float | None = None
    hollow: float | None = None
    digits: int = 2


Panel = tuple[str, Mapping[str, Dot]]
"""Title, and row -> dot."""


def colours(methods: Mapping[str, str]) -> dict[str, str]:
    """Method -> colour: grey for plain decoding, then the palette in the order of the configuration."""
    speculative = [name for name, kind in methods.items() if not kind.startswith("plain")]
    return {name: PALETTE[speculative.index(name) % len(PALETTE)] if name in speculative else FAINT for name in methods}


@contextmanager
def canvas(path: Path, size: tuple[float, float], panels: tuple[int, int] = (1, 1), **options: Any) -> Iterator[Any]:
    """A figure and its axes `[rows, columns]`, written to `path` when the body ends.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as cause:
        raise MissingPackageError(
            "Plots need the package matplotlib, which is not installed.", "Run: pip install 'specblock-zoo[plot]'"
        ) from cause
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(*panels, squeeze=False, **options)
        yield figure, axes
        figure.savefig(path)


def headline(figure: Any, title: str, note: str) -> None:
    """Title on the left, and under it in grey what it was measured on."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.supxlabel(note, x=0.01, ha="left", fontsize=7.5, color=FAINT)


def dots(axis: Any, panel: Panel, rows: Sequence[str], colour: Mapping[str, str], reference: float | None) -> None:
    """One panel: a dot and its interval per row, a line where nothing is gained, the value written beside each dot."""
    title, found = panel
    axis.set_title(title)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_yticks(range(len(rows)), rows)
    axis.grid(axis="x")
    if reference is not None:
        axis.axvline(reference, color=INK, linewidth=1, zorder=1)
    for row, name in enumerate(rows):
        if name not in found:
            continue
        dot = found[name]
        if dot.low is not None and dot.high is not None:
            axis.plot([dot.low, dot.high], [row, row], color=colour[name], linewidth=2.2, alpha=0.45, zorder=2)
        if dot.hollow is not None:
            axis.plot(dot.hollow, row, "o", markersize=5.5, markerfacecolor="white", color=colour[name], zorder=3)
        axis.plot(dot.value, row, "o", markersize=6, color=colour[name], zorder=4)
        axis.annotate(
            f"{dot.value:.{dot.digits}f}",
            (dot.value, row),
            (0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=7.5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6},
        )


def dot_panels(path: Path, panels: Sequence[Panel], rows: Sequence[str], colour: Mapping[str, str], text: Any) -> None:
    """Panels of dots side by side, the first one (all tasks together) set apart by its bold title and shade.

    Args:
        text: (title, note, value at which a line is drawn or None).
    """
    title, note, reference = text
    width, height = 2.6 + 1.75 * len(panels), 1.4 + 0.42 * len(rows)
    with canvas(path, (width, height), (1, len(panels)), sharey=True, sharex=True) as (figure, axes):
        for axis, panel in zip(axes[0], panels, strict=True):
            dots(axis, panel, rows, colour, reference)
        axes[0, 0].set_facecolor("#f6f8fa")
        axes[0, 0].margins(x=0.15)
        headline(figure, title, note)
