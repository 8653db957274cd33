"""Growing reads few candidates, gives starts the right memory, and survives broken logits."""

from dataclasses import replace

import pytest
import torch

from specblock_zoo.functional import tree as trees
from specblock_zoo.inference.cache import DrafterCache
from specblock_zoo.inference.grow import LOG_PROB_FLOOR, Limits, Pairs, grow_tree, read_proposals, refresh
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.structures import BranchOutput, DraftBlock, DraftTree, TreeSettings
from tests.support.drafters import tiny_drafter

SETTINGS = TreeSettings(num_blocks=3, max_nodes=30, beam_width=3, branching=(2, 3, 4, 2))
LENGTH = 6


def pairs_of(drafter: SpecBlockDrafter, length: int = LENGTH) -> Pairs:
    generator = torch.Generator().manual_seed(1)
    width = len(drafter.config.tap_layers) * drafter.config.target_hidden_size
    tokens = torch.randint(0, drafter.config.vocab_size, (1, length), generator=generator)
    return Pairs(torch.randn(1, length, width, generator=generator), tokens, 0)


@torch.inference_mode()
def test_a_block_from_a_start_equals_a_fresh_look_at_its_path() -> None:
    """Every branch call gets the context before the drafting position and exactly the slots on each start's path."""
    drafter, calls = tiny_drafter(context_slots=2), []
    branch = drafter.branch

    def recorded(*args: object) -> BranchOutput:
        output = branch(*args)
        calls.append((*args, output))
        return output

    drafter.branch = recorded
    cache, pairs = DrafterCache(), pairs_of(drafter)
    first = refresh(drafter, cache, pairs)
    _, spent = grow_tree(drafter, cache, first, LENGTH - 1, Limits(SETTINGS, 100))
    assert spent == 3
    latest = first.path
    width = drafter.config.block_width
    for block, (_, _, depths, position, memory, output) in enumerate(calls, start=1):
        assert int(position) == LENGTH - 1
        assert memory.context[0].keys.shape[2] == 2 * (LENGTH - 1)
        assert memory.path_mask.shape == (len(depths), width * block)
        seen = memory.path_mask.sum(1)
        assert torch.equal(seen, depths), "a start at depth d sees the d slots above and at it"
        newest = memory.path[0].keys[:, :, -width:]
        assert all(any(torch.equal(row, other) for other in latest[0].keys) for row in newest)
        latest = output.path


@torch.inference_mode()
@pytest.mark.parametrize("max_depth", [1, 2, 4])
def test_no_node_is_deeper_than_can_be_committed(max_depth: int) -> None:
    drafter, cache = tiny_drafter(), DrafterCache()
    first = refresh(drafter, cache, pairs_of(drafter))
    chain = replace(SETTINGS, chain=True)
    tree, spent = grow_tree(drafter, cache, first, LENGTH - 1, Limits(chain, max_depth))
    assert tree.depths.tolist() == list(range(1, max_depth + 1))
    assert spent == 1 + max_depth // (drafter.config.block_width + 1)


@torch.inference_mode()
@pytest.mark.parametrize("max_slots", [1, 2, 9])
def test_a_narrowed_block_is_the_first_slots_of_the_whole_one(max_slots: int) -> None:
    drafter = tiny_drafter()

    def grown(**changes: object) -> DraftTree:
        cache = DrafterCache()
        first, settings = refresh(drafter, cache, pairs_of(drafter)), replace(SETTINGS, max_nodes=500, **changes)
        return grow_tree(drafter, cache, first, LENGTH - 1, Limits(settings, 100))[0]

    whole, narrow = grown(num_blocks=1), grown(num_blocks=1, max_slots=max_slots)
    kept = whole.slots < max_slots
    assert narrow.tokens.tolist() == whole.tokens[kept].tolist()
    assert narrow.log_probs.tolist() == whole.log_probs[kept].tolist()
    deeper = grown(max_slots=max_slots)
    assert int(deeper.slots.max()) == min(max_slots, drafter.config.block_width) - 1
    assert int(deeper.blocks.max()) == SETTINGS.num_blocks - 1, "later blocks grow from narrowed ones"


@torch.inference_mode()
def test_a_hopeless_second_block_is_not_run() -> None:
    drafter, cache = tiny_drafter(), DrafterCache()
    first = refresh(drafter, cache, pairs_of(drafter))
    picky = replace(SETTINGS, min_path_prob=0.999)
    tree, spent = grow_tree(drafter, cache, first, LENGTH - 1, Limits(picky, 100))
    assert (len(tree), spent) == (0, 1)


@torch.inference_mode()
def test_one_pair_is_context_enough() -> None:
    drafter, cache = tiny_drafter(), DrafterCache()
    first = refresh(drafter, cache, pairs_of(drafter, 1))
    assert len(grow_tree(drafter, cache, first, 0, Limits(SETTINGS, 100))[0]) > 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_broken_logits_become_finite_proposals(value: float) -> None:
    drafter = tiny_drafter()
    logits = torch.full((1, 3, drafter.config.draft_vocab_size), value)
    block = DraftBlock(torch.zeros(1, 3, 16), logits, torch.full((1, 3, 4), value))
    proposals = read_proposals(drafter, block, SETTINGS)
    flat = [score for slot in proposals.log_probs[0] for score in slot]
    assert all(LOG_PROB_FLOOR <= score <= 0.0 for score in flat)
    nodes = trees.grow_block(trees.Growth(), proposals, SETTINGS, block=0).nodes
    assert all(0 <= node.token < drafter.config.vocab_size for node in nodes)


def test_ids_the_target_does_not_have_are_marked() -> None:
    drafter = tiny_drafter()
    drafter.d2t[5], drafter.d2t[6] = 1000, -1000
    logits = torch.zeros(1, 1, drafter.config.draft_vocab_size)
    logits[..., 5], logits[..., 6], logits[..., 7] = 9.0, 8.0, 7.0
    block = DraftBlock(torch.zeros(1, 1, 16), logits, torch.zeros(1, 1, 4))
    tokens = read_proposals(drafter, block, SETTINGS).tokens[0][0]
    assert tokens[:3] == [trees.NO_TOKEN, trees.NO_TOKEN, 7 + int(drafter.d2t[7])]


@torch.inference_mode()
def test_refresh_positions_are_consecutive() -> None:
    drafter, cache = tiny_drafter(), DrafterCache()
    pairs, whole = pairs_of(drafter), DrafterCache()
    refresh(drafter, whole, pairs)
    for start, end in ((0, 3), (3, 4), (4, LENGTH)):
        refresh(drafter, cache, Pairs(pairs.features[:, start:end], pairs.tokens[:, start:end], start))
    for split, once in zip(cache.view(), whole.view(), strict=True):
        torch.testing.assert_close(split.keys, once.keys)
        torch.testing.assert_close(split.values, once.values)


@torch.inference_mode()
@pytest.mark.parametrize(("branching", "ranked"), [((2, 3, 4, 2), True), ((3, 3, 3, 3), False)])
def test_a_rank_head_that_decides_nothing_is_not_run(branching: tuple[int, ...], ranked: bool) -> None:
    drafter, cache, calls = tiny_drafter(), DrafterCache(), []
    drafter.rank_head.register_forward_hook(lambda *_: calls.append(1))
    first = refresh(drafter, cache, pairs_of(drafter))
    settings = replace(SETTINGS, branching=branching)
    _, spent = grow_tree(drafter, cache, first, LENGTH - 1, Limits(settings, 100))
    assert spent == SETTINGS.num_blocks
    assert len(calls) == (spent if ranked else 0)
