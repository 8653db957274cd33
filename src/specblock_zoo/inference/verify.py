"""Judge a draft tree with one target forward, and keep of the target's cache what was accepted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from specblock_zoo.functional.masks import additive, tree_mask
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
    """What the target says about the rows of a forward: logits `[rows, vocab]`, features `[1, rows, taps * hidden]`."""

    logits: Tensor
    features: Tensor


def compact(cache: Cache, rows: int, keep: Sequence[int]) -> None:
    """Of the last `rows` cached columns keeps those named by `keep` (ascending), moved together; drops the rest."""
    if list(keep) != list(range(len(keep))):
        for states in _states(cache):
            index = torch.tensor(keep, device=states.device)
            block = states[..., states.shape[-2] - rows :, :]
            block[..., : len(keep), :] = block.index_select(-2, index)
    if rows > len(keep):
        cache.crop(len(keep) - rows)


def _states(cache: Cache) -> Iterator[Tensor]:
    """Keys and values of every layer that holds some."""
    for layer in cache.layers:
        for states in (getattr(layer, "keys", None), getattr(layer, "values", None)):
            if isinstance(states, Tensor):
                yield states


class Verifier:
    """The target in the role of judging trees: its cache always holds the committed text but the last token."""

    def __init__(self, model: PreTrainedModel, tap_layers: Sequence[int], cache: Cache) -> None:
        self.model = model
        self.tap_layers = tuple(tap_layers)
        self.cache = cache
        self._padding: Tensor | None = None
        self._root_position = 0

    def read(self, prompt: Prompt) -> Reading:
        """Reads the prompt; logits only at its last token."""
        self._padding = prompt.mask[0].cpu() if prompt.mask is not None else None
        self._root_position = int(prompt.positions[0, -1]) + 1
        mask = None if prompt.mask is None else prompt.mask.long()
        return self._forward(prompt.ids, attention_mask=mask, position_ids=prompt.positions, logits_to_keep=1)

    def judge(self, root: int, tree: DraftTree) -> Reading:
        """One forward over the root and all nodes; row 0 is the root, row j + 1 is node j."""
        device, past = self.model.device, int(self.cache.get_seq_length())
        rows = torch.tensor([[root, *tree.tokens.tolist()], [0, *tree.depths.tolist()]]).to(device)
        visible = tree_mask(ancestor_matrix(tree.parents.tolist()), past)
        if self._padding is not None:
            visible[:, : self._padding.shape[0]] &= self._padding
        # Additive and in the target's dtype: eager attention adds the mask, and would add a bool one too.
        mask = additive(visible, self.model.dtype)[None, None].to(device)
        return self._forward(rows[:1], attention_mask=mask, position_ids=rows[1:] + self._root_position)

    def commit(self, tree: DraftTree, verdict: Verdict) -> list[int]:
        """Keeps the root and the accepted nodes whose successor was committed too; returns their rows."""
        kept = [0, *(node + 1 for node in verdict.accepted_nodes)][: len(verdict.committed_tokens)]
        compact(self.cache, len(tree) + 1, kept)
        self._root_position += len(kept)
        return kept

    def _forward(self, ids: Tensor, **inputs: Any) -> Reading:
        inputs |= {"input_ids": ids, "cache": self.cache, "use_cache": True}
        outputs, features = forward_with_taps(self.model, self.tap_layers, **inputs)
        return Reading(outputs["logits"][0], features.features)
