"""Refusals before a long run: cache, target, drafter and checkpoint must speak of the same thing."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from specblock_zoo.errors import CacheMismatchError, ConfigurationError, UnknownNameError
from specblock_zoo.functional.losses import LOSSES, RANK_LOSSES
from specblock_zoo.models.configuration import DrafterConfig, drafter_fields
from specblock_zoo.structures import TreeSettings
from specblock_zoo.training.rollout import RolloutSettings

# How a drafter drafts, and where it comes from: may differ between a checkpoint and the run that continues it.
FREE_FIELDS = {field.name for field in fields(TreeSettings)} | {
    "target_name",
    "target_revision",
    "tokenizer_hash",
    "vocab_coverage",
}


def check_objective(settings: RolloutSettings) -> None:
    """Raises `UnknownNameError` or `ConfigurationError` unless losses exist and shares of starts lie in 0..1."""
    for name, table in {"draft_loss": LOSSES, "rank_loss": RANK_LOSSES}.items():
        if getattr(settings, name) not in table:
            raise UnknownNameError(
                f"model.objective.{name} is {getattr(settings, name)!r}; known: {', '.join(table)}.",
                "Choose one of them.",
            )
    if not all(0 <= share <= 1 for share in settings.block_sampling):
        raise ConfigurationError(
            f"model.objective.block_sampling is {settings.block_sampling}; expected shares in 0..1.",
            "Give one share per block after the first.",
        )


def check_options(kind: type[DrafterConfig], options: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Refuses drafter options that do not exist, or that contradict what cache and objective already decide.

    Raises:
        ConfigurationError: an option is not a field of `kind`.
        CacheMismatchError: an option contradicts `facts`.
    """
    known = drafter_fields(kind)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigurationError(
            f"The drafter has no option {', '.join(unknown)}; it has {', '.join(known)}.",
            "Correct model.drafter.",
        )
    wrong = {name: value for name, value in options.items() if name in facts and _plain(value) != _plain(facts[name])}
    if wrong:
        differences = "; ".join(f"{name} is {facts[name]!r}, not {value!r}" for name, value in wrong.items())
        raise CacheMismatchError(
            f"The drafter does not fit the feature cache and the objective: {differences}.",
            "Leave these out of model.drafter, or build the cache for them.",
        )


def check_same_drafter(run: DrafterConfig, stored: DrafterConfig) -> None:
    """Raises `ConfigurationError` unless a stored drafter has the shapes and switches of this run's."""
    names = ["model_type"] if run.model_type != stored.model_type else drafter_fields(type(run))
    differing = [
        f"{name} is {getattr(stored, name)!r} there and {getattr(run, name)!r} here"
        for name in names
        if name not in FREE_FIELDS and _plain(getattr(stored, name)) != _plain(getattr(run, name))
    ]
    if differing:
        raise ConfigurationError(
            f"The stored drafter is not the one of this run: {'; '.join(differing)}.",
            "Use the configuration it was trained with, or start a new run.",
        )


def check_same_vocabulary(drafter_t2d: Tensor, cache_t2d: Tensor) -> None:
    """Raises `CacheMismatchError` unless drafter and cache have the same draft vocabulary (bool `[vocab]` each)."""
    if not torch.equal(drafter_t2d.cpu(), cache_t2d.cpu()):
        raise CacheMismatchError(
            f"The drafter's vocabulary has {int(drafter_t2d.sum())} tokens, the cache's {int(cache_t2d.sum())}; "
            "they differ.",
            "Use the cache the drafter was trained with, or train a new drafter.",
        )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
