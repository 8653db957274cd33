"""Conversion and export from the command line."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from specblock_zoo.cli.convert import convert, export
from specblock_zoo.cli.main import main
from specblock_zoo.errors import ConfigurationError, UnknownNameError, UnsupportedOptionError
from specblock_zoo.models.pretrained import PretrainedDrafter
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.models.specblock.published import is_published
from tests.support.drafters import tiny_drafter, tiny_eagle3, tiny_medusa

COMPATIBLE = {"shift": "between_layers", "advance_positions": False, "context_slots": 3, "head_dim": 4}


@pytest.fixture
def native(tmp_path: Path) -> Path:
    facts = {"target_name": "someone/tiny", "target_num_hidden_layers": 8, "tap_layers": (1, 3, 4)}
    tiny_drafter(attached=False, **COMPATIBLE, **facts).save_pretrained(tmp_path / "native")
    return tmp_path / "native"


def test_there_and_back(native: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert("native", native, tmp_path / "published")
    assert is_published(tmp_path / "published")
    convert("published", tmp_path / "published", tmp_path / "back")
    SpecBlockDrafter.from_pretrained(tmp_path / "back")
    assert capsys.readouterr().out.count("every tensor unchanged") == 2


def test_an_export_says_what_it_needs(native: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(str(native), tmp_path / "out")
    assert "speculators layout. Stock vLLM" in capsys.readouterr().out


def test_a_folder_of_the_other_layout_is_refused_with_the_right_command(native: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"has the native layout.*convert native {native}"):
        convert("published", native, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("config", [None, "{", "[]", '{"model_type": "llama"}'])
def test_a_folder_without_a_drafter_is_refused(tmp_path: Path, config: str | None) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    if config is not None:
        (folder / "config.json").write_text(config)
    with pytest.raises(UnknownNameError, match=str(folder)):
        convert("native", folder, tmp_path / "out")


def test_the_documented_command_lines_are_understood(
    native: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ["convert", "native", str(native), str(tmp_path / "published")],
        ["export", str(native), str(tmp_path / "out"), "--format", "sglang"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    assert main(["export", str(native), str(tmp_path / "out")]) == 2
    assert "not empty" in capsys.readouterr().err


@pytest.mark.parametrize("make", [tiny_eagle3, tiny_medusa])
def test_a_drafter_of_another_kind_is_refused_by_every_layout(
    make: Callable[..., PretrainedDrafter], tmp_path: Path
) -> None:
    folder = tmp_path / "drafter"
    make(attached=False).save_pretrained(folder)
    for command in (partial(convert, "native"), partial(convert, "published"), export):
        with pytest.raises(UnsupportedOptionError, match=f"{folder} holds .*these layouts express SpecBlock only"):
            command(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
