"""The drafter's memory of the committed text: keys and values in buffers that grow by doubling."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specblock_zoo.structures import KeyValues

FIRST_CAPACITY = 256


@dataclass(frozen=True)
class Pairs:
    """Committed pairs (features of token i, token i + 1), positions consecutive.

    `features` `[1, n, taps * target_hidden]`, `tokens` int64 `[1, n]`, `first_position`: index i of the first pair.
    """

    features: Tensor
    tokens: Tensor
    first_position: int

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.tokens.shape[1])

    @property
    def end(self) -> int:
        """Index after the last pair's."""
        return self.first_position + self.count

    def until(self, position: int) -> "Pairs":
        """Those whose index is below `position`."""
        count = max(0, position - self.first_position)
        return Pairs(self.features[:, :count], self.tokens[:, :count], self.first_position)

    def last(self, count: int) -> "Pairs":
        """The last `count` of them, or all."""
        start = max(0, self.count - count)
        return Pairs(self.features[:, start:], self.tokens[:, start:], self.first_position + start)

    def followed_by(self, later: "Pairs") -> "Pairs":
        """These and `later` ones, in tensors of their own."""
        features = torch.cat((self.features, later.features), dim=1)
        return Pairs(features, torch.cat((self.tokens, later.tokens), dim=1), self.first_position)


class DrafterCache:
    """Context keys and values of one sequence, per drafter layer.

    Only committed positions enter it, always with true target features, so it never holds a guess and a round needs no
    rollback; `crop` exists for callers that take committed text back.
    """

    def __init__(self) -> None:
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self._length = 0

    def __len__(self) -> int:
        """Rows held: committed positions x context slots."""
        return self._length

    def append(self, context: Sequence[KeyValues]) -> None:
        """Adds the rows that `extend` returned, one `KeyValues` `[1, kv_heads, new, head_dim]` per layer.

        A drafter without attention has no layers here, and so nothing to remember.
        """
        added = context[0].keys.shape[2] if context else 0
        if not self._buffers or self._length + added > self._buffers[0][0].shape[2]:
            self._grow(context, self._length + added)
        for (keys, values), new in zip(self._buffers, context, strict=True):
            keys[:, :, self._length : self._length + added] = new.keys
            values[:, :, self._length : self._length + added] = new.values
        self._length += added

    def view(self, without_last: int = 0) -> tuple[KeyValues, ...]:
        """The rows of each layer except the last `without_last`; views, valid until the next `append`."""
        length = max(0, self._length - without_last)
        return tuple(KeyValues(keys[:, :, :length], values[:, :, :length]) for keys, values in self._buffers)

    def mask(self, without_last: int = 0) -> Tensor | None:
        """Which rows of a `view` are held, bool `[1, rows]`; None: all."""
        return None

    def widened(self, pairs: Pairs) -> Pairs:
        """The pairs to be read, after which `append` follows: `pairs`, behind some that the context already holds."""
        return pairs

    def crop(self, rows: int) -> None:
        """Forgets the last `rows` rows."""
        self._length = max(0, self._length - rows)

    def _grow(self, like: Sequence[KeyValues], needed: int) -> None:
        capacity = max(FIRST_CAPACITY, 2 * needed)
        held = self.view() or [None] * len(like)
        self._buffers = [
            (_enlarged(new.keys, old and old.keys, capacity), _enlarged(new.values, old and old.values, capacity))
            for new, old in zip(like, held, strict=True)
        ]


def _enlarged(like: Tensor, held: Tensor | None, capacity: int) -> Tensor:
    rows, heads, _, size = like.shape
    buffer = torch.empty(rows, heads, capacity, size, dtype=like.dtype, device=like.device)
    if held is not None:
        buffer[:, :, : held.shape[2]] = held
    return buffer
