"""Exports read back as the same drafter, key by key, and what a layout cannot say is refused with a sentence."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specblock_zoo.errors import ConfigurationError, UnsupportedOptionError, WeightsMismatchError
from specblock_zoo.hub.export import LAYER_FIELDS, LAYOUTS, OWN_FIELDS, TREE_FIELDS, FormatName, export, taps_of
from specblock_zoo.models.configuration import drafter_fields
from specblock_zoo.models.specblock import SpecBlockConfig, SpecBlockDrafter
from specblock_zoo.structures import TreeSettings
from tests.support.drafters import tiny_drafter
from tests.support.measured import NAME, publishable
from tests.support.tiny_pair import TinyFolders

COMPATIBLE = {"shift": "between_layers", "advance_positions": False, "context_slots": 3, "head_dim": 4}
FORMATS: list[FormatName] = ["speculators", "sglang"]


def saved(folder: Path, **changes: object) -> SpecBlockDrafter:
    facts = {"target_name": "someone/tiny", "target_num_hidden_layers": 8, "tap_layers": (1, 3, 4)}
    drafter = tiny_drafter(attached=False, **{**facts, **changes})
    drafter.save_pretrained(folder)
    return drafter


def test_every_format_is_tested() -> None:
    assert set(LAYOUTS) == set(FORMATS)


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_holds_the_same_drafter(tmp_path: Path, form: FormatName) -> None:
    drafter = saved(tmp_path / "in", **COMPATIBLE)
    assert "Stock" in export(tmp_path / "in", tmp_path / "out", form)
    config, weights = LAYOUTS[form].read(tmp_path / "out")
    assert weights.keys() == drafter.state_dict().keys()
    torch.testing.assert_close(weights, dict(drafter.state_dict()), rtol=0, atol=0)
    for name in ("block_width", "hidden_size", "rope_theta", "shift", "context_slots", "draft_vocab_size"):
        assert getattr(config, name) == getattr(drafter.config, name)
    assert tuple(config.tap_layers) == (1, 3, 4)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("fault", ["tensor missing", "tensor extra", "key extra", "key missing"])
def test_keys_are_strict_both_ways(tmp_path: Path, form: FormatName, fault: str) -> None:
    saved(tmp_path / "in", **COMPATIBLE)
    out = tmp_path / "out"
    export(tmp_path / "in", out, form)
    config, weights = json.loads((out / "config.json").read_text()), load_file(out / "model.safetensors")
    if fault == "tensor missing":
        del weights["norm.weight"]
    elif fault == "tensor extra":
        weights["embed_tokens.weight"] = torch.zeros(1)
    elif fault == "key extra":
        config["norm_output"] = True
    else:
        del config["draft_vocab_size" if form == "speculators" else "eagle_config"]
    (out / "config.json").write_text(json.dumps(config))
    save_file(weights, out / "model.safetensors")
    with pytest.raises(
        WeightsMismatchError, match=r"norm\.weight|embed_tokens|norm_output|draft_vocab_size|eagle_config"
    ):
        LAYOUTS[form].read(out)


def test_speculators_configs_look_as_their_loader_expects(tmp_path: Path) -> None:
    saved(tmp_path / "in", num_blocks=2)
    export(tmp_path / "in", tmp_path / "out", "speculators")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "model_type" not in config
    assert config["speculators_config"]["verifier"]["name_or_path"] == "someone/tiny"
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 6
    assert config["aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert "fc.weight" in load_file(tmp_path / "out" / "model.safetensors")


def test_what_the_layout_cannot_say_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    saved(tmp_path / "in")
    with pytest.raises(
        UnsupportedOptionError, match=r"shift 'every_layer'.*advance_positions.*context_slots 1.*head_dim 6"
    ):
        export(tmp_path / "in", tmp_path / "out", "sglang")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize("target", [None, "smollm2", "a/b/c"])
def test_a_target_that_no_engine_could_find_is_refused(tmp_path: Path, target: str | None) -> None:
    saved(tmp_path / "in", target_name=target)
    with pytest.raises(UnsupportedOptionError, match=r"need a Hub repository"):
        export(tmp_path / "in", tmp_path / "out", "speculators")


def test_an_entry_names_the_target_and_an_embedded_one_has_its_repository(
    tmp_path: Path, tiny_folders: TinyFolders
) -> None:
    publishable(tmp_path / NAME, tiny_folders.drafter)
    saved(tmp_path / "embedded", target_name="smollm2-135m")
    for folder, expected in ((NAME, "someone/tiny"), ("embedded", "HuggingFaceTB/SmolLM2-135M-Instruct")):
        export(tmp_path / folder, tmp_path / f"{folder}-out", "speculators")
        config = json.loads((tmp_path / f"{folder}-out" / "config.json").read_text())
        assert config["speculators_config"]["verifier"]["name_or_path"] == expected


def test_tap_layers_are_spelled_out_or_refused() -> None:
    unknown = tiny_drafter(tap_layers=(), target_num_hidden_layers=None).config
    with pytest.raises(UnsupportedOptionError, match="records neither"):
        taps_of(unknown)
    unknown.target_num_hidden_layers = 32
    assert taps_of(unknown) == (1, 15, 28)


def test_a_used_folder_is_not_written_over(tmp_path: Path) -> None:
    saved(tmp_path / "in")
    with pytest.raises(ConfigurationError, match="not empty"):
        export(tmp_path / "in", tmp_path / "in", "speculators")


def test_every_tree_setting_is_either_exported_or_left_to_the_engine() -> None:
    settings = {each.name for each in fields(TreeSettings)} & set(drafter_fields(SpecBlockConfig))
    assert settings <= {*TREE_FIELDS, *OWN_FIELDS, *LAYER_FIELDS}
