"""What the target says about a query's trees, read off while it is served: no extra forward of either model."""

import logging
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specblock_zoo.adaptation.buffers import HeadRows, TextRows, TopRows, top_rows
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.functional.tree import LOOKUP_BLOCK, ROOT
from specblock_zoo.inference.cache import Pairs
from specblock_zoo.inference.text import Text
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.structures import DraftBlock, DraftTree, Verdict

LOG = logging.getLogger(__name__)

ROUNDS_AT_ONCE = 32
"""Rounds whose scores are kept whole before their best are taken: few enough to be small, many enough to be cheap."""


@dataclass(frozen=True)
class CaptureSettings:
    """What is kept of a query.

    Attributes:
        top: the target's best draft tokens kept at a position; the mass of the rest is one number.
        max_length: tokens of a text kept for full updates, counted from its end.
    """

    top: int = 64
    max_length: int = 512

    def __post_init__(self) -> None:
        if self.top < 1 or self.max_length < 2:
            raise ConfigurationError(
                f"Nothing can be learned from top = {self.top} (at least 1) tokens of texts of "
                f"max_length = {self.max_length} (at least 2).",
                "Correct the settings.",
            )


@dataclass(frozen=True)
class Feedback:
    """One answered row. `difficulty`: mean of -log of the target's own best probability, nats."""

    head: HeadRows
    text: TextRows | None
    difficulty: float


@dataclass(frozen=True)
class _Round:
    """One judged round: the block's states and best tokens (if something was drafted), and what was committed.

    `accepted`: drafted tokens among it; what only the text so far proposed teaches the drafter nothing. `outside`: the
    target's own token at the end was none of the drafter's there.
    """

    block: tuple[Tensor, Tensor] | None
    committed: tuple[int, ...]
    accepted: int
    outside: bool


@dataclass
class _Watched:
    """One row while it is decoded."""

    text: Text
    pairs: list[Pairs] = field(default_factory=list)
    block: tuple[Tensor, Tensor] | None = None
    rounds: list[_Round] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    best: list[TopRows] = field(default_factory=list)

    def fold(self, top: int) -> None:
        """Keeps of the scores since the last call the `top` best of each row."""
        if self.scores:
            self.best.append(top_rows(torch.cat(self.scores), top))
            self.scores.clear()


class Recorder:
    """The `Observer` of one query. A mistake of its own costs the feedback, never the answer."""

    def __init__(self, drafter: SpecBlockDrafter, settings: CaptureSettings) -> None:
        self._drafter, self._settings = drafter, settings
        self._rows: dict[int, _Watched] = {}
        self._draft_tokens = drafter.draft_tokens
        self.failed = False

    def drafted(self, text: Text, pairs: Pairs, block: DraftBlock) -> None:
        """See `Observer`."""
        if self.failed:
            return
        try:
            row = self._rows.setdefault(id(text), _Watched(text))
            row.pairs.append(_tail(pairs, self._settings.max_length))
            row.block = (block.hidden[0], block.logits[0].argmax(-1))
        except Exception:
            self._give_up()

    def judged(self, text: Text, tree: DraftTree, verdict: Verdict, logits: Tensor) -> None:
        """See `Observer`; keeps the rows the walk has visited, over the draft vocabulary."""
        if self.failed:
            return
        try:
            row = self._rows.setdefault(id(text), _Watched(text))
            visited = [0, *(node + 1 for node in verdict.accepted_nodes)][: len(verdict.committed_tokens)]
            index = torch.tensor(visited, device=logits.device)
            row.scores.append(logits.index_select(0, index).index_select(1, self._draft_tokens))
            drafted = int((tree.blocks[list(verdict.accepted_nodes)] != LOOKUP_BLOCK).sum())
            row.rounds.append(_Round(row.block, verdict.committed_tokens, drafted, is_outside(tree, verdict)))
            row.block = None
            if len(row.scores) == ROUNDS_AT_ONCE:
                row.fold(self._settings.top)
        except Exception:
            self._give_up()

    def _give_up(self) -> None:
        LOG.exception("feedback of this query is lost")
        self.failed = True
        self._rows.clear()

    @torch.no_grad()
    def finish(self) -> list[Feedback]:
        """The feedback of every row with a judged tree, on the host; empty if something went wrong."""
        if self.failed:
            return []
        return [self._row(row) for row in self._rows.values() if row.rounds and row.pairs]

    def _row(self, row: _Watched) -> Feedback:
        row.fold(self._settings.top)
        ids, log_probs, tail = zip(*(vars(each).values() for each in row.best), strict=True)
        top = TopRows(torch.cat(ids).cpu(), torch.cat(log_probs).cpu(), torch.cat(tail).cpu())
        head, uncovered = self._slots(row, top)
        return Feedback(head, _text(row, top, uncovered, self._settings.max_length), -float(top.log_probs[:, 0].mean()))

    def _slots(self, row: _Watched, top: TopRows) -> tuple[HeadRows, int]:
        """Slots of first blocks whose earlier slots are all right, as in training; and rejections outside the tree."""
        blocks = [each.block for each in row.rounds if each.block is not None]
        greedy = iter(self._drafter.target_tokens(torch.stack([best for _, best in blocks])).tolist())
        states = torch.stack([hidden for hidden, _ in blocks])
        committed = torch.tensor([token for each in row.rounds for token in each.committed], device=states.device)
        draftable = self._drafter.t2d[committed].tolist()
        picked: list[tuple[int, int, int, bool, bool]] = []
        number, first = -1, 0
        for each in row.rounds:
            if each.block is not None:
                number, best = number + 1, next(greedy)
                for slot, token in enumerate(each.committed[: len(best)]):
                    if not draftable[first + slot]:
                        break
                    picked.append((number, slot, first + slot, best[slot] != token, slot < each.accepted))
                    if best[slot] != token:
                        break
            first += len(each.committed)
        columns = torch.tensor(picked, dtype=torch.int64).reshape(-1, 5).T
        places = columns[:2].to(states.device)
        normed = self._drafter.norm(states[places[0], places[1]]).half().cpu()
        at = columns[2]
        rejected, covered = columns[3].bool(), columns[4].bool()
        target = TopRows(top.ids[at], top.log_probs[at], top.tail[at])
        outside = sum(each.outside for each in row.rounds if each.block is not None)
        return HeadRows(normed, target, rejected, covered), outside


def is_outside(tree: DraftTree, verdict: Verdict) -> bool:
    """Whether the target's last token was none of those the drafter proposed there; it must have proposed some."""
    last = verdict.accepted_nodes[-1] if verdict.accepted_nodes else ROOT
    proposed = (tree.parents == last) & (tree.blocks != LOOKUP_BLOCK)
    return len(verdict.committed_tokens) > len(verdict.accepted_nodes) and bool(proposed.any())


def _tail(pairs: Pairs, length: int) -> Pairs:
    """Pairs with the features of the last `length` alone; a copy, so that a long prompt's are freed."""
    if pairs.features.shape[1] <= length:
        return pairs
    return replace(pairs, features=pairs.features[:, -length:].clone())


def _text(row: _Watched, top: TopRows, uncovered: int, max_length: int) -> TextRows | None:
    """The text in the form of the training forward; None where a round went undrafted in its middle."""
    starts = [pairs.first_position for pairs in row.pairs]
    ends = [pairs.first_position + pairs.tokens.shape[1] for pairs in row.pairs]
    if starts[1:] != ends[:-1]:
        return None
    tokens = torch.cat([pairs.tokens[0] for pairs in row.pairs]).cpu().int()
    features = torch.cat([pairs.features[0] for pairs in row.pairs])[1 - max_length :]
    features = features.to("cpu", torch.bfloat16)
    read, count = row.pairs[0].tokens.shape[1], tokens.shape[0]
    taught = min(count - read, top.tail.shape[0])
    mask = torch.zeros(count + 1, dtype=torch.bool)
    mask[read + 1 : read + 1 + taught] = True

    def spread(rows: Tensor) -> Tensor:
        every = rows.new_zeros(count + 1, *rows.shape[1:])
        every[read : read + taught] = rows[:taught]
        return every[-max_length:].clone()

    ids = torch.cat((tokens.new_zeros(1), tokens))[-max_length:].clone()
    filled = torch.cat((features, features.new_zeros(1, features.shape[1])))
    target = TopRows(spread(top.ids), spread(top.log_probs), spread(top.tail))
    return TextRows(ids, filled, mask[-max_length:].clone(), target, uncovered)
