"""`specblock plan`: what the run of a training configuration costs, before anything is downloaded or computed."""

from pathlib import Path
from typing import Any

from jsonargparse import ActionConfigFile, ArgumentParser, Namespace
from lightning.pytorch import Trainer
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, PreTrainedConfig

from specblock_zoo.data.datamodule import FeatureDataModule
from specblock_zoo.errors import ConfigurationError, UnknownNameError
from specblock_zoo.targets.registry import family_of
from specblock_zoo.training.budget import Batching, Line, plan_run
from specblock_zoo.training.initialise import drafter_config
from specblock_zoo.training.method import Assumptions
from specblock_zoo.training.module import DrafterModule
from specblock_zoo.training.rollout import RolloutSettings

PACKAGED = Path(__file__).parents[1] / "_configs"
CHECKOUT = Path(__file__).parents[3] / "configs"
DEFAULT_LENGTH = 1024
BF16_PRECISIONS = ("bf16-mixed", "bf16-true", "bf16")
UNKNOWN_DEVICES = ("auto", "-1", "")


def plan(model: Namespace, data: Namespace, trainer: Namespace, assumed: Assumptions) -> None:
    """Prints parameters, memory, disk, updates and device hours of a training configuration, each with its formula.

    Takes every option of `fit`, so that a change can be priced before it is made. Needs no target weights, no cache and
    no accelerator: shapes of the targets in `configs/train` are shipped.

    Args:
        model, data, trainer: as in `fit`.
        assumed: what a configuration does not say.
    """
    target = target_shapes(model.target)
    objective = RolloutSettings(**as_dict(model.objective))
    facts = {
        "tap_layers": list(family_of(target).tap_layers(target)),
        "train_blocks": 1 + len(objective.block_sampling),
    }
    options = {**facts, **(model.drafter or {})}
    config = drafter_config(target, {}, options)
    lines = plan_run(config, target, objective, batching_of(data, trainer), assumed)
    Console().print(as_table(model.target, lines))


def add_plan_options(parser: ArgumentParser) -> None:
    """The options of `fit`, checked but not instantiated, and the assumptions."""
    parser.add_argument("-c", "--config", action=ActionConfigFile, help="A training configuration, as for fit.")
    parser.add_argument("--seed_everything", type=bool | int, default=0, help="As in fit; a plan draws nothing.")
    parser.add_class_arguments(DrafterModule, "model", instantiate=False)
    parser.add_class_arguments(FeatureDataModule, "data", instantiate=False, skip={"cache_dir"})
    parser.add_argument("--data.cache_dir", type=str | None, default=None, help="As in fit; a plan does not read it.")
    parser.add_class_arguments(Trainer, "trainer", instantiate=False)
    parser.add_class_arguments(Assumptions, "assumed")


def target_shapes(name: str) -> PreTrainedConfig:
    """Configuration of a target: shipped, from a folder, or from the Hub; weights are not touched.

    Raises:
        UnknownNameError: none of these has it.
    """
    shipped = (PACKAGED if PACKAGED.is_dir() else CHECKOUT) / "targets" / name
    try:
        return AutoConfig.from_pretrained(shipped if (shipped / "config.json").is_file() else name)
    except (OSError, ValueError) as cause:
        raise UnknownNameError(
            f"There is no configuration of the target {name!r}: not shipped, no folder, and the Hub gave none.",
            "Give a folder with config.json as --model.target, or go online.",
        ) from cause


def batching_of(data: Namespace, trainer: Namespace) -> Batching:
    """How many tokens an update sees.

    Raises:
        ConfigurationError: the run has no known number of devices or epochs.
    """
    devices, epochs = str(trainer.devices), trainer.max_epochs
    if epochs is None or epochs < 1:
        raise ConfigurationError(f"trainer.max_epochs is {epochs}; a plan needs a number.", "Set --trainer.max_epochs.")
    return Batching(
        batch_tokens=data.batch_tokens,
        max_length=data.max_length or DEFAULT_LENGTH,
        devices=devices_per_node(devices) * trainer.num_nodes,
        accumulate=trainer.accumulate_grad_batches,
        epochs=epochs,
        bytes_per_value=2 if trainer.precision in BF16_PRECISIONS else 4,
    )


def devices_per_node(devices: str) -> int:
    """How many devices a Trainer's `devices` names; one where only the machine can tell.

    Raises:
        ConfigurationError: it is neither a number nor a list.
    """
    if devices in UNKNOWN_DEVICES:
        return 1
    if "," in devices:
        return len(devices.strip("[], ").split(","))
    if not devices.isdecimal():
        raise ConfigurationError(f"trainer.devices is {devices!r}; a plan needs a number.", "Set --trainer.devices.")
    return int(devices)


def as_dict(value: Any) -> dict[str, Any]:
    """Fields of parsed settings, whatever form the parser gives them."""
    return value.as_dict() if isinstance(value, Namespace) else dict(vars(value))


def as_table(target: str, lines: list[Line]) -> Table:
    """A plan for the terminal."""
    table = Table("figure", "value", "unit", "formula", title=f"A drafter for {target}", title_justify="left")
    table.columns[1].justify = "right"
    for line in lines:
        table.add_row(line.name, number(line.value), line.unit, line.formula)
    return table


def number(value: float) -> str:
    """Whole numbers in full, others to three digits, very large ones as powers of ten."""
    if value >= 1e12:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.3g}"
