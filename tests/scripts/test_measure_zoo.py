"""A measurement writes records and results that say where they come from."""

import json
from pathlib import Path

import pytest
from jsonargparse import auto_cli

from specblock_zoo.bench.records import read_records, read_results
from specblock_zoo.bench.report import PROMPT_LOOKUP, summarize_run
from tests.support import REPOSITORY
from tests.support.scripts import load_script
from tests.support.tiny_pair import TinyFolders

script = load_script("measure_zoo")


def write_task(path: Path, count: int) -> Path:
    lines = [{"id": f"{path.stem}/{i}", "category": "c", "turns": [f"What is {i}?"]} for i in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def tasks(tmp_path: Path) -> list[Path]:
    return [write_task(tmp_path / "chat.jsonl", 3), write_task(tmp_path / "code.jsonl", 4)]


@pytest.mark.parametrize("prompt_lookup", [True, False])
def test_results_are_the_sum_of_the_records(
    tiny_folders: TinyFolders, tasks: list[Path], tmp_path: Path, prompt_lookup: bool
) -> None:
    conditions = script.Conditions(max_new_tokens=8, threads=1, prompt_lookup=prompt_lookup)
    output = tmp_path / "out"
    script.measure(str(tiny_folders.drafter), tasks, str(tiny_folders.target), 2, output, conditions)
    records, results = read_records(output / "records.jsonl"), read_results(output)
    assert results is not None
    by_task = [[record for record in records if record.task == name] for name in ("chat", "code")]
    assert [len(part) for part in by_task] == [2, 2]
    assert (results.overall, results.tasks) == summarize_run(by_task)
    assert results.overall.equal == 4
    assert all((PROMPT_LOOKUP in record.seconds) == prompt_lookup for record in records)
    made = results.provenance
    assert (made.dtype, made.threads, made.max_new_tokens) == ("float32", 1, 8)
    assert "torch" in made.versions


def test_the_command_keeps_checkout_paths_and_shortens_others(tmp_path: Path) -> None:
    task = write_task(tmp_path / "chat.jsonl", 1)
    arguments = [
        str(REPOSITORY / "scripts" / "measure_zoo.py"),
        "--drafter=specblock-tiny",
        f"--tasks+={task}",
        "--limit",
        "2",
    ]
    expected = "python scripts/measure_zoo.py --drafter=specblock-tiny --tasks+=chat.jsonl --limit 2"
    assert script.public_command(arguments) == expected


def test_the_documented_command_line_is_understood(
    tiny_folders: TinyFolders, tasks: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [f"--drafter={tiny_folders.drafter}", *(f"--tasks+={task}" for task in tasks), "--limit=1"]
    places = [f"--target={tiny_folders.target}", f"--output={tmp_path / 'out'}"]
    short = ["--conditions.max_new_tokens=3", "--conditions.threads=1", "--conditions.prompt_lookup=false"]
    auto_cli(script.measure, args=[*flags, *places, *short], as_positional=False)
    assert [record.id for record in read_records(tmp_path / "out" / "records.jsonl")] == ["chat/0", "code/0"]
