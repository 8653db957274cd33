"""The decode loop: draft, verify, commit, refresh."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from specblock_zoo.functional.acceptance import Choose, walk
from specblock_zoo.inference.cache import DrafterCache
from specblock_zoo.inference.grow import Limits, Pairs, grow_tree, refresh
from specblock_zoo.inference.text import Text
from specblock_zoo.inference.vanilla import NO_DRAFT
from specblock_zoo.inference.verify import Prompt, Reading, Verifier
from specblock_zoo.models.base import Drafter
from specblock_zoo.structures import Round, TreeSettings


@dataclass(frozen=True)
class Session:
    """Everything one generate call works with; `drafter_cache` starts empty and `text` with the prompt."""

    drafter: Drafter
    verifier: Verifier
    text: Text
    settings: TreeSettings
    drafter_cache: DrafterCache


@torch.no_grad()
def prefill(session: Session, prompt: Prompt) -> tuple[Pairs, bool]:
    """Reads the prompt and commits the first token; returns the drafter's first pairs, and whether the text ended."""
    reading = session.verifier.read(prompt)
    token, finished = session.text.choose(reading.logits[-1])
    features, positions, ids = reading.features, prompt.positions, prompt.ids
    if prompt.mask is not None:
        real = prompt.mask[0, -ids.shape[1] :]
        features, positions, ids = features[:, real], positions[:, real], ids[:, real]
    tokens = torch.cat((ids[:, 1:], ids.new_tensor([[token]])), dim=1)
    return Pairs(features, tokens, int(positions[0, 0])), finished


@torch.no_grad()
def decode(session: Session, pairs: Pairs) -> Iterator[Round]:
    """Rounds until the text ends. `pairs`: what `prefill` returned."""
    drafter, verifier, text, cache = session.drafter, session.verifier, session.text, session.drafter_cache
    finished = False
    while not finished:
        laps = Laps(verifier.model.device)
        root, position = int(pairs.tokens[0, -1]), pairs.first_position + pairs.tokens.shape[1] - 1
        tree, calls = NO_DRAFT, 0
        if text.remaining > 1:
            first = refresh(drafter, cache, pairs)
            tree, calls = grow_tree(drafter, cache, first, position, Limits(session.settings, text.remaining - 1))
        draft_ms = laps.lap()
        reading = verifier.judge(root, tree)
        verify_ms = laps.lap()
        verdict = walk(tree, chooser(text, reading))
        rows = verifier.commit(tree, verdict)
        tokens = torch.tensor([verdict.committed_tokens], device=reading.features.device)
        pairs = Pairs(reading.features[:, rows], tokens, position + 1)
        finished = verdict.finished
        yield Round(tree, verdict, draft_ms, verify_ms, laps.lap(), calls)


def chooser(text: Text, reading: Reading) -> Choose:
    """How the walk learns the target's token at a row.

    Rows are looked at lazily; only where each look costs a device transfer, and the best token is all that is needed,
    all rows are reduced at once. On a CPU the argmax of 24 rows of 49k logits costs more than the rest of the walk.
    """
    if not text.rules.need_only_best:
        return lambda row: text.choose(reading.logits[row])
    if reading.logits.device.type == "cpu":
        return lambda row: text.commit_best(int(reading.logits[row].argmax()))
    best = reading.logits.argmax(-1).tolist()
    return lambda row: text.commit_best(best[row])


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
