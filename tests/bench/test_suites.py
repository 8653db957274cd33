"""Tasks are found by name, in a folder or through `datasets`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specblock_zoo.bench.suites import TASKS, Source, find_file, from_hub, load_task
from specblock_zoo.errors import BadRecordError, ConfigurationError, UnknownNameError

ROWS: dict[str, list[dict[str, Any]]] = {
    "mt_bench": [{"prompt_id": 81, "category": "writing", "prompt": ["Write.", "Again."]}],
    "humaneval": [{"task_id": "HumanEval/0", "prompt": "def f():"}],
    "math500": [{"unique_id": "test/1", "subject": "Algebra", "problem": "1 + 1?"}],
    "alpaca": [{"instruction": "Add.", "input": "1, 2"}, {"instruction": "Greet.", "input": ""}],
    "nq": [{"question": "who?"}],
    "wmt23": [{"de-en": {"de": "Guten Tag", "en": "Good day"}}],
    "spec_bench": [{"question_id": 3, "category": "qa", "turns": ["Why?"]}],
}
EXPECTED = {
    "mt_bench": ("mt_bench/81", "writing", ("Write.", "Again.")),
    "humaneval": ("humaneval/HumanEval/0", "code", ("Complete the code I provided.\n\ndef f():",)),
    "math500": ("math500/test/1", "Algebra", ("1 + 1?",)),
    "alpaca": ("alpaca/0", "instruction", ("Add.\n\n1, 2",)),
    "nq": ("nq/0", "qa", ("who?",)),
    "wmt23": ("wmt23/0", "de-en", ("Translate the following text from German to English.\n\nGuten Tag",)),
    "spec_bench": ("spec_bench/3", "qa", ("Why?",)),
}


def local(name: str, folder: Path) -> Source:
    """The source of a task with its rows in a file on this machine."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
    return replace(TASKS[name], repository="json", config=None, split="train", data_files=str(folder / "rows.jsonl"))


@pytest.mark.parametrize("name", TASKS)
def test_rows_of_the_public_dataset_become_prompts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    task = from_hub(name, local(name, tmp_path), 9)
    first = task.prompts[0]
    assert (first.id, first.category, first.turns) == EXPECTED[name]
    assert len(task.prompts) == len(ROWS[name])
    assert TASKS[name].licence


def test_an_instruction_without_input_stands_alone() -> None:
    assert TASKS["alpaca"].turns(ROWS["alpaca"][1]) == ("Greet.",)


def write(folder: Path, name: str, count: int) -> Path:
    lines = [{"id": f"{name}/{i}", "category": "c", "turns": [f"What is {i}?"]} for i in range(count)]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_local_files_are_found_under_either_name(tmp_path: Path) -> None:
    write(tmp_path, "natural_questions", 4)
    assert load_task("nq", tmp_path, 2).name == "nq"
    write(tmp_path, "nq", 1)
    assert find_file("nq", tmp_path).name == "nq.jsonl"
    assert load_task(str(write(tmp_path, "own", 3)), None, 3).name == "own"


def test_bad_input_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"'mtbench'; nearest: mt_bench"):
        load_task("mtbench", tmp_path, 1)
    with pytest.raises(ConfigurationError, match=r"no file of the task 'nq'; looked for nq\.jsonl, natural_questions"):
        load_task("nq", tmp_path, 1)
    write(tmp_path, "nq", 2)
    with pytest.raises(ConfigurationError, match="has 2 prompts; 3 are asked for"):
        load_task("nq", tmp_path, 3)
    (tmp_path / "nq.jsonl").write_text("{}\n")
    with pytest.raises(BadRecordError, match=r"nq\.jsonl:1"):
        load_task("nq", tmp_path, 1)


def test_a_dataset_that_cannot_be_loaded_is_explained(tmp_path: Path) -> None:
    source = replace(TASKS["nq"], repository=str(tmp_path / "absent"))
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        from_hub("nq", source, 1)
