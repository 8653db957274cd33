"""Drafter forwards at a few fixed shapes, so that an accelerator can replay captured graphs of them.

A round's forwards are hundreds of small kernels, whose launches cost an accelerator more than the work. A CUDA graph
launches them at once, but for the shapes it was captured with. So contexts come in buffers of few lengths with a mask,
start nodes are filled up by repeating one, and pairs by reading the latest committed ones once more: all of it exact,
since what is added is masked, dropped or the same again.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.inference import target_cache
from specblock_zoo.inference.cache import FIRST_CAPACITY, DrafterCache, Pairs
from specblock_zoo.models.base import Drafter
from specblock_zoo.models.pretrained import PretrainedDrafter
from specblock_zoo.structures import FINAL_NORM, BranchMemory, BranchOutput, ContextOutput, KeyValues
from specblock_zoo.targets.capture import hooked

ROWS, PAIRS, TOKENS = (4, 16, 64), (8, 16, 24, 32), (8, 16, 32, 64, 128)
"""Start nodes of a block, pairs of a refresh and tokens of a verify forward are filled up to these. Starts and pairs
beyond the last are run as they are; a tree over a static cache has at most the last less the root."""
REPLAY: Mapping[str, Any] = {"mode": "reduce-overhead"}
GRAPHS = 256
"""Shapes of one forward before the compiler gives up on it: those of `ROWS`, for each block, for each capacity."""


def filled(count: int, sizes: Sequence[int]) -> int:
    """The smallest of the ascending `sizes` that holds `count`; `count` where none does."""
    return next((size for size in sizes if size >= count), count)


def can_capture(device: torch.device) -> bool:
    """Whether this torch build compiles for the device and captures what it compiled."""
    return device.type == "cuda" and torch.cuda.is_available() and find_spec("triton") is not None


class CompiledTarget:
    """A target's forward over a tree, compiled once per size of `TOKENS`; its cache must be a static one.

    For one thread at a time (`Capture.alone`); others may run the target itself meanwhile.
    """

    def __init__(self, model: PreTrainedModel, tap_layers: Sequence[int], options: Mapping[str, Any]) -> None:
        self.model, self.tap_layers = model, tuple(tap_layers)
        self._states: dict[int, Tensor] = {}
        self._caller = 0
        decoder: Any = model.get_decoder()
        # The same hooks at every call: the compiler traces them once, into the graph.
        self._hooks = [(decoder.layers[index], self._recorder(index)) for index in self.tap_layers]
        self._run: Any = torch.compile(self._forward, fullgraph=True, dynamic=False, **options)

    def __call__(self, **inputs: Any) -> tuple[Tensor, Tensor]:
        """Logits `[1, tokens, vocab]` and features `[1, tokens, taps * hidden]`."""
        self._caller = threading.get_ident()
        with hooked(self._hooks):
            logits, features = self._run(inputs)
        return logits, features

    def _forward(self, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        logits = self.model(**inputs)["logits"]
        return logits, torch.cat([self._states.pop(index) for index in self.tap_layers], dim=-1)

    def _recorder(self, index: int) -> Callable[..., None]:
        def record(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            # Our hooks fire in other threads' forwards too. A traced forward is always ours.
            if not torch.compiler.is_compiling() and threading.get_ident() != self._caller:
                return
            self._states[index] = output[0] if isinstance(output, tuple) else output

        return record


class Capture:
    """A drafter's two forwards, compiled once per shape; what has no fixed shape is run by the drafter itself.

    Attributes:
        alone: held while a text is decoded, since a graph's next replay overwrites what the last one returned.
    """

    def __init__(self, drafter: Drafter, options: Mapping[str, Any]) -> None:
        self.alone = threading.RLock()
        self._options = options
        self._target: CompiledTarget | None = None
        self._plain = drafter.extend
        self._extend: Any = torch.compile(drafter.extend, fullgraph=True, dynamic=False, **options)
        self._branch: Any = torch.compile(drafter.branch, fullgraph=True, dynamic=False, **options)

    def begin_round(self, device: torch.device) -> None:
        """Ends the life of what the last round's forwards returned; graphs would otherwise be recorded below it."""
        if device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()

    def extend(
        self,
        features: Tensor,
        tokens: Tensor,
        positions: Tensor,
        context: Sequence[KeyValues] | None = None,
        context_mask: Tensor | None = None,
    ) -> ContextOutput:
        """See `Drafter`; begins a round."""
        self.begin_round(tokens.device)
        if context_mask is None or tokens.shape[1] not in PAIRS:
            return self._plain(features, tokens, positions, context, context_mask)
        output: ContextOutput = self._extend(features, tokens, positions, context, context_mask)
        return output

    def branch(
        self, tokens: Tensor, conditions: Tensor, depths: Tensor, drafting_position: Tensor, memory: BranchMemory
    ) -> BranchOutput:
        """See `Drafter`."""
        output: BranchOutput = self._branch(tokens, conditions, depths, drafting_position, memory)
        return output

    def target(self, model: PreTrainedModel, tap_layers: Sequence[int], cache: Cache | None) -> CompiledTarget | None:
        """The target's forward to judge trees with; None where the cache is not static, or states after the norm are
        read. The one for the latest target is kept."""
        if cache is None or target_cache.capacity(cache) == target_cache.UNBOUNDED or FINAL_NORM in tap_layers:
            return None
        if self._target is None or self._target.model is not model or self._target.tap_layers != tuple(tap_layers):
            self._target = CompiledTarget(model, tap_layers, self._options)
        return self._target

    def rows(self, starts: int) -> int:
        """Rows that a block of that many start nodes is filled up to."""
        return filled(starts, ROWS)


class StaticContext(DrafterCache):
    """A context handed out in whole buffers of `FIRST_CAPACITY` times a power of two rows, with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self._places: Tensor | None = None
        self._recent: Pairs | None = None

    def view(self, without_last: int = 0) -> tuple[KeyValues, ...]:
        """All rows of the buffers; `mask` says which of them are held."""
        return tuple(KeyValues(keys, values) for keys, values in self._buffers)

    def mask(self, without_last: int = 0) -> Tensor | None:
        """Bool `[1, capacity]`: the rows held except the last `without_last`; None before there are any."""
        return None if self._places is None else self._places < len(self) - without_last

    def widened(self, pairs: Pairs) -> Pairs:
        """The pairs, behind as many that the context already holds as make one of `PAIRS` together."""
        earlier = (self._recent or pairs).until(pairs.first_position)
        if pairs.count <= PAIRS[-1]:
            pairs = earlier.last(filled(pairs.count, PAIRS) - pairs.count).followed_by(pairs)
        # Tensors of their own: a slice would keep the features of the whole prompt.
        latest = pairs.last(PAIRS[0])
        self._recent = latest.until(latest.first_position).followed_by(latest)
        return pairs

    def _grow(self, like: Sequence[KeyValues], needed: int) -> None:
        capacity = FIRST_CAPACITY
        while capacity < needed:
            capacity *= 2
        held = self.view() or [None] * len(like)
        self._buffers = [
            (_zeros_after(new.keys, old and old.keys, capacity), _zeros_after(new.values, old and old.values, capacity))
            for new, old in zip(like, held, strict=True)
        ]
        if like:
            self._places = torch.arange(capacity, device=like[0].keys.device)[None]


def _zeros_after(like: Tensor, held: Tensor | None, capacity: int) -> Tensor:
    # Zeros, since masked rows are multiplied by a weight of 0, which makes no number of an infinity.
    rows, heads, _, size = like.shape
    buffer = like.new_zeros(rows, heads, capacity, size)
    if held is not None:
        buffer[:, :, : held.shape[2]] = held
    return buffer


def exclusive(drafter: Drafter) -> AbstractContextManager[Any]:
    """What a text is decoded in: with captured forwards, threads that share the drafter wait for one another."""
    return nullcontext() if drafter.capture is None else drafter.capture.alone


def context_of(drafter: Drafter) -> DrafterCache:
    """An empty context of the kind that the drafter's forwards want."""
    return DrafterCache() if drafter.capture is None else StaticContext()


def optimize_for_gpu(drafter: Drafter, options: Mapping[str, Any] | None = None) -> Drafter:
    """Makes decoding run a drafter's forwards as captured CUDA graphs, one per shape; returns the drafter.

    So are the target's verify forwards, where one row is decoded over a static cache (`cache_implementation="static"`).

    Texts stay what they are, and proposals up to rounding. The first rounds compile and capture, which takes a minute
    or more; copies of the drafter are not captured. Decoding alone is changed: `extend` and `branch` are not.

    Args:
        options: keywords of `torch.compile`, `{"mode": "reduce-overhead"}` unless given. With `{"disable": True}` the
            forwards run uncompiled at the same fixed shapes, on every device.

    Raises:
        UnsupportedOptionError: no CUDA device or no Triton and no `options`, a drafter in train mode, or one that is
            not a plain drafter (capture the one that is served instead).
    """
    if not isinstance(drafter, PretrainedDrafter):
        raise UnsupportedOptionError(
            f"A {type(drafter).__name__} runs another drafter's forwards, so its own cannot be captured.",
            "Leave it as it is; capturing changes only speed.",
        )
    if options is None and not can_capture(drafter.device):
        raise UnsupportedOptionError(
            f"Capturing needs a CUDA device and Triton; the drafter is on {drafter.device}.",
            "Move it to the device first, or leave it as it is; capturing changes only speed.",
        )
    if drafter.training:
        raise UnsupportedOptionError("The drafter is in train mode; it is captured for decoding.", "Call .eval().")
    # For the whole process, and only upwards: the compiler's own limit is 8 shapes.
    settings: Any = torch._dynamo.config
    settings.recompile_limit = max(settings.recompile_limit, GRAPHS)
    drafter.capture = Capture(drafter, REPLAY if options is None else options)
    return drafter
