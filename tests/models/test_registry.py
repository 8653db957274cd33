"""Every kind of drafter is known by its name alone: to transformers, to loading, to training."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel

from specblock_zoo import load_drafter
from specblock_zoo.errors import UnknownNameError
from specblock_zoo.models.base import Drafter
from specblock_zoo.models.registry import DEFAULT_KIND, DRAFTERS, kind_of, kind_of_folder, load, read_config
from specblock_zoo.training.methods import METHODS
from tests.support.decoding import random_drafter, target_of

kinds = pytest.mark.parametrize("kind", DRAFTERS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A saved random drafter of every kind."""
    parent, target = tmp_path_factory.mktemp("kinds"), target_of("llama")
    for kind in DRAFTERS:
        random_drafter(target, kind=kind).save_pretrained(parent / kind)
    return {kind: parent / kind for kind in DRAFTERS}


def test_every_kind_can_be_trained() -> None:
    assert DRAFTERS.keys() == METHODS.keys()
    assert DEFAULT_KIND in DRAFTERS


@kinds
def test_a_kind_is_called_as_its_configuration_says(kind: str) -> None:
    assert DRAFTERS[kind].config.model_type == kind
    assert DRAFTERS[kind].model.config_class is DRAFTERS[kind].config
    assert issubclass(DRAFTERS[kind].model, Drafter)


@kinds
def test_a_folder_of_any_kind_loads_through_one_function(kind: str, folders: dict[str, Path]) -> None:
    drafter = load(folders[kind], dtype=torch.float32)
    assert type(drafter) is DRAFTERS[kind].model
    assert type(load_drafter(folders[kind])) is DRAFTERS[kind].model
    assert kind_of_folder(folders[kind]) is DRAFTERS[kind]
    assert drafter.config.tree_settings.num_blocks == drafter.config.num_blocks


@kinds
def test_transformers_knows_every_kind(kind: str, folders: dict[str, Path]) -> None:
    assert type(AutoConfig.from_pretrained(folders[kind])) is DRAFTERS[kind].config
    assert type(AutoModel.from_pretrained(folders[kind])) is DRAFTERS[kind].model


@kinds
def test_a_configuration_comes_back_from_its_fields(kind: str) -> None:
    config = DRAFTERS[kind].config(max_nodes=7)
    found = read_config(json.loads(config.to_json_string()))
    assert type(found) is type(config)
    assert found.max_nodes == 7


def test_unknown_kinds_are_refused_and_the_known_ones_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=f"'nothing'.*{DEFAULT_KIND}"):
        kind_of("nothing")
    with pytest.raises(UnknownNameError, match="None"):
        read_config({})
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UnknownNameError, match="'llama'"):
        load(tmp_path)


@kinds
def test_a_folder_of_another_kind_is_refused(kind: str, folders: dict[str, Path]) -> None:
    for other in DRAFTERS.keys() - {kind}:
        with pytest.raises(UnknownNameError, match=f"{other!r}.*{kind!r}"):
            DRAFTERS[kind].model.from_pretrained(folders[other])
