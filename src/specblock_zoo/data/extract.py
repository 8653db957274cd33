"""Sequences to the columns of a cache: batches of like length through the frozen target."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specblock_zoo.data.examples import Example
from specblock_zoo.data.layout import CachedExample, Layout, relative_errors
from specblock_zoo.functional.vocab import VocabMap, draft_to_target
from specblock_zoo.targets.capture import capture
from specblock_zoo.targets.registry import family_of


@dataclass(frozen=True)
class Extracted:
    """One sequence as it is stored.

    Attributes:
        columns: see `Layout.encode`.
        state_error: mean over tokens and taps of the stored state's error over the state's size.
    """

    example: Example
    columns: dict[str, npt.NDArray[Any]]
    state_error: float

    def decoded(self, layout: Layout) -> CachedExample:
        """What a reader of the cache would get."""
        return layout.decode(self.example, self.columns.__getitem__)


def length_sorted_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices by length, longest first, in batches of at most `batch_tokens` padded tokens (or one sequence)."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _padded(examples: Sequence[Example], device: torch.device) -> tuple[Tensor, Tensor]:
    length = max(map(len, examples))
    input_ids = np.zeros((len(examples), length), dtype=np.int64)
    for row, example in enumerate(examples):
        input_ids[row, : len(example)] = example.input_ids
    lengths = torch.tensor([len(example) for example in examples])
    attention_mask = torch.arange(length) < lengths[:, None]
    return torch.from_numpy(input_ids).to(device), attention_mask.to(device)


@dataclass(frozen=True)
class Extractor:
    """A target and what is to be kept of it.

    Attributes:
        head: rows of its head for the draft vocabulary, `[draft_vocab, hidden]`.
        cap: of its logits, see `TargetFamily.logit_cap`.
    """

    model: PreTrainedModel
    layout: Layout
    head: Tensor
    cap: float | None = None

    @classmethod
    def of(cls, model: PreTrainedModel, layout: Layout, vocab: VocabMap) -> "Extractor":
        """For a loaded target and a draft vocabulary."""
        family = family_of(model.config)
        head = family.head_weight(model)
        rows = head[draft_to_target(vocab.d2t).to(head.device)].detach()
        return cls(model, layout, rows, family.logit_cap(model.config))

    def forward(self, examples: Sequence[Example]) -> list[Extracted]:
        """One target forward over all `examples`."""
        states = capture(self.model, self.layout.tap_layers, *_padded(examples, self.model.device))
        taps = states.features.chunk(len(self.layout.tap_layers), dim=-1)
        last_hidden = cast(Tensor, states.last_hidden)
        return [
            self._extracted(example, [tap[row, : len(example)] for tap in taps], last_hidden[row, : len(example)])
            for row, example in enumerate(examples)
        ]

    def batches(self, examples: Sequence[Example], batch_tokens: int) -> Iterator[list[tuple[int, Extracted]]]:
        """All `examples` in several forwards; each gives (index, result) pairs."""
        for batch in length_sorted_batches([len(example) for example in examples], batch_tokens):
            yield list(zip(batch, self.forward([examples[i] for i in batch]), strict=True))

    def _extracted(self, example: Example, taps: list[Tensor], last_hidden: Tensor) -> Extracted:
        columns = self.layout.encode(taps, last_hidden, self.head, self.cap)
        stored = self.layout.decode(example, columns.__getitem__).taps
        errors = [relative_errors(tap, bits).mean() for tap, bits in zip(taps, stored, strict=True)]
        return Extracted(example, columns, float(torch.stack(errors).mean()))
