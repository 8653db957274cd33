"""LightningCLI for the drafter: `fit` and `validate`, and the plain-function commands behind the same `--help`."""

import zipfile
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from transformers.utils.logging import disable_progress_bar

from specblock_zoo.cli.commands import COMMANDS, add_command, call
from specblock_zoo.data.datamodule import FeatureDataModule
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.training.checkpoints import newest_last, places_of_last
from specblock_zoo.training.module import DrafterModule

CHECKPOINT_WORDS = ("last", "best", "hpc", "registry")
DESCRIPTION = "Train SpecBlock drafters and generate with them: the target's text, in fewer forwards."


class ZooParser(LightningArgumentParser):
    """Parser that lists the plain-function commands beside the trainer's."""

    def add_subcommands(self, **kwargs: Any) -> Any:  # type: ignore[override]  # Lightning passes keywords only
        action = super().add_subcommands(**kwargs)
        for name, command in COMMANDS.items():
            add_command(action, name, command)
        return action


class SpecBlockCLI(LightningCLI):
    """Parses one command line; trainer subcommands run the trainer, the others a plain function."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        kept = ("fit", "validate")
        return {name: skipped for name, skipped in LightningCLI.subcommands().items() if name in kept}

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        # Lightning warns about `args` in a program that has a sys.argv of its own; `main(argv)` is meant for that.
        self.config: Namespace = parser.parse_args(args)  # type: ignore[arg-type]  # `run` gives a list or None
        options = self.config[self.config.subcommand]
        if options.get("ckpt_path") == "last":
            found = newest_last(options.trainer)
            # A first `fit` begins; Lightning would score a new drafter just as well.
            if found is None and self.config.subcommand != "fit":
                places = " or ".join(places_of_last(options.trainer))
                raise ConfigurationError(
                    f"--ckpt_path is last, and there is no last.ckpt in {places}.",
                    "Give the checkpoint's path, or the --trainer options of the run that wrote it.",
                )
            options.ckpt_path = str(found or "last")
        # Lightning reads hyperparameters from the checkpoint next.
        check_checkpoint(options.get("ckpt_path"))

    def _parse_ckpt_path(self) -> None:
        """Lets the checkpoint's settings of the model take the place of the command line's, and says so."""
        name = self.config.subcommand
        given = leaves(self.config[name].get("model"))
        super()._parse_ckpt_path()
        kept = leaves(self.config[name].get("model"))
        if given != kept:
            unsaid = leaves(self._subcommand_parsers[name].get_defaults().get("model"))
            asked = {key: value for key, value in given.items() if value != unsaid.get(key)}
            # Scoring a checkpoint is not going on with its run: there its own settings are all that can be meant.
            note_kept(asked if name == "fit" else {}, kept, given)

    def before_fit(self) -> None:
        """Tells the module which drafter a checkpoint brings; Lightning loads it after the drafter was built."""
        path = self.config[self.config.subcommand].get("ckpt_path")
        if path and Path(path).is_file():
            self.model.stored_config = torch.load(path, "cpu", weights_only=True, mmap=True).get("drafter_config")

    before_validate = before_fit

    def _set_seed(self) -> None:
        if self.subcommand not in COMMANDS:
            super()._set_seed()

    def before_instantiate_classes(self) -> None:
        if self.subcommand in COMMANDS:
            call(COMMANDS[self.subcommand], vars(self.parser.instantiate(self.config)[self.subcommand]))
            raise SystemExit(0)


def check_checkpoint(path: Any) -> None:
    """Refuses a checkpoint that cannot be resumed from, before a target is loaded for it.

    Args:
        path: as in `--ckpt_path`; Lightning's words, folders of sharded checkpoints and addresses pass.

    Raises:
        ConfigurationError: there is no such file, or it is not whole.
    """
    named = str(path).partition(":")[0] in CHECKPOINT_WORDS
    if path is None or named or "://" in str(path) or Path(path).is_dir():
        return
    if not Path(path).is_file():
        raise ConfigurationError(
            f"There is no checkpoint {path}.", "Give a .ckpt file, or last for the newest one of this run."
        )
    if not zipfile.is_zipfile(path):
        raise ConfigurationError(
            f"{path} has {Path(path).stat().st_size} bytes and is no whole checkpoint.",
            "It was cut short or is another file: resume from the checkpoint before it.",
        )


def leaves(value: Any, name: str = "model") -> dict[str, Any]:
    """The parsed options below `name`, each by its flag, dictionaries taken apart; what is unset is left out."""
    inner = vars(value) if isinstance(value, Namespace) else value
    if not isinstance(inner, dict):
        return {} if inner is None else {name: list(inner) if isinstance(inner, tuple) else inner}
    found: dict[str, Any] = {}
    for key, each in inner.items():
        found |= leaves(each, f"{name}.{key}")
    return found


def note_kept(asked: dict[str, Any], kept: dict[str, Any], given: dict[str, Any]) -> None:
    """Says with which settings a checkpoint's run goes on, where they are not the command line's.

    Args:
        asked: what was asked for on the command line or in a configuration.
        kept: what the checkpoint has.
        given: what was asked for, and the defaults.

    Raises:
        ConfigurationError: what was asked for would be passed over.
    """
    passed_over = [
        f"--{key} is {value!r}, the checkpoint's is {kept.get(key)!r}"
        for key, value in asked.items()
        if kept.get(key) != value
    ]
    if passed_over:
        raise ConfigurationError(
            f"A checkpoint's run goes on with the settings it was started with, but {'; '.join(passed_over)}.",
            "Give the checkpoint's values or none, or start a new run: --model.initialise takes a drafter's folder.",
        )
    for key in sorted(kept.keys() | given.keys()):
        if kept.get(key) != given.get(key):
            rank_zero_info(f"--{key} is the checkpoint's, {kept.get(key)!r}; the default is {given.get(key)!r}")


def run(argv: list[str] | None = None) -> None:
    """Parses `argv` (default: the process's) and runs the subcommand.

    Raises:
        SpecBlockError: a user mistake; `main` turns it into exit code 2.
        SystemExit: usage errors (2), `--help` (0), and the end of a plain-function command.
    """
    # Lightning draws the progress bars here; those of loading and saving would cut through them.
    disable_progress_bar()
    try:
        SpecBlockCLI(
            DrafterModule,
            FeatureDataModule,
            parser_class=ZooParser,
            parser_kwargs={"description": DESCRIPTION, "prog": "specblock"},
            save_config_kwargs={"overwrite": True},
            trainer_defaults={
                "plugins": [{"class_path": "specblock_zoo.training.checkpoints.WholeCheckpoints"}],
                # The data module divides the batches among the processes itself.
                "use_distributed_sampler": False,
            },
            seed_everything_default=0,
            auto_configure_optimizers=False,
            args=argv,
        )
    except MisconfigurationException as cause:
        raise ConfigurationError(
            f"The trainer refuses these options: {cause}", "Correct the --trainer options."
        ) from cause
