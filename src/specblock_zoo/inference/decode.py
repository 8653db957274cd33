"""The decode loop: draft, verify, commit, refresh; for one row or for several over one target cache."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specblock_zoo.functional.acceptance import Choose, walk
from specblock_zoo.functional.lookup import NOTHING, Copied, Lookup
from specblock_zoo.inference.cache import DrafterCache, Pairs
from specblock_zoo.inference.capture import context_of
from specblock_zoo.inference.grow import Limits, finished, grow_tree, refresh
from specblock_zoo.inference.observe import Observer
from specblock_zoo.inference.pacing import Account, Pace
from specblock_zoo.inference.text import Text
from specblock_zoo.inference.vanilla import NO_DRAFT
from specblock_zoo.inference.verify import Prompt, Verifier
from specblock_zoo.models.base import Drafter
from specblock_zoo.structures import DraftTree, Round, TreeSettings

MOST_INDEXED = 16384
"""Latest tokens of a prompt that may be copied from: 100 ms to index on one Xeon core, and 21 MB."""
MOST_WAITING = 64
"""Pairs that may wait for the drafter before it is run again: their features are kept, and copied once per round."""


@dataclass(frozen=True)
class Row:
    """One sequence of a generate call, between two rounds.

    Attributes:
        text: what was committed, the prompt included.
        root: last committed token, the root of the next tree.
        pairs: committed pairs that the drafter has not seen yet.
        drafter_cache: the drafter's memory of the pairs before them.
        lookup: where the text repeats itself, if anything is to be copied from it.
        read: whether the drafter has read the prompt.
    """

    text: Text
    root: int
    pairs: Pairs
    drafter_cache: DrafterCache = field(default_factory=DrafterCache)
    lookup: Lookup | None = None
    read: bool = False

    def after(self, features: Tensor, committed: Sequence[int], drafted: bool = True) -> "Row":
        """The row once `committed` tokens were added; `features` `[1, n, taps * hidden]` of the tokens before each.

        Args:
            drafted: whether the drafter has seen the pairs before; else they wait for it with the new ones.
        """
        if self.lookup is not None:
            self.lookup.extend(committed)
        new = Pairs(features, torch.tensor([committed], device=features.device), self.pairs.end)
        pairs = new if drafted else self.pairs.followed_by(new)
        return replace(self, root=committed[-1], pairs=pairs, read=self.read or drafted)

    def copied(self, settings: TreeSettings) -> Copied:
        """What the text so far suggests, no longer than can be committed."""
        if self.lookup is None:
            return NOTHING
        most = min(settings.lookup_tokens, self.text.remaining - 1)
        return self.lookup.continuation(most).until(self.text.end_tokens)

    def can_wait(self) -> bool:
        """Whether the drafter may miss a round: it has read the prompt, and what waits for it is soon read."""
        return self.read and self.pairs.count < MOST_WAITING


@dataclass(frozen=True)
class Session:
    """Everything one generate call works with.

    `observer` is told of every round, and `account` decides how much is drafted, each where there is one.
    """

    drafter: Drafter
    verifier: Verifier
    settings: TreeSettings
    observer: Observer | None = None
    account: Account | None = None


@torch.no_grad()
def prefill(session: Session, prompt: Prompt, texts: Sequence[Text]) -> list[Row]:
    """Reads the prompts and commits each row's first token; returns the rows whose text goes on."""
    reading = session.verifier.read(prompt)
    new = prompt.ids.shape[1]
    rows, going_on = [], []
    for index, text in enumerate(texts):
        token, finished = text.choose(reading.logits[index, -1])
        if finished:
            continue
        real = slice(None) if prompt.mask is None else prompt.mask[index, -new:]
        features, positions = reading.features[index : index + 1, real], prompt.positions[index, real]
        ids = prompt.ids[index : index + 1, real]
        tokens = torch.cat((ids[:, 1:], ids.new_tensor([[token]])), dim=1)
        mask = None if prompt.mask is None else prompt.mask[index]
        lookup = lookup_in(text, mask) if session.settings.lookup_tokens else None
        pairs = Pairs(features, tokens, int(positions[0]))
        rows.append(Row(text, token, pairs, context_of(session.drafter), lookup))
        going_on.append(index)
    if rows:
        session.verifier.narrow(going_on)
    return rows


def lookup_in(text: Text, mask: Tensor | None) -> Lookup:
    """The n-grams of a text, its padding left out.

    Args:
        mask: bool `[prompt]`, False for padding; the text's last token comes after it.
    """
    ids = text.ids[0]
    if mask is not None:
        ids = torch.cat((ids[:-1][mask[1 - len(ids) :].to(ids.device)], ids[-1:]))
    return Lookup(ids[-MOST_INDEXED:].tolist(), text.rules.temperature)


@torch.no_grad()
def decode(session: Session, rows: Sequence[Row]) -> Iterator[Round]:
    """Rounds until every text has ended, one per row and target forward. `rows`: what `prefill` returned."""
    verifier = session.verifier
    while rows:
        if session.drafter.capture is not None:
            session.drafter.capture.begin_round(verifier.model.device)
        laps = Laps(verifier.model.device)
        paces = [session.account.pace(len(rows)) if session.account else None for _ in rows]
        drafts = [draft(session, row, pace) for row, pace in zip(rows, paces, strict=True)]
        trees = [tree for tree, _ in drafts]
        draft_ms = laps.lap() / len(rows)
        reading = verifier.judge([row.root for row in rows], trees)
        verify_ms = laps.lap() / len(rows)
        verdicts = list(map(walk, trees, choosers([row.text for row in rows], reading.logits)))
        if session.observer is not None:
            for row, tree, verdict, logits in zip(rows, trees, verdicts, reading.logits, strict=True):
                session.observer.judged(row.text, tree, verdict, logits)
        walk_ms = laps.lap() / len(rows)
        kept = verifier.commit(trees, verdicts)
        if session.account is not None:
            session.account.settle(paces, drafts, verdicts)
        going_on = [index for index, verdict in enumerate(verdicts) if not verdict.finished]
        rows = [
            rows[index].after(
                reading.features[index : index + 1, kept[index]],
                verdicts[index].committed_tokens,
                drafted=drafts[index][1] > 0,
            )
            for index in going_on
        ]
        if going_on:
            verifier.narrow(going_on)
        commit_ms = laps.lap() / len(trees)
        for (tree, calls), verdict in zip(drafts, verdicts, strict=True):
            yield Round(tree, verdict, draft_ms, verify_ms, walk_ms + commit_ms, calls, commit_ms)


def draft(session: Session, row: Row, pace: Pace | None = None) -> tuple[DraftTree, int]:
    """Refreshes the drafter's memory of a row and grows a tree; returns it and the drafter forwards spent.

    Where the text itself makes its next token likely enough, the drafter is spared, and reads what it missed later.
    """
    pairs, room, settings = row.pairs, session.verifier.room, session.settings
    if row.text.remaining <= 1 or room < 1:
        return NO_DRAFT, 0
    if room < settings.max_nodes:
        settings = replace(settings, max_nodes=room)
    copied = row.copied(settings)
    limits = Limits(settings, row.text.remaining - 1, pace, copied)
    if copied.tokens and copied.chance >= settings.lookup_alone and row.can_wait():
        alone = finished((), limits)
        # A copy that is not worth judging leaves the round to the drafter.
        if len(alone):
            return alone, 0
    first = refresh(session.drafter, row.drafter_cache, pairs)
    if session.observer is not None:
        session.observer.drafted(row.text, pairs, first.block)
    return grow_tree(session.drafter, row.drafter_cache, first, pairs.end - 1, limits)


def choosers(texts: Sequence[Text], logits: Tensor) -> list[Choose]:
    """How each row's walk learns the target's token at a node of its tree.

    Nodes are looked at lazily; only where each look costs a device transfer, and the best token is all that is needed,
    all are reduced at once. On a CPU the argmax of 24 rows of 49k logits costs more than the rest of the walk.

    Args:
        logits: `[rows, nodes, vocab]`.
    """
    if transfers_cost(logits.device) and all(text.rules.need_only_best for text in texts):
        return [_known(text, best) for text, best in zip(texts, logits.argmax(-1).tolist(), strict=True)]
    return [_lazy(text, row) for text, row in zip(texts, logits, strict=True)]


def transfers_cost(device: torch.device) -> bool:
    """Whether reading a tensor of the device makes the host wait for it."""
    return device.type != "cpu"


def _known(text: Text, best: list[int]) -> Choose:
    return lambda node: text.commit_best(best[node])


def _lazy(text: Text, logits: Tensor) -> Choose:
    if text.rules.need_only_best:
        return lambda node: text.commit_best(int(logits[node].argmax()))
    return lambda node: text.choose(logits[node])


class Laps:
    """Device-synchronised lap times in milliseconds."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = self._now()

    def lap(self) -> float:
        """Milliseconds since the last lap."""
        before, self._last = self._last, self._now()
        return 1000.0 * (self._last - before)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
