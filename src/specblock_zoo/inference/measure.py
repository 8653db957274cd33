"""Time the forwards of a round: a target and a drafter over made-up text, as often as one likes.

Nothing of the caller's is touched: own caches, no random numbers, no weights.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from transformers import DynamicCache, PreTrainedModel

from specblock_zoo.functional import tree as trees
from specblock_zoo.functional.costs import Curve, RoundCosts
from specblock_zoo.inference import target_cache
from specblock_zoo.inference.cache import Pairs
from specblock_zoo.inference.capture import context_of
from specblock_zoo.inference.grow import Frontier, Limits, grow_tree, next_block, read_proposals, refresh
from specblock_zoo.inference.verify import Form, Prompt, Verifier
from specblock_zoo.models.base import Drafter
from specblock_zoo.structures import DraftTree

CONTEXT = 256
"""Tokens before the tree; a short context, where the costs of a wider forward stand out least against the rest."""
FRESH_PAIRS = 2
"""Committed pairs per refresh, about what a round commits."""
WIDEST = 64
ANY_DEPTH = 1 << 30
COARSE_SIZES, COARSE_STARTS = (1, 16, 4, 8, 32), (1, 8)
COARSE_SECONDS = 1.0


class Workbench:
    """A target and a drafter with a text read, whose next round can be run again and again."""

    def __init__(self, model: PreTrainedModel, drafter: Drafter, form: Form, context: int = CONTEXT) -> None:
        config = model.config
        room = int(getattr(config, "max_position_embeddings", None) or CONTEXT + 2 * WIDEST) - WIDEST - 1
        self.context = max(FRESH_PAIRS, min(context, room))
        ids = (torch.arange(self.context, device=model.device) % config.vocab_size)[None]
        self._drafter, self.drafter_cache = drafter, context_of(drafter)
        self.verifier = Verifier(model, drafter.tap_layers(config.num_hidden_layers), DynamicCache(), form)
        positions = torch.arange(self.context, device=model.device)[None]
        features = self.verifier.read(Prompt(ids, None, positions)).features
        old, fresh = slice(None, -FRESH_PAIRS), slice(-FRESH_PAIRS, None)
        self._fresh = Pairs(features[:, fresh], ids[:, fresh], self.context - FRESH_PAIRS)
        self._settings = replace(drafter.config.tree_settings, num_blocks=1)
        if self.context > FRESH_PAIRS:
            refresh(drafter, self.drafter_cache, Pairs(features[:, old], ids[:, old], 0))
        self._first = refresh(drafter, self.drafter_cache, self._fresh)
        proposals = read_proposals(drafter, self._first.block, self._settings)
        self._growth = trees.grow_block(trees.Growth(), proposals, self._settings, block=0)

    def verify(self, tokens: int) -> None:
        """A target forward over `tokens` tokens, root included; the cache is left as it was found."""
        self.verifier.judge([0], [chain_of(tokens - 1)])
        self.take_back(tokens)

    def take_back(self, tokens: int) -> None:
        """Drops the last `tokens` columns of the target's cache."""
        target_cache.compact(self.verifier.cache, self.context, tokens, [[]])

    def first_block(self, _: int = 1) -> None:
        """Refresh, first block and its tree."""
        self.drafter_cache.crop(FRESH_PAIRS * self._drafter.config.context_slots)
        first = refresh(self._drafter, self.drafter_cache, self._fresh)
        grow_tree(self._drafter, self.drafter_cache, first, self.context - 1, Limits(self._settings, ANY_DEPTH))

    def branch(self, starts: int) -> None:
        """A later block from `starts` start nodes, grown into the tree."""
        offered = self._growth.starts or (trees.Start(0, 0, 0),)
        repeated = (offered * starts)[:starts]
        growth = trees.Growth(self._growth.nodes, repeated)
        frontier = Frontier.of(self._drafter, self.drafter_cache, self._first)
        frontier = next_block(self._drafter, growth, frontier, self.context - 1)
        proposals = read_proposals(self._drafter, frontier.block, self._settings)
        trees.grow_block(growth, proposals, self._settings, block=1)


def chain_of(nodes: int) -> DraftTree:
    """A tree of that many nodes below one another; what a forward costs does not depend on its shape."""
    return trees.flatten([trees.Node(0, index - 1, 0.0, 0, 0, 0, index + 1) for index in range(nodes)])


def milliseconds(work: Callable[[int], None], size: int, device: torch.device) -> float:
    """One call, device-synchronised.

    One thread on a CPU is timed by its own clock, which stands still while other programs have the core.
    """
    clock = time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    _wait(device)
    before = clock()
    work(size)
    _wait(device)
    return 1000.0 * (clock() - before)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@torch.no_grad()
def coarse_costs(model: PreTrainedModel, drafter: Drafter, form: Form, branches: bool) -> RoundCosts:
    """A few forwards, the faster of two each; stops widening after `COARSE_SECONDS`, but always has two sizes.

    Args:
        branches: the drafter grows more than one block per round.
    """
    bench = Workbench(model, drafter, form, context=CONTEXT // 4)
    device, started = model.device, time.perf_counter()

    def best(work: Callable[[int], None], sizes: Sequence[int]) -> dict[int, float]:
        found: dict[int, float] = {}
        for size in sizes:
            if len(found) < 2 or time.perf_counter() - started < COARSE_SECONDS:
                found[size] = min(milliseconds(work, size, device) for _ in range(2))
        return found

    first = best(bench.first_block, (1,))[1]
    branch = best(bench.branch, COARSE_STARTS) if branches else {1: 0.0}
    return round_costs(best(bench.verify, COARSE_SIZES), first, branch)


def round_costs(verify: Mapping[int, float], first_block: float, branch: Mapping[int, float]) -> RoundCosts:
    """Measured milliseconds by size -> costs; `branch` by start nodes."""
    return RoundCosts(Curve.fitted(verify), first_block, Curve.fitted(branch))
