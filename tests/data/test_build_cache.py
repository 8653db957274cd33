import json
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from specblock_zoo.data import build_cache as module
from specblock_zoo.data.build_cache import build_cache
from specblock_zoo.data.extract import Extractor
from specblock_zoo.data.feature_cache import FeatureCache
from specblock_zoo.data.layout import LAST_HIDDEN, to_bits
from specblock_zoo.data.locks import using_folder
from specblock_zoo.data.manifest import read_manifest
from specblock_zoo.data.settings import CacheSettings
from specblock_zoo.errors import (
    BadRecordError,
    CacheMismatchError,
    ConfigurationError,
    EmptyDataError,
    NoSupervisedTokensError,
    TargetMismatchError,
)
from specblock_zoo.targets.capture import capture
from tests.support.tiny import save_tiny_target, write_records

FILES = ("manifest.json", "vocab.safetensors", "shard-00000.arrow", "shard-00001.arrow", "shard-00002.arrow")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    return folder, save_tiny_target(folder)


@pytest.fixture
def settings(target, tmp_path):
    records = write_records(tmp_path / "records.jsonl", count=12)
    return CacheSettings(
        records=[str(records)],
        target=str(target[0]),
        out=str(tmp_path / "cache"),
        max_length=64,
        draft_vocab_size=48,
        shard_size=5,
        batch_tokens=70,
        dtype="float32",
    )


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_cache_holds_what_the_target_says_about_each_record(settings, target, tmp_path):
    manifest = build_cache(settings)
    cache = FeatureCache(settings.out)
    records = {r["id"]: r for r in map(json.loads, (tmp_path / "records.jsonl").read_text().splitlines())}
    assert sorted(records) == sorted(record_id for _, record_id in cache.lengths_and_ids())
    for i in range(len(cache)):
        read = cache[i]
        record = records[read.id]
        ids = [*record["prompt_ids"], *record["answer_ids"]]
        assert read.input_ids.tolist() == ids
        assert read.loss_mask.tolist() == [False] * len(record["prompt_ids"]) + [True] * len(record["answer_ids"])
        alone = capture(target[1], (1, 2, 3), torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool))
        expected = [*alone.features[0].chunk(3, dim=-1), alone.last_hidden[0]]
        for bits, states in zip((*read.taps, read.teacher[LAST_HIDDEN]), expected, strict=True):
            # Another batch shape may round the last bit of bfloat16 the other way.
            steps = np.abs(bits.astype(np.int32) - to_bits(states).astype(np.int32))
            assert steps.max() <= 1
            assert (steps == 0).mean() > 0.99
    assert manifest == read_manifest(cache.folder) == cache.manifest
    assert manifest.complete


def test_a_finished_folder_holds_the_cache_and_nothing_else(settings, tmp_path):
    build_cache(settings)
    assert sorted(contents(tmp_path / "cache")) == sorted(FILES)


def test_the_vocabulary_map_covers_what_the_manifest_says(settings):
    manifest = build_cache(settings)
    cache = FeatureCache(settings.out)
    inside = cache.vocab_map().t2d.numpy()
    supervised = np.concatenate([cache[i].input_ids[cache[i].loss_mask] for i in range(len(cache))])
    assert inside[supervised].mean() == pytest.approx(manifest.vocab_coverage)
    assert inside[2], "the end-of-text token is always drafted"


def test_killed_runs_are_taken_up_where_they_stopped_and_end_in_the_same_bytes(settings, tmp_path, monkeypatch):
    build_cache(replace(settings, out=str(tmp_path / "whole")))
    write_shard, calls = module.write_shard, []

    def killed_on_the_second(path, *arguments):
        calls.append(path.name)
        if len(calls) == 2:
            path.with_name(f".{path.name}.tmp").write_bytes(b"half a shard")
            raise KeyboardInterrupt
        return write_shard(path, *arguments)

    monkeypatch.setattr(module, "write_shard", killed_on_the_second)
    with pytest.raises(KeyboardInterrupt):
        build_cache(settings)
    assert len(read_manifest(tmp_path / "cache").shards) == 1
    build_cache(settings)
    assert calls == ["shard-00000.arrow", "shard-00001.arrow", "shard-00001.arrow", "shard-00002.arrow"]
    assert contents(tmp_path / "cache") == contents(tmp_path / "whole")


def test_a_finished_cache_is_not_computed_again(settings, monkeypatch):
    first = build_cache(settings)

    def refuse(*arguments):
        raise AssertionError("the target ran again")

    monkeypatch.setattr(Extractor, "forward", refuse)
    assert build_cache(settings) == first


@pytest.mark.parametrize("spoil", [lambda data: data[:-9], lambda data: b"x" * len(data)], ids=["cut", "overwritten"])
def test_a_spoilt_shard_is_computed_again(settings, tmp_path, spoil):
    build_cache(settings)
    whole = contents(tmp_path / "cache")
    file = tmp_path / "cache" / "shard-00001.arrow"
    file.write_bytes(spoil(file.read_bytes()))
    build_cache(settings)
    assert contents(tmp_path / "cache") == whole


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tap_layers": [0, 2, 3]}, r"tap_layers is \(1, 2, 3\), not \(0, 2, 3\)"),
        ({"dtype": "bfloat16"}, "dtype is 'float32', not 'bfloat16'"),
        ({"max_length": 20}, "max_length is 64, not 20"),
        ({"seed": 1}, "seed is 0, not 1"),
        ({"state_dtype": "float8"}, "state_dtype is 'bfloat16', not 'float8'"),
        ({"teacher": "tokens"}, "teacher is 'last_hidden', not 'tokens'"),
    ],
)
def test_a_folder_with_another_cache_is_refused_and_left_as_it_is(settings, tmp_path, change, named):
    build_cache(settings)
    before = contents(tmp_path / "cache")
    with pytest.raises(CacheMismatchError, match=named):
        build_cache(replace(settings, **change))
    assert contents(tmp_path / "cache") == before


def test_a_cache_of_another_target_is_refused(settings, tmp_path):
    build_cache(settings)
    save_tiny_target(tmp_path / "other", seed=1)
    with pytest.raises(CacheMismatchError, match="weights_sha256"):
        build_cache(replace(settings, target=str(tmp_path / "other")))


def test_edited_records_are_not_taken_for_the_same_data(settings, tmp_path):
    build_cache(settings)
    write_records(tmp_path / "records.jsonl", count=12, seed=9)
    with pytest.raises(CacheMismatchError, match="data_sha256"):
        build_cache(settings)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", EmptyDataError),
        ("{}\n", BadRecordError),
        ('{"id": "a", "prompt_ids": [4], "answer_ids": []}\n', NoSupervisedTokensError),
        ('{"id": "a", "prompt_ids": [4], "answer_ids": [9999]}\n', TargetMismatchError),
        ('{"id": "a", "prompt_ids": [4], "answer_ids": [5], "target": "another"}\n', TargetMismatchError),
    ],
)
def test_bad_records_are_refused_before_anything_is_written(settings, tmp_path, text, error):
    (tmp_path / "records.jsonl").write_text(text)
    with pytest.raises(error):
        build_cache(settings)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tap_layers": [1, 7]}, "7 layers"),
        ({"shard_size": 0}, "shard_size is 0"),
        ({"dtype": "float8"}, "dtype is 'float8'"),
        ({"state_dtype": "float16"}, "state_dtype is 'float16'; expected one of bfloat16, float8"),
        ({"teacher": "top"}, "teacher is 'top'; expected one of last_hidden, topk, tokens"),
        ({"teacher": "topk", "teacher_top": 0}, "teacher_top is 0"),
        ({"records": ["absent.jsonl"]}, "absent.jsonl"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(settings, tmp_path, change, named):
    with pytest.raises(ConfigurationError, match=named):
        build_cache(replace(settings, **change))
    assert not (tmp_path / "cache").exists()


def test_a_file_in_place_of_the_folder_is_refused_and_kept(settings, tmp_path):
    (tmp_path / "cache").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"out is '.*cache'"):
        build_cache(settings)
    assert (tmp_path / "cache").read_text() == "mine"


def test_a_full_disk_is_foreseen(settings, tmp_path, monkeypatch):
    usage = module.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(ConfigurationError, match="GB free"):
        build_cache(settings)
    assert not (tmp_path / "cache").exists()


def test_a_cache_larger_than_allowed_is_refused_with_both_sizes(settings, tmp_path):
    with pytest.raises(ConfigurationError, match=r"would have [\d,]+ bytes; max_bytes is 1,000"):
        build_cache(replace(settings, max_bytes=1000))
    assert not (tmp_path / "cache").exists()


def test_a_dry_run_says_what_it_costs_and_writes_nothing(settings, tmp_path, capsys):
    planned = build_cache(replace(settings, dry_run=True))
    assert not (tmp_path / "cache").exists()
    said = capsys.readouterr().err
    # Four states of 32 numbers in bfloat16, an int32 and a byte.
    assert "261 bytes per token" in said
    for words in ("GB in all", "GB free", "minutes on this cpu"):
        assert words in said
    built = build_cache(settings)
    assert built.counts == planned.counts
    size = sum(shard.bytes for shard in built.shards)
    assert size == pytest.approx(261 * built.counts["tokens"], rel=0.25), "Arrow's own headers on tiny rows"


def test_the_plan_shows_a_decoded_sample_first(settings, capsys):
    build_cache(replace(settings, dry_run=True))
    sample, _, rest = capsys.readouterr().err.partition("records_read")
    assert "<s>" in sample
    assert "bytes per token" in rest


def test_a_second_writer_is_refused_and_the_lock_dies_with_its_holder(settings, tmp_path):
    refused = pytest.raises(ConfigurationError, match="Another process is writing")
    with using_folder(tmp_path / "cache", alone=True), refused:
        build_cache(settings)
    assert list((tmp_path / "cache").iterdir()) == []
    assert build_cache(settings).complete


def test_few_supervised_tokens_are_warned_of(settings, tmp_path):
    record = {"id": "a", "prompt_ids": [5] * 60, "answer_ids": [6, 7]}
    (tmp_path / "records.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.warns(UserWarning, match=r"Only 3.2% of 62 tokens"):
        build_cache(replace(settings, dry_run=True))


def test_a_skipped_record_is_named_and_counted(settings, tmp_path, capsys):
    file = tmp_path / "records.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:4], "{ cut", *lines[4:]]) + "\n")
    with pytest.raises(BadRecordError, match=f"{file}:5"):
        build_cache(settings)
    assert build_cache(replace(settings, skip_bad=True)).counts["skipped_bad"] == 1
    assert f"skipped: {file}:5" in capsys.readouterr().err.replace("\n", "")


def test_the_measured_error_of_float8_is_in_the_manifest_and_bfloat16_of_float32_is_finer(settings, tmp_path):
    fine = build_cache(settings)
    coarse = build_cache(replace(settings, state_dtype="float8", out=str(tmp_path / "float8")))
    assert 0.0005 < fine.state_error < 0.003
    assert 0.01 < coarse.state_error < 0.05
    assert coarse.committed("bytes") < 0.8 * fine.committed("bytes")


KILLED = """
import os, signal, sys
from specblock_zoo.data import build_cache as module
from specblock_zoo.data import feature_cache
from specblock_zoo.data.settings import CacheSettings

point, countdown = sys.argv[1], int(sys.argv[2])
owner = {"shard": feature_cache, "manifest": module, "rename": os}[point]
name = {"shard": "file_sha256", "manifest": "write_manifest", "rename": "replace"}[point]
original = getattr(owner, name)

def deadly(*arguments):
    global countdown
    countdown -= 1
    if countdown == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments)

setattr(owner, name, deadly)
module.build_cache(CacheSettings(**eval(sys.argv[3])))
"""


@pytest.mark.parametrize(("point", "countdown"), [("shard", 2), ("manifest", 3)])
def test_after_sigkill_the_rest_is_computed_and_the_bytes_are_the_same(settings, tmp_path, point, countdown):
    build_cache(replace(settings, out=str(tmp_path / "whole")))
    command = [sys.executable, "-c", KILLED, point, str(countdown), repr(vars(settings))]
    ended = subprocess.run(command, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert len(read_manifest(tmp_path / "cache").shards) == 1
    build_cache(settings)
    assert contents(tmp_path / "cache") == contents(tmp_path / "whole")
