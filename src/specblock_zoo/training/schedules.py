"""Learning-rate schedules, counted in optimizer updates."""

import math

import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_cosine_schedule_with_warmup

from specblock_zoo.errors import ConfigurationError


def warmup_cosine(optimizer: Optimizer, total_updates: float, warmup_fraction: float) -> LambdaLR:
    """Linear warm-up over the first `warmup_fraction` of the updates, then a cosine to zero (paper).

    Args:
        total_updates: updates of the whole run, >= 1; Lightning's `estimated_stepping_batches`.
        warmup_fraction: 0..1; at least one update warms up when it is above zero.

    Raises:
        ConfigurationError: the run has no known end, or a value is out of range.
    """
    if not 0.0 <= warmup_fraction <= 1.0:
        raise ConfigurationError(f"warmup_fraction is {warmup_fraction}; expected 0..1.", "Correct the configuration.")
    if math.isinf(total_updates) or total_updates < 1:
        raise ConfigurationError(
            f"The run has {total_updates} updates; the cosine schedule needs a finite number of at least one.",
            "Set --trainer.max_steps or --trainer.max_epochs, and check that the cache holds at least one batch.",
        )
    total = int(total_updates)
    return get_cosine_schedule_with_warmup(optimizer, math.ceil(warmup_fraction * total), total)


def resize(schedule: LambdaLR, total_updates: float, warmup_fraction: float) -> None:
    """Lets a schedule under way go on as one of `total_updates` would, from its next update; errors as above."""
    # Only for the function of the update inside it.
    other = warmup_cosine(SGD([torch.zeros(1)], lr=1.0), total_updates, warmup_fraction)
    schedule.lr_lambdas = [other.lr_lambdas[0]] * len(schedule.lr_lambdas)
