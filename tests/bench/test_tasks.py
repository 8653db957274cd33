"""Task files and prompts that fit the target."""

import json
from pathlib import Path

import pytest

from specblock_zoo.bench.tasks import check_fits, encode_prompt, read_task
from specblock_zoo.errors import BadRecordError, ConfigurationError, EmptyDataError, PromptTooLongError
from tests.support.tiny_pair import character_tokenizer


def write_task(path: Path, count: int) -> Path:
    lines = [json.dumps({"id": f"q/{i}", "category": "chat", "turns": [f"question {i}", "and?"]}) for i in range(count)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_limited_task_is_spread_over_the_file(tmp_path: Path) -> None:
    path = write_task(tmp_path / "chat.jsonl", 10)
    assert read_task(path).name == "chat"
    assert len(read_task(path).prompts) == len(read_task(path, limit=99).prompts) == 10
    assert [prompt.id for prompt in read_task(path, limit=4).prompts] == ["q/0", "q/2", "q/5", "q/7"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [('{"id": "a", "category": "b", "turns": []}', "turns"), ("nonsense", "JSON"), ('{"id": 1}', "id")],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = write_task(tmp_path / "chat.jsonl", 1)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(BadRecordError, match=rf"chat\.jsonl:2: .*{problem}"):
        read_task(path)


def test_missing_and_empty_files_and_bad_limits_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no task file"):
        read_task(tmp_path / "absent.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(EmptyDataError, match="0 prompts"):
        read_task(tmp_path / "empty.jsonl")
    with pytest.raises(ConfigurationError, match="limit is 0"):
        read_task(write_task(tmp_path / "chat.jsonl", 1), limit=0)


def test_the_chat_template_is_used_where_there_is_one() -> None:
    tokenizer = character_tokenizer()
    assert encode_prompt(tokenizer, "hi").tolist() == [tokenizer("u: hi a: ")["input_ids"]]
    conversation = encode_prompt(tokenizer, "hi", "yes", "more")
    assert conversation.tolist() == [tokenizer("u: hi a: yes u: more a: ")["input_ids"]]
    tokenizer.chat_template = None
    assert encode_prompt(tokenizer, "hi").tolist() == [tokenizer("hi")["input_ids"]]


def test_prompt_and_answer_must_fit_together() -> None:
    check_fits(10, 6, 16)
    with pytest.raises(PromptTooLongError, match=r"10 tokens and 7 new ones.*16 positions"):
        check_fits(10, 7, 16)


def test_prompts_of_one_id_are_refused_since_records_are_told_apart_by_it(tmp_path: Path) -> None:
    path = write_task(tmp_path / "chat.jsonl", 2)
    path.write_text(path.read_text().replace("q/1", "q/0"))
    with pytest.raises(ConfigurationError, match=r"chat\.jsonl: 2 prompts have 1 ids; 'q/0' is there"):
        read_task(path)
