import pytest
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.data.batches import LengthGroupedBatches, length_groups
from specblock_zoo.errors import ConfigurationError

LENGTHS = [3 + (i * 37) % 61 for i in range(50)]
some_lengths = st.lists(st.integers(1, 200), min_size=1, max_size=60)


@given(some_lengths, st.integers(1, 600), st.integers(0, 3), st.booleans())
def test_an_epoch_holds_every_sequence_once_within_the_budget(lengths, budget, epoch, shuffle):
    sampler = LengthGroupedBatches(lengths, budget, shuffle=shuffle)
    batches = sampler.batches(epoch)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget


@given(some_lengths, st.integers(1, 600))
def test_every_epoch_has_as_many_batches_as_the_sampler_says(lengths, budget):
    sampler = LengthGroupedBatches(lengths, budget)
    assert {len(sampler.batches(epoch)) for epoch in range(4)} == {len(sampler)}


@given(some_lengths)
def test_lengths_inside_a_group_are_alike(lengths):
    groups = length_groups(lengths, narrowest=0.8)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        inside = [lengths[i] for i in group]
        assert min(inside) >= 0.8 * max(inside)


@given(some_lengths, st.integers(1, 600), st.integers(2, 4))
def test_processes_share_the_batches_and_take_equally_many(lengths, budget, world_size):
    whole = LengthGroupedBatches(lengths, budget)
    parts = [LengthGroupedBatches(lengths, budget, rank=r, world_size=world_size) for r in range(world_size)]
    shares = [part.batches(1) for part in parts]
    assert {len(share) for share in shares} == {len(part) for part in parts} == {-(-len(whole) // world_size)}
    together = {tuple(batch) for share in shares for batch in share}
    assert together == {tuple(batch) for batch in whole.batches(1)}


def test_epochs_and_seeds_differ_and_the_unshuffled_order_does_not():
    sampler, other = LengthGroupedBatches(LENGTHS, 200), LengthGroupedBatches(LENGTHS, 200, seed=1)
    assert sampler.batches(0) == sampler.batches(0)
    assert sampler.batches(0) != sampler.batches(1)
    assert sampler.batches(0) != other.batches(0)
    still = LengthGroupedBatches(LENGTHS, 200, shuffle=False)
    assert still.batches(0) == still.batches(1)


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_a_pass_is_taken_up_where_its_state_says(taken):
    sampler = LengthGroupedBatches(LENGTHS, 200)
    assert len(list(sampler)) > 7
    running = iter(sampler)
    for _ in range(taken):
        next(running)
    state, rest = running.state_dict(), list(running)
    fresh = LengthGroupedBatches(LENGTHS, 200)
    resumed = iter(fresh)
    resumed.load_state_dict(state)
    assert list(resumed) == rest
    assert list(fresh) == list(sampler), "the following epochs agree too"


def test_a_pass_that_gave_out_everything_is_taken_up_at_the_next_epoch():
    sampler = LengthGroupedBatches(LENGTHS, 200)
    running = iter(sampler)
    list(running)
    fresh = LengthGroupedBatches(LENGTHS, 200)
    resumed = iter(fresh)
    resumed.load_state_dict(running.state_dict())
    assert list(resumed) == sampler.batches(1)
    assert list(fresh) == sampler.batches(2)


def test_a_pass_that_is_never_used_uses_no_epoch_up():
    sampler = LengthGroupedBatches(LENGTHS, 200)
    iter(sampler)
    assert list(sampler) == sampler.batches(0)
    assert list(sampler) == sampler.batches(1)


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="batch_tokens is 0"):
        LengthGroupedBatches(LENGTHS, 0)
