"""Timing a pair runs real forwards and leaves nothing behind."""

from collections.abc import Callable

import pytest
import torch

from specblock_zoo.inference.measure import CONTEXT, WIDEST, Workbench, chain_of, coarse_costs, round_costs
from specblock_zoo.inference.verify import Form
from tests.support.decoding import random_drafter, target_of


@torch.no_grad()
@pytest.mark.parametrize("form", [Form.ADDITIVE, Form.CAUSAL])
def test_every_forward_can_be_repeated(form: Form) -> None:
    """The same widths are run as asked for, and the caches end where they began."""
    target = target_of("llama")
    drafter = random_drafter(target, num_blocks=2)
    drafter.attach(target.get_input_embeddings().weight)
    bench, seen = Workbench(target, drafter, form, context=20), []
    target.register_forward_pre_hook(lambda _, __, inputs: seen.append(inputs["input_ids"].shape[1]), with_kwargs=True)
    for size in (1, 7, 1):
        bench.verify(size)
    assert seen == [1, 7, 1]
    assert bench.verifier.cache.get_seq_length() == 20
    for _ in range(3):
        bench.first_block()
        bench.branch(5)
    assert len(bench.drafter_cache) == 20 * drafter.config.context_slots


@torch.no_grad()
def test_the_context_leaves_room_for_the_widest_tree() -> None:
    target = target_of("llama", max_position_embeddings=CONTEXT // 2 + WIDEST)
    drafter = random_drafter(target)
    drafter.attach(target.get_input_embeddings().weight)
    assert Workbench(target, drafter, Form.ADDITIVE).context == CONTEXT // 2 - 1


def test_a_coarse_measurement_draws_no_random_number_and_is_whole(seeded: Callable[[], int]) -> None:
    target = target_of("llama")
    drafter = random_drafter(target, num_blocks=2)
    drafter.attach(target.get_input_embeddings().weight)
    before = seeded()
    costs = coarse_costs(target, drafter, Form.ADDITIVE, branches=True)
    assert seeded() == before
    assert costs.verify.sizes[:2] == (1, 4) or costs.verify.sizes == (1, 16)
    assert costs.branch.sizes[0] == 1
    assert min(*costs.verify.ms, costs.first_block, *costs.branch.ms) > 0.0


@pytest.fixture
def seeded() -> Callable[[], int]:
    torch.manual_seed(7)
    return lambda: hash(torch.get_rng_state().numpy().tobytes())


def test_chains_and_costs_by_size() -> None:
    assert chain_of(3).parents.tolist() == [-1, 0, 1]
    assert len(chain_of(0)) == 0
    costs = round_costs({1: 5.0, 8: 4.0}, 1.5, {1: 2.0})
    assert (costs.verify.ms, costs.first_block, costs.branch.at(3)) == ((4.5, 4.5), 1.5, 2.0)
