"""One exit code and one paragraph for every mistake a user can make."""

import subprocess
import sys

import pytest

from specblock_zoo.cli import train
from specblock_zoo.cli.main import USER_ERROR, main, with_underscores
from specblock_zoo.errors import ConfigurationError, MissingPackageError, SpecBlockError


@pytest.mark.parametrize("kind", [ConfigurationError, MissingPackageError])
def test_a_mistake_is_one_paragraph_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: type[SpecBlockError]
) -> None:
    def fail(argv: list[str] | None) -> None:
        raise kind("It is [bold]3[/] :x:,\n not 4.", "Make it 4.")

    monkeypatch.setattr(train, "run", fail)
    assert main([]) == USER_ERROR == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "error: It is [bold]3[/] :x:, not 4. Make it 4.\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(argv: list[str] | None) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(train, "run", fail)
    with pytest.raises(ZeroDivisionError):
        main([])


def test_help_lists_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for name in ("fit", "validate", "cache", "generate", "demo"):
        assert f"\n    {name} " in shown


@pytest.mark.parametrize("name", ["fit", "validate", "cache", "generate", "demo"])
def test_every_subcommand_has_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert "--target" in capsys.readouterr().out or name in ("fit", "validate")


@pytest.mark.parametrize("arguments", [[], ["push"], ["fit", "--no_such_flag=1"], ["generate"], ["cache"]])
def test_usage_errors_exit_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "taken"),
    [
        (["generate", "--max-nodes=3"], ["generate", "--max_nodes=3"]),
        (["--show-tree", "a-b", "-c", "x-y.yaml"], ["--show_tree", "a-b", "-c", "x-y.yaml"]),
        (
            ["--trainer.max-epochs", "--drafter=specblock-smollm2-135m"],
            ["--trainer.max_epochs", "--drafter=specblock-smollm2-135m"],
        ),
        (["--compare", "--", "--no-flag"], ["--compare", "--", "--no-flag"]),
        (["--data.cache_dir=a__b", "--print-config"], ["--data.cache_dir=a__b", "--print_config"]),
    ],
)
def test_flags_may_be_spelled_with_hyphens(typed: list[str], taken: list[str]) -> None:
    assert with_underscores(typed) == taken


def test_the_module_is_a_program() -> None:
    command = [sys.executable, "-m", "specblock_zoo.cli.main", "generate", "hello", "--target", "/nowhere"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == USER_ERROR
    assert ended.stderr.strip().splitlines()[-1].startswith("error: ")
