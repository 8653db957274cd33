"""Drafters are found by name, by the name without its tag, and by folder."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from specblock_zoo.errors import ConfigurationError, UnknownNameError, WeightsMismatchError
from specblock_zoo.hub import zoo
from specblock_zoo.hub.entry import write_entry
from specblock_zoo.models.specblock.modeling_specblock import SpecBlockDrafter
from tests.support.hub_server import Hub
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


def test_a_name_without_its_tag_is_never_a_baseline_beside_a_drafter_of_the_method(filled: Path) -> None:
    baseline = "specblock-tiny.eagle3-v1"
    found = zoo.find(NAME, filled).model_copy(update={"name": baseline, "kind": "eagle3"})
    (filled / baseline).mkdir()
    write_entry(found, filled / baseline)
    assert zoo.find("specblock-tiny", filled).name == NAME
    assert zoo.find(baseline, filled).kind == "eagle3"


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


def test_a_drafter_loads_by_name_and_by_the_name_without_its_tag(
    filled: Path, monkeypatch: pytest.MonkeyPatch, tiny_folders: TinyFolders
) -> None:
    monkeypatch.setattr(zoo, "PACKAGED", filled)
    saved = SpecBlockDrafter.from_pretrained(tiny_folders.drafter).state_dict()
    for name in (NAME, "specblock-tiny"):
        torch.testing.assert_close(SpecBlockDrafter.from_pretrained(name).state_dict(), saved, rtol=0, atol=0)
    with pytest.raises(UnknownNameError, match="nearest: specblock-tiny"):
        SpecBlockDrafter.from_pretrained("specblock-tinny")


def test_weights_that_lie_on_the_hub_are_checked_against_the_entry(filled: Path, hub: Hub) -> None:
    weights = filled / NAME / "model.safetensors"
    listed = entry(filled / NAME).model_copy(update={"repository": "someone/drafter"})
    write_entry(listed, filled / NAME)
    files = {name: (filled / NAME / name).read_bytes() for name in listed.files}
    weights.unlink()
    repository = hub.add("someone/drafter", files)
    assert (zoo.home(listed, {}, filled) / "model.safetensors").read_bytes() == files["model.safetensors"]
    repository.commit({**files, "model.safetensors": files["model.safetensors"][:-1] + b"x"})
    with pytest.raises(WeightsMismatchError, match="SHA-256"):
        zoo.home(listed, {}, filled)


def test_a_recipe_has_nothing_to_load(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = entry().model_copy(update={"status": "recipe", "plan": "Train it.", "training": None, "files": {}})
    write_entry(recipe, filled / NAME)
    monkeypatch.setattr(zoo, "PACKAGED", filled)
    for name in (NAME, str(filled / NAME)):
        with pytest.raises(ConfigurationError, match="is a recipe"):
            zoo.locate(name, {})


@pytest.mark.parametrize("config", [None, '{"model_type": "llama"}'], ids=["nothing", "another model"])
def test_a_folder_without_a_drafter_is_refused(tmp_path: Path, config: str | None) -> None:
    if config:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(UnknownNameError, match="expected a drafter"):
        zoo.locate(str(tmp_path), {})


def test_this_zoo_has_the_known_drafters_and_says_what_they_are() -> None:
    known = {found.name: found for found in zoo.list_entries(zoo.CHECKOUT)}
    assert known["specblock-llama-3.1-8b.k4m2-published"].status == "published"
    assert known["specblock-qwen3-8b.k4m2-published"].status == "published"
    assert known["specblock-qwen3-32b.k4m2-recipe"].status == "recipe"
    for found in known.values():
        assert bool(found.training) == (found.status == "trained")
        assert all(number.source == "the paper" for number in found.reported)


def test_published_numbers_are_those_of_the_trees_a_user_gets() -> None:
    """A curve that is timed at first use sizes other trees than those that were measured."""
    measured = [found.name for found in zoo.list_entries() if (zoo.resolve(found.name) / "results.json").is_file()]
    assert measured
    for name in measured:
        config = json.loads((zoo.resolve(name) / "config.json").read_text())
        assert config.get("cost_curve", "measured") != "measured", name
