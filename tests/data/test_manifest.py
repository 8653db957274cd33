import json
from dataclasses import replace

import pytest

from specblock_zoo.data.manifest import Manifest, Shard, read_manifest, write_json, write_manifest
from specblock_zoo.errors import CacheMismatchError, CorruptCacheError
from tests.support.cached import FINGERPRINT

MANIFEST = Manifest(FINGERPRINT, {"records": 7}, 0.5, 7, "0.1.0", (Shard("shard-00000.arrow", 5, 50, 40, 1000),))


def test_a_manifest_reads_back_as_it_was_written(tmp_path):
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST


def test_a_manifest_is_complete_with_its_last_shard():
    assert not MANIFEST.complete
    assert MANIFEST.with_shard(Shard("shard-00001.arrow", 2, 20, 16, 400)).complete


def test_shards_stand_in_the_order_of_their_names_and_the_next_fills_the_first_gap():
    first, second, third = (Shard(f"shard-{i:05d}.arrow", 1, 10 * i, 1, 1, i / 10) for i in range(3))
    manifest = replace(MANIFEST, shards=()).with_shard(third).with_shard(first)
    assert manifest.shards == (first, third)
    assert manifest.free_name() == second.file
    assert manifest.with_shard(second).free_name() == "shard-00003.arrow"
    assert manifest.committed("tokens") == 20
    assert manifest.state_error == pytest.approx(0.2)


def test_what_fits_is_accepted():
    MANIFEST.require("cache", tap_layers=[1, 2, 3], hidden_size=32)


def test_every_misfit_is_named_with_both_values():
    with pytest.raises(CacheMismatchError) as caught:
        MANIFEST.require("cache", tap_layers=(1, 2, 4), hidden_size=64, vocab_size=96)
    assert "tap_layers is (1, 2, 3), not (1, 2, 4)" in str(caught.value)
    assert "hidden_size is 32, not 64" in str(caught.value)
    assert "vocab_size" not in str(caught.value)


def test_a_moved_target_is_the_same_target_only_when_hashes_speak_for_it():
    moved = replace(FINGERPRINT, target="elsewhere")
    assert FINGERPRINT.differences(moved.what_decides()) == ""
    unhashed = replace(FINGERPRINT, weights_sha256=None)
    assert "elsewhere" in unhashed.differences(replace(moved, weights_sha256=None).what_decides())


def test_a_folder_without_a_manifest_is_no_cache(tmp_path):
    with pytest.raises(CorruptCacheError, match=str(tmp_path)):
        read_manifest(tmp_path)


@pytest.mark.parametrize("spoil", [lambda text: text[: len(text) // 2], lambda text: "[]", lambda text: "{}"])
def test_an_unreadable_manifest_is_refused_with_its_path(tmp_path, spoil):
    write_manifest(tmp_path, MANIFEST)
    file = tmp_path / "manifest.json"
    file.write_text(spoil(file.read_text()))
    with pytest.raises(CorruptCacheError, match=str(file)):
        read_manifest(tmp_path)


@pytest.mark.parametrize("change", [{"colour": "red"}, {"seed": None}])
def test_unknown_and_missing_fields_are_refused(tmp_path, change):
    write_manifest(tmp_path, MANIFEST)
    file = tmp_path / "manifest.json"
    values = json.loads(file.read_text())
    for name, value in change.items():
        if value is None:
            del values["fingerprint"][name]
        else:
            values["fingerprint"][name] = value
    file.write_text(json.dumps(values))
    with pytest.raises(CorruptCacheError, match=next(iter(change))):
        read_manifest(tmp_path)


def test_a_cache_of_the_first_format_is_refused_with_what_to_do(tmp_path):
    write_manifest(tmp_path, MANIFEST)
    file = tmp_path / "manifest.json"
    values = json.loads(file.read_text())
    values["fingerprint"] = {k: v for k, v in values["fingerprint"].items() if k not in ("teacher", "state_dtype")}
    values["fingerprint"]["format"] = 1
    values["num_shards"] = values.pop("records")
    file.write_text(json.dumps(values))
    with pytest.raises(CacheMismatchError, match=r"format 1; this version reads format 2.*Build another"):
        read_manifest(tmp_path)


def test_another_format_is_refused_with_both_numbers(tmp_path):
    write_manifest(tmp_path, replace(MANIFEST, fingerprint=replace(FINGERPRINT, format=7)))
    with pytest.raises(CacheMismatchError, match=r"format 7.*format 2"):
        read_manifest(tmp_path)


def test_a_failed_write_keeps_the_old_file(tmp_path):
    file = tmp_path / "value.json"
    write_json(file, {"a": 1})
    with pytest.raises(TypeError):
        write_json(file, {"a": 2, "b": object()})
    assert json.loads(file.read_text()) == {"a": 1}
