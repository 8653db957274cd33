"""Draft one round: the first block at the drafting position, then blocks from its start nodes, into a tree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specblock_zoo.functional import tree as trees
from specblock_zoo.functional.buckets import reads_buckets
from specblock_zoo.functional.graft import graft, likelier_chain
from specblock_zoo.functional.lookup import NOTHING, Copied
from specblock_zoo.functional.sampling import top_candidates
from specblock_zoo.inference.cache import DrafterCache, Pairs
from specblock_zoo.inference.pacing import Pace
from specblock_zoo.models.base import Drafter
from specblock_zoo.structures import (
    BestLogits,
    BranchMemory,
    ContextOutput,
    DraftBlock,
    DraftTree,
    KeyValues,
    TreeSettings,
)

LOG_PROB_FLOOR = -1.0e4
"""Nats. Replaces NaN and -inf, so that a broken drafter costs speed and nothing else."""


@dataclass(frozen=True)
class Limits:
    """What bounds a tree: `settings`, the depth below which nothing can be committed any more, and what pays.

    Without a `pace` the settings alone decide. `copied`: a continuation found in the text, to be judged too.
    """

    settings: TreeSettings
    max_depth: int
    pace: Pace | None = None
    copied: Copied = NOTHING


def refresh(drafter: Drafter, cache: DrafterCache, pairs: Pairs) -> ContextOutput:
    """Appends committed pairs to the drafter's context; returns the first block of the next round.

    The pairs of a round are (root, a_1), (a_1, a_2), ..., (a_m, bonus), also for m = 0: the context then equals the one
    a fresh prefill of the committed text leaves, which the published decode loop misses (it feeds shifted tokens).
    """
    read, forwards = cache.widened(pairs), drafter.capture or drafter
    known = drafter.config.context_slots * (read.count - pairs.count)
    positions = torch.arange(read.first_position, read.first_position + read.count, device=pairs.tokens.device)
    context, mask = cache.view(known) or None, cache.mask(known)
    first = forwards.extend(read.features, read.tokens, positions[None], context=context, context_mask=mask)
    new = first.context
    cache.append([KeyValues(keys[:, :, known:], values[:, :, known:]) for keys, values in new] if known else new)
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
        growth = trees.select_starts(growth, settings, index, slots_used(first.block, settings), limits.max_depth)
        if pace is not None:
            growth = pace.choose_starts(growth, settings, index)
        if not growth.starts:
            break
        frontier, starts, calls = next_block(drafter, growth, frontier, position), growth.starts, calls + 1
        growth = trees.grow_block(growth, read_proposals(drafter, frontier.block, settings), settings, block=index)
        if pace is not None:
            pace.grown(growth.nodes, starts, index)
    return finished(growth.nodes, limits), calls


def finished(nodes: Sequence[trees.Node], limits: Limits) -> DraftTree:
    """The tree of a round: what was drafted, if anything, and what was copied, as far as it is worth judging."""
    settings, pace = limits.settings, limits.pace
    merged = likelier_chain(nodes, limits.copied) if settings.chain else graft(nodes, limits.copied)
    prune = trees.prune if pace is None else pace.prune
    return trees.flatten(prune(merged, settings, limits.max_depth))


@dataclass(frozen=True)
class Frontier:
    """The latest block of a tree, the keys and values it left, and what its starts may look at besides."""

    block: DraftBlock
    path: tuple[KeyValues, ...]
    memory: BranchMemory

    @classmethod
    def of(cls, drafter: Drafter, cache: DrafterCache, first: ContextOutput) -> "Frontier":
        """A first block; `cache` ends with the drafting position's own rows."""
        return cls(first.block, first.path, _memory_before(cache, drafter.config.context_slots, first))


def next_block(drafter: Drafter, growth: trees.Growth, frontier: Frontier, position: int) -> Frontier:
    """One drafter forward that continues the tree from `growth.starts`, nodes of the frontier's block."""
    block, forwards, count = frontier.block, drafter.capture or drafter, len(growth.starts)
    rows = drafter.capture.rows(count) if drafter.capture else count
    starts = _Starts.of(growth, rows, block.hidden.device)
    memory = _memory_of(starts, frontier.memory, frontier.path)
    conditions = block.hidden[starts.rows, starts.slots]
    drafting_position = torch.tensor(position, device=block.hidden.device)
    output = forwards.branch(starts.tokens, conditions, starts.depths, drafting_position, memory)
    return Frontier(output.block if rows == count else first_rows(output.block, count), output.path, memory)


def first_rows(block: DraftBlock, count: int) -> DraftBlock:
    """The block without its rows from `count` on."""
    best = block.best and BestLogits(block.best.values[:count], block.best.indices[:count])
    return DraftBlock(block.hidden[:count], block.logits[:count], block.rank_logits[:count], best)


def slots_used(block: DraftBlock, settings: TreeSettings) -> int:
    """How many slots of a block are drafted from."""
    width = block.hidden.shape[1]
    return min(width, settings.max_slots or width)


def read_proposals(drafter: Drafter, block: DraftBlock, settings: TreeSettings) -> trees.Proposals:
    """The best candidates and the rank buckets of every slot in use, fetched from the device in one transfer.

    Buckets are 0 where the settings do not read them; a rank head is then not run.
    """
    used, ranked = slice(slots_used(block, settings)), reads_buckets(settings)
    best = block.best and BestLogits(*(each[:, used] for each in block.best)) if ranked else None
    log_probs, draft_ids = top_candidates(block.logits[:, used], trees.candidate_width(settings), best)
    # Token ids are far below 2**24, so float32 carries them exactly.
    columns = [log_probs, drafter.target_tokens(draft_ids).float()]
    if ranked:
        columns.append(block.rank_logits[:, used].argmax(-1, keepdim=True).float())
    packed, width, vocab = torch.cat(columns, dim=-1).tolist(), draft_ids.shape[-1], drafter.config.vocab_size
    return trees.Proposals(
        tokens=[
            [
                [int(token) if 0 <= token < vocab else trees.NO_TOKEN for token in slot[width : 2 * width]]
                for slot in row
            ]
            for row in packed
        ],
        log_probs=[[list(map(finite_log_prob, slot[:width])) for slot in row] for row in packed],
        buckets=[[int(slot[-1]) if ranked else 0 for slot in row] for row in packed],
    )


def finite_log_prob(value: float) -> float:
    """The value where it is a log-probability; what a broken drafter makes of one is as good as impossible."""
    if math.isnan(value) or value == -math.inf:
        return LOG_PROB_FLOOR
    return min(value, 0.0)


@dataclass(frozen=True)
class _Starts:
    """Start nodes as tensors on the drafter's device, each int64 `[rows]`; the first one fills up what is missing."""

    rows: Tensor
    slots: Tensor
    tokens: Tensor
    depths: Tensor

    @classmethod
    def of(cls, growth: trees.Growth, rows: int, device: torch.device) -> "_Starts":
        starts = [*growth.starts, *growth.starts[:1] * (rows - len(growth.starts))]
        nodes = [growth.nodes[start.node] for start in starts]
        columns = [[start.row for start in starts], [start.slot for start in starts]]
        columns += [[node.token for node in nodes], [node.depth for node in nodes]]
        return cls(*torch.tensor(columns, device=device))


def _memory_before(cache: DrafterCache, own_rows: int, first: ContextOutput) -> BranchMemory:
    """What the first block's row has on its path: nothing yet."""
    nothing = tuple(KeyValues(layer.keys[:, :, :0], layer.values[:, :, :0]) for layer in first.path)
    nothing_seen = torch.zeros(1, 0, dtype=torch.bool, device=first.block.logits.device)
    held = cache.mask(own_rows)
    return BranchMemory(cache.view(own_rows), nothing, nothing_seen, None if held is None else held[None])


def _memory_of(starts: _Starts, memory: BranchMemory, latest: Sequence[KeyValues]) -> BranchMemory:
    """What the starts may look at: their row's earlier blocks, then the latest block's slots up to the start itself."""
    rows, slots = starts.rows, torch.arange(latest[0].keys.shape[2], device=starts.slots.device)
    path = tuple(
        KeyValues(torch.cat((old.keys[rows], new.keys[rows]), 2), torch.cat((old.values[rows], new.values[rows]), 2))
        for old, new in zip(memory.path, latest, strict=True)
    )
    mask = torch.cat((memory.path_mask[rows], slots <= starts.slots[:, None]), dim=-1)
    return BranchMemory(memory.context, path, mask, memory.context_mask)
