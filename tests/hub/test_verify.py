"""An entry is verified against the files beside it, without loading a weight."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specblock_zoo.bench.records import write_results
from specblock_zoo.errors import ConfigurationError, SpecBlockError, VocabularyMismatchError, WeightsMismatchError
from specblock_zoo.hub.entry import ZooEntry, read_entry, write_entry
from specblock_zoo.hub.verify import Verdict, verify
from specblock_zoo.hub.zoo import CHECKOUT, list_entries, load_drafter
from specblock_zoo.models.pretrained import PretrainedDrafter
from tests.support.drafters import tiny_eagle3, tiny_medusa
from tests.support.measured import NAME, entry, publishable, results
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


@pytest.mark.parametrize("make", [tiny_eagle3, tiny_medusa])
def test_a_trained_entry_of_every_kind_passes_every_check(
    make: Callable[..., PretrainedDrafter], tmp_path: Path
) -> None:
    drafter = make(attached=False, tap_layers=(1, 2, 3))
    config = drafter.config
    home = tmp_path / f"specblock-tiny.{config.model_type}-v1"
    drafter.save_pretrained(home)
    facts = {"kind": config.model_type, "block_width": config.block_width, "num_blocks": config.num_blocks}
    facts |= {"tap_layers": tuple(config.tap_layers), "draft_vocabulary": {"size": config.draft_vocab_size}}
    fields = entry(home).model_dump() | {"name": home.name} | facts
    write_entry(ZooEntry.model_validate(fields), home)
    write_results(results().model_copy(update={"drafter": home.name}), home)
    verdict = verify(read_entry(home), home)
    assert verdict.fault is None
    assert verdict.checked == ("entry", "hashes", "configuration", "tensors", "vocabulary", "results")
    assert type(load_drafter(home)) is type(drafter)
