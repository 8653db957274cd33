"""Several workers fill one cache: the bytes of one worker's, whoever is killed, and no shard is written twice."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from specblock_zoo.data import build_cache as module
from specblock_zoo.data import workers
from specblock_zoo.data.build_cache import build_cache
from specblock_zoo.data.locks import writing
from specblock_zoo.data.manifest import read_manifest
from specblock_zoo.data.settings import CacheSettings
from specblock_zoo.data.workers import fill_cache, own_settings
from specblock_zoo.errors import CacheMismatchError, ConfigurationError
from tests.support.tiny import build_tiny_cache

SIZES = {"draft_vocab_size": 48, "shard_size": 2, "dtype": "float32", "max_length": 64}
DIES_WRITING_ITS_SECOND = """
import os, signal, sys
from specblock_zoo.data import build_cache as module
from specblock_zoo.data.settings import CacheSettings

write_shard, calls = module.write_shard, []

def deadly(path, *arguments):
    calls.append(path)
    if len(calls) == 2:
        path.with_name(f".{path.name}.tmp").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    return write_shard(path, *arguments)

module.write_shard = deadly
module.build_cache(CacheSettings(**eval(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def whole(tiny_run, tmp_path_factory):
    """The cache of one worker: six shards."""
    folder = tmp_path_factory.mktemp("whole")
    return contents(build_tiny_cache(folder, tiny_run.target, tiny_run.records, **SIZES))


@pytest.fixture
def settings(tiny_run, tmp_path):
    return CacheSettings([str(tiny_run.records)], str(tiny_run.target), out=str(tmp_path / "cache"), **SIZES)


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def shards(folder):
    return [shard.file for shard in read_manifest(folder).shards]


def test_two_processes_write_the_bytes_of_one(settings, whole, tmp_path):
    assert fill_cache(replace(settings, workers=2)).complete
    assert contents(tmp_path / "cache") == whole


def test_each_worker_writes_its_own_shards_in_any_order_of_starting(settings, whole, tmp_path):
    second = build_cache(replace(settings, worker="1/2"))
    assert not second.complete
    assert shards(tmp_path / "cache") == [f"shard-0000{number}.arrow" for number in (1, 3, 5)]
    assert build_cache(replace(settings, worker="0/2")).complete
    assert contents(tmp_path / "cache") == whole


def test_a_killed_worker_is_taken_up_by_any_number_of_others(settings, whole, tmp_path):
    worker = repr(vars(replace(settings, worker="1/2")))
    ended = subprocess.run([sys.executable, "-c", DIES_WRITING_ITS_SECOND, worker], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert shards(tmp_path / "cache") == ["shard-00001.arrow"]
    for index in range(3):
        build_cache(replace(settings, worker=f"{index}/3"))
    assert contents(tmp_path / "cache") == whole


def test_two_writers_of_one_shard_are_refused(settings, tmp_path):
    build_cache(replace(settings, worker="1/2"))
    refused = pytest.raises(ConfigurationError, match=r"Another process .* is writing .*shard-00000\.arrow")
    with writing(tmp_path / "cache" / "shard-00000.arrow"), refused:
        build_cache(replace(settings, worker="0/2"))


def test_a_shard_that_another_division_committed_meanwhile_is_not_written_again(settings, tmp_path, monkeypatch):
    begin = module.begin

    def overtaken(folder, plan):
        done = begin(folder, plan)
        monkeypatch.setattr(module, "begin", begin)
        build_cache(replace(settings, worker="0/3"))
        return done

    monkeypatch.setattr(module, "begin", overtaken)
    written = []
    write_shard = module.write_shard
    monkeypatch.setattr(
        module, "write_shard", lambda path, *rest: written.append(path.name) or write_shard(path, *rest)
    )
    assert build_cache(settings).complete
    assert sorted(written) == [f"shard-0000{number}.arrow" for number in range(6)]


def test_a_worker_of_another_cache_is_refused(settings):
    build_cache(replace(settings, worker="0/2"))
    with pytest.raises(CacheMismatchError, match="seed is 0, not 1"):
        build_cache(replace(settings, worker="1/2", seed=1))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"workers": 2, "worker": "0/2"}, "workers is 2 and worker is '0/2'"),
        ({"worker": "2/2"}, r"worker is '2/2'; expected 0/2 to 1/2"),
        ({"worker": "first"}, "worker is 'first'; expected two numbers"),
        ({"worker": "0/0"}, "worker is '0/0'; expected two numbers"),
    ],
)
def test_senseless_workers_are_refused(settings, change, named):
    with pytest.raises(ConfigurationError, match=named):
        fill_cache(replace(settings, **change))


def test_bad_records_are_found_before_a_worker_is_started(settings, monkeypatch):
    monkeypatch.setattr(workers, "_started", None)
    with pytest.raises(ConfigurationError, match="absent"):
        fill_cache(replace(settings, workers=2, records=["absent.jsonl"]))


def test_a_worker_that_fails_is_named(settings, tmp_path, capfd):
    build_cache(replace(settings, worker="1/2"))
    with writing(tmp_path / "cache" / "shard-00000.arrow"), pytest.raises(ConfigurationError, match="ended early: 0"):
        fill_cache(replace(settings, workers=2))
    said = capfd.readouterr().err.replace("\n", " ")
    assert re.search(rf"worker 0/2: Another process \(id {os.getpid()} on \S+\) +is +writing", said)


def test_on_several_accelerators_each_worker_has_its_own(settings, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    asked = replace(settings, workers=3, device="cuda")
    own = [own_settings(asked, index) for index in range(3)]
    assert [(s.device, s.worker, s.workers) for s in own] == [
        ("cuda:0", "0/3", 1),
        ("cuda:1", "1/3", 1),
        ("cuda:0", "2/3", 1),
    ]
    assert own_settings(settings, 0).device == "cpu"


def test_on_a_cpu_workers_share_the_threads_unless_told(settings, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert own_settings(replace(settings, workers=3, num_threads=None), 0).num_threads == 2
    assert own_settings(replace(settings, workers=16, num_threads=None), 0).num_threads == 1
    assert own_settings(replace(settings, workers=3, num_threads=5), 0).num_threads == 5
