"""What is kept of served queries until an update: bounded, token ids and states only, oldest first out."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from specblock_zoo.data.layout import TAIL_MASS, TOP_IDS, TOP_LOG_PROBS

QUERY = "query"


@dataclass(frozen=True)
class TopRows:
    """The target's distribution over the draft vocabulary at n positions: its best tokens, and the mass of the rest.

    Attributes:
        ids: draft ids, int32 `[n, top]`, best first.
        log_probs: float16 `[n, top]`.
        tail: mass of all other draft tokens, float32 `[n]`.
    """

    ids: Tensor
    log_probs: Tensor
    tail: Tensor

    def batch(self) -> dict[str, Tensor]:
        """The columns `training.teachers.TopTeacher` reads, `[n, ...]`."""
        return {TOP_IDS: self.ids.long(), TOP_LOG_PROBS: self.log_probs, TAIL_MASS: self.tail}


def top_rows(scores: Tensor, top: int) -> TopRows:
    """The best `top` of scores over the draft vocabulary `[n, draft_vocab]`, on their device."""
    log_probs = scores.float().log_softmax(-1)
    best, ids = log_probs.topk(min(top, scores.shape[-1]))
    return TopRows(ids.int(), best.half(), (1 - best.exp().sum(-1)).clamp(min=0))


@dataclass(frozen=True)
class HeadRows:
    """Slots that drafted for the committed text, n of them.

    Attributes:
        normed: what the heads read, in float16 `[n, hidden]`.
        target: the target's distributions there.
        rejected: the slot's best token was not the text's, bool `[n]`.
        covered: the text's token was in the tree all the same, bool `[n]`.
    """

    normed: Tensor
    target: TopRows
    rejected: Tensor
    covered: Tensor

    def __len__(self) -> int:
        return self.normed.shape[0]


@dataclass(frozen=True)
class TextRows:
    """One answered text as the training forward reads it, S tokens.

    Attributes:
        input_ids: int32 `[S]`; number 0 is filler.
        features: bfloat16 `[S, taps * hidden]`; the last is filler.
        loss_mask: tokens the target has scored, bool `[S]`.
        target: the distribution after each token; meaningful before a token that counts.
        uncovered: rejected positions whose token was outside the tree.
    """

    input_ids: Tensor
    features: Tensor
    loss_mask: Tensor
    target: TopRows
    uncovered: int

    def __len__(self) -> int:
        return self.input_ids.shape[0]


def tensors_of(record: object) -> dict[str, Tensor]:
    """The tensors of a record and of the records in it, by dotted name."""
    found: dict[str, Tensor] = {}
    for each in fields(record):  # type: ignore[arg-type]  # records of this file
        value = getattr(record, each.name)
        if isinstance(value, Tensor):
            found[each.name] = value
        elif isinstance(value, TopRows):
            found |= {f"{each.name}.{name}": tensor for name, tensor in tensors_of(value).items()}
    return found


def _top_of(tensors: Mapping[str, Tensor], prefix: str = "target.") -> TopRows:
    return TopRows(*(tensors[prefix + each.name] for each in fields(TopRows)))


class HeadBuffer:
    """At most `capacity` slots; full once `needed` rejected ones have come in since the last update.

    Attributes:
        fresh: rejected slots since the last update; `unread`: slots of any kind.
    """

    def __init__(self, capacity: int, needed: int) -> None:
        self.capacity, self.needed = capacity, needed
        self.fresh = self.unread = 0
        self._tensors: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return next(iter(self._tensors.values())).shape[0] if self._tensors else 0

    @property
    def is_full(self) -> bool:
        """Whether an update may fire."""
        return self.fresh >= self.needed

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def add(self, rows: HeadRows, query: int = 0) -> None:
        """Takes in slots of a query with this number; the oldest beyond the capacity leave."""
        held, new = self._tensors, {**tensors_of(rows), QUERY: torch.full((len(rows),), query, dtype=torch.int32)}
        joined = {name: torch.cat((held[name], new[name])) if held else new[name] for name in new}
        # Clones, so that what has left is freed.
        self._tensors = {name: tensor[-self.capacity :].clone() for name, tensor in joined.items()}
        self.fresh += int(rows.rejected.sum())
        self.unread = min(self.unread + len(rows), len(self))

    def rows(self, most: int | None = None, seed: int = 0) -> HeadRows:
        """Everything held, oldest first; or at most `most` slots: the unread, then older ones by lot."""
        held = self._tensors
        if most is not None and len(self) > most:
            older, generator = len(self) - self.unread, torch.Generator().manual_seed(seed)
            new = older + torch.randperm(self.unread, generator=generator)[:most]
            old = torch.randperm(older, generator=generator)[: most - len(new)]
            index = torch.cat((old, new)).sort().values
            held = {name: tensor[index] for name, tensor in held.items()}
        return HeadRows(held["normed"], _top_of(held), held["rejected"], held["covered"])

    def forget(self, query: int) -> None:
        """Slots of queries before this one leave."""
        if self._tensors:
            kept = self._tensors[QUERY] >= query
            self._tensors = {name: tensor[kept] for name, tensor in self._tensors.items()}
            self.fresh = min(self.fresh, int(self._tensors["rejected"].sum()))
            self.unread = min(self.unread, len(self))

    def spent(self) -> None:
        """An update has used the rows; they stay for the next, which needs new ones beside them."""
        self.fresh = self.unread = 0

    def clear(self) -> None:
        """Forgets everything, e.g. when the states are another drafter's."""
        self._tensors, self.fresh, self.unread = {}, 0, 0

    def state(self) -> dict[str, Tensor]:
        """For saving."""
        return {**self._tensors, "fresh": torch.tensor(self.fresh), "unread": torch.tensor(self.unread)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        counts = ("fresh", "unread")
        self._tensors = {name: tensor[-self.capacity :] for name, tensor in state.items() if name not in counts}
        self.fresh = int(state["fresh"])
        # Older saves count the rejected alone.
        self.unread = min(int(state.get("unread", state["fresh"])), len(self))
        if self._tensors:
            # Older saves do not number their queries.
            self._tensors.setdefault(QUERY, torch.zeros(len(self), dtype=torch.int32))


class TextBuffer:
    """Texts of at most `capacity` tokens together; full once `needed` uncovered positions came in since the last."""

    def __init__(self, capacity: int, needed: int) -> None:
        self.capacity, self.needed = capacity, needed
        self.fresh = 0
        self._texts: deque[TextRows] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._texts))

    @property
    def is_full(self) -> bool:
        """Whether an update may fire."""
        return self.fresh >= self.needed

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return sum(tensor.nbytes for text in self._texts for tensor in tensors_of(text).values())

    def add(self, text: TextRows) -> None:
        """Takes in a text that has something to teach and fits; the oldest leave."""
        if not text.uncovered or len(text) > self.capacity:
            return
        self._texts.append(text)
        self.fresh += text.uncovered
        while len(self) > self.capacity:
            self._texts.popleft()

    def texts(self) -> list[TextRows]:
        """Everything held, oldest first."""
        return list(self._texts)

    def spent(self) -> None:
        """See `HeadBuffer.spent`."""
        self.fresh = 0

    def clear(self) -> None:
        """Forgets everything."""
        self._texts.clear()
        self.fresh = 0

    def state(self) -> dict[str, Tensor]:
        """For saving."""
        saved = {"fresh": torch.tensor(self.fresh)}
        for index, text in enumerate(self._texts):
            saved |= {f"{index}.{name}": tensor for name, tensor in tensors_of(text).items()}
            saved[f"{index}.uncovered"] = torch.tensor(text.uncovered)
        return saved

    def load(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        self.clear()
        for index in range(sum(name.endswith(".uncovered") for name in state)):
            held = {
                name.removeprefix(f"{index}."): each for name, each in state.items() if name.startswith(f"{index}.")
            }
            uncovered = int(held["uncovered"])
            self.add(TextRows(held["input_ids"], held["features"], held["loss_mask"], _top_of(held), uncovered))
        self.fresh = int(state["fresh"])
