"""Judge draft trees with one target forward, and keep of the target's cache what was accepted."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from specblock_zoo.functional.masks import additive
from specblock_zoo.inference import columns as at
from specblock_zoo.inference import target_cache
from specblock_zoo.inference.capture import TOKENS, CompiledTarget, filled
from specblock_zoo.inference.versions import CACHE_NAME
from specblock_zoo.structures import DraftTree, Verdict
from specblock_zoo.targets.capture import forward_with_taps
from specblock_zoo.targets.registry import family_of

HOLE_SHARE, FEW_HOLES = 0.25, 32
"""Moving columns together copies the cache once; a quarter of it hidden costs that much again within four rounds."""


class Form(Enum):
    """How an attention implementation is told who sees whom."""

    ADDITIVE = "a term of the scores"
    BLOCK = "a flex-attention BlockMask"
    CAUSAL = "nothing: it is causal, so it can judge chains only"


@dataclass(frozen=True)
class Prompt:
    """The tokens a target still has to read, and what it has read already.

    Attributes:
        ids: int64 `[rows, n]`, tokens that are not in the cache yet.
        mask: bool `[rows, past + n]`, False for padding; None = no padding.
        positions: int64 `[rows, n]`.
    """

    ids: Tensor
    mask: Tensor | None
    positions: Tensor


@dataclass(frozen=True)
class Reading:
    """What the target says about the tokens of a forward.

    Attributes:
        logits: `[rows, tokens, vocab]`.
        features: `[rows, tokens, taps * hidden]`.
    """

    logits: Tensor
    features: Tensor


class Verifier:
    """The target in the role of judging trees: its cache always holds the committed texts but their last tokens."""

    def __init__(
        self,
        model: PreTrainedModel,
        tap_layers: Sequence[int],
        cache: Cache,
        form: Form = Form.ADDITIVE,
        compiled: CompiledTarget | None = None,
    ) -> None:
        self.model, self.tap_layers, self.cache, self.form = model, tuple(tap_layers), cache, form
        self._family = family_of(model.config)
        self._windows = self._family.attention_windows(model.config)
        self._recording: list[Any] = []
        # Tokens of the latest judgement, filling included, and whether the cache still holds all of them.
        self._compiled, self._judged, self._is_open = compiled, 0, False
        # None: one row, no padding, and so column i holds token i.
        self._columns: Tensor | None = None
        self._held, self._ragged = 0, False
        # Per row: place of the root in the text, its position, and how many columns are visible.
        self._roots: list[int] = []
        self._positions: list[int] = []
        self._seen: list[int] = []

    @property
    def room(self) -> int:
        """Nodes, root not counted, that the cache has room for in the next forward."""
        return max(self._sizes, default=target_cache.capacity(self.cache) - self._held) - 1

    @property
    def _sizes(self) -> list[int]:
        """Sizes of compiled forwards that the cache has room for."""
        free = target_cache.capacity(self.cache) - self._held
        return [size for size in TOKENS if size <= free] if self._compiled else []

    def read(self, prompt: Prompt) -> Reading:
        """Reads the prompt; logits only at its last token."""
        rows, length = prompt.ids.shape[0], int(self.cache.get_seq_length()) + prompt.ids.shape[1]
        plain = prompt.mask is None and rows == 1
        self._columns = None if plain else at.text_columns(rows, length, prompt.mask).to(prompt.ids.device)
        self._held, self._ragged, self._roots = length, rows > 1, rows * [length]
        self._positions = [last + 1 for last in prompt.positions[:, -1].tolist()]
        self._seen = rows * [length] if prompt.mask is None else prompt.mask.sum(1).tolist()
        mask = None if prompt.mask is None else prompt.mask.long()
        inputs = {"attention_mask": mask, "position_ids": prompt.positions, "logits_to_keep": 1}
        reading = self._forward(input_ids=prompt.ids, **inputs)
        self._recording = target_cache.start_recording(self.cache)
        return reading

    def judge(self, roots: Sequence[int], trees: Sequence[DraftTree]) -> Reading:
        """One forward over each row's root and nodes; token 0 is the root, token j + 1 is node j."""
        sizes, widest = self._sizes, 1 + max(map(len, trees))
        self._judged = filled(widest, sizes)
        tokens, depths, ancestors = at.lined_up(trees, self._judged - 1)
        ids = [[root, *nodes] for root, nodes in zip(roots, tokens, strict=True)]
        positions = [[first + depth for depth in row] for first, row in zip(self._positions, depths, strict=True)]
        places = [[first + depth for depth in row] for first, row in zip(self._roots, depths, strict=True)]
        packed = torch.tensor([ids, positions, places]).to(self.model.device)
        mask = self._causal_mask(len(ids[0])) if self.form is Form.CAUSAL else self._tree_masks(packed[2], ancestors)
        inputs = {"input_ids": packed[0], "attention_mask": mask, "position_ids": packed[1]}
        if self._compiled is not None and self._judged in sizes:
            reading = Reading(*self._compiled(**inputs, **{CACHE_NAME: self.cache, "use_cache": True}))
        else:
            reading = self._forward(**inputs)
        self._is_open = True
        return reading

    def commit(self, trees: Sequence[DraftTree], verdicts: Sequence[Verdict]) -> list[list[int]]:
        """Keeps each root and the accepted nodes whose successor was committed too; returns their tokens' numbers."""
        keep = [
            [0, *(node + 1 for node in verdict.accepted_nodes)][: len(verdict.committed_tokens)] for verdict in verdicts
        ]
        counts = [len(each) for each in keep]
        self._is_open = False
        target_cache.compact(self.cache, self._held, self._judged, keep)
        if self._columns is not None:
            self._columns = at.with_rows(self._columns, self._roots, counts)
        self._held += max(counts)
        self._roots, self._positions, self._seen = (
            [before + count for before, count in zip(each, counts, strict=True)]
            for each in (self._roots, self._positions, self._seen)
        )
        return keep

    def narrow(self, rows: Sequence[int]) -> None:
        """Keeps only these rows, and moves their columns together where holes and padding cost more than that."""
        if not self._ragged or self._columns is None:
            return
        if len(rows) < len(self._roots):
            index = torch.tensor(rows, device=self._columns.device)
            self.cache.batch_select_indices(index)
            self._columns = self._columns[index]
            self._roots, self._positions, self._seen = (
                [each[row] for row in rows] for each in (self._roots, self._positions, self._seen)
            )
        longest = max(self._seen)
        if self._held - longest > max(FEW_HOLES, HOLE_SHARE * self._held):
            order = at.gather_order(self._columns, longest)
            target_cache.rearrange(self.cache, order)
            self._columns, self._held = self._columns.gather(1, order), longest

    def close(self) -> None:
        """Leaves the cache's layers as they were found, and in them nothing that was judged and not committed.

        Where the walk was interrupted (a criterion, a processor or a streamer may raise), the roots stay: the cache
        then holds a beginning of each text, as plain decoding leaves it.
        """
        if self._is_open:
            target_cache.compact(self.cache, self._held, self._judged, len(self._roots) * [[0]])
        for layer in self._recording:
            layer.record_past = False

    def _causal_mask(self, count: int) -> Tensor | None:
        if self._columns is None:
            return None
        seen = self._columns >= 0
        return torch.cat((seen, seen.new_ones(len(seen), count)), dim=1).long()

    def _tree_masks(self, places: Tensor, ancestors: Tensor) -> Any:
        """One mask, or one per kind of layer, as the target's decoder wants it."""
        ancestors, columns = ancestors.to(places.device), self._columns
        if columns is None:
            columns = torch.arange(self._held, device=places.device)[None]
        kinds = getattr(self.model.config, "layer_types", None) or list(self._windows)
        masks = {}
        for kind, window in self._windows.items():
            keys, offset = self.cache.get_mask_sizes(places.shape[1], kinds.index(kind))
            seen = at.visible(columns[:, offset:], places, ancestors, window)
            # Static layers show their whole buffer.
            seen = torch.nn.functional.pad(seen, (0, keys - seen.shape[-1]))
            masks[kind] = formed(seen, self.form, self.model.dtype)
        return masks if self._family.mask_by_layer_type else next(iter(masks.values()))

    def _forward(self, **inputs: Any) -> Reading:
        inputs |= {CACHE_NAME: self.cache, "use_cache": True}
        outputs, features = forward_with_taps(self.model, self.tap_layers, **inputs)
        # States after the final norm lie where a target that is spread over devices ends; drafters are where it begins.
        return Reading(outputs["logits"], features.features.to(self.model.device))


def formed(seen: Tensor, form: Form, dtype: torch.dtype) -> Any:
    """Bool `[rows, queries, keys]` as the attention implementation takes it."""
    if form is Form.ADDITIVE:
        # Additive and in the target's dtype: eager attention adds the mask, and would add a bool one too.
        return additive(seen, dtype)[:, None]
    from torch.nn.attention.flex_attention import create_block_mask

    rows, queries, keys = seen.shape
    return create_block_mask(
        lambda row, _, query, key: seen[row, query, key], rows, None, queries, keys, device=str(seen.device)
    )
