"""The few tensors of a target that a drafter's training reads, without the rest of it.

Training from a cache never runs the target: an 8B target in float32 would cost 32 GB in every process for an embedding,
a norm, a head and two layers.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

from specblock_zoo.targets.local import load_target, resolve
from specblock_zoo.targets.registry import family_of


def load_target_parts(
    name_or_path: str | Path, last_layers: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A target whose embeddings, final norm, head and last layers have values; the rest is on the meta device.

    The values are those of `load_target`, bit for bit. Where they cannot be read one by one (other file formats, names
    that transformers converts), the whole target is loaded.

    Args:
        last_layers: so many decoder layers, counted from the end.

    Raises:
        MissingPackageError, AccessError, ConfigurationError, WeightsMismatchError: as `load_target`.
    """
    source = resolve(name_or_path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = _shapes_of(source, dtype)
        places = _places(model, last_layers)
        _fill(model, places, _read(source, model.config, places))
    except (OSError, ValueError, KeyError, SafetensorError):
        # What is wrong with it, if anything is, the loader of whole targets says better.
        return load_target(name_or_path, dtype)
    return model.eval().requires_grad_(False), tokenizer


def _shapes_of(source: str, dtype: torch.dtype) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(source)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model


def _places(model: PreTrainedModel, last_layers: int) -> list[list[str]]:
    """For each wanted tensor its names; tied ones have several."""
    family = family_of(model.config)
    layers = list(family.decoder_layers(model))
    parts: list[nn.Module] = [
        model.get_input_embeddings(),
        model.get_output_embeddings(),
        family.final_norm(model),
        *layers[max(0, len(layers) - last_layers) :],
    ]
    wanted = {id(parameter) for part in parts for parameter in part.parameters()}
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in wanted:
            names.setdefault(id(parameter), []).append(name)
    return list(names.values())


def _fill(model: PreTrainedModel, places: Iterable[list[str]], tensors: Mapping[str, Tensor]) -> None:
    for names in places:
        found = next(tensors[name] for name in names if name in tensors)
        expected = model.get_parameter(names[0])
        if found.shape != expected.shape:
            raise ValueError(f"{names[0]} has shape {tuple(found.shape)}, not {tuple(expected.shape)}")
        value = nn.Parameter(found.to(expected.dtype), requires_grad=False)
        for name in names:
            module, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(module), leaf, value)


def _read(source: str, config: object, places: Iterable[list[str]]) -> dict[str, Tensor]:
    """The first tensor found of each place; `KeyError` where there is none."""
    revision = getattr(config, "_commit_hash", None)
    index = _file(source, SAFE_WEIGHTS_INDEX_NAME, revision)
    file_of: dict[str, str] = json.loads(index.read_text())["weight_map"] if index else {}
    if index is None:
        with _opened(source, SAFE_WEIGHTS_NAME, revision) as file:
            file_of = dict.fromkeys(file.keys(), SAFE_WEIGHTS_NAME)
    tensors = {}
    for names in places:
        name = next((name for name in names if name in file_of), names[0])
        with _opened(source, file_of[name], revision) as file:
            tensors[name] = file.get_tensor(name)
    return tensors


def _opened(source: str, name: str, revision: str | None) -> Any:
    path = _file(source, name, revision)
    if path is None:
        raise FileNotFoundError(f"{source} has no {name}")
    return safe_open(path, framework="pt")


def _file(source: str, name: str, revision: str | None) -> Path | None:
    """A file of a folder or Hub repository; of a repository only the files asked for are fetched."""
    if Path(source).is_dir():
        return Path(source) / name if (Path(source) / name).is_file() else None
    found = cached_file(source, name, revision=revision, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)
