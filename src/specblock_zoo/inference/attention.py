"""Attention of a CPU target to a tree: heads that share keys and values read them where they lie.

transformers' `sdpa` copies keys and values once for each head that shares them whenever several queries come with a
mask, as a draft tree does: at 1,024 tokens of context that is a fifth of a round. The CPU's fused kernel reads shared
heads itself, with bit-identical results.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED_SDPA = "sdpa_grouped"
"""Name in transformers' registry of attention implementations; another one than sdpa, so that cost curves tell."""


def grouped_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """transformers' `sdpa`, without its copies where several queries come with a mask.

    Args:
        module: an attention layer; `num_key_value_groups` query heads share a head of keys and values.
        query: `[rows, heads, queries, head_dim]`.
        key, value: `[rows, kv_heads, keys, head_dim]`.
        attention_mask: bool or additive, `[rows, 1, queries, keys]`.
        options: as transformers passes them.

    Returns:
        `[rows, queries, heads, head_dim]`, and None for the weights.
    """
    copied = attention_mask is not None and query.shape[2] > 1 and getattr(module, "num_key_value_groups", 1) > 1
    if not copied or query.device.type != "cpu" or options.get("position_bias") is not None or options.get("softcap"):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    mixed = F.scaled_dot_product_attention(
        *(query, key, value),
        attn_mask=attention_mask,
        dropout_p=options.get("dropout", 0.0),
        scale=options.get("scaling"),
        enable_gqa=True,
    )
    return mixed.transpose(1, 2).contiguous(), None


def use_grouped_attention(model: PreTrainedModel) -> None:
    """Has a model with shared heads that uses `sdpa` attend by `grouped_sdpa`; all else stays as the user chose it."""
    shared = any(getattr(module, "num_key_value_groups", 1) > 1 for module in model.modules())
    if shared and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(GROUPED_SDPA)


AttentionInterface.register(GROUPED_SDPA, grouped_sdpa)
AttentionMaskInterface.register(GROUPED_SDPA, sdpa_mask)
