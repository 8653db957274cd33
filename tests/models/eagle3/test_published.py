"""The public checkpoint layout: strict, and back again bit for bit."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specblock_zoo.errors import UnsupportedOptionError, WeightsMismatchError
from specblock_zoo.models.eagle3 import Eagle3Drafter, published
from specblock_zoo.models.pretrained import shapes_of, skeleton
from specblock_zoo.models.registry import load
from tests.support.drafters import HIDDEN, VOCAB, tiny_eagle3

# config.json of the EAGLE-3 drafter its authors published for Llama-3.1-8B-Instruct.
LLAMA_8B = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-05,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
}


def write(folder: Path) -> Eagle3Drafter:
    drafter = tiny_eagle3(target_num_hidden_layers=None, tap_layers=())
    published.write(drafter.config, drafter.state_dict(), folder)
    return drafter


def test_a_round_trip_changes_no_bit(tmp_path: Path) -> None:
    drafter = write(tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert "midlayer.hidden_norm.weight" in stored
    assert not any(name.startswith("layers.") for name in stored)
    loaded = Eagle3Drafter.from_pretrained(tmp_path / "out")
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in drafter.state_dict().items())
    assert isinstance(load(tmp_path / "out"), Eagle3Drafter)
    published.write(loaded.config, loaded.state_dict(), tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@pytest.mark.parametrize("pickled", [True, False])
def test_other_names_embeddings_and_pickles_are_read(tmp_path: Path, pickled: bool) -> None:
    drafter = write(tmp_path / "out")
    file = tmp_path / "out" / "model.safetensors"
    tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in load_file(file).items()}
    tensors["embed_tokens.weight"] = torch.zeros(VOCAB, HIDDEN)
    if pickled:
        file.unlink()
        torch.save(tensors, file.with_name("pytorch_model.bin"))
    else:
        save_file(tensors, file)
    loaded = load(tmp_path / "out")
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in drafter.state_dict().items())


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "out")
    (tmp_path / "out" / "model.safetensors").unlink()
    torch.save({"fc.weight": Path}, tmp_path / "out" / "pytorch_model.bin")
    with pytest.raises(WeightsMismatchError, match="tensors only"):
        load(tmp_path / "out")


@pytest.mark.parametrize("change", ["missing", "extra", "shape"])
def test_every_tensor_must_be_as_the_configuration_says(tmp_path: Path, change: str) -> None:
    write(tmp_path / "out")
    file = tmp_path / "out" / "model.safetensors"
    tensors = load_file(file)
    if change == "missing":
        tensors.pop("midlayer.hidden_norm.weight")
    elif change == "extra":
        tensors["layers.0.hidden_norm2.weight"] = torch.zeros(3)
    else:
        tensors["midlayer.hidden_norm.weight"] = torch.zeros(3)
    save_file(tensors, file)
    with pytest.raises(WeightsMismatchError, match="hidden_norm"):
        load(tmp_path / "out")


def test_the_published_llama_has_these_shapes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    assert published.is_published(tmp_path)
    assert not published.is_published(tmp_path / "nowhere")
    shapes = shapes_of(skeleton(Eagle3Drafter, published.read_config(tmp_path)))
    assert shapes == {
        "fc.weight": (4096, 12288),
        "layers.0.self_attn.q_proj.weight": (4096, 8192),
        "layers.0.self_attn.k_proj.weight": (1024, 8192),
        "layers.0.self_attn.v_proj.weight": (1024, 8192),
        "layers.0.self_attn.o_proj.weight": (4096, 4096),
        "layers.0.mlp.gate_proj.weight": (14336, 4096),
        "layers.0.mlp.up_proj.weight": (14336, 4096),
        "layers.0.mlp.down_proj.weight": (4096, 14336),
        "layers.0.input_layernorm.weight": (4096,),
        "layers.0.hidden_norm.weight": (4096,),
        "layers.0.post_attention_layernorm.weight": (4096,),
        "norm.weight": (4096,),
        "lm_head.weight": (32000, 4096),
        "d2t": (32000,),
        "t2d": (128256,),
    }


def test_tap_layers_that_the_layout_cannot_tell_are_refused(tmp_path: Path) -> None:
    drafter = tiny_eagle3(target_num_hidden_layers=30, tap_layers=(0, 1, 2))
    with pytest.raises(UnsupportedOptionError, match=r"\(0, 1, 2\)"):
        published.write(drafter.config, drafter.state_dict(), tmp_path / "out")
    assert not (tmp_path / "out").exists()
