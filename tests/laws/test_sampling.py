"""Sampled text has the target's law, exactly, and the seed's text."""

import math
from itertools import product
from typing import Any

import pytest
import torch

from specblock_zoo.functional.acceptance import walk
from specblock_zoo.functional.tree import Node, flatten
from tests.support.decoding import generate, prompt_ids, random_drafter, scripted_drafter, target_of
from tests.support.sampled import log_prob_of_target, log_prob_through_the_loop

pytestmark = pytest.mark.contract

NEW = 4


@pytest.mark.parametrize(("family", "merge"), [("llama", True), ("qwen3", False)])
def test_every_text_of_a_three_token_vocabulary_has_the_targets_probability(family: str, merge: bool) -> None:
    target, ids = target_of(family, vocab_size=3, bos_token_id=0, pad_token_id=0), prompt_ids(3, vocab=3)
    tree = {"num_blocks": 2, "max_nodes": 9, "merge_duplicates": merge}
    drafters = [random_drafter(target, **tree), scripted_drafter(target, generate(target, ids, 9), **tree)]
    for drafter in drafters:
        total = 0.0
        for draws in product(range(3), repeat=NEW):
            found = log_prob_through_the_loop(target, drafter, ids, draws)
            assert found == pytest.approx(log_prob_of_target(target, ids, draws), abs=1e-4)
            total += math.exp(found)
        assert total == pytest.approx(1.0, abs=1e-4)


def test_the_walk_alone_has_the_targets_law() -> None:
    """Enumerates every outcome of the draws at a fixed tree: each committed token is a draw along its own prefix."""
    tree = flatten([Node(0, -1, 0.0, 0, 0, 0, 1), Node(1, -1, 0.0, 0, 0, 0, 1), Node(1, 0, 0.0, 0, 1, 0, 2)])
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.7, 0.2, 0.1], [0.2, 0.2, 0.6]], dtype=torch.float64)
    law: dict[tuple[int, ...], float] = {}
    for draws in product(range(3), repeat=3):
        rows: list[int] = []

        def choose(row: int, draws: tuple[int, ...] = draws, rows: list[int] = rows) -> tuple[int, bool]:
            rows.append(row)
            return draws[len(rows) - 1], False

        committed = walk(tree, choose).committed_tokens
        law[committed] = math.prod(float(probs[row, token]) for row, token in zip(rows, committed, strict=True))
    expected = {
        (2,): 0.2,
        (1, 0): 0.3 * 0.7,
        (1, 1): 0.3 * 0.2,
        (1, 2): 0.3 * 0.1,
        (0, 0): 0.5 * 0.1,
        (0, 2): 0.5 * 0.3,
    }
    expected |= {(0, 1, last): 0.5 * 0.6 * float(probs[3, last]) for last in range(3)}
    assert law == pytest.approx(expected)
    assert sum(law.values()) == pytest.approx(1.0)


SAMPLERS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0, "top_k": 0},
    {"temperature": 0.6, "top_k": 7},
    {"temperature": 1.4, "top_p": 0.8},
    {"top_k": 0, "repetition_penalty": 1.3, "min_p": 0.02},
)


@pytest.mark.parametrize("options", SAMPLERS, ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_same_seed_gives_the_same_text(family: str, options: dict[str, Any]) -> None:
    target, ids = target_of(family), prompt_ids(6)
    accepted = 0
    for seed in range(3):
        torch.manual_seed(seed)
        expected = generate(target, ids, 16, do_sample=True, **options)
        drafter = scripted_drafter(target, expected, lambda index: index % 3, num_blocks=2)
        torch.manual_seed(seed)
        assert torch.equal(generate(target, ids, 16, do_sample=True, assistant_model=drafter, **options), expected)
        accepted += sum(drafter.last_stats.accepted_per_round)
    assert accepted > 0, "a law about drafted text needs drafted text"
