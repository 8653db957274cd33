"""`specblock overlap`: counts, keeps the rest, and prints what an entry records."""

import json
from pathlib import Path

import pytest
import yaml

from specblock_zoo.cli.main import USER_ERROR, main
from specblock_zoo.hub.entry import TrainingOverlap
from specblock_zoo.targets.local import load_target
from tests.support.tiny_pair import TinyFolders

PROMPT = "a b c d e f g h i j k l m n"


def write(path: Path, *lines: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def call(*words: str | Path) -> int | None:
    try:
        return main(["overlap", *map(str, words)])
    except SystemExit as ended:
        return ended.code  # type: ignore[return-value]  # our commands exit with a number


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write(tmp_path / "chat.jsonl", {"id": "chat/0", "category": "c", "turns": ["hm", PROMPT]})


def test_what_shares_nothing_is_kept_and_the_rest_counted_as_an_entry_records_it(
    tiny_folders: TinyFolders, tmp_path: Path, task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, tokenizer = load_target(tiny_folders.target)
    ids = tokenizer.encode(f"so {PROMPT}")
    clean = {"id": "clean", "messages": [{"role": "user", "content": "é a b"}], "licence": "MIT"}
    lines = [{"id": "dirty", "prompt_ids": ids[:4], "answer_ids": ids[4:]}, clean]
    records, out = write(tmp_path / "r.jsonl", *lines), tmp_path / "new" / "clean.jsonl"
    asked = ["--records", records, "--tasks", task]
    assert call(*asked, "--target", tiny_folders.target, "--out", out) == 0
    said = capsys.readouterr()
    assert "shared: dirty" in said.err
    found = yaml.safe_load(said.out)["overlap"]
    expected = TrainingOverlap(words=13, records=2, shared=1, prompts=1, tasks=("chat",), left_out=True)
    assert TrainingOverlap.model_validate_json(json.dumps(found)) == expected
    assert [json.loads(line) for line in out.read_text().splitlines()] == [clean]


def test_token_ids_of_nobody_knows_whom_are_refused_and_nothing_is_written(
    tmp_path: Path, task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = write(tmp_path / "r.jsonl", {"id": "r", "prompt_ids": [1], "answer_ids": [2]})
    asked = ["--records", records, "--tasks", task]
    assert call(*asked, "--target", tmp_path, "--out", tmp_path / "out.jsonl") == USER_ERROR
    assert "--target" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"r.jsonl", "chat.jsonl"}


def test_a_compressed_out_is_refused_before_anything_is_read(
    tmp_path: Path, task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--records", tmp_path / "nowhere.jsonl", "--tasks", task]
    assert call(*asked, "--out", tmp_path / "clean.jsonl.gz") == USER_ERROR
    assert "expected a name ending in .jsonl" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"chat.jsonl"}


def test_token_ids_of_another_target_are_refused(
    tmp_path: Path, task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"id": "r", "messages": [{"role": "user", "content": PROMPT}], "target": "other"}]
    lines.append({"id": "s", "prompt_ids": [1], "answer_ids": [2], "target": "other"})
    asked = ["--records", write(tmp_path / "r.jsonl", *lines), "--tasks", task]
    assert call(*asked) == USER_ERROR
    assert "answered by the target 'other'" in capsys.readouterr().err
    assert call("--records", write(tmp_path / "r.jsonl", lines[0]), "--tasks", task) == 0


def test_a_folder_that_cannot_be_made_is_named(task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = write(tmp_path / "a.jsonl", {"id": "a", "messages": [{"role": "user", "content": "one"}]})
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "clean.jsonl"
    assert call("--records", answers, "--tasks", task, "--out", out) == USER_ERROR
    assert "no folder can be made there" in capsys.readouterr().err
