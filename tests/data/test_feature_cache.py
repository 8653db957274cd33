from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specblock_zoo.data import files
from specblock_zoo.data.feature_cache import FeatureCache, check_shard, open_shard, write_shard
from specblock_zoo.data.layout import LAST_HIDDEN, tap_column
from specblock_zoo.data.manifest import write_manifest
from specblock_zoo.data.vocab import VOCAB_FILE
from specblock_zoo.errors import ConfigurationError, CorruptCacheError
from tests.support.cached import LAYOUT, TAPS, make_cache, make_examples


@settings(max_examples=10)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=7), size=st.integers(1, 4), seed=st.integers(0, 99))
def test_whatever_is_written_is_read_back_bit_for_bit(tmp_path_factory, lengths, size, seed):
    folder = tmp_path_factory.mktemp("cache")
    examples, states = make_cache(folder, lengths, size, seed)
    cache = FeatureCache(folder)
    assert len(cache) == len(lengths)
    assert list(cache.lengths_and_ids()) == [(len(example), example.id) for example in examples]
    for i, (example, columns) in enumerate(zip(examples, states, strict=True)):
        read = cache[i]
        assert (read.id, len(read)) == (example.id, len(example))
        np.testing.assert_array_equal(read.input_ids, example.input_ids)
        np.testing.assert_array_equal(read.loss_mask, example.loss_mask)
        np.testing.assert_array_equal(read.teacher[LAST_HIDDEN], columns[LAST_HIDDEN])
        for tap, bits in zip(TAPS, read.taps, strict=True):
            np.testing.assert_array_equal(bits, columns[tap_column(tap)])


def test_reading_copies_nothing(tmp_path):
    make_cache(tmp_path)
    read = FeatureCache(tmp_path)[2]
    for view in (read.input_ids, read.loss_mask, read.teacher[LAST_HIDDEN], *read.taps):
        assert not view.flags.owndata
        assert not view.flags.writeable


def test_bytes_per_token_is_what_a_shard_takes(tmp_path):
    examples, states = make_examples([400, 300])
    shard = write_shard(tmp_path / "s.arrow", LAYOUT, examples, states)
    assert shard.bytes == pytest.approx(700 * LAYOUT.bytes_per_token, rel=0.05)
    assert (shard.records, shard.tokens) == (2, 700)
    assert shard.supervised_tokens == sum(example.supervised_tokens for example in examples)


def test_indices_outside_are_refused(tmp_path):
    make_cache(tmp_path)
    cache = FeatureCache(tmp_path)
    for index in (-1, 5):
        with pytest.raises(IndexError):
            cache[index]


def test_a_truncated_shard_is_refused_with_its_name_and_both_sizes(tmp_path):
    make_cache(tmp_path)
    file = tmp_path / "shard-00001.arrow"
    whole = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CorruptCacheError, match=rf"{file} has {whole - 100} bytes; the manifest says {whole}"):
        FeatureCache(tmp_path)


def test_a_missing_shard_is_refused_with_its_name(tmp_path):
    make_cache(tmp_path)
    (tmp_path / "shard-00002.arrow").unlink()
    with pytest.raises(CorruptCacheError, match=r"shard-00002.arrow is missing"):
        FeatureCache(tmp_path)


def test_a_shard_of_the_right_size_that_is_no_arrow_file_is_refused_with_its_name(tmp_path):
    make_cache(tmp_path)
    file = tmp_path / "shard-00000.arrow"
    file.write_bytes(b"\0" * file.stat().st_size)
    with pytest.raises(CorruptCacheError, match=str(file)):
        FeatureCache(tmp_path)


def test_a_shard_with_other_rows_than_promised_is_refused(tmp_path):
    examples, states = make_examples([3, 4])
    shard = write_shard(tmp_path / "s.arrow", LAYOUT, examples, states)
    with pytest.raises(CorruptCacheError, match="has 2 rows; the manifest says 3"):
        open_shard(tmp_path, replace(shard, records=3))


def test_an_unfinished_cache_is_refused_with_what_is_there(tmp_path):
    make_cache(tmp_path)
    manifest = FeatureCache(tmp_path).manifest
    write_manifest(tmp_path, replace(manifest, shards=manifest.shards[:2]))
    with pytest.raises(CorruptCacheError, match="4 of 5 records"):
        FeatureCache(tmp_path)


@pytest.mark.parametrize("spoil", [lambda f: f.unlink(), lambda f: f.write_bytes(f.read_bytes()[:40])])
def test_a_broken_vocabulary_file_is_refused_with_its_name(tmp_path, spoil):
    make_cache(tmp_path)
    cache = FeatureCache(tmp_path)
    assert (tmp_path / VOCAB_FILE).stat().st_mode & 0o777 == 0o644
    assert int(cache.vocab_map().t2d.sum()) == 48
    spoil(tmp_path / VOCAB_FILE)
    with pytest.raises(CorruptCacheError, match=VOCAB_FILE):
        cache.vocab_map()


def test_a_failed_write_leaves_no_shard(tmp_path):
    examples, states = make_examples([3, 4])
    with pytest.raises(ValueError, match="shorter"):
        write_shard(tmp_path / "s.arrow", LAYOUT, examples, states[:1])
    assert not (tmp_path / "s.arrow").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_disk_that_fills_up_in_mid_shard_is_told_and_leaves_nothing_behind(tmp_path, monkeypatch):
    examples, states = make_examples([400, 300])
    (tmp_path / "scratch").symlink_to("/dev/full")
    monkeypatch.setattr(files, "scratch_of", lambda path: path.with_name("scratch"))
    with pytest.raises(ConfigurationError, match=r"disk is full: .*s.arrow"):
        write_shard(tmp_path / "s.arrow", LAYOUT, examples, states)
    assert list(tmp_path.iterdir()) == []


def test_one_changed_byte_is_found_by_the_checksum_alone(tmp_path):
    make_cache(tmp_path)
    cache = FeatureCache(tmp_path)
    shard = cache.manifest.shards[1]
    content = bytearray((tmp_path / shard.file).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / shard.file).write_bytes(content)
    check_shard(tmp_path, shard)
    with pytest.raises(CorruptCacheError, match=rf"{shard.file} has the checksum"):
        check_shard(tmp_path, shard, checksum=True)
    check_shard(tmp_path, cache.manifest.shards[0], checksum=True)
