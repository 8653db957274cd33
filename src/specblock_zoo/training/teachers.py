"""The target's side of the loss, in each form a cache keeps it (`data.layout.TEACHERS`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from specblock_zoo.data.layout import LAST_HIDDEN, TAIL_MASS, TOP_IDS, TOP_LOG_PROBS
from specblock_zoo.functional.head import TeacherRows, product_dtype
from specblock_zoo.functional.sampling import capped


@dataclass(frozen=True)
class Teacher:
    """All of the target's distribution, from its last states.

    Attributes:
        head: rows of the target's head for the draft vocabulary, `[draft_vocab, target_hidden]`.
        draft_ids: draft id of every target token, -1 outside, int64 `[vocab]`.
        cap: what the target's logits are pressed below after its head; None where they are taken as is.
    """

    head: Tensor
    draft_ids: Tensor
    cap: float | None = None

    @cached_property
    def _product_head(self) -> Tensor:
        # Once a teacher: pieces would convert the whole matrix each time.
        return self.head.to(product_dtype(self.head))

    def rows(self, batch: Mapping[str, Tensor], sequence: Tensor, state: Tensor) -> TeacherRows:
        """The distributions after the tokens at `state` of each `sequence`, int64 `[rows]` both.

        Args:
            batch: see `data.collate`.
        """
        states = batch[LAST_HIDDEN][sequence, state]

        def probs(piece: slice) -> Tensor:
            logits = F.linear(states[piece].to(self._product_head.dtype), self._product_head)
            return capped(logits, self.cap).softmax(-1, torch.float32)

        return probs


class TopTeacher(Teacher):
    """The target's best tokens, and the mass of the rest spread evenly over the other draft tokens (ours).

    Not renormalised: a drafter taught without the rest would learn to be too certain. The cache holds the distribution
    over the draft vocabulary, so all of the rest belongs to draft tokens; total variation from `Teacher` is at most it.
    """

    def rows(self, batch: Mapping[str, Tensor], sequence: Tensor, state: Tensor) -> TeacherRows:
        """See `Teacher`; the head is not read."""
        ids, log_probs = batch[TOP_IDS][sequence, state], batch[TOP_LOG_PROBS][sequence, state]
        others = max(1, self.head.shape[0] - ids.shape[-1])
        rest = batch[TAIL_MASS][sequence, state] / others

        def probs(piece: slice) -> Tensor:
            even = rest[piece, None].expand(-1, self.head.shape[0])
            return even.scatter(-1, ids[piece], log_probs[piece].float().exp())

        return probs


class TokenTeacher(Teacher):
    """The text's own next token, certain."""

    def rows(self, batch: Mapping[str, Tensor], sequence: Tensor, state: Tensor) -> TeacherRows:
        """See `Teacher`; rows whose token is outside the draft vocabulary hold another token, and must not count."""
        following = (state + 1).clamp(max=batch["input_ids"].shape[1] - 1)
        tokens = self.draft_ids[batch["input_ids"][sequence, following]].clamp(min=0)

        def probs(piece: slice) -> Tensor:
            return F.one_hot(tokens[piece], self.head.shape[0]).float()

        return probs


TEACHERS: dict[str, type[Teacher]] = {"last_hidden": Teacher, "topk": TopTeacher, "tokens": TokenTeacher}
