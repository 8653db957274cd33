"""A tiny target, and drafters that adapt to it within a few queries."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specblock_zoo.adaptation.bandit import BanditSettings
from specblock_zoo.adaptation.events import Action
from specblock_zoo.adaptation.session import AdaptiveDrafter
from specblock_zoo.adaptation.settings import AdaptationConfig
from specblock_zoo.adaptation.updater import UpdateSettings
from tests.support.decoding import generate, prompt_ids, random_drafter, target_of

NEW = 14
FAST = UpdateSettings(head_learning_rate=1e-2, full_learning_rate=3e-3, head_epochs=4)


@cache
def target() -> PreTrainedModel:
    """Nobody changes it."""
    return target_of("llama")


@cache
def plain_text(seed: int) -> Tensor:
    """The target's own greedy text for the prompt of a seed."""
    return generate(target(), prompt_ids(8, seed), NEW)


def eager(*actions: Action, **changes: Any) -> AdaptationConfig:
    """Settings that update whenever something small has come in."""
    bandit = BanditSettings(policy="always", actions=actions or (Action.HEAD,))
    return AdaptationConfig(**{"bandit": bandit, "update": FAST, "head_needed": 8, "text_needed": 8, **changes})


def adaptive(*actions: Action, **changes: Any) -> AdaptiveDrafter:
    """An adapting drafter with random weights and `eager` settings."""
    return AdaptiveDrafter(random_drafter(target()), eager(*actions, **changes))


def ask(drafter: AdaptiveDrafter, seed: int = 0) -> None:
    """One query; its text must be the target's own."""
    text = generate(target(), prompt_ids(8, seed), NEW, assistant_model=drafter)
    assert torch.equal(text, plain_text(seed))
