"""Rendering brings every generated document up to date; checking only says which are not."""

import shutil
from pathlib import Path

import pytest

from specblock_zoo.hub.card import stale_documents
from tests.support import REPOSITORY
from tests.support.scripts import load_script

script = load_script("render_cards")


def test_check_reports_and_rendering_mends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(REPOSITORY / "README.md", tmp_path)
    monkeypatch.setattr(script, "ROOT", tmp_path)
    assert script.render(check=True) == 1
    assert "stale: MODEL_CARD.md" in capsys.readouterr().out
    assert not (tmp_path / "MODEL_CARD.md").exists()
    assert script.render() == 0
    assert stale_documents(tmp_path) == []
    assert script.render(check=True) == 0
