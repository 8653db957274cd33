"""The public EAGLE-3 checkpoint layout: a `config.json` that calls itself a Llama, one `midlayer`, `d2t` and `t2d`.

Weights are safetensors, or `pytorch_model.bin` read with `weights_only=True`. Some releases carry the target's
embeddings; they are the target's, and are left out. Keys are read strictly.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.models.eagle3.configuration_eagle3 import Eagle3Config
from specblock_zoo.models.folders import fresh_folder, read_pickled, read_tensors
from specblock_zoo.structures import default_tap_layers

ARCHITECTURES = ("LlamaForCausalLMEagle3", "LlamaForCausalLMEagle3Shift", "Eagle3LlamaForCausalLM")
PICKLED = "pytorch_model.bin"
MIDLAYER, LAYER = "midlayer.", "layers.0."
EMBEDDING = "embed_tokens.weight"
DEFAULT_THETA = 10000.0
CONFIG_FIELDS = (
    *("vocab_size", "draft_vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "rope_scaling", "max_position_embeddings"),
    *("target_hidden_size", "bos_token_id", "eos_token_id", "pad_token_id"),
)


def is_published(folder: Any) -> bool:
    """True for a local folder whose config names an EAGLE-3 architecture."""
    config = Path(str(folder)) / "config.json"
    if not config.is_file():
        return False
    fields = json.loads(config.read_text(encoding="utf-8"))
    return isinstance(fields, dict) and any(name in ARCHITECTURES for name in fields.get("architectures") or [])


def read_config(folder: Path) -> Eagle3Config:
    """Translates a published `config.json`."""
    return translate(json.loads((folder / "config.json").read_text(encoding="utf-8")))


def translate(raw: dict[str, Any]) -> Eagle3Config:
    """Our configuration from published keys. Tap layers are left to the target's depth, which the keys do not tell."""
    heads = raw["num_attention_heads"]
    given = {name: raw[name] for name in CONFIG_FIELDS if raw.get(name) is not None}
    derived = {
        "num_key_value_heads": heads,
        "head_dim": raw["hidden_size"] // heads,
        "target_hidden_size": raw["hidden_size"],
        "rope_theta": DEFAULT_THETA,
        "draft_vocab_size": raw["vocab_size"],
    }
    rope = raw.get("rope_parameters") or {}
    if rope.get("rope_theta"):
        derived["rope_theta"] = rope["rope_theta"]
    return Eagle3Config(**{**derived, **given, "target_num_hidden_layers": None, "tap_layers": ()})


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Tensors of a published folder under our names; the target's embeddings are left out.

    Raises:
        WeightsMismatchError: there is no weight file, it is cut short, or it holds more than tensors.
    """
    pickled = folder / PICKLED
    if pickled.is_file() and not any(folder.glob("model*.safetensors")):
        found = read_pickled(pickled)
    else:
        found = read_tensors(folder)
    weights = {our_name(name): tensor for name, tensor in found.items()}
    weights.pop(EMBEDDING, None)
    return complete_vocabulary(weights)


def our_name(name: str) -> str:
    """`midlayer.x` -> `layers.0.x`; other names are the same."""
    name = name.removeprefix("model.")
    return LAYER + name.removeprefix(MIDLAYER) if name.startswith(MIDLAYER) else name


def complete_vocabulary(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Vocabulary tables with our dtypes."""
    tables = {"d2t": torch.int64, "t2d": torch.bool}
    return {name: tensor.to(tables[name]) if name in tables else tensor for name, tensor in weights.items()}


def write(config: Eagle3Config, weights: dict[str, Tensor], out: Path) -> None:
    """Writes a drafter in the published layout; `out` appears whole or not at all.

    Args:
        weights: tensors under our names.

    Raises:
        UnsupportedOptionError: the layout cannot tell the drafter's tap layers, and they are not the default ones.
        ConfigurationError: `out` is in use.
    """
    depth = config.target_num_hidden_layers
    if config.tap_layers and depth and tuple(config.tap_layers) != default_tap_layers(depth):
        raise UnsupportedOptionError(
            f"The published layout has no tap layers; this drafter reads {tuple(config.tap_layers)}, "
            f"readers will take {default_tap_layers(depth)}.",
            "Keep the drafter in its own format.",
        )
    fields = {name: getattr(config, name) for name in CONFIG_FIELDS}
    fields |= {"architectures": [ARCHITECTURES[0]], "model_type": "llama", "hidden_act": "silu"}
    named = {
        MIDLAYER + name.removeprefix(LAYER) if name.startswith(LAYER) else name: tensor.contiguous()
        for name, tensor in weights.items()
    }
    with fresh_folder(out) as folder:
        (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
        save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
