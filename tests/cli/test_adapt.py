"""`specblock adapt`, as a user types it: every shipped configuration runs, scaled down to a tiny pair."""

import json
from pathlib import Path

import pytest
import yaml

from specblock_zoo.adaptation.policies import POLICIES
from specblock_zoo.bench.folder import measuring_into
from specblock_zoo.cli.main import USER_ERROR, main
from tests.support.tiny_pair import TinyFolders

pytest.importorskip("matplotlib")

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "adapt").glob("*.yaml"))


def run(arguments: list[str]) -> int:
    """Exit code of a command line, whether it returns or leaves through `SystemExit`."""
    try:
        return main(arguments)
    except SystemExit as left:
        return int(left.code or 0)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short prompts under every name that a configuration uses."""
    folder = tmp_path_factory.mktemp("tasks")
    names = {part["task"] for file in CONFIGS for part in yaml.safe_load(file.read_text())["stream"]["segments"]}
    for name in names:
        lines = [json.dumps({"id": f"{name}/{n}", "category": "c", "turns": [f"say {n}"]}) for n in range(2)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder


def small(folders: TinyFolders, tasks: Path, out: Path) -> list[str]:
    """Flags that make any configuration a matter of seconds."""
    pair = [f"--replay.target={folders.target}", f"--replay.drafter={folders.drafter}", "--replay.dtype=float32"]
    size = ["--stream.passes=1", "--replay.limit=1", "--replay.max_new_tokens=4"]
    return [f"--tasks={tasks}", f"--out={out}", *pair, *size]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda file: file.stem)
def test_every_configuration_runs(config: Path, tiny_folders: TinyFolders, tasks: Path, tmp_path: Path) -> None:
    options = yaml.safe_load(config.read_text())
    assert run(["adapt", f"--config={config}", *small(tiny_folders, tasks, tmp_path)]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary) == {options["stream"]["name"]}
    policies = summary[options["stream"]["name"]]
    assert set(policies) == {*options["replay"]["policies"], "oracle"}
    asked = len(options["stream"]["segments"])
    for figures in policies.values():
        assert figures["queries"] == figures["equal"] == asked
        assert figures["net_tokens_per_s_ratio"] > 0
        assert figures["tau"] >= 1
        assert 0 <= figures["update_share"] < 1
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == asked * len(options["replay"]["policies"])
    assert (tmp_path / "actions.png").read_bytes().startswith(b"\x89PNG")


def test_updates_happen_and_are_paid_for(
    tiny_folders: TinyFolders, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [*small(tiny_folders, tasks, tmp_path), "--stream.name=busy", "--replay.policies=[none,always]"]
    flags += ['--stream.segments=[{"task": "wmt23", "prompts": 2}]', "--stream.passes=3"]
    flags += ["--replay.max_new_tokens=12", "--adaptation.head_needed=1", "--adaptation.text_needed=100"]
    assert run(["adapt", *flags]) == 0
    figures = json.loads((tmp_path / "summary.json").read_text())["busy"]["always"]
    assert figures["updates"]["head"] >= 1
    assert figures["update_share"] > 0
    assert "always" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ([], "No folder of task files"),
        (["--tasks=nowhere", "--replay.policies=[oracle]"], "No policy is called oracle"),
        (["--tasks=nowhere"], "0 segments"),
        (["--tasks=nowhere", '--stream.segments=[{"task": "x", "prompts": 1}]'], "There is no task file"),
    ],
)
def test_mistakes_are_explained(flags: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["adapt", *flags]) == USER_ERROR
    assert problem in capsys.readouterr().err


def test_policies_of_the_configurations_exist() -> None:
    used = {name for file in CONFIGS for name in yaml.safe_load(file.read_text())["replay"]["policies"]}
    assert used <= set(POLICIES)
    assert len(CONFIGS) >= 5


def test_two_do_not_replay_into_one_folder(
    tiny_folders: TinyFolders, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with measuring_into(tmp_path / "out"):
        assert run(["adapt", f"--config={CONFIGS[0]}", *small(tiny_folders, tasks, tmp_path / "out")]) == USER_ERROR
    assert "is writing" in capsys.readouterr().err
