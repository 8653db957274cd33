"""The target's cache: keep of the last columns those that were accepted, whatever kind of layer holds them."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, StaticLayer

UNBOUNDED = 2**31


def started(cache: Cache | None) -> Cache | None:
    """The cache to decode with: the given one, but a new one for an empty one whose windows cannot take anything back.

    Before transformers 5.14 they could not; layers that keep everything then take their place.
    """
    if type(cache) is not DynamicCache or getattr(cache, "offloading", False) or holds_trees(cache):
        return cache
    known = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers)
    return DynamicCache() if known and cache.get_seq_length() == 0 else cache


def holds_trees(cache: Cache | None) -> bool:
    """Whether accepted rows can be moved together in every layer, and the rest be taken back."""
    if cache is None or getattr(cache, "offloading", False) or not hasattr(cache, "layers"):
        return False
    return all(map(_takes_back, cache.layers))


def _takes_back(layer: Any) -> bool:
    if type(layer) is DynamicLayer:
        return True
    if type(layer) is DynamicSlidingWindowLayer:
        return hasattr(layer, "activate_past_recording")
    # Before transformers 5.24 a static layer could not be cropped.
    return isinstance(layer, StaticLayer) and hasattr(StaticLayer, "crop") and bool(getattr(layer, "is_croppable", 0))


def capacity(cache: Cache) -> int:
    """Columns the cache can hold at once, `UNBOUNDED` for those that grow."""
    return min((layer.max_cache_len for layer in cache.layers if isinstance(layer, StaticLayer)), default=UNBOUNDED)


def start_recording(cache: Cache) -> list[Any]:
    """Makes layers with a window keep what a crop may need; returns the layers that did not before.

    To be called after the prompt was read, since such a layer would keep all of it.
    """
    layers: list[Any] = [layer for layer in cache.layers if getattr(layer, "record_past", None) is False]
    for layer in layers:
        layer.activate_past_recording()
    return layers


def compact(cache: Cache, held: int, rows: int, keep: Sequence[Sequence[int]]) -> None:
    """Of the `rows` columns after the first `held` keeps those named by `keep`, moved together; drops the rest.

    Args:
        keep: for each sequence of the batch ascending column numbers, 0 for the first of the `rows`. Sequences may keep
            different counts; the cache grows by the largest of them.
    """
    widest = max(len(each) for each in keep)
    if any(list(each) != list(range(len(each))) for each in keep):
        layers = list(_filled(cache))
        # Made where the layers are: one transfer to the device instead of one per layer.
        index = torch.tensor([[*each, *((widest - len(each)) * [0])] for each in keep], device=layers[0].keys.device)
        for layer in layers:
            end = held + rows if isinstance(layer, StaticLayer) else layer.keys.shape[-2]
            place = index.to(layer.keys.device)[:, None, :, None]
            for states in (layer.keys, layer.values):
                block = states[..., end - rows : end, :]
                block[..., :widest, :] = block.gather(-2, place.expand(-1, block.shape[1], -1, block.shape[3]))
    # Layers with a window are cropped after every forward, also by nothing: that is when they forget.
    if rows > widest or any(getattr(layer, "record_past", False) for layer in cache.layers):
        cache.crop(widest - rows)


def rearrange(cache: Cache, order: Tensor) -> None:
    """Keeps of each sequence the columns `order` `[rows, columns]` names, in that order; layers that grow only."""
    for layer in _filled(cache):
        place = order.to(layer.keys.device)[:, None, :, None]
        layer.keys, layer.values = (
            states.gather(-2, place.expand(-1, states.shape[1], -1, states.shape[3]))
            for states in (layer.keys, layer.values)
        )


def _filled(cache: Cache) -> Iterator[Any]:
    return (layer for layer in cache.layers if isinstance(getattr(layer, "keys", None), Tensor))
