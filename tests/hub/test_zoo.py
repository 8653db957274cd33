"""Drafters are found by name, by the name without its tag, and by folder."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from specblock_zoo.errors import UnknownNameError, WeightsMismatchError
from specblock_zoo.hub import zoo
from specblock_zoo.hub.entry import verify_files, write_entry
from specblock_zoo.models.specblock.modeling_specblock import SpecBlockDrafter
from tests.support.measured import NAME, entry
from tests.support.tiny_pair import TinyFolders

OTHER = "specblock-tiny.k4m2-v2"


@pytest.fixture
def filled(tmp_path: Path, tiny_folders: TinyFolders) -> Path:
    shutil.copytree(tiny_folders.drafter, tmp_path / NAME)
    write_entry(entry(tmp_path / NAME), tmp_path / NAME)
    return tmp_path


def add_second(folder: Path) -> None:
    shutil.copytree(folder / NAME, folder / OTHER)
    write_entry(entry(folder / OTHER, OTHER), folder / OTHER)


def test_entries_are_listed_by_name(filled: Path) -> None:
    add_second(filled)
    (filled / "notes").mkdir()
    assert [found.name for found in zoo.list_entries(filled)] == [NAME, OTHER]


def test_a_name_or_the_only_name_without_its_tag_finds_the_entry(filled: Path) -> None:
    assert zoo.find(NAME, filled) == zoo.find("specblock-tiny", filled)
    assert zoo.resolve("specblock-tiny", filled) == filled / NAME


def test_an_ambiguous_name_lists_what_it_fits(filled: Path) -> None:
    add_second(filled)
    with pytest.raises(UnknownNameError, match=f"{NAME}, {OTHER}.*tag"):
        zoo.find("specblock-tiny", filled)


def test_an_unknown_name_lists_the_nearest(filled: Path) -> None:
    with pytest.raises(UnknownNameError, match=f"'specblock-tine'; nearest: {NAME}"):
        zoo.resolve("specblock-tine", filled)
    with pytest.raises(UnknownNameError, match="zoo is empty"):
        zoo.resolve("specblock-tiny", filled / "absent")


def test_a_folder_must_be_named_after_its_entry(filled: Path) -> None:
    (filled / NAME).rename(filled / "elsewhere")
    with pytest.raises(UnknownNameError, match=f"'elsewhere' holds the entry '{NAME}'"):
        zoo.list_entries(filled)


def test_a_packaged_zoo_is_preferred_to_the_checkout(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert zoo.CHECKOUT.resolve() == (Path(__file__).parents[2] / "zoo").resolve()
    monkeypatch.setattr(zoo, "PACKAGED", filled)
    assert zoo.resolve("specblock-tiny") == filled / NAME
    monkeypatch.setattr(zoo, "PACKAGED", filled / "absent")
    assert zoo.zoo_folder() == zoo.CHECKOUT


def test_loading_gives_the_saved_weights_ready_to_draft(filled: Path, tiny_folders: TinyFolders) -> None:
    loaded = zoo.load_drafter(filled / NAME)
    saved = SpecBlockDrafter.from_pretrained(tiny_folders.drafter)
    torch.testing.assert_close(loaded.state_dict(), saved.state_dict(), rtol=0, atol=0)
    assert not loaded.training
    assert zoo.load_drafter(filled / NAME, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_weights_that_do_not_hash_to_the_entry_are_not_loaded(filled: Path) -> None:
    config = filled / NAME / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "block_width": 3}))
    with pytest.raises(WeightsMismatchError, match="SHA-256"):
        zoo.load_drafter(filled / NAME)


def test_every_entry_of_this_zoo_is_whole() -> None:
    for found in zoo.list_entries(zoo.CHECKOUT):
        folder = zoo.resolve(found.name, zoo.CHECKOUT)
        verify_files(found, folder)
        config = json.loads((folder / "config.json").read_text())
        stated = (found.block_width, found.num_blocks, list(found.tap_layers))
        assert stated == (config["block_width"], config["num_blocks"], config["tap_layers"])
