import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from specblock_zoo.data.feature_cache import FeatureCache
from specblock_zoo.data.plan import describe, make_plan, tokens_per_second
from specblock_zoo.data.settings import Extraction
from specblock_zoo.errors import ConfigurationError, VocabularyMismatchError
from specblock_zoo.functional.vocab import build_vocab_map
from specblock_zoo.targets.identity import identify
from tests.support.tiny import write_records


@pytest.fixture
def extraction(tiny_run):
    return Extraction([str(tiny_run.records)], str(tiny_run.target), draft_vocab_size=48, dtype="float32")


def test_the_fingerprint_names_everything_that_decides_the_bytes(extraction):
    plan = make_plan(
        replace(extraction, teacher="topk", teacher_top=99, state_dtype="float8", supervise_reasoning=True)
    )
    fingerprint = plan.manifest.fingerprint
    identity = identify("t", plan.extractor.model, plan.tokenizer)
    for name in ("revision", "weights_sha256", "config_sha256", "tokenizer_sha256", "template_sha256"):
        assert vars(fingerprint)[name if name != "revision" else "target_revision"] == vars(identity)[name]
    assert (fingerprint.dtype, fingerprint.attention, fingerprint.state_dtype) == ("float32", "sdpa", "float8")
    assert (fingerprint.teacher, fingerprint.teacher_top) == ("topk", 48), "never more than the draft vocabulary has"
    assert fingerprint.tap_convention.startswith("output of decoder layer i, 0-based")


def test_a_changed_template_alone_is_told_from_another_tokenizer(extraction, tmp_path, tiny_run):
    before = make_plan(extraction).manifest.fingerprint
    for file in tiny_run.target.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    template = tmp_path / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    after = make_plan(replace(extraction, target=str(tmp_path))).manifest.fingerprint
    assert "template_sha256" in before.differences(after.what_decides())


def test_the_size_is_tokens_times_bytes_per_token(extraction):
    plan = make_plan(extraction)
    assert plan.bytes == plan.counts.tokens * (4 * 32 * 2 + 5)
    assert "261 bytes per token" in describe(plan)
    assert tokens_per_second(plan, 200) > 0


def test_only_the_first_skipped_records_are_shown(extraction, tmp_path):
    good = json.dumps({"id": "a", "prompt_ids": [5], "answer_ids": [6]})
    (tmp_path / "r.jsonl").write_text("\n".join([good, *["{"] * 30]) + "\n")
    plan = make_plan(replace(extraction, records=[str(tmp_path / "r.jsonl")], skip_bad=True))
    assert plan.counts.skipped_bad == 30
    assert describe(plan).count("skipped: ") == 10


def test_a_drafter_s_vocabulary_is_taken_and_never_rebuilt(extraction, tiny_run, tmp_path):
    file = write_records(tmp_path / "other.jsonl", count=8, seed=5)
    other = replace(extraction, records=[str(file)], draft_vocab_size=20)
    kept = make_plan(replace(other, vocabulary=str(tiny_run.cache)))
    stored = FeatureCache(tiny_run.cache)
    assert torch.equal(kept.vocab.t2d, stored.vocab_map().t2d)
    assert kept.manifest.fingerprint.vocabulary_sha256 == stored.manifest.fingerprint.vocabulary_sha256
    supervised = np.concatenate([example.input_ids[example.loss_mask] for example in kept.examples])
    assert kept.manifest.vocab_coverage == pytest.approx(kept.vocab.t2d.numpy()[supervised].mean())
    rebuilt = make_plan(other)
    assert rebuilt.manifest.fingerprint.vocabulary_sha256 != kept.manifest.fingerprint.vocabulary_sha256


def test_a_folder_without_a_vocabulary_is_refused(extraction, tmp_path):
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        make_plan(replace(extraction, vocabulary=str(tmp_path)))


def test_a_vocabulary_of_another_target_is_refused(extraction, tmp_path):
    vocab = build_vocab_map(torch.arange(50), 20)
    save_file({"d2t": vocab.d2t, "t2d": vocab.t2d}, tmp_path / "model.safetensors")
    with pytest.raises(VocabularyMismatchError):
        make_plan(replace(extraction, vocabulary=str(tmp_path)))
