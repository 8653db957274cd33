"""An entry is verified against the files beside it, without loading a weight."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specblock_zoo.errors import ConfigurationError, SpecBlockError, VocabularyMismatchError, WeightsMismatchError
from specblock_zoo.hub.entry import read_entry, write_entry
from specblock_zoo.hub.verify import Verdict, verify
from specblock_zoo.hub.zoo import CHECKOUT, list_entries
from tests.support.measured import NAME, entry, publishable
from tests.support.tiny_pair import TinyFolders


@pytest.fixture
def folder(tmp_path: Path, tiny_folders: TinyFolders) -> Path:
    return publishable(tmp_path / NAME, tiny_folders.drafter)


def sealed_again(folder: Path) -> Verdict:
    """The verdict once the hashes are those of the changed files."""
    write_entry(entry(folder), folder)
    return verify(read_entry(folder), folder)


def test_a_whole_entry_passes_every_check(folder: Path) -> None:
    verdict = verify(read_entry(folder), folder)
    assert verdict.fault is None
    assert verdict.checked == ("entry", "hashes", "configuration", "tensors", "vocabulary", "results")


def test_a_changed_file_is_found(folder: Path) -> None:
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    fault = verify(read_entry(folder), folder).fault
    assert isinstance(fault, WeightsMismatchError)
    assert "SHA-256" in str(fault)


@pytest.mark.parametrize(
    ("field", "value"), [("block_width", 3), ("num_blocks", 1), ("tap_layers", [1, 2, 4]), ("draft_vocab_size", 46)]
)
def test_entry_and_configuration_must_agree(folder: Path, field: str, value: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: value}))
    fault = sealed_again(folder).fault
    assert isinstance(fault, ConfigurationError)
    assert "the entry says" in str(fault)


@pytest.mark.parametrize(
    ("change", "kind"),
    [("missing", WeightsMismatchError), ("shape", WeightsMismatchError), ("map", VocabularyMismatchError)],
)
def test_wrong_tensors_are_found_in_the_header(folder: Path, change: str, kind: type[SpecBlockError]) -> None:
    weights = load_file(folder / "model.safetensors")
    if change == "missing":
        del weights["norm.weight"]
    elif change == "shape":
        weights["norm.weight"] = torch.ones(3)
    else:
        weights["d2t"] = weights["d2t"] + 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert isinstance(sealed_again(folder).fault, kind)


def test_numbers_of_another_drafter_are_found(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text())
    (folder / "results.json").write_text(json.dumps({**results, "drafter": "specblock-other.k4m2-v1"}))
    assert "specblock-other" in str(verify(read_entry(folder), folder).fault)


def test_a_recipe_with_numbers_is_found(folder: Path) -> None:
    recipe = entry().model_copy(update={"status": "recipe", "plan": "x", "training": None, "files": {}})
    assert "recipe" in str(verify(recipe, folder).fault)


@pytest.mark.parametrize("name", [found.name for found in list_entries(CHECKOUT)])
def test_every_entry_of_this_zoo_is_whole(name: str) -> None:
    assert verify(read_entry(CHECKOUT / name), CHECKOUT / name).fault is None
