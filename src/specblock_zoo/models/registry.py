"""Kinds of drafter by `model_type`; the only file, beside the table of training methods, that names them all."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoConfig, AutoModel

from specblock_zoo.errors import UnknownNameError
from specblock_zoo.models.configuration import DrafterConfig
from specblock_zoo.models.eagle3 import Eagle3Config, Eagle3Drafter
from specblock_zoo.models.medusa import MedusaConfig, MedusaDrafter
from specblock_zoo.models.pretrained import PretrainedDrafter
from specblock_zoo.models.source import folder_of
from specblock_zoo.models.specblock import SpecBlockConfig, SpecBlockDrafter


class DrafterKind(NamedTuple):
    """One kind of drafter: configuration, model, and for readers the method's name, paper and arXiv number."""

    config: type[DrafterConfig]
    model: type[PretrainedDrafter]
    title: str
    paper: str
    arxiv: str


DRAFTERS: dict[str, DrafterKind] = {
    "specblock": DrafterKind(
        SpecBlockConfig,
        SpecBlockDrafter,
        "SpecBlock",
        "SpecBlock: Block-Iterative Speculative Decoding with Dynamic Tree Drafting",
        "2605.07243",
    ),
    "eagle3": DrafterKind(
        Eagle3Config,
        Eagle3Drafter,
        "EAGLE-3",
        "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test",
        "2503.01840",
    ),
    "medusa": DrafterKind(
        MedusaConfig,
        MedusaDrafter,
        "Medusa",
        "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads",
        "2401.10774",
    ),
}


DEFAULT_KIND = "specblock"
"""What a training configuration means that names no `model_type`."""


def register() -> None:
    """Teaches transformers' `AutoConfig` and `AutoModel` every kind; calling it again changes nothing."""
    for model_type, kind in DRAFTERS.items():
        AutoConfig.register(model_type, kind.config, exist_ok=True)
        AutoModel.register(kind.config, kind.model, exist_ok=True)


def kind_of(model_type: Any) -> DrafterKind:
    """The kind called `model_type`.

    Raises:
        UnknownNameError: there is none; the message lists those there are.
    """
    if model_type not in DRAFTERS:
        raise UnknownNameError(
            f"{model_type!r} is no kind of drafter; known: {', '.join(DRAFTERS)}.", "Take one of these names."
        )
    return DRAFTERS[model_type]


def kind_of_folder(folder: Path) -> DrafterKind:
    """The kind of the drafter in `folder`, in our format or in a published one.

    Raises:
        UnknownNameError: `config.json` is no drafter's.
    """
    for kind in DRAFTERS.values():
        if kind.model.published is not None and kind.model.published.is_published(folder):
            return kind
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return kind_of(fields.get("model_type") if isinstance(fields, dict) else None)


def read_config(fields: dict[str, Any]) -> DrafterConfig:
    """A drafter's configuration from the fields of its `config.json`.

    Raises:
        UnknownNameError: it is no drafter's.
    """
    return kind_of(fields.get("model_type")).config.from_dict(fields)


def load(name: Any, **options: Any) -> Any:
    """Loads a drafter of any kind, strictly.

    Args:
        name: zoo name, `org/name` on the Hub, or a path.
        options: as `PretrainedDrafter.from_pretrained`.

    Raises:
        UnknownNameError: there is no such name, or what it names is no drafter.
        SpecBlockError: see `PretrainedDrafter.from_pretrained`.
    """
    place = folder_of(name, options)
    return kind_of_folder(place).model.from_folder(place, str(name), **options)
