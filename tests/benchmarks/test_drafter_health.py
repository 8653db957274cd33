"""Every figure of a drafter's health is there, counted, and texts are plain decoding's."""

import json
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from specblock_zoo.bench.ask import ask_plainly
from specblock_zoo.bench.tasks import encode_prompt
from specblock_zoo.cli.main import main as command
from specblock_zoo.errors import ConfigurationError
from tests.support.fit import QUIET, run_options
from tests.support.scripts import load_script
from tests.support.tiny import TinyRun, build_tiny_cache, write_records
from tests.support.tiny_pair import TinyFolders, character_tokenizer

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load_script("drafter_health", "benchmarks")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, turns in {"mt_bench": ["tell me of it", "and more"], "humaneval": ["def f(x):"]}.items():
        lines = [
            json.dumps({"id": f"{name}/{n}", "category": "c", "turns": [f"{turn} {n}" for turn in turns]})
            for n in range(3)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def cache(tiny_folders: TinyFolders, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the drafter's own vocabulary."""
    folder = tmp_path_factory.mktemp("health")
    records = write_records(folder / "answers.jsonl")
    return build_tiny_cache(folder / "cache", tiny_folders.target, records, vocabulary=str(tiny_folders.drafter))


def examine(benchmark: ModuleType, folders: TinyFolders, tasks: Path, **options: Any) -> int:
    status: int = benchmark.main(tasks, str(folders.drafter), str(folders.target), **options)
    return status


def test_a_run_prints_and_writes_every_part(
    benchmark: ModuleType,
    tiny_folders: TinyFolders,
    cache: Path,
    tasks: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = benchmark.Health(
        threads=1, prompts=2, max_new_tokens=10, lengths=(40, 80, 100_000), long_prompts=2, checked=2
    )
    out = tasks / "health.json"
    assert examine(benchmark, tiny_folders, tasks, cache=str(cache), out=out, run=run) == 0
    found = json.loads(out.read_text())
    assert found["text"]["curve"]["monotone"] in (True, False)
    assert found["text"]["rank"]["rows"] >= found["text"]["curve"]["alpha"][0]["rows"] > 0
    decoded = found["decoded"]
    assert decoded["curve"]["alpha"][0]["rows"] > 0
    assert decoded["calibration"]["paths"]["nodes"] >= decoded["calibration"]["outcomes"] > 0
    assert {name: row["n"] for name, row in decoded["kinds"].items()} == {
        "mt_bench (chat)": 2,
        "mt_bench (chat), later turn": 2,
        "humaneval (code)": 2,
    }
    assert all(row["interval"][0] <= row["tau"] <= row["interval"][1] for row in decoded["kinds"].values())
    assert {length: (row["n"], row["equal"]) for length, row in found["contexts"].items()} == {
        "40": (2, 2),
        "80": (2, 2),
    }, "100,000 tokens exceed the target's positions"
    said = capsys.readouterr().out
    for words in ("acceptance, along the text", "rank head, decoded", "ECE"):
        assert words in said


def test_the_figures_along_the_text_are_those_of_validate(
    benchmark: ModuleType, tiny_folders: TinyFolders, cache: Path, tmp_path: Path
) -> None:
    pair = (str(tiny_folders.target), str(tiny_folders.drafter))
    report = benchmark.along_the_text(*pair, str(cache), batches=8)
    assert report.rows.shape == (3, 4), "three blocks were trained"
    run = TinyRun(tiny_folders.target, cache, cache)
    options = [flag for flag in run_options(run, tmp_path) if not flag.startswith("--data.")]
    data = [f"--data.cache_dir={cache}", "--model.objective.block_sampling=[0.25,0.25]"]
    assert command(["validate", *options, *data, f"--model.initialise={pair[1]}"]) == 0
    header, values = (tmp_path / "run" / "version_0" / "metrics.csv").read_text().splitlines()[:2]
    validated = dict(zip(header.split(","), values.split(","), strict=True))
    assert float(validated["val_rows"]) == float(report.rows[0, 0])
    assert float(validated["val_alpha_b0_s0"]) == pytest.approx(float(report.alpha()[0, 0]))


def test_without_time_every_part_still_has_one(benchmark: ModuleType, tiny_folders: TinyFolders, tasks: Path) -> None:
    sizes = {"prompts": 3, "max_new_tokens": 4, "lengths": (30,), "checked": 0}
    run = benchmark.Health(seconds=0.0, threads=1, tree={"max_nodes": 4}, **sizes)
    out = tasks / "health.json"
    assert examine(benchmark, tiny_folders, tasks, out=out, run=run) == 0
    found = json.loads(out.read_text())
    assert "text" not in found
    assert [row["n"] for row in found["decoded"]["kinds"].values()] == [1, 1], "both turns of one prompt"
    assert found["contexts"]["30"]["n"] == 1
    assert found["contexts"]["30"]["checked"] == 0


def test_long_prompts_have_the_length_and_differ(benchmark: ModuleType) -> None:
    tokenizer = character_tokenizer()
    prompts = benchmark.long_prompts(tokenizer, ["one text", "another text, a longer one"], 60)
    first, second = next(prompts), next(prompts)
    assert first.shape == second.shape == (1, 60)
    assert not torch.equal(first, second)
    frame = encode_prompt(tokenizer, "x")[0].tolist()
    assert first[0, :3].tolist() == frame[:3]
    assert first[0, -4:].tolist() == frame[-4:], "cut inside the message, so that the template stays whole"


def test_a_text_that_differs_fails_the_run(
    benchmark: ModuleType, tiny_folders: TinyFolders, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = partial(ask_plainly, repetition_penalty=3.0)
    monkeypatch.setattr(benchmark.Plain, "build", lambda self, bench: partial(other, bench.model))
    run = benchmark.Health(seconds=0.0, threads=1, prompts=1, max_new_tokens=8, lengths=(30,))
    assert examine(benchmark, tiny_folders, tasks, run=run) == 1


def test_a_folder_without_tasks_is_refused(benchmark: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no task file"):
        benchmark.main(tmp_path)
