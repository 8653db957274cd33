"""The commands that are plain functions; the trainer's own (`fit`, `validate`) are Lightning's."""

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

from jsonargparse import ArgumentParser

from specblock_zoo.cli.demo import demo
from specblock_zoo.cli.generate import generate
from specblock_zoo.data.build_cache import CacheSettings, build_cache


def cache(settings: CacheSettings) -> None:
    """Runs the target over answer records and stores what a drafter learns from.

    Args:
        settings: what to read, with which target, and where to write.

    Raises:
        SpecBlockError: bad input, found before anything is written; see `build_cache`.
    """
    manifest = build_cache(settings)
    tokens = sum(shard.tokens for shard in manifest.shards)
    print(f"{settings.out}: {tokens:,} tokens in {len(manifest.shards)} shards, ready for `specblock fit`")


COMMANDS: dict[str, Callable[..., None]] = {"cache": cache, "generate": generate, "demo": demo}


def summary(command: Callable[..., None]) -> str:
    """The first line of a command's docstring."""
    return (command.__doc__ or "").strip().splitlines()[0]


def add_options(parser: ArgumentParser, command: Callable[..., None]) -> None:
    """Adds a command's parameters to `parser`: required ones are positional, the others are flags.

    A command whose only parameter is a dataclass named `settings` gets one flag per field instead; a required list of
    files takes one or more words, so that a shell's file pattern works.
    """
    settings = settings_class(command)
    if settings is None:
        parser.add_function_arguments(command, as_positional=True)
        return
    words = {field.name for field in fields(settings) if field.type == list[str] and field.default is MISSING}
    for name in sorted(words):
        parser.add_argument(f"--{name}", nargs="+", type=str, required=True, metavar="FILE", help="One or more files.")
    parser.add_class_arguments(settings, instantiate=False, skip=words)


def call(command: Callable[..., None], options: dict[str, Any]) -> None:
    """Runs a command with the options that `add_options` declared."""
    settings = settings_class(command)
    command(**options) if settings is None else command(settings(**options))


def settings_class(command: Callable[..., None]) -> type | None:
    """The dataclass whose fields are the command's flags, if it takes one."""
    hint = get_type_hints(command).get("settings")
    return hint if isinstance(hint, type) and is_dataclass(hint) else None
