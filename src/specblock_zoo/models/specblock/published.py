"""The checkpoint format published by the method's authors: read strictly, run in compatible mode.

A published folder holds a `config.json` that calls itself a Llama, `model.safetensors` without embeddings, and a
pickled `vocab_mapping.pt` with the same two vocabulary tables as the weight file. It is read with `weights_only=True`
and cross-checked.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specblock_zoo.errors import VocabularyMismatchError
from specblock_zoo.models.folders import read_pickled, read_tensors
from specblock_zoo.models.specblock.configuration_specblock import SpecBlockConfig

ARCHITECTURES = ("LlamaForCausalLMSpecBlock", "LlamaForCausalLMSpecBlockShift")
PREFIXES = ("draft_model.", "module.", "inner.", "model.")
VOCABULARY_FILE = "vocab_mapping.pt"
EMBEDDING = "input_layer.embed_tokens.weight"
DEFAULT_THETA = 10000.0
"""The published Llama configuration names no rotary base; the release then uses this one."""


def is_published(folder: Any) -> bool:
    """True for a local folder whose config names one of the authors' two architectures."""
    config = Path(str(folder)) / "config.json"
    if not config.is_file():
        return False
    fields = json.loads(config.read_text())
    return isinstance(fields, dict) and any(name in ARCHITECTURES for name in fields.get("architectures") or [])


def read_config(folder: Path) -> SpecBlockConfig:
    """Translates a published `config.json`."""
    return translate(json.loads((folder / "config.json").read_text()))


def translate(raw: dict[str, Any]) -> SpecBlockConfig:
    """Our configuration from published keys. Tap layers are left to the target's depth, which the keys do not tell."""
    heads = raw["num_attention_heads"]
    width = raw.get("diffspec_draft_token_num", 4)
    return SpecBlockConfig(
        vocab_size=raw["vocab_size"],
        draft_vocab_size=raw["draft_vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_hidden_layers=raw["num_hidden_layers"],
        num_attention_heads=heads,
        num_key_value_heads=raw.get("num_key_value_heads", heads),
        # The release ignores its head_dim key and always divides; its weights have that shape.
        head_dim=raw["hidden_size"] // heads,
        rms_norm_eps=raw["rms_norm_eps"],
        target_hidden_size=raw.get("target_hidden_size", raw["hidden_size"]),
        target_num_hidden_layers=None,
        tap_layers=(),
        rope_theta=raw.get("rope_theta") or DEFAULT_THETA,
        rope_scaling=raw.get("rope_scaling"),
        max_position_embeddings=raw["max_position_embeddings"],
        block_width=width,
        train_blocks=raw.get("num_ttt_blocks", 3),
        shift="between_layers",
        advance_positions=False,
        context_slots=width,
        bos_token_id=raw.get("bos_token_id"),
        eos_token_id=raw.get("eos_token_id"),
        pad_token_id=raw.get("pad_token_id"),
    )


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Tensors of a published folder under our names, vocabulary tables cross-checked.

    Raises:
        VocabularyMismatchError: `vocab_mapping.pt` and the weight file disagree.
        WeightsMismatchError: either is not whole, or holds more than tensors.
    """
    weights = {strip_prefix(name): tensor for name, tensor in read_tensors(folder).items()}
    weights.pop(EMBEDDING, None)
    mapping = folder / VOCABULARY_FILE
    if mapping.is_file():
        pickled = read_pickled(mapping)
        for name in ("d2t", "t2d"):
            if name in weights and not torch.equal(weights[name], pickled[name].to(weights[name].dtype)):
                raise VocabularyMismatchError(
                    f"{mapping} and the safetensors file beside it hold different {name} tables.",
                    "Download the folder again; one of the two files is not of this checkpoint.",
                )
            weights.setdefault(name, pickled[name])
    return weights


def strip_prefix(name: str) -> str:
    """Removes wrapper prefixes that the authors' save routine may leave."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name
