"""`specblock bench`: every spelling of the command line, from settings to a drafter's results."""

import json
import re
from pathlib import Path

import pytest
import yaml

from specblock_zoo.bench import markdown
from specblock_zoo.bench.folder import RECORDS_FILE, RUN_FILE, measuring_into, read_folder
from specblock_zoo.bench.records import read_records, read_results, write_records
from specblock_zoo.bench.summary import summarize_records
from specblock_zoo.cli import bench
from specblock_zoo.cli.main import USER_ERROR, main
from tests.support import REPOSITORY
from tests.support.measured import NAME, prompt, run
from tests.support.tiny_pair import TinyFolders

RECORDS = [*prompt(), *prompt("code", 0, 1.7)]


@pytest.fixture
def config(tiny_folders: TinyFolders, tmp_path: Path) -> Path:
    line = {"id": "nq/0", "category": "qa", "turns": ["who?"]}
    (tmp_path / "nq.jsonl").write_text(json.dumps(line) + "\n")
    described = {
        "target": str(tiny_folders.target),
        "methods": {"plain": {}, "mine": {"kind": "drafter", "drafter": str(tiny_folders.drafter)}},
        "tasks": ["nq"],
        "tasks_dir": str(tmp_path),
        "prompts": 1,
        "temperatures": [0.0],
        "max_new_tokens": 4,
        "threads": 1,
        "packed": False,
        "verify_cost": False,
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(described))
    return path


def call(*words: str | Path) -> int | None:
    """Exit code of `specblock bench WORDS`."""
    try:
        return main(["bench", *map(str, words)])
    except SystemExit as ended:
        return ended.code  # type: ignore[return-value]  # our commands exit with a number


def test_the_word_alone_runs_and_report_and_results_follow(
    config: Path, tiny_folders: TinyFolders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert call("--config", config, "--out", out, "--max_new_tokens=5") == 0
    assert {record.method: record.new_tokens for record in read_records(out / RECORDS_FILE)} == {"plain": 5, "mine": 5}
    # The longer spelling is the same run, so it finds nothing left to do.
    assert call("run", "--config", config, "--out", out, "--max_new_tokens=5") == 0
    assert "2 answers, 0 to do" in capsys.readouterr().err
    assert len(read_records(out / RECORDS_FILE)) == 2
    pytest.importorskip("matplotlib")
    assert call("report", out) == 0
    assert set(json.loads((out / "summary.json").read_text())["methods"]) == {"plain", "mine"}
    assert "# Benchmark of target" in (out / "report.md").read_text()
    assert (out / "speedup_T0.png").is_file()
    assert call("results", out, tiny_folders.drafter, "--out", tmp_path / "entry") == 0
    results = read_results(tmp_path / "entry")
    assert results is not None
    assert (results.overall.equal, results.overall.prompts) == (1, 1)
    assert tmp_path.as_posix() not in (out / RUN_FILE).read_text().partition('"provenance"')[2]


def test_a_folder_in_use_is_refused_before_a_model_is_loaded(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "load", lambda *_: pytest.fail("loaded"))
    with measuring_into(tmp_path / "run"):
        assert call("--config", config, "--out", tmp_path / "run") == USER_ERROR
    assert "is writing" in capsys.readouterr().err


def test_the_shipped_ablations_run_and_are_a_table_with_intervals(
    config: Path, tiny_folders: TinyFolders, tmp_path: Path
) -> None:
    shipped = yaml.safe_load((REPOSITORY / "configs" / "bench" / "ablations.yaml").read_text())
    for method in shipped["methods"].values():
        if "drafter" in method:
            method["drafter"] = str(tiny_folders.drafter)
    changed = yaml.safe_load(config.read_text()) | {name: shipped[name] for name in ("methods", "reference")}
    config.write_text(yaml.safe_dump(changed))
    assert call("--config", config, "--out", tmp_path / "run") == 0
    text = markdown.report(summarize_records(*read_folder(tmp_path / "run")), ())
    _, _, table = text.partition("### Variants beside specblock")
    rows = dict(re.findall(r"^\| (\w+) \| (\d+\.\d\d \[\d+\.\d\d, \d+\.\d\d\])", table, re.MULTILINE))
    assert set(rows) == {name for name, method in shipped["methods"].items() if "drafter" in method} - {"specblock"}
    varied = [method["tree"] for method in shipped["methods"].values() if "tree" in method]
    for setting, values in {"max_slots": {1, 2, 3}, "num_blocks": {1, 2, 3}, "merge_duplicates": {False}}.items():
        assert {tree[setting] for tree in varied if setting in tree} == values


def test_a_dry_run_answers_nothing(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--config", config, "--out", tmp_path / "run", "--dry_run") == 0
    assert "2 answers, 2 to do, at most about" in capsys.readouterr().err
    assert not (tmp_path / "run" / RECORDS_FILE).exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--out", "x"], "no methods"),
        (["--config", "{config}"], "--out DIR"),
        (["--config", "{config}", "--out", "x", "--prompts=2"], "has 1 prompts; 2 are asked for"),
        (["report", "{config.parent}"], f"no {RUN_FILE}"),
    ],
)
def test_mistakes_are_explained(
    config: Path, words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*(word.format(config=config) for word in words)) == USER_ERROR
    assert problem in capsys.readouterr().err


def test_results_need_a_drafter_that_was_measured(tmp_path: Path, tiny_folders: TinyFolders) -> None:
    (tmp_path / RUN_FILE).write_text(run().model_dump_json())
    write_records(RECORDS, tmp_path / RECORDS_FILE)
    assert call("results", tmp_path, tiny_folders.drafter) == USER_ERROR
    assert bench.folder_of(NAME) is None
    bench.results(tmp_path, str(tiny_folders.drafter), method="drafted", out=tmp_path / "entry")
    assert len(read_records(tmp_path / "entry" / RECORDS_FILE)) == len(RECORDS)
