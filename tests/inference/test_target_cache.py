"""Whatever layers a cache has, it ends up as if only the accepted tokens had been read."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Cache, DynamicCache, MistralConfig, StaticCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from specblock_zoo.inference.target_cache import (
    UNBOUNDED,
    capacity,
    compact,
    holds_trees,
    rearrange,
    start_recording,
    started,
)
from tests.support.decoding import RECORDS_WINDOWS, STATIC_TAKES_BACK

pytestmark = pytest.mark.contract

HEADS, SIZE, WINDOW, HELD = 2, 3, 5, 7
WINDOWED = MistralConfig(num_hidden_layers=1, sliding_window=WINDOW)
WHOLE = MistralConfig(
    num_hidden_layers=1, sliding_window=None, num_key_value_heads=HEADS, num_attention_heads=HEADS, head_dim=SIZE
)


def states(count: int, rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, HEADS, count, SIZE, generator=torch.Generator().manual_seed(seed))


def add(cache: Cache, new: torch.Tensor) -> None:
    cache.update(new, -new, 0)


static = partial(StaticCache, config=WHOLE, max_cache_len=HELD + 12)
# Those that this transformers can take tokens back from.
MAKERS: dict[str, Callable[[], Cache]] = {
    "dynamic": DynamicCache,
    **({"sliding": partial(DynamicCache, config=WINDOWED)} if RECORDS_WINDOWS else {}),
    **({"static": static} if STATIC_TAKES_BACK else {}),
}


@pytest.mark.parametrize("kind", MAKERS)
@given(case=st.integers(1, 9).flatmap(lambda rows: st.tuples(st.just(rows), st.sets(st.integers(1, rows)))))
def test_compaction_equals_having_read_the_accepted_tokens(kind: str, case: tuple[int, set[int]]) -> None:
    rows, keep = case[0] + 1, [0, *sorted(case[1])]
    kept, fresh = MAKERS[kind](), MAKERS[kind]()
    for cache in (kept, fresh):
        add(cache, states(HELD))
        start_recording(cache)
    new = states(rows, seed=1)
    add(kept, new)
    compact(kept, HELD, rows, [keep])
    add(fresh, new[:, :, keep])
    compact(fresh, HELD, len(keep), [range(len(keep))])
    assert int(kept.get_seq_length()) == int(fresh.get_seq_length()) == HELD + len(keep)
    length = min(kept.layers[0].keys.shape[-2], HELD + len(keep))
    assert torch.equal(kept.layers[0].keys[:, :, :length], fresh.layers[0].keys[:, :, :length])
    assert torch.equal(kept.layers[0].values[:, :, :length], fresh.layers[0].values[:, :, :length])


def test_rows_may_keep_different_counts() -> None:
    cache, new = DynamicCache(), states(4, rows=2, seed=1)
    add(cache, states(HELD, rows=2))
    add(cache, new)
    compact(cache, HELD, 4, [[0, 3], [0]])
    found = cache.layers[0].keys[:, :, HELD:]
    assert found.shape[-2] == 2
    assert torch.equal(found[0], new[0][:, [0, 3]])
    assert torch.equal(found[1, :, :1], new[1][:, :1])


def test_rearranging_takes_each_row_its_own_columns() -> None:
    cache, held = DynamicCache(), states(4, rows=2)
    add(cache, held)
    rearrange(cache, torch.tensor([[0, 2], [1, 3]]))
    assert torch.equal(cache.layers[0].keys[1], held[1][:, [1, 3]])
    assert torch.equal(cache.layers[0].values[0], -held[0][:, [0, 2]])


@pytest.mark.skipif(not RECORDS_WINDOWS, reason="this transformers cannot crop layers with a window")
def test_recording_is_started_once_and_can_be_given_back() -> None:
    cache = DynamicCache(config=WINDOWED)
    layers = start_recording(cache)
    assert [layer.record_past for layer in layers] == [True]
    assert start_recording(cache) == []
    assert start_recording(DynamicCache()) == []


def test_what_cannot_be_taken_back_is_not_taken() -> None:
    class Quantised(DynamicLayer):
        """Any layer we do not know."""

    other = DynamicCache()
    other.layers.append(Quantised())
    assert not holds_trees(None)
    assert not holds_trees(other)
    assert not holds_trees(DynamicCache(offloading=True))
    assert not holds_trees(StaticCache(config=WINDOWED, max_cache_len=WINDOW + 1)), "its window forgets for good"
    for make in MAKERS.values():
        assert holds_trees(make())


def test_windows_that_cannot_take_back_are_replaced_while_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before transformers 5.14."""
    monkeypatch.delattr(DynamicSlidingWindowLayer, "activate_past_recording", raising=False)
    empty, filled, whole = DynamicCache(config=WINDOWED), DynamicCache(config=WINDOWED), DynamicCache()
    assert started(empty) is not empty
    assert holds_trees(started(empty))
    add(filled, states(2))
    assert started(filled) is filled
    assert not holds_trees(filled)
    assert started(whole) is whole
    assert started(None) is None


def test_capacity_is_that_of_the_smallest_layer() -> None:
    assert capacity(DynamicCache()) == UNBOUNDED
    assert capacity(static()) == HELD + 12
