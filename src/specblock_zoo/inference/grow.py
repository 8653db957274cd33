"""Draft one round: the first block at the drafting position, then blocks from its start nodes, into a tree."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specblock_zoo.functional import tree as trees
from specblock_zoo.functional.sampling import top_candidates
from specblock_zoo.inference.cache import DrafterCache
from specblock_zoo.inference.pacing import Pace
from specblock_zoo.models.base import Drafter
from specblock_zoo.structures import BranchMemory, ContextOutput, DraftBlock, DraftTree, KeyValues, TreeSettings

LOG_PROB_FLOOR = -1.0e4
"""Nats. Replaces NaN and -inf, so that a broken drafter costs speed and nothing else."""


@dataclass(frozen=True)
class Pairs:
    """Committed pairs (features of token i, token i + 1) that the drafter has not seen, positions consecutive.

    `features` `[1, n, taps * target_hidden]`, `tokens` int64 `[1, n]`, `first_position`: index i of the first pair.
    """

    features: Tensor
    tokens: Tensor
    first_position: int


@dataclass(frozen=True)
class Limits:
    """What bounds a tree: `settings`, the depth below which nothing can be committed any more, and what pays.

    Without a `pace` the settings alone decide.
    """

    settings: TreeSettings
    max_depth: int
    pace: Pace | None = None


def refresh(drafter: Drafter, cache: DrafterCache, pairs: Pairs) -> ContextOutput:
    """Appends committed pairs to the drafter's context; returns the first block of the next round.

    The pairs of a round are (root, a_1), (a_1, a_2), ..., (a_m, bonus), also for m = 0: the context then equals the one
    a fresh prefill of the committed text leaves, which the published decode loop misses (it feeds shifted tokens).
    """
    count = pairs.tokens.shape[1]
    positions = torch.arange(pairs.first_position, pairs.first_position + count, device=pairs.tokens.device)
    first = drafter.extend(pairs.features, pairs.tokens, positions[None], context=cache.view() or None)
    cache.append(first.context)
    return first


def grow_tree(
    drafter: Drafter, cache: DrafterCache, first: ContextOutput, position: int, limits: Limits
) -> tuple[DraftTree, int]:
    """Grows the tree of one round from its first block; returns it and the drafter forwards spent, refresh included.

    Args:
        cache: the drafter's context, the drafting position's own rows last.
        first: what `refresh` returned.
        position: index of the drafting pair; its token is the tree's root.
    """
    settings, pace = limits.settings, limits.pace
    if pace is not None:
        settings = replace(settings, min_path_prob=0.0)
    growth = trees.grow_block(trees.Growth(), read_proposals(drafter, first.block, settings), settings, block=0)
    frontier, calls = Frontier.of(drafter, cache, first), 1
    for index in range(1, settings.num_blocks):
        growth = trees.select_starts(growth, settings, index, first.block.hidden.shape[1], limits.max_depth)
        if pace is not None:
            growth = pace.choose_starts(growth, settings, index)
        if not growth.starts:
            break
        frontier, starts, calls = next_block(drafter, growth, frontier, position), growth.starts, calls + 1
        growth = trees.grow_block(growth, read_proposals(drafter, frontier.block, settings), settings, block=index)
        if pace is not None:
            pace.grown(growth.nodes, starts, index)
    prune = trees.prune if pace is None else pace.prune
    return trees.flatten(prune(growth.nodes, settings, limits.max_depth)), calls


@dataclass(frozen=True)
class Frontier:
    """The latest block of a tree, the keys and values it left, and what its starts may look at besides."""

    block: DraftBlock
    path: tuple[KeyValues, ...]
    memory: BranchMemory

    @classmethod
    def of(cls, drafter: Drafter, cache: DrafterCache, first: ContextOutput) -> "Frontier":
        """A first block; `cache` ends with the drafting position's own rows."""
        return cls(first.block, first.path, _memory_before(cache.view(drafter.config.context_slots), first))


def next_block(drafter: Drafter, growth: trees.Growth, frontier: Frontier, position: int) -> Frontier:
    """One drafter forward that continues the tree from `growth.starts`, nodes of the frontier's block."""
    block = frontier.block
    starts = _Starts.of(growth, block.hidden.device)
    memory = _memory_of(starts, frontier.memory, frontier.path)
    conditions = block.hidden[starts.rows, starts.slots]
    drafting_position = torch.tensor(position, device=block.hidden.device)
    output = drafter.branch(starts.tokens, conditions, starts.depths, drafting_position, memory)
    return Frontier(output.block, output.path, memory)


def read_proposals(drafter: Drafter, block: DraftBlock, settings: TreeSettings) -> trees.Proposals:
    """The best candidates and the rank buckets of every slot, fetched from the device in one transfer."""
    log_probs, draft_ids = top_candidates(block.logits, trees.candidate_width(settings), block.best)
    log_probs = log_probs.nan_to_num(nan=LOG_PROB_FLOOR, posinf=0.0, neginf=LOG_PROB_FLOOR).clamp_(max=0.0)
    tokens = drafter.target_tokens(draft_ids)
    tokens = tokens.masked_fill((tokens < 0) | (tokens >= drafter.config.vocab_size), trees.NO_TOKEN)
    width = tokens.shape[-1]
    # Token ids are far below 2**24, so float32 carries them exactly.
    packed = torch.cat((log_probs, tokens.float(), block.rank_logits.argmax(-1, keepdim=True).float()), dim=-1).tolist()
    return trees.Proposals(
        tokens=[[[int(token) for token in slot[width : 2 * width]] for slot in row] for row in packed],
        log_probs=[[slot[:width] for slot in row] for row in packed],
        buckets=[[int(slot[-1]) for slot in row] for row in packed],
    )


@dataclass(frozen=True)
class _Starts:
    """Start nodes as tensors on the drafter's device, each int64 `[starts]`."""

    rows: Tensor
    slots: Tensor
    tokens: Tensor
    depths: Tensor

    @classmethod
    def of(cls, growth: trees.Growth, device: torch.device) -> "_Starts":
        nodes = [growth.nodes[start.node] for start in growth.starts]
        columns = [[start.row for start in growth.starts], [start.slot for start in growth.starts]]
        columns += [[node.token for node in nodes], [node.depth for node in nodes]]
        return cls(*torch.tensor(columns, device=device))


def _memory_before(context: tuple[KeyValues, ...], first: ContextOutput) -> BranchMemory:
    """What the first block's row has on its path: nothing yet."""
    nothing = tuple(KeyValues(layer.keys[:, :, :0], layer.values[:, :, :0]) for layer in first.path)
    return BranchMemory(context, nothing, torch.zeros(1, 0, dtype=torch.bool, device=first.block.logits.device))


def _memory_of(starts: _Starts, memory: BranchMemory, latest: Sequence[KeyValues]) -> BranchMemory:
    """What the starts may look at: their row's earlier blocks, then the latest block's slots up to the start itself."""
    rows, slots = starts.rows, torch.arange(latest[0].keys.shape[2], device=starts.slots.device)
    path = tuple(
        KeyValues(torch.cat((old.keys[rows], new.keys[rows]), 2), torch.cat((old.values[rows], new.values[rows]), 2))
        for old, new in zip(memory.path, latest, strict=True)
    )
    mask = torch.cat((memory.path_mask[rows], slots <= starts.slots[:, None]), dim=-1)
    return BranchMemory(memory.context, path, mask)
