"""Run a frozen target and return what a drafter reads of it.

Hooks collect the states, into a store that a context variable names, so that several threads may run one target. They
go with the forward: transformers' own recorder leaves hooks behind, and a target that has them cannot be pickled.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from specblock_zoo.structures import FINAL_NORM, TargetFeatures
from specblock_zoo.targets.base import check_tap_layers

_states: ContextVar[dict[int, Tensor] | None] = ContextVar("states", default=None)
# torch numbers hooks without a lock; two with one number would remove each other.
_registering = threading.Lock()


def _recorder(index: int) -> Callable[..., None]:
    def record(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        # Another thread's hooks fire in our forward too; they find our store and write what ours write.
        store = _states.get()
        if store is not None:
            store[index] = output[0] if isinstance(output, tuple) else output

    return record


@contextmanager
def hooked(hooks: Sequence[tuple[nn.Module, Callable[..., None]]]) -> Iterator[None]:
    """Modules call their hooks after each forward inside, in whatever thread."""
    with _registering:
        handles = [module.register_forward_hook(hook) for module, hook in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _recorded(model: PreTrainedModel, layers: Sequence[int], want_last_hidden: bool) -> Iterator[dict[int, Tensor]]:
    """Outputs of decoder layers, and of the norm after them under `FINAL_NORM`, for the forwards inside."""
    decoder, store = model.get_decoder(), dict[int, Tensor]()
    wanted = {*layers, FINAL_NORM} if want_last_hidden else set(layers)
    modules = {layer: decoder.norm if layer == FINAL_NORM else decoder.layers[layer] for layer in wanted}
    token = _states.set(store)
    try:
        with hooked([(module, _recorder(index)) for index, module in modules.items()]):
            yield store
    finally:
        _states.reset(token)


def _side_by_side(states: Sequence[Tensor]) -> Tensor:
    # Layers of a sharded target may live on several devices; a single state needs no copy.
    if len(states) == 1:
        return states[0]
    return torch.cat([state.to(states[0].device) for state in states], dim=-1)


def forward_with_taps(
    model: PreTrainedModel, tap_layers: Sequence[int], want_last_hidden: bool = False, **forward_kwargs: Any
) -> tuple[ModelOutput, TargetFeatures]:
    """One forward of `model` as the caller wrote it, and the tapped states of exactly the tokens it ran.

    Args:
        model: a causal language model, or its decoder alone (then no logits are computed).
        tap_layers: 0-based layers whose outputs are read, in concatenation order; or `FINAL_NORM` alone.
        want_last_hidden: also return the states after the final norm.
        forward_kwargs: handed to `model` untouched, e.g. `input_ids` [batch, seq], `attention_mask`, `position_ids`,
            `cache`, `logits_to_keep`.

    Returns:
        The model's output, and features `[batch, seq, taps * hidden]` in the target's dtype.

    Raises:
        ConfigurationError: a tap is not a layer of the target.
    """
    if tuple(tap_layers) != (FINAL_NORM,):
        check_tap_layers(tuple(tap_layers), model.config.num_hidden_layers)
    with _recorded(model, tap_layers, want_last_hidden) as states:
        outputs = model(**forward_kwargs)
    taps = _side_by_side([states[layer] for layer in tap_layers])
    return outputs, TargetFeatures(taps, states[FINAL_NORM] if want_last_hidden else None)


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
