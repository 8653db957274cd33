from dataclasses import replace

import numpy as np
import pytest

from specblock_zoo.data.feature_cache import FeatureCache, write_shard
from specblock_zoo.data.layout import layout_of, tap_column
from specblock_zoo.data.manifest import write_manifest
from specblock_zoo.data.verify_cache import verify_cache
from specblock_zoo.errors import CacheMismatchError, ConfigurationError, CorruptCacheError
from tests.support.tiny import build_tiny_cache, save_tiny_target


@pytest.mark.parametrize("state_dtype", ["bfloat16", "float8"])
def test_a_sound_cache_differs_by_what_was_measured_when_it_was_written(tiny_run, tmp_path, state_dtype):
    folder = build_tiny_cache(tmp_path / "cache", tiny_run.target, tiny_run.records, state_dtype=state_dtype)
    found = verify_cache(str(folder), samples=5)
    assert (found.samples, sorted(found.errors)) == (5, [1, 2, 3])
    assert np.mean(list(found.errors.values())) == pytest.approx(found.stored_error, rel=0.2)


def tampered(folder, change):
    """Writes the first shard again with other columns, checksum and all."""
    cache = FeatureCache(folder)
    fingerprint = cache.manifest.fingerprint
    examples = [cache[i] for i in range(cache.manifest.shards[0].records)]
    columns = []
    for example in examples:
        taps = {tap_column(i): np.array(bits) for i, bits in zip(fingerprint.tap_layers, example.taps, strict=True)}
        columns.append(change({**taps, **example.teacher}))
    rows = [replace(e) for e in examples]
    for row in rows:
        object.__setattr__(row, "supervised_tokens", int(row.loss_mask.sum()))
    shard = write_shard(folder / "shard-00000.arrow", layout_of(fingerprint), rows, columns)
    write_manifest(folder, replace(cache.manifest, shards=(shard, *cache.manifest.shards[1:])))


@pytest.mark.parametrize("layer", [1, 3])
def test_states_of_another_layer_are_found_and_the_layer_is_named(tiny_run, tmp_path, layer):
    folder = build_tiny_cache(tmp_path / "cache", tiny_run.target, tiny_run.records)
    tampered(folder, lambda columns: {**columns, tap_column(layer): columns[tap_column(2)]})
    with pytest.raises(CorruptCacheError, match=rf"layer {layer} by \d+"):
        verify_cache(str(folder))


def test_states_moved_by_one_position_are_found(tiny_run, tmp_path):
    folder = build_tiny_cache(tmp_path / "cache", tiny_run.target, tiny_run.records)
    tampered(folder, lambda c: {**c, **{tap_column(i): np.roll(c[tap_column(i)], 1, axis=0) for i in (1, 2, 3)}})
    with pytest.raises(CorruptCacheError, match=r"layer 1 by .*layer 3 by"):
        verify_cache(str(folder))


def test_a_flipped_bit_is_found_whatever_is_sampled(tiny_run, tmp_path):
    folder = build_tiny_cache(tmp_path / "cache", tiny_run.target, tiny_run.records)
    file = folder / "shard-00002.arrow"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptCacheError, match=r"shard-00002\.arrow has the checksum"):
        verify_cache(str(folder), samples=1)


def test_a_target_upgraded_since_is_refused_by_its_weights(tiny_run, tmp_path):
    save_tiny_target(tmp_path / "upgraded", seed=3)
    with pytest.raises(CacheMismatchError, match="weights_sha256"):
        verify_cache(str(tiny_run.cache), str(tmp_path / "upgraded"))


def test_no_sample_is_no_verification(tiny_run):
    with pytest.raises(ConfigurationError, match="samples is 0"):
        verify_cache(str(tiny_run.cache), samples=0)
