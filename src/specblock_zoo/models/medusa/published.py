"""The checkpoint format of Medusa's authors: heads over the whole vocabulary, read strictly.

A published folder holds a `config.json` with the number of heads and of residual blocks, and all heads in one file,
`medusa_lm_head.safetensors` or a pickled `medusa_lm_head.pt`, which is read with `weights_only=True`. Vocabulary and
hidden size are those of the tensors.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specblock_zoo.errors import UnsupportedOptionError, WeightsMismatchError
from specblock_zoo.models.folders import read_file, read_pickled
from specblock_zoo.models.medusa.configuration_medusa import MedusaConfig

SAFE_FILE, PICKLED_FILE = "medusa_lm_head.safetensors", "medusa_lm_head.pt"
HEADS_KEY, LAYERS_KEY = "medusa_num_heads", "medusa_num_layers"
PREFIXES = ("medusa_heads.", "medusa_head.")
"""What serving engines put before the authors' names `head.layer.linear.weight`, `head.layer.linear.bias` and
`head.layers.weight`."""


def is_published(folder: Any) -> bool:
    """True for a local folder whose config counts heads."""
    config = Path(str(folder)) / "config.json"
    if not config.is_file():
        return False
    fields = json.loads(config.read_text(encoding="utf-8"))
    return isinstance(fields, dict) and HEADS_KEY in fields


def read_config(folder: Path) -> MedusaConfig:
    """Our configuration of a published folder.

    Raises:
        WeightsMismatchError: the first head has not the layers that the config counts, or there is no whole file.
    """
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    heads, layers, tensors = fields[HEADS_KEY], fields.get(LAYERS_KEY, 1), _read_heads(folder)
    last = tensors.get(f"0.{layers}.weight")
    if last is None or last.ndim != 2:
        raise WeightsMismatchError(
            f"{folder} counts {layers} residual blocks per head; its first head holds "
            f"{', '.join(sorted(name for name in tensors if name.startswith('0.')))}.",
            f"Check that config.json ({LAYERS_KEY}) and the heads come from the same release.",
        )
    vocabulary, hidden = last.shape
    return MedusaConfig(
        vocab_size=vocabulary,
        draft_vocab_size=vocabulary,
        hidden_size=hidden,
        target_hidden_size=hidden,
        target_num_hidden_layers=None,
        block_width=heads,
        residual_layers=layers,
    )


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Tensors of a published folder under our names; the vocabulary map is the identity."""
    tensors = _read_heads(folder)
    vocabulary = next(len(tensor) for name, tensor in tensors.items() if ".linear." not in name)
    return {
        **{f"heads.{name}": tensor for name, tensor in tensors.items()},
        "d2t": torch.zeros(vocabulary, dtype=torch.int64),
        "t2d": torch.ones(vocabulary, dtype=torch.bool),
    }


def write(config: MedusaConfig, weights: dict[str, Tensor], folder: Path) -> None:
    """Writes a drafter's two files in the authors' format into `folder`.

    Args:
        weights: its state dict.

    Raises:
        UnsupportedOptionError: its heads do not cover the target's whole vocabulary, which the format has no map for.
    """
    if config.draft_vocab_size != config.vocab_size:
        raise UnsupportedOptionError(
            f"The published layout has heads over all {config.vocab_size} tokens; these cover "
            f"{config.draft_vocab_size}.",
            "Keep this drafter in its own format.",
        )
    fields = {
        HEADS_KEY: config.block_width,
        LAYERS_KEY: config.residual_layers,
        "base_model_name_or_path": config.target_name,
    }
    (folder / "config.json").write_text(json.dumps(fields, indent=2), encoding="utf-8")
    heads = {name.removeprefix("heads."): tensor for name, tensor in weights.items() if name.startswith("heads.")}
    save_file(heads, folder / SAFE_FILE)


def _read_heads(folder: Path) -> dict[str, Tensor]:
    """Tensors by the authors' names, from the safetensors file where there is one."""
    safe, pickled = folder / SAFE_FILE, folder / PICKLED_FILE
    if safe.is_file():
        tensors = read_file(safe)
    elif not pickled.is_file():
        raise WeightsMismatchError(
            f"{folder} holds neither {SAFE_FILE} nor {PICKLED_FILE}.", "Fetch the release's weights into it."
        )
    else:
        tensors = read_pickled(pickled)
    return {_without_prefix(name): tensor for name, tensor in tensors.items()}


def _without_prefix(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name
