from dataclasses import asdict

import pytest
import torch

from specblock_zoo.data.build_cache import build_cache
from specblock_zoo.data.datamodule import FeatureDataModule
from specblock_zoo.data.extract import Extractor
from specblock_zoo.data.feature_cache import FeatureCache
from specblock_zoo.data.manifest import read_manifest
from specblock_zoo.data.settings import CacheSettings, Extraction
from specblock_zoo.data.sources import SourceSettings, open_source
from specblock_zoo.errors import CacheMismatchError, ConfigurationError

SIZES = {"draft_vocab_size": 48, "shard_size": 5, "dtype": "float32", "max_length": 64, "batch_tokens": 150}


@pytest.fixture
def extraction(tiny_run):
    return Extraction([str(tiny_run.records)], str(tiny_run.target), **SIZES)


def data_module(kind, folder=None, extraction=None, **changes):
    settings = SourceSettings(kind, extraction)
    data = FeatureDataModule(folder and str(folder), **{"batch_tokens": 100, "source": settings, **changes})
    data.setup("fit")
    return data


def epoch(data):
    return list(data.train_dataloader())


def count_forwards(monkeypatch):
    seen = []
    forward = Extractor.forward
    monkeypatch.setattr(Extractor, "forward", lambda self, examples: seen.extend(examples) or forward(self, examples))
    return seen


@pytest.mark.parametrize("form", [{}, {"state_dtype": "float8"}, {"teacher": "topk"}, {"teacher": "tokens"}])
def test_every_source_gives_the_same_batches(tiny_run, tmp_path, form):
    extraction = Extraction([str(tiny_run.records)], str(tiny_run.target), **SIZES, **form)
    build_cache(CacheSettings(**asdict(extraction), out=str(tmp_path / "cached")))
    cached = epoch(data_module("cached", tmp_path / "cached"))
    online = epoch(data_module("online", None, extraction))
    filling = data_module("hybrid", tmp_path / "hybrid", extraction)
    hybrid = epoch(filling)
    filling.teardown("fit")
    assert len(cached) > 2
    for batch, *others in zip(cached, online, hybrid, strict=True):
        for other in others:
            assert batch.keys() == other.keys()
            for name, tensor in batch.items():
                # The forwards had other batch shapes, so the last bits may round differently.
                coarse = 0.13 if form.get("state_dtype") == "float8" and name == "features" else 2**-6
                torch.testing.assert_close(other[name], tensor, rtol=coarse, atol=2e-2)


def test_a_hybrid_source_runs_the_target_once_per_sequence_and_then_reads(extraction, tmp_path, monkeypatch):
    forwards = count_forwards(monkeypatch)
    data = data_module("hybrid", tmp_path / "cache", extraction)
    loader = data.train_dataloader()
    first, second = list(loader), list(loader)
    list(data.val_dataloader())
    assert sorted(example.id for example in forwards) == sorted(f"r{i}" for i in range(12))
    assert read_manifest(tmp_path / "cache").complete
    by_tokens = {tuple(row): f for b in first for row, f in zip(b["input_ids"].tolist(), b["features"], strict=True)}
    for batch in second:
        for row, features in zip(batch["input_ids"].tolist(), batch["features"], strict=True):
            if tuple(row) in by_tokens:
                assert torch.equal(features, by_tokens[tuple(row)]), "the stored bits are those that were trained on"
    data.teardown("fit")
    assert len(FeatureCache(tmp_path / "cache")) == 12


def test_an_interrupted_hybrid_cache_is_taken_up_and_specblock_cache_can_finish_it(extraction, tmp_path, monkeypatch):
    data = data_module("hybrid", tmp_path / "cache", extraction)
    running = iter(data.train_dataloader())
    next(running), next(running)
    data.teardown("fit")
    kept = read_manifest(tmp_path / "cache").committed("records")
    assert 0 < kept < 12
    forwards = count_forwards(monkeypatch)
    again = data_module("hybrid", tmp_path / "cache", extraction)
    next(iter(again.train_dataloader()))
    assert forwards == [], "the first batch is on disk already"
    with pytest.raises(ConfigurationError, match="Another process is writing"):
        build_cache(CacheSettings(**asdict(extraction), out=str(tmp_path / "cache")))
    again.teardown("fit")
    finished = build_cache(CacheSettings(**asdict(extraction), out=str(tmp_path / "cache")))
    assert finished.complete
    assert len(forwards) == 12 - kept


def test_an_online_source_writes_nothing(extraction, tmp_path):
    before = sorted(tmp_path.iterdir())
    epoch(data_module("online", None, extraction))
    assert sorted(tmp_path.iterdir()) == before


def test_a_hybrid_source_refuses_another_cache_s_folder(extraction, tiny_run):
    with pytest.raises(CacheMismatchError, match="draft_vocab_size is 48, not 40"):
        open_source(
            SourceSettings("hybrid", Extraction(**{**asdict(extraction), "draft_vocab_size": 40})), str(tiny_run.cache)
        )


def test_a_hybrid_source_has_its_own_limit_of_length(extraction, tmp_path):
    with pytest.raises(ConfigurationError, match="max_length is 8"):
        data_module("hybrid", tmp_path / "cache", extraction, max_length=8)
    cut = epoch(data_module("online", None, extraction, max_length=24))
    assert max(batch["input_ids"].shape[1] for batch in cut) == 24


EXTRACTION = Extraction(["r"], "t")


@pytest.mark.parametrize(
    ("settings", "cache_dir", "named"),
    [
        (SourceSettings("offline"), "c", "expected one of cached, online, hybrid"),
        (SourceSettings(), None, "'cached' and cache_dir is None"),
        (SourceSettings("online", EXTRACTION), "c", "'online' and cache_dir is 'c'"),
        (SourceSettings("hybrid"), "c", "'hybrid' and none source.extraction"),
        (SourceSettings("cached", EXTRACTION), "c", "'cached' and one source.extraction"),
        (SourceSettings("online", EXTRACTION, num_workers=2), None, "num_workers is 2"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, cache_dir, named):
    with pytest.raises(ConfigurationError, match=named):
        open_source(settings, cache_dir)
