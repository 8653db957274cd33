"""What an answer cost is counted from the same events for every method."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from specblock_zoo.bench.work import (
    MOST_BLOCKS,
    Commits,
    Forward,
    first_blocks,
    forwards_of,
    rank_confusion,
    work_of_forwards,
)
from specblock_zoo.functional.tree import flatten
from specblock_zoo.inference.stats import DecodeStats
from specblock_zoo.structures import DraftBlock, Round, Verdict


def test_rounds_are_what_comes_after_the_prefill() -> None:
    commits = Commits()
    for piece in ([1, 2, 3], [4], [5, 6, 7], [8]):
        commits.put(torch.tensor(piece))
    judged = [Forward(3, 9.0), Forward(5, 4.0), Forward(3, 2.0)]
    work = work_of_forwards(commits, judged, [Forward(3, 1.0)], seconds=0.02)
    assert (work.rounds, work.committed, work.accepted, work.nodes) == (2, 4, (2, 0), 6)
    assert (work.prefill_ms, work.verify_ms, work.draft_ms) == (9.0, 6.0, 1.0)
    assert work.other_ms == pytest.approx(4.0)
    # Of four drafted tokens two were kept and the third judged wrong; of two, the first was wrong.
    assert work.depth_offered == {"1": 2, "2": 1, "3": 1}
    assert work.depth_hit == {"1": 1, "2": 1}


def test_forwards_are_seen_while_asked_for() -> None:
    class Model(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return input_ids

    model = Model()
    with forwards_of(model) as seen:
        model(input_ids=torch.zeros(1, 4))
        model(torch.zeros(1, 2))
    model(torch.zeros(1, 9))
    assert [forward.tokens for forward in seen] == [4, 2]
    assert all(forward.ms >= 0 for forward in seen)
    with forwards_of(None) as nothing:
        assert nothing == []


@dataclass
class Vocabulary:
    """A drafter as the confusion needs it: draft ids are target ids plus 100."""

    def target_tokens(self, draft_ids: torch.Tensor) -> torch.Tensor:
        return draft_ids + 100


def block(best: list[list[int]], predicted: list[int]) -> DraftBlock:
    """Slots whose best tokens are given in order, and whose rank head says `predicted`."""
    logits = torch.zeros(1, len(best), 40)
    for slot, tokens in enumerate(best):
        for place, token in enumerate(tokens):
            logits[0, slot, token - 100] = 50.0 - place
    rank_logits = torch.nn.functional.one_hot(torch.tensor([predicted]), 4).float()
    return DraftBlock(torch.zeros(1, len(best), 2), logits, rank_logits)


def rounds(*committed: tuple[int, ...]) -> DecodeStats:
    tree = flatten(())
    return DecodeStats(tuple(Round(tree, Verdict((), each, False), 1.0, 1.0, 1.0, 1) for each in committed), 1.0)


def confusion(stats: DecodeStats, *blocks: DraftBlock) -> dict[str, int]:
    drafter: Any = Vocabulary()
    return rank_confusion(drafter, stats, blocks)


def test_the_rank_head_is_judged_on_the_valid_prefix_only() -> None:
    drafted = block([[101, 102], [103, 104, 105], [106]], predicted=[0, 0, 3])
    # Right, then third best: the third slot speaks of another text.
    assert confusion(rounds((101, 105, 106)), drafted) == {"0.0": 1, "0.1": 1}
    # A token that is not among the ten best is in the last bucket, whether the drafter knows it or not.
    assert confusion(rounds((999,)), drafted) == {"0.3": 1}


def test_rounds_without_a_draft_have_no_block() -> None:
    stats = rounds((101,), (107,))
    skipped = replace(stats.history[0], drafter_calls=0)
    drafted = block([[107]], predicted=[2])
    assert confusion(DecodeStats((skipped, stats.history[1]), 1.0), drafted) == {"2.0": 1}


def test_blocks_of_no_round_come_first_and_do_not_shift_the_others() -> None:
    timed, first, second = (block([[101 + number]], predicted=[number]) for number in range(3))
    stats = rounds((102,), (103,))
    assert confusion(stats, timed, timed, first, second) == {"1.0": 1, "2.0": 1}
    assert confusion(stats, second) == {"2.0": 1}, "of a long answer the last blocks are kept"


def test_a_drafter_without_a_rank_head_has_no_confusion() -> None:
    silent = replace(block([[101]], predicted=[0]), rank_logits=torch.zeros(1, 1, 4))
    assert confusion(rounds((101,)), silent) == {}


def test_first_blocks_are_recorded_and_the_drafter_is_left_as_it_was() -> None:
    class Drafter(torch.nn.Module):
        def extend(self, number: int) -> Any:
            return type("Output", (), {"block": number})

    drafter: Any = Drafter()
    with first_blocks(drafter) as blocks:
        drafter.extend(7)
    drafter.extend(8)
    assert blocks == [7]
    assert "extend" not in vars(drafter)
    with first_blocks(drafter) as blocks:
        for number in range(MOST_BLOCKS + 3):
            drafter.extend(number)
    assert blocks == list(range(3, MOST_BLOCKS + 3))
