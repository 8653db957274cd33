import json
from dataclasses import replace

import pytest

from specblock_zoo.data.plan import describe, make_plan, tokens_per_second
from specblock_zoo.data.settings import Extraction
from specblock_zoo.targets.identity import identify


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
