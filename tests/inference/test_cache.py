"""The drafter's cache is a list of rows: append, view, crop; against the slow twin that concatenates."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.inference import cache as cache_module
from specblock_zoo.inference.cache import DrafterCache
from specblock_zoo.structures import KeyValues

LAYERS, HEADS, SIZE = 2, 2, 3
steps = st.lists(st.tuples(st.sampled_from(["append", "crop"]), st.integers(1, 200)), max_size=8)


def random_rows(count: int, seed: int) -> tuple[KeyValues, ...]:
    generator = torch.Generator().manual_seed(seed)
    keys_values = [torch.randn(1, HEADS, count, SIZE, generator=generator) for _ in range(2 * LAYERS)]
    return tuple(KeyValues(*keys_values[2 * layer : 2 * layer + 2]) for layer in range(LAYERS))


@given(steps, st.integers(0, 5))
def test_equals_concatenation(operations: list[tuple[str, int]], without_last: int) -> None:
    cache = DrafterCache()
    slow = random_rows(0, 0)
    for seed, (name, count) in enumerate(operations):
        if name == "append":
            rows = random_rows(count, seed)
            cache.append(rows)
            slow = tuple(
                KeyValues(*(torch.cat(pair, 2) for pair in zip(old, new, strict=True)))
                for old, new in zip(slow, rows, strict=True)
            )
        else:
            cache.crop(count)
            left = max(0, slow[0].keys.shape[2] - count)
            slow = tuple(KeyValues(layer.keys[:, :, :left], layer.values[:, :, :left]) for layer in slow)
        assert len(cache) == slow[0].keys.shape[2]
        end = max(0, len(cache) - without_last)
        for layer, expected in zip(cache.view(without_last), slow, strict=False):
            assert torch.equal(layer.keys, expected.keys[:, :, :end])
            assert torch.equal(layer.values, expected.values[:, :, :end])


def test_views_are_not_copies_and_buffers_are_kept_until_full() -> None:
    cache = DrafterCache()
    cache.append(random_rows(1, 0))
    address = cache.view()[0].keys.data_ptr()
    cache.append(random_rows(cache_module.FIRST_CAPACITY - 1, 1))
    assert cache.view()[0].keys.data_ptr() == address
    cache.append(random_rows(1, 2))
    assert cache.view()[0].keys.data_ptr() != address


def test_an_empty_cache_has_no_layers() -> None:
    assert DrafterCache().view() == ()
    assert len(DrafterCache()) == 0


def test_a_drafter_without_layers_leaves_nothing() -> None:
    cache = DrafterCache()
    for _ in range(3):
        cache.append(())
    assert (len(cache), cache.view(), cache.view(1)) == (0, (), ())
