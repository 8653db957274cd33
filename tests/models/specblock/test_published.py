"""Folders in the authors' published layout: read strictly, cross-checked, compatible switches set."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specblock_zoo.errors import VocabularyMismatchError, WeightsMismatchError
from specblock_zoo.models.specblock import SpecBlockDrafter, published
from tests.support.drafters import tiny_drafter


def write_published(
    folder: Path, architecture: str = published.ARCHITECTURES[0], prefix: str = "", **keys: object
) -> None:
    drafter = tiny_drafter(context_slots=3, shift="between_layers", advance_positions=False, head_dim=4)
    config = drafter.config
    names = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
    names += ["num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "draft_vocab_size"]
    raw = {name: getattr(config, name) for name in names}
    raw |= {
        "architectures": [architecture],
        "model_type": "llama",
        "diffspec_draft_token_num": config.block_width,
        **keys,
    }
    (folder / "config.json").write_text(json.dumps(raw))
    weights = {prefix + name: tensor.contiguous() for name, tensor in drafter.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    torch.save({"d2t": drafter.d2t, "t2d": drafter.t2d}, folder / "vocab_mapping.pt")


@pytest.mark.parametrize("architecture", published.ARCHITECTURES)
@pytest.mark.parametrize("prefix", ["", "draft_model.", "module.model."])
def test_published_folders_load_in_compatible_mode(tmp_path: Path, architecture: str, prefix: str) -> None:
    write_published(tmp_path, architecture, prefix)
    drafter = SpecBlockDrafter.from_pretrained(tmp_path)
    config = drafter.config
    assert (config.shift, config.advance_positions, config.context_slots) == ("between_layers", False, 3)
    assert config.rope_theta == published.DEFAULT_THETA
    assert drafter.tap_layers(32) == (1, 15, 28)
    assert torch.equal(drafter.lm_head.weight, load_file(tmp_path / "model.safetensors")[prefix + "lm_head.weight"])


@pytest.mark.parametrize("fault", ["missing", "extra"])
def test_wrong_tensors_are_named(tmp_path: Path, fault: str) -> None:
    write_published(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    if fault == "missing":
        del weights["rank_head.2.weight"]
    else:
        weights["layers.7.mlp.up_proj.weight"] = torch.zeros(1)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(WeightsMismatchError, match=r"rank_head\.2" if fault == "missing" else r"layers\.7"):
        SpecBlockDrafter.from_pretrained(tmp_path)


def test_vocabulary_tables_that_differ_are_refused(tmp_path: Path) -> None:
    write_published(tmp_path)
    drafter = tiny_drafter()
    torch.save({"d2t": drafter.d2t + 1, "t2d": drafter.t2d}, tmp_path / "vocab_mapping.pt")
    with pytest.raises(VocabularyMismatchError, match="d2t"):
        SpecBlockDrafter.from_pretrained(tmp_path)


def test_a_pickle_with_code_is_not_run(tmp_path: Path) -> None:
    write_published(tmp_path)
    torch.save({"d2t": Path, "t2d": Path}, tmp_path / "vocab_mapping.pt")
    with pytest.raises(WeightsMismatchError, match="tensors only"):
        SpecBlockDrafter.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(None, torch.float32), ("auto", torch.float32), ("bfloat16", torch.bfloat16), (torch.bfloat16, torch.bfloat16)],
)
def test_the_dtype_is_the_files_unless_another_is_asked_for(tmp_path: Path, dtype: object, expected: object) -> None:
    write_published(tmp_path)
    drafter = SpecBlockDrafter.from_pretrained(tmp_path, dtype=dtype, device_map="cpu")
    assert drafter.dtype == expected
    assert drafter.d2t.dtype == torch.int64
    assert not drafter.training


def test_no_weight_is_initialised_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_published(tmp_path)
    seen: set[str] = set()
    original = SpecBlockDrafter._init_weights

    def watch(self: SpecBlockDrafter, module: torch.nn.Module) -> None:
        seen.update(parameter.device.type for parameter in module.parameters())
        original(self, module)

    monkeypatch.setattr(SpecBlockDrafter, "_init_weights", watch)
    SpecBlockDrafter.from_pretrained(tmp_path)
    assert seen <= {"meta"}


def test_weights_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    write_published(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["norm.weight"][0] = torch.nan
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(WeightsMismatchError, match=r"NaN in norm\.weight"):
        SpecBlockDrafter.from_pretrained(tmp_path)
