"""Between the authors' published layout and ours: same tensors, bit for bit, in either direction."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.functional.buckets import NUM_BUCKETS
from specblock_zoo.functional.vocab import check_vocab_map
from specblock_zoo.models.folders import check_shapes, fresh_folder, read_tensors
from specblock_zoo.models.pretrained import check_kind, shapes_of, skeleton
from specblock_zoo.models.specblock import published
from specblock_zoo.models.specblock.configuration_specblock import SpecBlockConfig
from specblock_zoo.models.specblock.modeling_specblock import SpecBlockDrafter
from specblock_zoo.structures import default_tap_layers

ORIGINAL_CONFIG = "published_config.json"
"""The authors' own configuration, kept beside ours: keys that mean nothing to us are needed on the way back."""
RELEASE_RANK_WIDTH = 256
RELEASE_RANK_TOP = 20
COPIED_FACTS = (
    *("vocab_size", "draft_vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "rope_scaling", "max_position_embeddings"),
    *("target_hidden_size", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id"),
)
Drafted = tuple[SpecBlockConfig, dict[str, Tensor]]


def read_published(folder: Path) -> Drafted:
    """Configuration and tensors of a published folder, checked both ways.

    Raises:
        WeightsMismatchError, VocabularyMismatchError: as `pretrained.load_published`.
    """
    return _checked(published.read_config(folder), published.read_weights(folder), folder)


def read_native(folder: Path) -> Drafted:
    """Configuration and tensors of a folder of ours, checked both ways; errors as `read_published`.

    Raises:
        UnknownNameError: the folder holds another kind of drafter, which the authors' layout cannot express.
    """
    check_kind(SpecBlockDrafter, folder, str(folder))
    config: SpecBlockConfig = SpecBlockConfig.from_pretrained(folder)
    return _checked(config, read_tensors(folder), folder)


def _checked(config: SpecBlockConfig, weights: dict[str, Tensor], folder: Path) -> Drafted:
    expected = shapes_of(skeleton(SpecBlockDrafter, config))
    check_shapes(expected, {name: tuple(tensor.shape) for name, tensor in weights.items()}, folder)
    check_vocab_map(weights["d2t"], weights["t2d"], config.vocab_size)
    return config, weights


def from_published(folder: Path, out: Path) -> None:
    """Writes a published folder as a folder of ours; `out` appears whole or not at all.

    Raises:
        WeightsMismatchError, VocabularyMismatchError: `folder` is not a whole published checkpoint.
        ConfigurationError: `out` is in use.
    """
    config, weights = read_published(folder)
    with fresh_folder(out) as scratch:
        write_native(config, weights, scratch)
        (scratch / ORIGINAL_CONFIG).write_bytes((folder / "config.json").read_bytes())


def write_native(config: SpecBlockConfig, weights: dict[str, Tensor], folder: Path) -> None:
    """Writes `config.json` and `model.safetensors` as `save_pretrained` would."""
    config.architectures = [SpecBlockDrafter.__name__]
    config.dtype = weights["lm_head.weight"].dtype
    config.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def to_published(folder: Path, out: Path) -> None:
    """Writes a folder of ours in the published layout; `out` appears whole or not at all.

    Raises:
        UnsupportedOptionError: the layout cannot say what this drafter does; every reason is named.
        WeightsMismatchError, ConfigurationError: as `from_published`.
    """
    config, weights = read_native(folder)
    check_expressible(config)
    with fresh_folder(out) as scratch:
        write_published(config, weights, scratch)
        original = folder / ORIGINAL_CONFIG
        if original.is_file() and says_the_same(original, config):
            (scratch / "config.json").write_bytes(original.read_bytes())


def write_published(config: SpecBlockConfig, weights: dict[str, Tensor], folder: Path, **extra: Any) -> None:
    """Writes the three files of the published layout; `extra` keys join its `config.json`."""
    fields = {**published_fields(config, weights["lm_head.weight"].dtype), **extra}
    (folder / "config.json").write_text(json.dumps(fields, indent=2), encoding="utf-8")
    save_file(weights, folder / "model.safetensors")
    torch.save({name: weights[name] for name in ("d2t", "t2d")}, folder / published.VOCABULARY_FILE)


def published_fields(config: SpecBlockConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The published `config.json` of a drafter: it calls itself a Llama, as the release expects."""
    return {
        "architectures": [published.ARCHITECTURES[0]],
        "model_type": "llama",
        **{name: getattr(config, name) for name in COPIED_FACTS},
        "diffspec_draft_token_num": config.block_width,
        "num_ttt_blocks": config.train_blocks,
        "rank_classes": NUM_BUCKETS,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
    }


def says_the_same(original: Path, config: SpecBlockConfig) -> bool:
    """Whether the kept original still describes this drafter (it may have been trained further, or changed)."""
    kept = published.translate(json.loads(original.read_text()))
    return published_fields(kept, torch.float32) == published_fields(config, torch.float32)


def check_expressible(config: SpecBlockConfig) -> None:
    """Raises `UnsupportedOptionError` for what the published layout has no key for and the release does otherwise."""
    layers = config.target_num_hidden_layers
    taps = {(), default_tap_layers(layers)} if layers else {()}
    rules = (
        (config.shift == "between_layers", f"shift {config.shift!r} (it always shifts between layers)"),
        (not config.advance_positions, "advance_positions (its later blocks keep the first block's positions)"),
        (
            config.context_slots == config.block_width,
            f"context_slots {config.context_slots} (it keeps all {config.block_width})",
        ),
        (
            config.head_dim * config.num_attention_heads == config.hidden_size,
            f"head_dim {config.head_dim} (it divides {config.hidden_size} by {config.num_attention_heads} heads)",
        ),
        (config.rank_hidden_size == RELEASE_RANK_WIDTH, f"rank_hidden_size {config.rank_hidden_size} (it has 256)"),
        (config.rank_top == RELEASE_RANK_TOP, f"rank_top {config.rank_top} (it was trained with 20)"),
        (tuple(config.tap_layers) in taps, f"tap_layers {tuple(config.tap_layers)} (it reads 1, L/2 - 1 and L - 4)"),
    )
    refused = [reason for holds, reason in rules if not holds]
    if refused:
        raise UnsupportedOptionError(
            f"The published layout cannot express {'; '.join(refused)}.",
            "Keep this drafter in its own format; only drafters in compatible mode can be written that way.",
        )
