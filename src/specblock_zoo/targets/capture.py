"""Run a frozen target and return what a drafter reads of it.

The states are collected by transformers' own recorder, which keeps them in a context variable, so that two threads may
run one target. The recorder gives the last layer after the final norm; a tap on it is read at the norm's input instead.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from specblock_zoo.structures import TargetFeatures
from specblock_zoo.targets.base import check_tap_layers

_norm_input: ContextVar[list[Tensor] | None] = ContextVar("norm_input", default=None)


def _record_norm_input(norm: nn.Module, args: tuple[Tensor, ...]) -> None:
    seen = _norm_input.get()
    if seen is not None:
        seen.append(args[0])


@contextmanager
def _final_norm_input(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    seen: list[Tensor] = []
    token = _norm_input.set(seen)
    handle = model.get_decoder().norm.register_forward_pre_hook(_record_norm_input)
    try:
        yield seen
    finally:
        handle.remove()
        _norm_input.reset(token)


def _side_by_side(states: Sequence[Tensor]) -> Tensor:
    # Layers of a sharded target may live on several devices.
    return torch.cat([state.to(states[0].device) for state in states], dim=-1)


def forward_with_taps(
    model: PreTrainedModel, tap_layers: Sequence[int], want_last_hidden: bool = False, **forward_kwargs: Any
) -> tuple[ModelOutput, TargetFeatures]:
    """One forward of `model` as the caller wrote it, and the tapped states of exactly the tokens it ran.

    Args:
        model: a causal language model, or its decoder alone (then no logits are computed).
        tap_layers: 0-based layers whose outputs are read, in concatenation order.
        want_last_hidden: also return the states after the final norm.
        forward_kwargs: handed to `model` untouched, e.g. `input_ids` [batch, seq], `attention_mask`, `position_ids`,
            `cache`, `logits_to_keep`; `output_hidden_states` is ours.

    Returns:
        The model's output, and features `[batch, seq, taps * hidden]` in the target's dtype.

    Raises:
        ConfigurationError: a tap is not a layer of the target.
    """
    last = model.config.num_hidden_layers
    check_tap_layers(tuple(tap_layers), last)
    wanted = [layer + 1 for layer in tap_layers] + ([last] if want_last_hidden else [])
    if last - 1 not in tap_layers:
        outputs = model(**forward_kwargs, output_hidden_states=wanted)
        states = outputs.hidden_states
        taps = [states[layer + 1] for layer in tap_layers]
    else:
        with _final_norm_input(model) as seen:
            outputs = model(**forward_kwargs, output_hidden_states=wanted)
        states = outputs.hidden_states
        taps = [seen[-1] if layer == last - 1 else states[layer + 1] for layer in tap_layers]
    return outputs, TargetFeatures(_side_by_side(taps), states[last] if want_last_hidden else None)


@torch.inference_mode()
def capture(
    model: PreTrainedModel,
    tap_layers: Sequence[int],
    input_ids: Int[Tensor, "batch seq"],
    attention_mask: Bool[Tensor, "batch seq"],
) -> TargetFeatures:
    """Features and last hidden states of whole, padded sequences; the head is never run.

    Padding may be on either side and holds unspecified values; every real token gets what batch 1 would give it,
    up to the rounding of other kernels.

    Returns:
        features `[batch, seq, taps * hidden]` and last_hidden `[batch, seq, hidden]`, in the target's dtype.
    """
    _, features = forward_with_taps(
        model.get_decoder(),
        tap_layers,
        want_last_hidden=True,
        input_ids=input_ids,
        attention_mask=attention_mask.long(),
        position_ids=(attention_mask.long().cumsum(-1) - 1).clamp_min(0),
        use_cache=False,
    )
    return features
