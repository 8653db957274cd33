"""Plain functions as subcommands: their signature is their interface."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from jsonargparse import ArgumentParser

from specblock_zoo.cli.commands import COMMANDS, Group, add_command, add_options, cache, call, settings_class, summary
from specblock_zoo.cli.demo import demo
from specblock_zoo.cli.main import main
from specblock_zoo.data.manifest import read_manifest
from specblock_zoo.data.settings import CacheSettings
from tests.support.tiny import TinyRun


@dataclass(frozen=True)
class Knobs:
    """Knobs.

    Attributes:
        size: how much.
        names: of what.
    """

    size: int
    names: list[str]


def turn(settings: Knobs) -> None:
    """Turns the knobs."""
    calls.append(settings)


def say(word: str, times: int = 2) -> None:
    """Says a word."""
    calls.append((word, times))


calls: list[object] = []


def parsed(command: object, arguments: list[str]) -> dict[str, object]:
    parser = ArgumentParser(exit_on_error=False)
    add_options(parser, command)  # type: ignore[arg-type]  # either of the two above
    return vars(parser.instantiate(parser.parse_args(arguments)))


def test_a_required_parameter_is_positional_and_the_others_are_flags() -> None:
    calls.clear()
    call(say, parsed(say, ["hello", "--times", "3"]))
    assert calls == [("hello", 3)]


def test_the_fields_of_a_settings_dataclass_are_flags() -> None:
    calls.clear()
    call(turn, parsed(turn, ["--size", "4", "--names", "a", "b"]))
    assert calls == [Knobs(4, ["a", "b"])]


@pytest.mark.parametrize(("words", "value"), [([], False), (["--json"], True), (["--json", "--threads=1"], True)])
def test_a_bare_switch_means_yes(words: list[str], value: bool) -> None:
    parser = ArgumentParser()
    add_options(parser, demo)
    assert parser.parse_args(words).json is value


def test_every_command_has_a_one_line_summary() -> None:
    for command in COMMANDS.values():
        assert 10 < len(summary(command)) < 120


def push(folder: Path, settings: Knobs) -> None:
    """Pushes a folder."""
    calls.append((folder, settings))


def test_positional_words_stand_beside_the_flags_of_a_dataclass() -> None:
    calls.clear()
    call(push, parsed(push, ["here", "--size", "4", "--names", "a"]))
    assert calls == [(Path("here"), Knobs(4, ["a"]))]


def test_a_group_runs_the_function_that_was_named() -> None:
    group = Group("Says and turns.", {"say": say, "turn": turn})
    parser = ArgumentParser(exit_on_error=False)
    add_command(parser.add_subcommands(), "both", group)
    calls.clear()
    for words in (["both", "say", "hello"], ["both", "turn", "--size", "4", "--names", "a"]):
        call(group, vars(parser.instantiate(parser.parse_args(words))["both"]))
    assert calls == [("hello", 2), Knobs(4, ["a"])]
    assert summary(group) == "Says and turns."
    assert settings_class(group) is None


def test_the_cache_command_takes_a_settings_dataclass() -> None:
    assert settings_class(COMMANDS["cache"]) is CacheSettings


def test_a_worker_says_what_it_leaves_to_others(
    tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--records", str(tiny_run.records), "--target", str(tiny_run.target), "--out", str(tmp_path / "cache")]
    sizes = ["--draft_vocab_size=48", "--dtype=float32", "--shard_size=5"]
    for worker, said in (("0/2", "5 records are left to other workers"), ("1/2", "ready for `specblock fit`")):
        with pytest.raises(SystemExit) as ended:
            main(["cache", *flags, *sizes, f"--worker={worker}"])
        assert ended.value.code == 0
        assert said in capsys.readouterr().out


def test_cache_builds_a_folder_and_says_so(
    tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cache"
    records, target = [str(tiny_run.records)], str(tiny_run.target)
    cache(CacheSettings(records, target, out=str(out), draft_vocab_size=48, dtype="float32"))
    manifest = read_manifest(out)
    assert manifest.complete
    tokens = sum(shard.tokens for shard in manifest.shards)
    assert f"{out}: {tokens:,} tokens" in capsys.readouterr().out
