"""Plots are readable pictures in one style."""

import importlib.abc
import sys
from pathlib import Path

import pytest

from specblock_zoo.bench.style import FAINT, Dot, canvas, colours, dot_panels
from specblock_zoo.errors import MissingPackageError


def test_plain_methods_are_grey_and_the_others_differ() -> None:
    found = colours({"plain": "plain", "mine": "drafter", "plain_masked": "plain_masked", "lookup": "prompt_lookup"})
    assert found["plain"] == found["plain_masked"] == FAINT
    assert len({found["mine"], found["lookup"], FAINT}) == 3


def test_panels_become_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    panels = [("all", {"a": Dot(1.2, 1.0, 1.4), "b": Dot(2.0, hollow=1.8)}), ("one", {"a": Dot(1.0)})]
    path = tmp_path / "panels.png"
    dot_panels(path, panels, ["a", "b"], {"a": "#000000", "b": "#ff0000"}, ("title", "note", 1.0))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name.startswith("matplotlib"):
                raise ImportError(name)

    for name in [each for each in sys.modules if each.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Refusing(), *sys.meta_path])
    with pytest.raises(MissingPackageError, match=r"specblock-zoo\[plot\]"), canvas(tmp_path / "x.png", (1, 1)):
        pass
