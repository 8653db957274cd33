"""The picture is drawn, and its absence of a library is explained."""

import importlib.util
from pathlib import Path

import pytest

from specblock_zoo.bench.replay import QueryRecord
from specblock_zoo.bench.replay_plot import check_plotting, plot_replay
from specblock_zoo.errors import MissingPackageError


def test_a_picture_with_every_policy(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    common = {"stream": "s", "task": "t", "id": "i", "turn": 0, "tokens": 4, "seconds": 1.0, "update_seconds": 0.0}
    rest = {"rounds": 2, "committed": 4, "action": "skip", "reason": "", "reward": None, "digest": "d"}
    records = [
        QueryRecord(policy=policy, number=number, synced="head" if number == 2 else None, **common, **rest)
        for number in range(4)
        for policy in ("none", "bandit")
    ]
    plot_replay(records, tmp_path / "actions.svg")
    text = (tmp_path / "actions.svg").read_text()
    assert "<!-- bandit -->" in text
    assert "<!-- none -->" in text


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingPackageError, match="matplotlib"):
        check_plotting()
