"""The checkpoint format published by the method's authors: read strictly, run in compatible mode.

A published folder holds a `config.json` that calls itself a Llama, `model.safetensors` without embeddings, and a
pickled `vocab_mapping.pt` with the same two vocabulary tables as the weight file. It is read with `weights_only=True`
and cross-checked.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from specblock_zoo.errors import VocabularyMismatchError, WeightsMismatchError
from specblock_zoo.functional.vocab import check_vocab_map
from specblock_zoo.models.specblock.configuration_specblock import SpecBlockConfig

ARCHITECTURES = ("LlamaForCausalLMSpecBlock", "LlamaForCausalLMSpecBlockShift")
PREFIXES = ("draft_model.", "module.", "inner.", "model.")
DEFAULT_THETA = 10000.0
"""The published Llama configuration names no rotary base; the release then uses this one."""


def is_published(folder: Any) -> bool:
    """True for a local folder whose config names one of the authors' two architectures."""
    config = Path(str(folder)) / "config.json"
    if not config.is_file():
        return False
    architectures = json.loads(config.read_text()).get("architectures") or []
    return any(name in ARCHITECTURES for name in architectures)


def read_config(folder: Path) -> SpecBlockConfig:
    """Translates a published `config.json`. Tap layers are left to the target's depth, which the file does not tell."""
    raw = json.loads((folder / "config.json").read_text())
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
    """
    weights = {strip_prefix(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    weights.pop("input_layer.embed_tokens.weight", None)
    mapping = folder / "vocab_mapping.pt"
    if mapping.is_file():
        pickled = torch.load(mapping, weights_only=True)
        for name in ("d2t", "t2d"):
            if name in weights and not torch.equal(weights[name], pickled[name].to(weights[name].dtype)):
                raise VocabularyMismatchError(
                    f"{mapping} and {folder / 'model.safetensors'} hold different {name} tables.",
                    "Download the folder again; one of the two files is not of this checkpoint.",
                )
            weights.setdefault(name, pickled[name])
    return weights


def strip_prefix(name: str) -> str:
    """Removes wrapper prefixes that the authors' save routine may leave."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def load(cls: Any, folder: Any, dtype: torch.dtype | None = None) -> Any:
    """Builds a drafter from a published folder.

    Raises:
        WeightsMismatchError: tensors are missing, extra or of another shape.
    """
    folder = Path(str(folder))
    drafter, weights = cls(read_config(folder)), read_weights(folder)
    expected = {name: tuple(tensor.shape) for name, tensor in drafter.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if expected != found:
        differing = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        described = "; ".join(f"{name}: expected {expected.get(name)}, found {found.get(name)}" for name in differing)
        raise WeightsMismatchError(
            f"{folder / 'model.safetensors'} does not hold the tensors its config.json describes: {described}.",
            "Check that both files come from the same release.",
        )
    drafter.load_state_dict(weights)
    check_vocab_map(drafter.d2t, drafter.t2d, drafter.config.vocab_size)
    return drafter.to(dtype or weights["lm_head.weight"].dtype).eval()
