"""The zoo from the command line: what a user sees, and what is never shown."""

from pathlib import Path

import pytest

from specblock_zoo.cli.main import main
from specblock_zoo.cli.zoo import ZOO_COMMANDS, PushOptions, info, list_drafters, pull, push, verify_entries
from specblock_zoo.errors import SpecBlockError, UnknownNameError, WeightsMismatchError
from specblock_zoo.hub import zoo
from tests.support.hub_server import TOKEN, Hub
from tests.support.measured import NAME, publishable
from tests.support.tiny_pair import TinyFolders

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own call

REPO = "someone/drafter"


@pytest.fixture
def folder(tmp_path: Path, tiny_folders: TinyFolders, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An entry in a zoo of its own."""
    monkeypatch.setattr(zoo, "PACKAGED", tmp_path / "zoo")
    (tmp_path / "zoo").mkdir()
    return publishable(tmp_path / "zoo" / NAME, tiny_folders.drafter)


def test_the_actions_are_those_that_are_documented() -> None:
    assert list(ZOO_COMMANDS) == ["list", "info", "pull", "verify", "push"]


def test_list_is_a_table_with_numbers_device_and_status(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    list_drafters()
    shown = " ".join(capsys.readouterr().out.split())
    for fact in (NAME, "trained", "2.17", "1.50"):
        assert fact in shown


def test_info_shows_the_card(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info("specblock-tiny")
    shown = capsys.readouterr().out
    assert shown.startswith(f"# {NAME}")
    with pytest.raises(UnknownNameError, match="nearest"):
        info("specblock-tny")


def test_verify_looks_at_all_and_fails_for_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verify_entries()
    assert f"{NAME}: ok" in capsys.readouterr().out
    (folder / "config.json").write_text("{}")
    with pytest.raises(WeightsMismatchError, match="SHA-256"):
        verify_entries("specblock-tiny")
    assert "WRONG" in capsys.readouterr().out


def test_a_push_only_shows_the_plan_until_it_is_meant(
    folder: Path, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    push(folder, PushOptions(REPO))
    shown = capsys.readouterr().out
    assert hub.log == []
    assert "Nothing was sent" in shown
    assert "model.safetensors" in shown
    assert f'load_drafter("{REPO}"' in shown
    push(folder, PushOptions(REPO, yes=True))
    pull(REPO, revision="k4m2-v1")
    shown = capsys.readouterr().out
    assert "tag k4m2-v1" in shown
    assert "MiB, checked" in shown


def test_the_token_is_sent_and_never_shown(folder: Path, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    push(folder, PushOptions(REPO, yes=True))
    hub.repositories[("models", REPO)].gated = True
    with pytest.raises(SpecBlockError) as refused:
        pull(REPO)
    said = capsys.readouterr()
    assert f"Bearer {TOKEN}" in hub.authorizations
    assert TOKEN not in said.out + said.err + str(refused.value) + str(refused.value.__cause__)


def test_the_documented_command_line_is_understood(folder: Path, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["zoo", "push", str(folder), "--repo", REPO, "--tag", "v1", "--private", "true", "--yes", "true"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    repository = hub.repositories[("models", REPO)]
    assert repository.private
    assert list(repository.tags) == ["v1"]
    assert main(["zoo", "info", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("error: No drafter is called 'nothing'")
