"""What an answer cost: rounds, accepted tokens, drafter calls and where the time went; one form for every method."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers.generation.streamers import BaseStreamer

from specblock_zoo.bench.records import Work
from specblock_zoo.bench.timing import stopwatch
from specblock_zoo.functional.buckets import BUCKET_EDGES, rank_to_bucket
from specblock_zoo.inference.stats import DecodeStats
from specblock_zoo.models.base import Drafter
from specblock_zoo.structures import DraftBlock

MOST_BLOCKS = 512
"""Blocks kept per answer for the rank head's confusion, the last ones; their logits stay in memory until the clock has
stopped."""


@dataclass(frozen=True)
class Forward:
    """One forward of a model: tokens fed, and milliseconds with the device synchronised."""

    tokens: int
    ms: float


@contextmanager
def forwards_of(model: nn.Module | None) -> Iterator[list[Forward]]:
    """Every forward of `model` inside the body, in order; nothing for no model."""
    seen: list[Forward] = []
    if model is None:
        yield seen
        return
    started: list[float] = []

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        started.append(stopwatch())

    def after(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        seen.append(Forward(int(ids.shape[1]), 1000.0 * (stopwatch() - started.pop())))

    handles = (
        model.register_forward_pre_hook(before, with_kwargs=True),
        model.register_forward_hook(after, with_kwargs=True),
    )
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class Commits(BaseStreamer):
    """Counts what `generate` commits at a time: transformers hands each round's tokens to a streamer in one piece.

    The prompt, which comes first, is left out; so the first count is the prefill's, each later one a round's.
    """

    pieces: list[int] = field(default_factory=list)

    def put(self, value: torch.Tensor) -> None:
        self.pieces.append(value.numel())

    def end(self) -> None:
        """Nothing is held back."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Tokens committed by the prefill, then by each round."""
        return tuple(self.pieces[1:])


def work_of_forwards(commits: Commits, judged: Sequence[Forward], drafted: Sequence[Forward], seconds: float) -> Work:
    """The cost of an answer that transformers decoded, plainly or with its own speculation.

    Args:
        commits: what was committed when.
        judged: the target's forwards; the first one reads the prompt.
        drafted: an assistant's forwards, the reading of the prompt among them; none without one.
        seconds: of the whole answer.
    """
    counts = commits.counts
    # The first forward may judge candidates too, but it is the prefill.
    rounds = list(zip(counts[1:], (forward.tokens - 1 for forward in judged[1:]), strict=True))
    depths = [(min(committed, offered), committed - 1) for committed, offered in rounds]
    prefill_ms = judged[0].ms
    verify_ms, draft_ms = (sum(each.ms for each in forwards) for forwards in (judged[1:], drafted))
    return Work(
        rounds=len(rounds),
        committed=sum(counts[1:]),
        accepted=tuple(committed - 1 for committed, _ in rounds),
        offered={},
        hit={},
        depth_offered=_by_depth([offered for offered, _ in depths]),
        depth_hit=_by_depth([hit for _, hit in depths]),
        rank_confusion={},
        prefill_ms=prefill_ms,
        draft_ms=draft_ms,
        verify_ms=verify_ms,
        commit_ms=0.0,
        other_ms=max(0.0, 1000.0 * seconds - prefill_ms - verify_ms - draft_ms),
        drafter_calls=len(drafted),
        nodes=sum(offered for _, offered in rounds),
    )


def _by_depth(deepest: Sequence[int]) -> dict[str, int]:
    """How many rounds went at least that deep, per depth from 1."""
    return {str(depth): sum(each >= depth for each in deepest) for depth in range(1, max(deepest, default=0) + 1)}


def work_of_stats(stats: DecodeStats, confusion: Mapping[str, int]) -> Work:
    """The cost of a drafted answer; the drafter's refresh is part of `draft_ms`."""
    counts = stats.counts
    commit_ms = sum(each.commit_ms for each in stats.history)
    return Work(
        rounds=counts.rounds,
        committed=counts.committed,
        accepted=stats.accepted_per_round,
        offered=_by_place(counts.offered),
        hit=_by_place(counts.hit),
        depth_offered=_named(counts.depth_offered),
        depth_hit=_named(counts.depth_hit),
        rank_confusion=dict(confusion),
        prefill_ms=stats.prefill_ms,
        draft_ms=stats.draft_ms,
        verify_ms=stats.verify_ms,
        commit_ms=commit_ms,
        other_ms=max(0.0, stats.other_ms - commit_ms),
        drafter_calls=stats.drafter_calls,
        nodes=stats.nodes,
        lookup_nodes=stats.lookup_nodes,
        lookup_accepted=stats.lookup_accepted,
        undrafted_rounds=stats.undrafted_rounds,
    )


def _by_place(counts: Mapping[tuple[int, int], int]) -> dict[str, int]:
    return {f"{block}.{slot}": count for (block, slot), count in sorted(counts.items())}


def _named(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(depth): count for depth, count in sorted(counts.items())}


@contextmanager
def first_blocks(drafter: Drafter) -> Iterator[list[DraftBlock]]:
    """The first block of each round drafted inside the body, as the drafter returned it; the last `MOST_BLOCKS`.

    A call that times the pair first (`inference.costs`) leaves blocks of no round before them.
    """
    blocks: list[DraftBlock] = []
    extend: Callable[..., Any] = drafter.extend

    def recorded(*args: Any, **kwargs: Any) -> Any:
        output = extend(*args, **kwargs)
        blocks.append(output.block)
        del blocks[:-MOST_BLOCKS]
        return output

    drafter.extend = recorded  # type: ignore[method-assign]  # removed again below
    try:
        yield blocks
    finally:
        del drafter.extend


@torch.no_grad()
def rank_confusion(drafter: Drafter, stats: DecodeStats, blocks: Sequence[DraftBlock]) -> dict[str, int]:
    """Per "predicted.true" bucket, slots of first blocks that the rank head judged; empty without a rank head.

    A slot counts while the text agrees with the block's greedy tokens before it (the valid prefix): only there do slot
    and text speak of the same place. The last block is the last drafted round's (`first_blocks`).
    """
    counts: Counter[str] = Counter()
    drafted = [each for each in stats.history if each.drafter_calls]
    # From the end, where the longer of the two has what the other lacks.
    for each, block in zip(reversed(drafted), reversed(blocks), strict=False):
        if not _tells_buckets(block):
            continue
        top = block.logits[0].topk(min(BUCKET_EDGES[-1], block.logits.shape[-1])).indices
        candidates = drafter.target_tokens(top).tolist()
        predicted = block.rank_logits[0].argmax(-1).tolist()
        for token, best, bucket in zip(each.verdict.committed_tokens, candidates, predicted, strict=False):
            rank = best.index(token) + 1 if token in best else BUCKET_EDGES[-1] + 1
            counts[f"{bucket}.{int(rank_to_bucket(torch.tensor(rank)))}"] += 1
            if rank > 1:
                break
    return dict(sorted(counts.items()))


def _tells_buckets(block: DraftBlock) -> bool:
    scores = block.rank_logits
    return scores.numel() > 0 and bool((scores != scores[..., :1]).any())
