import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from specblock_zoo.data.answers import (
    AnswerSettings,
    Prompt,
    answered_ids,
    messages_of,
    plan_batches,
    read_prompts,
    temperature_of,
    write_answers,
)
from specblock_zoo.data.engines import LocalEngine, Question
from specblock_zoo.data.locks import writing
from specblock_zoo.data.records import read_records
from specblock_zoo.errors import BadRecordError, ConfigurationError, EmptyDataError, UnknownNameError
from tests.support.tiny_pair import character_tokenizer

PROMPTS = [{"id": f"p{i}", "prompt": "ab" * (1 + i % 5), "source": "s", "category": "c"} for i in range(11)]


@pytest.fixture
def settings(tiny_run, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return AnswerSettings(
        [str(file)],
        str(tiny_run.target),
        str(tmp_path / "answers.jsonl"),
        max_new_tokens=6,
        batch_size=3,
        dtype="float32",
    )


def lines_of(settings):
    with open(settings.out) as stream:
        return [json.loads(line) for line in stream]


def test_every_prompt_gets_one_record_that_the_cache_can_read(settings):
    assert write_answers(settings) == 11
    lines = lines_of(settings)
    assert sorted(line["id"] for line in lines) == sorted(prompt["id"] for prompt in PROMPTS)
    for line in lines:
        assert line.keys() == {"id", "source", "prompt_ids", "answer_ids", "temperature", "finish", "target"}
        assert line["target"] == settings.target
        assert len(line["answer_ids"]) == 6 if line["finish"] == "length" else line["answer_ids"][-1] == 2
    records = list(read_records([Path(settings.out)]))
    assert [record.id for record in records] == [line["id"] for line in lines]


def test_the_temperatures_are_mixed_by_id_in_their_shares():
    ids = [f"p{i}" for i in range(3000)]
    drawn = [temperature_of(record_id, (0.0, 0.0, 1.0)) for record_id in ids]
    assert drawn.count(0.0) == pytest.approx(2000, abs=120)
    assert [temperature_of(record_id, (0.0, 0.0, 1.0)) for record_id in ids] == drawn


@pytest.mark.parametrize("cut", [0, 30, 400, 1001])
def test_a_killed_run_is_taken_up_and_ends_in_the_same_bytes(settings, tmp_path, cut):
    write_answers(settings)
    with open(settings.out, "rb") as stream:
        whole = stream.read()
    assert len(whole) > 1001
    part = replace(settings, out=str(tmp_path / "part.jsonl"))
    (tmp_path / "part.jsonl").write_bytes(whole[:cut])
    assert write_answers(part) == 11 - whole[:cut].count(b"\n")
    assert (tmp_path / "part.jsonl").read_bytes() == whole


def test_finished_answers_are_not_made_again(settings, monkeypatch):
    write_answers(settings)

    def refuse(*arguments):
        raise AssertionError("the target ran again")

    monkeypatch.setattr(LocalEngine, "answer", refuse)
    assert write_answers(settings) == 0


def test_another_targets_answers_are_not_gone_on_with(settings):
    write_answers(settings)
    before = Path(settings.out).read_bytes()
    Path(settings.out).write_bytes(before.replace(settings.target.encode(), b"another", 1))
    with pytest.raises(ConfigurationError, match=r"answers\.jsonl:1: answered by 'another'; --target is"):
        write_answers(settings)


def test_two_runs_do_not_write_one_file(settings):
    with writing(Path(settings.out)), pytest.raises(ConfigurationError, match="is writing"):
        write_answers(settings)
    assert write_answers(settings) == 11


def test_batches_have_one_temperature_and_like_lengths(settings):
    prompts, _ = read_prompts(settings, character_tokenizer())
    batches = plan_batches(prompts, 3)
    assert sorted(p.question.id for batch in batches for p in batch) == sorted(p["id"] for p in PROMPTS)
    for batch in batches:
        assert len({prompt.temperature for prompt in batch}) == 1
        assert len(batch) <= 3
    for temperature in settings.temperatures:
        like = [[len(p.question.prompt_ids) for p in b] for b in batches if b[0].temperature == temperature]
        lengths = [length for batch in sorted(like) for length in batch]
        assert lengths == sorted(lengths)


def test_the_order_of_batches_is_drawn_so_that_a_part_is_a_fair_sample():
    ids = [f"p{i}" for i in range(600)]
    prompts = [Prompt(Question(name, (1,) * (1 + i // 3)), float(i % 3), {}) for i, name in enumerate(ids)]
    batches = plan_batches(prompts, 10)
    assert plan_batches(prompts, 10) == batches != plan_batches(prompts, 10, seed=1)
    half = [prompt for batch in batches[:30] for prompt in batch]
    assert min(Counter(prompt.temperature for prompt in half).values()) >= 60
    mean = sum(len(prompt.question.prompt_ids) for prompt in half) / len(half)
    assert mean == pytest.approx(100, abs=25)


def test_a_run_out_of_time_leaves_the_rest_to_a_later_one(settings, tmp_path, monkeypatch):
    write_answers(settings)
    part = replace(settings, out=str(tmp_path / "part.jsonl"), max_seconds=100.0)
    times = iter([0.0, 0.0, 99.0, 100.0])
    monkeypatch.setattr("specblock_zoo.data.answers.time", SimpleNamespace(monotonic=lambda: next(times)))
    first = write_answers(part)
    assert 0 < first <= 6
    monkeypatch.undo()
    assert write_answers(part) == 11 - first
    assert lines_of(part) == lines_of(settings)


def test_long_prompts_are_left_out_and_counted(settings):
    prompts, too_long = read_prompts(replace(settings, max_prompt_tokens=12), character_tokenizer())
    assert len(prompts) + too_long == 11
    assert 0 < too_long < 11
    with pytest.raises(EmptyDataError, match="11 exceed max_prompt_tokens 1"):
        read_prompts(replace(settings, max_prompt_tokens=1), character_tokenizer())
    assert len(read_prompts(replace(settings, max_prompts=4), character_tokenizer())[0]) == 4


def test_the_three_forms_of_a_prompt():
    asked = [{"role": "user", "content": "q"}]
    for fields in ({"prompt": "q"}, {"turns": ["q", "later"]}, {"messages": asked}):
        assert messages_of(fields, "f:1") == asked


@pytest.mark.parametrize("fields", [{}, {"prompt": ""}, {"prompt": 3}, {"turns": []}, {"messages": [{"role": "user"}]}])
def test_a_prompt_without_text_is_refused_with_its_place(fields):
    with pytest.raises(BadRecordError, match="f:1"):
        messages_of(fields, "f:1")


def test_an_unfinished_last_line_is_cut_off(tmp_path):
    out = tmp_path / "a.jsonl"
    assert answered_ids(out) == set()
    out.write_text('{"id": "a"}\n{"id": "b", "ans')
    assert answered_ids(out) == {"a"}
    assert out.read_text() == '{"id": "a"}\n'
    out.write_text('{"id": "b", "ans')
    assert answered_ids(out) == set()


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"engine": "remote"}, UnknownNameError, "remote"),
        ({"batch_size": 0}, ConfigurationError, "batch_size is 0"),
        ({"temperatures": (0.0, -1.0)}, ConfigurationError, "-1.0"),
        ({"temperatures": ()}, ConfigurationError, "temperatures"),
        ({"max_seconds": 0.0}, ConfigurationError, "max_seconds is 0.0"),
        ({"dtype": "int4"}, ConfigurationError, "int4"),
        ({"out": "answers.jsonl.gz"}, ConfigurationError, "answers.jsonl.gz"),
    ],
)
def test_bad_arguments_are_refused_before_the_target_is_loaded(settings, change, error, named):
    with pytest.raises(error, match=named):
        write_answers(replace(settings, **{"target": "/nowhere", **change}))


def test_a_file_that_is_refused_keeps_every_byte(settings, tmp_path):
    out = tmp_path / "theirs.jsonl"
    out.write_text('{"id": "a", "target": "other"}\n{"id": "b", "target": "other"}')
    before = out.read_bytes()
    with pytest.raises(ConfigurationError, match=r"theirs.jsonl:1: answered by 'other'"):
        write_answers(replace(settings, out=str(out)))
    assert out.read_bytes() == before


def test_a_whole_last_record_without_its_line_end_is_kept(tmp_path):
    out = tmp_path / "a.jsonl"
    out.write_text('{"id": "a"}\n{"id": "b"}')
    assert answered_ids(out) == {"a", "b"}
    assert out.read_text() == '{"id": "a"}\n{"id": "b"}\n'


def test_a_file_of_something_else_is_not_emptied(tmp_path):
    out = tmp_path / "notes.jsonl"
    out.write_text("my notes, one line")
    with pytest.raises(BadRecordError, match=r"notes.jsonl: the last line is no record"):
        answered_ids(out)
    assert out.read_text() == "my notes, one line"


def test_a_repeated_id_is_refused_and_nothing_is_cut(tmp_path):
    out = tmp_path / "a.jsonl"
    out.write_text('{"id": "a"}\n{"id": "a"}\n{"id": "b", "ans')
    with pytest.raises(BadRecordError, match=r"a.jsonl:2: the id 'a' was used at \S+a.jsonl:1"):
        answered_ids(out)
    assert out.read_text().endswith('{"id": "b", "ans')


def test_answers_are_not_appended_to_the_prompts(settings):
    prompts = Path(settings.prompts[0])
    before = prompts.read_bytes()
    with pytest.raises(ConfigurationError, match="among --prompts"):
        write_answers(replace(settings, out=str(prompts.parent / "." / prompts.name)))
    assert prompts.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_named_before_the_target_is_loaded(settings, tmp_path):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "a.jsonl"
    with pytest.raises(ConfigurationError, match="no folder can be made there"):
        write_answers(replace(settings, out=str(out), target="nowhere"))
