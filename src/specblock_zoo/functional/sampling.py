"""Logits to probabilities, candidates and draws. Temperature, top-k and top-p come from the target's own processors."""

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor


def log_probs(logits: Float[Tensor, "*rows vocab"]) -> Float32[Tensor, "*rows vocab"]:
    """Log-probabilities (nats) in float32 whatever the dtype of the logits."""
    return logits.log_softmax(-1, dtype=torch.float32)


def capped(logits: Float[Tensor, "*rows vocab"], cap: float | None) -> Float[Tensor, "*rows vocab"]:
    """The logits pressed into (-cap, cap) by a hyperbolic tangent, as some targets do after their head; None = as is.

    Monotonic, so the best token stays; its probability does not.
    """
    return logits if cap is None else cap * torch.tanh(logits / cap)


def top_candidates(
    logits: Float[Tensor, "*rows vocab"], width: int, sorted_best: tuple[Tensor, Tensor] | None = None
) -> tuple[Float32[Tensor, "*rows width"], Int64[Tensor, "*rows width"]]:
    """The `width` best entries, best first: (log-probabilities over the whole vocabulary in nats, indices).

    Fewer are returned when the vocabulary is smaller than `width`.

    Args:
        sorted_best: highest logits and their indices, where somebody sorted them already; used if they are enough.
    """
    width = min(width, logits.shape[-1])
    if sorted_best is None or sorted_best[0].shape[-1] < width:
        sorted_best = logits.topk(width)
    indices = sorted_best[1][..., :width]
    return log_probs(logits).gather(-1, indices), indices


def draw(probs: Float[Tensor, "*rows vocab"], generator: torch.Generator | None = None) -> Int64[Tensor, "*rows"]:
    """One index per row, drawn with `probs` (non-negative, positive sum).

    One `torch.multinomial` call, as `transformers` samples: the same generator state yields the same token.
    """
    flat = probs.reshape(-1, probs.shape[-1])
    return torch.multinomial(flat, num_samples=1, generator=generator).view(probs.shape[:-1])
