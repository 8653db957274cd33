"""Judge a draft tree with one target forward, and keep of the target's cache what was accepted."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from specblock_zoo.functional.tree import ancestor_matrix
from specblock_zoo.structures import DraftTree, Verdict
from specblock_zoo.targets.capture import forward_with_taps


@dataclass(frozen=True)
class Prompt:
    """The tokens a target still has to read, and what it has read already.

    Attributes:
        ids: int64 `[1, n]`, tokens that are not in the cache yet.
        mask: bool `[1, past + n]`, False for padding; None = no padding.
        positions: int64 `[1, n]`.
    """

    ids: Tensor
    mask: Tensor | None
    positions: Tensor


@dataclass(frozen=True)
class Reading:
    """What the target says about the rows of one forward: logits `[rows, vocab]`, features `[1, rows, taps * hidden]`."""

    logits: Tensor
    features: Tensor


def tree_mask(parents: Sequence[int], past: Tensor | int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Additive mask of root and nodes over the cache and themselves, `[1, 1, rows, past + rows]`.

    Additive and in the target's dtype because eager attention adds the mask: a bool one would be wrong there.

    Args:
        past: cached columns, or their visibility as bool `[past]`.
    """
    visible = ancestor_matrix(parents).to(device)
    rows = visible.shape[0]
    length = past if isinstance(past, int) else past.shape[0]
    mask = torch.zeros(rows, length + rows, dtype=dtype, device=device)
    lowest = torch.finfo(dtype).min
    if not isinstance(past, int):
        mask[:, :length].masked_fill_(~past, lowest)
    mask[:, length:].masked_fill_(~visible, lowest)
    return mask[None, None]


def compact(cache: Cache, rows: int, keep: Sequence[int]) -> None:
    """Of the last `rows` cached columns keeps those named by `keep` (ascending), moved together; the rest is dropped."""
    if list(keep) != list(range(len(keep))):
        for layer in cache.layers:
            if getattr(layer, "keys", None) is None:
                continue
            index = torch.tensor(keep, device=layer.keys.device)
            for states in (layer.keys, layer.values):
                block = states[..., states.shape[-2] - rows :, :]
                block[..., : len(keep), :] = block.index_select(-2, index)
    if rows > len(keep):
        cache.crop(len(keep) - rows)


def cache_keyword(model: PreTrainedModel) -> str:
    """Name under which the target's forward takes its cache: `cache` since transformers 5.24, else `past_key_values`."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class Verifier:
    """The target in the role of judging trees: its cache always holds the committed text but the last token."""

    def __init__(self, model: PreTrainedModel, tap_layers: Sequence[int], cache: Cache) -> None:
        self.model = model
        self.tap_layers = tuple(tap_layers)
        self.cache = cache
        self._cache_keyword = cache_keyword(model)
        self._padding: Tensor | None = None
        self._root_position = 0

    def read(self, prompt: Prompt) -> Reading:
        """Reads the prompt; logits only at its last token."""
        self._padding = prompt.mask[0] if prompt.mask is not None else None
        self._root_position = int(prompt.positions[0, -1]) + 1
        mask = None if prompt.mask is None else prompt.mask.long()
        return self._forward(prompt.ids, attention_mask=mask, position_ids=prompt.positions, logits_to_keep=1)

    def judge(self, root: int, tree: DraftTree) -> Reading:
        """One forward over the root and all nodes; row 0 is the root, row j + 1 is node j."""
        device, past = self.model.device, int(self.cache.get_seq_length())
        rows = torch.tensor([[root, *tree.tokens.tolist()], [0, *tree.depths.tolist()]]).to(device)
        seen = past if self._padding is None else self._seen(past)
        mask = tree_mask(tree.parents.tolist(), seen, self.model.dtype, device)
        return self._forward(rows[:1], attention_mask=mask, position_ids=rows[1:] + self._root_position)

    def commit(self, tree: DraftTree, verdict: Verdict) -> list[int]:
        """Keeps the root and the accepted nodes whose successor was committed too; returns their rows."""
        kept = [0, *(node + 1 for node in verdict.accepted_nodes)][: len(verdict.committed_tokens)]
        compact(self.cache, len(tree) + 1, kept)
        self._root_position += len(kept)
        return kept

    def _seen(self, past: int) -> Tensor:
        assert self._padding is not None
        return torch.nn.functional.pad(self._padding, (0, past - self._padding.shape[0]), value=True)

    def _forward(self, ids: Tensor, **inputs: Any) -> Reading:
        inputs[self._cache_keyword] = self.cache
        outputs, features = forward_with_taps(self.model, self.tap_layers, input_ids=ids, use_cache=True, **inputs)
        return Reading(outputs.logits[0], features.features)
