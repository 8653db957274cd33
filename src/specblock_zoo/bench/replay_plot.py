"""The picture of a replay: accepted length over the stream, and which updates began to serve when."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from specblock_zoo.bench.replay import QueryRecord
from specblock_zoo.bench.replay_summary import WINDOW, tau
from specblock_zoo.errors import MissingPackageError

MARKERS = {"head": "o", "full": "s"}


def check_plotting() -> None:
    """Raises `MissingPackageError` where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingPackageError(
            "The picture of a replay needs matplotlib, which cannot be found.",
            "Install it: pip install 'specblock-zoo[plot]'.",
        )


def plot_replay(records: Sequence[QueryRecord], file: Path) -> None:
    """Draws the records of one stream: tau over the last queries per policy, and a mark for each update."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    lengths, actions = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    policies = list(dict.fromkeys(each.policy for each in records))
    for row, policy in enumerate(policies):
        own = sorted((each for each in records if each.policy == policy), key=lambda each: each.number)
        rolling = [tau(own[max(0, stop - WINDOW) : stop]) for stop in range(1, len(own) + 1)]
        (line,) = lengths.plot([each.number for each in own], rolling, label=policy)
        for action, marker in MARKERS.items():
            places = [each.number for each in own if each.synced == action]
            actions.plot(places, [row] * len(places), marker, color=line.get_color(), linestyle="none")
    lengths.set_ylabel(f"tau, last {WINDOW} queries")
    lengths.legend()
    actions.set_yticks(range(len(policies)), policies)
    actions.set_ylim(-0.5, len(policies) - 0.5)
    actions.set_xlabel("query (circles: head updates, squares: full updates)")
    figure.savefig(file)
