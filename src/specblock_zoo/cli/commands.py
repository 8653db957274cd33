"""The commands that are plain functions; the trainer's own (`fit`, `validate`) are Lightning's."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from jsonargparse import ActionConfigFile, ArgumentParser

from specblock_zoo.cli.adapt import adapt
from specblock_zoo.cli.answers import answers, cache_verify
from specblock_zoo.cli.bench import BENCH_COMMANDS
from specblock_zoo.cli.convert import convert, export
from specblock_zoo.cli.demo import demo
from specblock_zoo.cli.generate import generate
from specblock_zoo.cli.overlap import overlap
from specblock_zoo.cli.plan import add_plan_options, plan
from specblock_zoo.cli.serve import serve
from specblock_zoo.cli.trace import trace
from specblock_zoo.cli.tune import tune_costs
from specblock_zoo.cli.zoo import ZOO_COMMANDS
from specblock_zoo.data.settings import CacheSettings
from specblock_zoo.data.workers import fill_cache

Function = Callable[..., None]


@dataclass(frozen=True)
class Group:
    """Commands behind one word, e.g. `specblock zoo list`; `default` is the one that the word alone runs, if any."""

    summary: str
    functions: Mapping[str, Function]
    default: str | None = None


def cache(settings: CacheSettings) -> None:
    """Runs the target over answer records and stores what a drafter learns from.

    Args:
        settings: what to read, with which target, and where to write.

    Raises:
        SpecBlockError: bad input, found before anything is written; see `fill_cache`.
    """
    manifest = fill_cache(settings)
    if not settings.dry_run:
        size = f"{manifest.committed('tokens'):,} tokens in {len(manifest.shards)} shards"
        missing = manifest.records - manifest.committed("records")
        state = f"{missing:,} records are left to other workers" if missing else "ready for `specblock fit`"
        print(f"{settings.out}: {size}, {state}")


COMMANDS: dict[str, Function | Group] = {
    "answers": answers,
    "cache": cache,
    "cache_verify": cache_verify,
    "overlap": overlap,
    "plan": plan,
    "generate": generate,
    "trace": trace,
    "demo": demo,
    "tune": tune_costs,
    "serve": serve,
    "adapt": adapt,
    "bench": Group("Measures methods on tasks, and reports what was measured.", BENCH_COMMANDS, default="run"),
    "zoo": Group("Lists, shows, fetches, checks and publishes drafters.", ZOO_COMMANDS),
    "convert": convert,
    "export": export,
}


def summary(command: Function | Group) -> str:
    """What a command does, in one line: the first of its docstring."""
    return command.summary if isinstance(command, Group) else (command.__doc__ or "").strip().splitlines()[0]


def add_command(subcommands: Any, name: str, command: Function | Group) -> None:
    """Adds a command to a parser's subcommands; a group has subcommands of its own."""
    parser = ArgumentParser(description=summary(command))
    if isinstance(command, Group):
        if command.default is not None:
            add_flags(parser, command.functions[command.default])
        # jsonargparse wants the outer level first.
        subcommands.add_subcommand(name, parser, help=summary(command))
        inner = parser.add_subcommands(dest="action", required=command.default is None)
        for action, function in command.functions.items():
            add_command(inner, action, function)
        return
    if command is plan:
        add_plan_options(parser)
    else:
        add_flags(parser, command)
    subcommands.add_subcommand(name, parser, help=summary(command))


def add_flags(parser: ArgumentParser, command: Function) -> None:
    """Adds `--config` and a command's parameters to `parser`."""
    parser.add_argument("-c", "--config", action=ActionConfigFile, help="Options from a YAML file.")
    add_options(parser, command)


def add_options(parser: ArgumentParser, command: Function) -> None:
    """Adds a command's parameters to `parser`: required ones are positional, the others are flags.

    Of a dataclass named `settings` each field becomes a flag; a required list of files among them takes one or more
    words, so that a shell's file pattern works.
    """
    parser.add_function_arguments(command, as_positional=True, skip={"settings"})
    settings = settings_class(command)
    if settings is not None:
        add_fields(parser, settings)
    allow_bare_switches(parser)


def add_fields(parser: ArgumentParser, settings: type) -> None:
    """Adds a flag for each field of a dataclass."""
    required = [each for each in fields(settings) if each.default is MISSING and each.default_factory is MISSING]
    words = {each.name for each in required if each.type == list[str]}
    for name in sorted(words):
        parser.add_argument(f"--{name}", nargs="+", type=str, required=True, metavar="FILE", help="One or more files.")
    parser.add_class_arguments(settings, instantiate=False, skip=words)


def allow_bare_switches(parser: ArgumentParser) -> None:
    """Lets `--json` stand for `--json=true`; jsonargparse wants a value, which nobody expects of a switch."""
    for action in parser._actions:
        if getattr(action, "_typehint", None) is bool:
            action.nargs, action.const = "?", True


def call(command: Function | Group, options: Mapping[str, Any]) -> None:
    """Runs a command with the options that `add_options` declared."""
    if isinstance(command, Group):
        action = options["action"]
        if action is None:
            kept = {name: value for name, value in options.items() if name not in ("action", *command.functions)}
            call(command.functions[str(command.default)], kept)
        else:
            call(command.functions[action], vars(options[action]))
        return
    values = {name: value for name, value in options.items() if name not in ("config", "seed_everything")}
    settings = settings_class(command)
    if settings is not None:
        values["settings"] = settings(**{field.name: values.pop(field.name) for field in fields(settings)})
    command(**values)


def settings_class(command: Function | Group) -> type | None:
    """The dataclass whose fields are the command's flags, if it takes one."""
    hint = None if isinstance(command, Group) else get_type_hints(command).get("settings")
    return hint if isinstance(hint, type) and is_dataclass(hint) else None
