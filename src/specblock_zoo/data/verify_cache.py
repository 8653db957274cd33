"""Recompute samples of a cache with the live target and say how far the stored states are from them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specblock_zoo.data.feature_cache import FeatureCache, check_shard
from specblock_zoo.data.layout import relative_errors
from specblock_zoo.data.settings import DTYPES, check_device
from specblock_zoo.errors import ConfigurationError, CorruptCacheError
from specblock_zoo.targets.capture import capture
from specblock_zoo.targets.identity import identify
from specblock_zoo.targets.local import load_target

# What other kernels and batch shapes may add to the error of storing; a wrong layer or a shift by one is above 0.5.
MARGIN = 0.03


@dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        samples: sequences recomputed.
        errors: per tap layer, mean over tokens of the stored state's error over the state's size.
        stored_error: the same number, measured when the cache was written.
    """

    samples: int
    errors: dict[int, float]
    stored_error: float


def verify_cache(cache_dir: str, target: str | None = None, samples: int = 8, device: str = "cpu") -> Verification:
    """Checks every byte by its checksum, the target by its hashes, and some samples' states by computing them anew.

    Args:
        target: the live target; the one the manifest names when not given.
        samples: sequences spread evenly over the cache.

    Raises:
        CorruptCacheError: a shard has other bytes than were written, or its states are not the target's.
        CacheMismatchError: the cache was built with another target.
    """
    if samples < 1:
        raise ConfigurationError(f"samples is {samples}; expected at least 1.", "Correct the argument.")
    check_device(device)
    cache = FeatureCache(cache_dir)
    for shard in cache.manifest.shards:
        check_shard(Path(cache_dir), shard, checksum=True)
    fingerprint = cache.manifest.fingerprint
    name = target or fingerprint.target
    model, tokenizer = load_target(name, DTYPES[fingerprint.dtype], device)
    cache.manifest.require_target(cache_dir, identify(name, model, tokenizer), model.config)
    taken = sorted({int(i) for i in np.linspace(0, len(cache) - 1, min(samples, len(cache)))})
    found = Verification(len(taken), _errors(cache, taken, model), cache.manifest.state_error)
    wrong = {layer: error for layer, error in found.errors.items() if not error <= found.stored_error + MARGIN}
    if wrong:
        told = ", ".join(f"layer {layer} by {error:.1%}" for layer, error in wrong.items())
        raise CorruptCacheError(
            f"The states in {cache_dir} differ from the target's: {told}; expected at most "
            f"{found.stored_error + MARGIN:.1%}.",
            "Build the cache anew; the target, its dtype or the software may have changed.",
        )
    return found


def _errors(cache: FeatureCache, taken: list[int], model: PreTrainedModel) -> dict[int, float]:
    layers = cache.manifest.fingerprint.tap_layers
    errors: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    for index in taken:
        stored = cache[index]
        ids = torch.from_numpy(stored.input_ids.astype(np.int64))[None].to(model.device)
        states = capture(model, layers, ids, torch.ones_like(ids, dtype=torch.bool)).features[0]
        for layer, tap, bits in zip(layers, states.chunk(len(layers), dim=-1), stored.taps, strict=True):
            errors[layer].append(relative_errors(tap, bits))
    return {layer: float(torch.cat(parts).mean()) for layer, parts in errors.items()}
