"""The tasks by name: a literal table of where their prompts come from, on this machine or on the Hub."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import load_dataset

from specblock_zoo.bench.tasks import Prompt, Task, check_ids, read_task, spread
from specblock_zoo.errors import ConfigurationError, EmptyDataError, UnknownNameError

Row = Mapping[str, Any]
Turns = Callable[[Row], tuple[str, ...]]
SPEC_BENCH_FILE = "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl"


@dataclass(frozen=True)
class Source:
    """Where a task's prompts come from.

    Attributes:
        repository: dataset repository on the Hub, or `json` for a plain file.
        split, config, data_files: what `datasets.load_dataset` is asked for.
        turns: row -> what the user says.
        id: column of it; the row's number where the data has none.
        category: of every prompt, where the data has no `category_column`.
        licence: what its publisher states, and where that is unclear.
        files: names of a local file with the same prompts, the task's own name first.
    """

    repository: str
    split: str
    turns: Turns
    licence: str
    config: str | None = None
    data_files: str | None = None
    id: str | None = None
    category: str = ""
    category_column: str | None = None
    files: tuple[str, ...] = ()


def column(name: str, instruction: str = "") -> Turns:
    """One turn: a column of the row, after an instruction where one is given."""
    return lambda row: (instruction + str(row[name]),)


def listed(name: str) -> Turns:
    """Several turns: a column that holds a list of them."""
    return lambda row: tuple(map(str, row[name]))


def with_input(row: Row) -> tuple[str, ...]:
    """One turn: an instruction, and the input it speaks of where there is one."""
    return ("\n\n".join(part for part in (row["instruction"], row["input"]) if part),)


def german(row: Row) -> tuple[str, ...]:
    """One turn: a German segment to be put into English."""
    return (f"Translate the following text from German to English.\n\n{row['de-en']['de']}",)


TASKS: dict[str, Source] = {
    "mt_bench": Source(
        "HuggingFaceH4/mt_bench_prompts",
        "train",
        listed("prompt"),
        "Apache-2.0 (of the questions, from FastChat)",
        id="prompt_id",
        category_column="category",
    ),
    "humaneval": Source(
        "openai/openai_humaneval",
        "test",
        column("prompt", "Complete the code I provided.\n\n"),
        "MIT",
        id="task_id",
        category="code",
    ),
    "math500": Source(
        "HuggingFaceH4/MATH-500",
        "test",
        column("problem"),
        "MIT (of MATH, which it is a selection of)",
        id="unique_id",
        category_column="subject",
    ),
    "alpaca": Source(
        "tatsu-lab/alpaca",
        "train",
        with_input,
        "CC-BY-NC-4.0: not for commercial use",
        category="instruction",
    ),
    "nq": Source(
        "google-research-datasets/nq_open",
        "validation",
        column("question"),
        "CC-BY-SA-3.0",
        category="qa",
        files=("natural_questions.jsonl",),
    ),
    "wmt23": Source(
        "haoranxu/WMT23-Test",
        "test",
        german,
        "not stated there; the organisers of WMT give the test sets away for research",
        config="de-en",
        category="de-en",
    ),
    "spec_bench": Source(
        "json",
        "train",
        listed("turns"),
        "Apache-2.0 (of the collection; each of its six parts keeps its own)",
        data_files=SPEC_BENCH_FILE,
        id="question_id",
        category_column="category",
    ),
}


def load_task(name: str, folder: Path | None, count: int) -> Task:
    """`count` prompts of a task, spread evenly over it.

    Args:
        name: in `TASKS`, or a path to a task file.
        folder: of task files; without one, prompts come from the Hub.
        count: at least 1.

    Raises:
        UnknownNameError: no such task.
        ConfigurationError: there is no such file, or fewer prompts than asked for.
        BadRecordError, EmptyDataError: see `read_task`.
    """
    if name.endswith(".jsonl"):
        task = read_task(Path(name), count)
    elif name not in TASKS:
        nearest = difflib.get_close_matches(name, TASKS, n=3, cutoff=0.4) or list(TASKS)
        raise UnknownNameError(
            f"There is no task {name!r}; nearest: {', '.join(nearest)}.",
            f"Take one of {', '.join(TASKS)}, or a path to a .jsonl file.",
        )
    elif folder is not None:
        task = Task(name, read_task(find_file(name, folder), count).prompts)
    else:
        task = from_hub(name, TASKS[name], count)
    if len(task.prompts) < count:
        raise ConfigurationError(
            f"Task {name!r} has {len(task.prompts)} prompts; {count} are asked for.", "Ask for fewer, or give more."
        )
    return task


def find_file(name: str, folder: Path) -> Path:
    """The local file of a task. Raises `ConfigurationError` naming what was looked for."""
    names = (f"{name}.jsonl", *TASKS[name].files)
    for each in names:
        if (folder / each).is_file():
            return folder / each
    raise ConfigurationError(
        f"{folder} has no file of the task {name!r}; looked for {', '.join(names)}.",
        "Put JSON lines of id, category, turns there, or leave tasks_dir out to fetch prompts from the Hub.",
    )


def from_hub(name: str, source: Source, count: int) -> Task:
    """Prompts of the public dataset, through `datasets`.

    Raises:
        ConfigurationError: the dataset cannot be loaded, or two prompts have one id.
        EmptyDataError: it is empty.
    """
    try:
        rows = load_dataset(source.repository, source.config, split=source.split, data_files=source.data_files)
    except (OSError, ValueError) as cause:
        raise ConfigurationError(
            f"The dataset {source.repository} cannot be loaded: {' '.join(str(cause).split())[:200]}",
            "Check the connection, or give a folder of task files as tasks_dir.",
        ) from cause
    if not len(rows):
        raise EmptyDataError(f"The dataset {source.repository} is empty.", "Give a folder of task files as tasks_dir.")
    prompts = tuple(_prompt(name, source, rows[index], index) for index in spread(len(rows), count))
    check_ids(source.repository, prompts)
    return Task(name, prompts)


def _prompt(name: str, source: Source, row: Row, index: int) -> Prompt:
    number = row[source.id] if source.id else index
    category = str(row[source.category_column]) if source.category_column else source.category
    return Prompt(id=f"{name}/{number}", category=category, turns=source.turns(row))
