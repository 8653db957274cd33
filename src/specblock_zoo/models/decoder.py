"""The decoder layer shared by drafters: pre-norm Llama (RMSNorm, grouped-query attention, SwiGLU), attention passed in.

Which keys a query may see is the only thing that differs between prefill, drafting and training, so each caller hands
the layer a `mix(query, keys, values)` function and the layer stays the same.
"""

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.structures import KeyValues

Mix = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(query `[rows, heads, length, head_dim]`, keys and values `[rows, kv_heads, length, head_dim]`) -> like query."""

Pack = Callable[[nn.Linear], nn.Module]
"""Lays the weight of a linear layer out for some kernel; what comes back is called like the layer."""


@runtime_checkable
class Prepackable(Protocol):
    """A module with a twin for inference that has fewer, and packed, linear layers."""

    def prepacked(self, pack: Pack) -> nn.Module:
        """The twin; `pack` makes its linear layers."""


ROTARY_ROWS = 4096
"""Positions whose rotary tables are kept on a CPU, two megabytes of float32 at 64 numbers a head."""
LONG_EXTENSION = 64
"""Queries from which fused attention beats plain matmuls on a CPU."""
JOINED_CONTEXT, JOINED_PATHS = 1024, 128
"""Keys in common, and keys of all rows' own, up to which one fused call over a copy of them beats plain matmuls without
a copy. 5 queries, one thread of a Xeon, fp32: 154 against 381 us at 256 keys, 519 against 557 at 1,024, 4,952 against
2,260 at 4,096; bf16 168 against 662 at 256. 8 starts with 8 keys each: 784 against 1,081 us, bf16 827 against 1,637."""


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def remembering(maxsize: int) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """`lru_cache` for calls that run; a compiler, which would only warn of it, is shown the function itself."""

    def around(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        cached: Any = lru_cache(maxsize)(function)

        @wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            remembered: Result = (function if torch.compiler.is_compiling() else cached)(*args, **kwargs)
            return remembered

        return call

    return around


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned scale, `[..., hidden]` -> same."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # Under autocast `x` is bfloat16 and the weight float32; torch has a fused kernel for equal dtypes only.
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


@remembering(maxsize=32)
def inverse_frequencies(
    head_dim: int, theta: float, scaling: tuple[tuple[str, Any], ...], device: torch.device
) -> Tensor:
    """Rotary inverse frequencies `[head_dim / 2]`, float32. `scaling` as sorted items; types `default` and `llama3`.

    Raises:
        ConfigurationError: another scaling type.
    """
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
    options = dict(scaling)
    kind = options.get("rope_type", options.get("type", "default"))
    if kind == "default":
        return frequencies
    if kind != "llama3":
        raise ConfigurationError(
            f"rope_scaling type {kind!r} is not known; known: default, llama3.", "Change rope_scaling."
        )
    original = options["original_max_position_embeddings"]
    turns = original * frequencies / (2 * math.pi)
    low, high = options["low_freq_factor"], options["high_freq_factor"]
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (keep + (1 - keep) / options["factor"])


def rotary(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine `[rows, 1, length, head_dim]` at integer `positions` `[rows, length]`."""
    angles = positions[:, None, :, None].float() * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


@remembering(maxsize=8)
def rotary_table(
    head_dim: int, theta: float, scaling: tuple[tuple[str, Any], ...], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosine and sine `[ROTARY_ROWS, head_dim]` of the first positions, on the CPU; see `inverse_frequencies`."""
    # Tensors of inference mode could not be used in a forward that takes gradients later.
    with torch.inference_mode(False):
        places = torch.arange(ROTARY_ROWS, device="cpu")[None]
        cosine, sine = rotary(places, inverse_frequencies(head_dim, theta, scaling, places.device), dtype)
        return cosine[0, 0], sine[0, 0]


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Applies rotary positions (rotate-half) to `[rows, heads, length, head_dim]`."""
    first, second = x.chunk(2, dim=-1)
    return x * rope[0] + torch.cat((-second, first), dim=-1) * rope[1]


def linear_over(*weights: Tensor) -> nn.Linear:
    """A linear layer without bias whose outputs are those of the weights `[out, in]`, one after the other; no
    gradient."""
    weight = torch.cat([each.detach() for each in weights])
    outputs, inputs = weight.shape
    linear = nn.Linear(inputs, outputs, bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return linear


class Attention(nn.Module):
    """Query, key, value and output projections, no biases; head_dim is a parameter of its own.

    Reads `input_size` numbers (default: hidden_size) and writes hidden_size.
    """

    def __init__(
        self, hidden_size: int, heads: int, kv_heads: int, head_dim: int, input_size: int | None = None
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        size = input_size or hidden_size
        self.q_proj = nn.Linear(size, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(size, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(size, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, hidden_size, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mix: Mix) -> Tensor:
        query, keys, values = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = mix(rotate(query, rope), rotate(keys, rope), values)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def prepacked(self, pack: Pack) -> nn.Module:
        """Its twin for inference over packed weights."""
        return FusedAttention(self, pack)


class FusedAttention(nn.Module):
    """The same over one product for query, keys and values."""

    def __init__(self, plain: Attention, pack: Pack) -> None:
        super().__init__()
        self.head_dim = plain.head_dim
        query, keys, values = plain.q_proj.weight, plain.k_proj.weight, plain.v_proj.weight
        self.sizes = tuple(len(weight) // self.head_dim for weight in (query, keys, values))
        self.qkv_proj, self.o_proj = pack(linear_over(query, keys, values)), pack(plain.o_proj)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mix: Mix) -> Tensor:
        heads, kv_heads, _ = self.sizes
        states = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        turned = rotate(states[:, : heads + kv_heads], rope)
        mixed = mix(turned[:, :heads], turned[:, heads:], states[:, heads + kv_heads :])
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU, no biases."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    def prepacked(self, pack: Pack) -> nn.Module:
        """Its twin for inference over packed weights."""
        return FusedFeedForward(self, pack)


class FusedFeedForward(nn.Module):
    """The same over one product for gate and up."""

    def __init__(self, plain: FeedForward, pack: Pack) -> None:
        super().__init__()
        self.gate_up_proj = pack(linear_over(plain.gate_proj.weight, plain.up_proj.weight))
        self.down_proj = pack(plain.down_proj)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class DecoderLayer(nn.Module):
    """Pre-norm attention and feed-forward with residuals, `[rows, length, hidden]` -> same; any drafter config."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self_attn = Attention(
            config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim
        )
        self.mlp = FeedForward(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mix: Mix) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, mix)
        return x + self.mlp(self.post_attention_layernorm(x))


def masked_attention(query: Tensor, memory: KeyValues, mask: Tensor | None) -> Tensor:
    """Attention of `[rows, heads, length, head_dim]`; bool `mask` `[rows or 1, 1, length, keys]`, None = causal."""
    return F.scaled_dot_product_attention(
        query, memory.keys, memory.values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )


def split_attention(
    query: Tensor, shared: KeyValues, own: KeyValues, shared_mask: Tensor | None, own_mask: Tensor
) -> Tensor:
    """Attention of many short rows over one shared memory plus a small one of each row's own, without copying either.

    Args:
        query: `[batch, rows, heads, length, head_dim]`.
        shared: keys/values `[batch, kv_heads, context, head_dim]`, the same for all rows of a batch entry.
        own: keys/values `[batch, rows, kv_heads, path, head_dim]`.
        shared_mask: bool, broadcastable to `[batch, rows, context]`; None = all visible.
        own_mask: bool, broadcastable to `[batch, rows, length, path]`.

    Returns:
        `[batch, rows, heads, length, head_dim]`. Plain matmuls: on CPUs they beat fused attention at a few query rows.
    """
    batch, rows, heads, length, head_dim = query.shape
    kv_heads = shared.keys.shape[1]
    groups = heads // kv_heads
    grouped = query.reshape(batch, rows, kv_heads, groups * length, head_dim) * head_dim**-0.5
    by_head = grouped.transpose(1, 2).reshape(batch, kv_heads, rows * groups * length, head_dim)
    shared_scores = (by_head @ shared.keys.transpose(-1, -2)).view(batch, kv_heads, rows, groups, length, -1)
    if shared_mask is not None:
        shared_scores = shared_scores.masked_fill(~shared_mask[:, None, :, None, None, :], -torch.inf)
    own_scores = (grouped @ own.keys.transpose(-1, -2)).view(batch, rows, kv_heads, groups, length, -1).transpose(1, 2)
    own_scores = own_scores.masked_fill(~own_mask[:, None, :, None, :, :], -torch.inf)
    weights = torch.cat((shared_scores, own_scores), dim=-1).softmax(dim=-1)
    over_shared, over_own = weights.split((shared_scores.shape[-1], own_scores.shape[-1]), dim=-1)
    from_shared = over_shared.reshape(batch, kv_heads, rows * groups * length, -1) @ shared.values
    from_own = over_own.transpose(1, 2).reshape(batch, rows, kv_heads, groups * length, -1) @ own.values
    from_shared = from_shared.view(batch, kv_heads, rows, groups * length, head_dim).transpose(1, 2)
    return (from_shared + from_own).reshape(batch, rows, heads, length, head_dim)


def joined_attention(
    query: Tensor, shared: KeyValues, own: KeyValues, shared_mask: Tensor | None, own_mask: Tensor
) -> Tensor:
    """The same as `split_attention` in one fused call over a copy of all keys, other rows' own ones masked."""
    batch, rows, heads, length, head_dim = query.shape
    kv_heads, context, path = shared.keys.shape[1], shared.keys.shape[2], own.keys.shape[3]
    keys, values = (
        torch.cat((all_rows, each_row.transpose(1, 2).reshape(batch, kv_heads, rows * path, head_dim)), dim=2)
        for all_rows, each_row in zip(shared, own, strict=True)
    )
    seen = torch.zeros(batch, rows, length, rows, path, dtype=torch.bool, device=query.device)
    seen.diagonal(dim1=1, dim2=3).copy_(own_mask.expand(batch, rows, length, path).permute(0, 2, 3, 1))
    # Additive: with a bool mask torch builds this one itself, at twice the cost (CPU, 5 queries, 256 keys).
    mask = query.new_zeros(batch, rows, length, context + rows * path)
    mask[..., context:].masked_fill_(~seen.flatten(3), -torch.inf)
    if shared_mask is not None:
        visible = shared_mask.expand(batch, rows, context)[:, :, None]
        mask[..., :context].masked_fill_(~visible, -torch.inf)
    flat = query.transpose(1, 2).reshape(batch, heads, rows * length, head_dim)
    mixed = masked_attention(flat, KeyValues(keys, values), mask.flatten(1, 2)[:, None])
    return mixed.view(batch, heads, rows, length, head_dim).transpose(1, 2)


def draft_attention(
    query: Tensor, shared: KeyValues, own: KeyValues, shared_mask: Tensor | None, own_mask: Tensor
) -> Tensor:
    """Whichever of `split_attention` and `joined_attention` is the faster one for these shapes, for inference."""
    few = shared.keys.shape[2] <= JOINED_CONTEXT and query.shape[1] * own.keys.shape[3] <= JOINED_PATHS
    return (joined_attention if few else split_attention)(query, shared, own, shared_mask, own_mask)


def remember(store: list[KeyValues], keys: Tensor, values: Tensor) -> KeyValues:
    """Appends a layer's keys and values to `store` and returns them."""
    store.append(KeyValues(keys, values))
    return store[-1]


@remembering(maxsize=32)
def causal_term(length: int, copies: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What makes the scores of `length` tokens causal when added, `[copies * length, length]`."""
    with torch.inference_mode(False):
        return torch.full((length, length), -torch.inf, dtype=dtype, device=device).triu(1).repeat(copies, 1)


def short_attention(query: Tensor, new: KeyValues, past: KeyValues, past_mask: Tensor | None) -> Tensor:
    """Causal attention of few new tokens `[B, heads, n, head_dim]` over the past rows and themselves; the past is not
    copied. Fewer kernels than a fused call with a mask: 0.45 against 0.66 ms for 5 queries over 256 keys that no cache
    holds (fp32, one thread of a Xeon), 0.77 against 1.27 over 700."""
    batch, heads, length, head_dim = query.shape
    kv_heads, held = new.keys.shape[1], past.keys.shape[2]
    grouped = (query * head_dim**-0.5).reshape(batch, kv_heads, -1, head_dim)
    over_past = grouped @ past.keys.transpose(-1, -2)
    if past_mask is not None:
        over_past = over_past.masked_fill(~past_mask[:, None, None], -torch.inf)
    over_new = grouped @ new.keys.transpose(-1, -2)
    over_new = over_new + causal_term(length, heads // kv_heads, query.dtype, query.device)
    weights = torch.cat((over_past, over_new), dim=-1).softmax(dim=-1)
    mixed = weights[..., :held] @ past.values + weights[..., held:] @ new.values
    return mixed.view(batch, heads, length, head_dim)


def extend_attention(query: Tensor, new: KeyValues, past: KeyValues | None, past_mask: Tensor | None) -> Tensor:
    """Causal attention of n new tokens `[B, heads, n, head_dim]` over the past rows and themselves."""
    batch, length = query.shape[0], query.shape[2]
    if past is None or past.keys.shape[2] == 0:
        return masked_attention(query, new, None)
    if length < LONG_EXTENSION:
        return short_attention(query, new, past, past_mask)
    causal = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    seen = (
        torch.ones(batch, past.keys.shape[2], dtype=torch.bool, device=query.device) if past_mask is None else past_mask
    )
    mask = torch.cat((seen[:, None, :].expand(batch, length, -1), causal.expand(batch, length, length)), dim=-1)
    everything = KeyValues(torch.cat((past.keys, new.keys), 2), torch.cat((past.values, new.values), 2))
    return masked_attention(query, everything, mask[:, None])
