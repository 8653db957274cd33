"""Our decoder layer equals the transformers one; split attention equals plain attention over the joined memory."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.decoder import (
    DecoderLayer,
    draft_attention,
    inverse_frequencies,
    joined_attention,
    masked_attention,
    rotary,
    split_attention,
)
from specblock_zoo.structures import KeyValues

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def llama(head_dim: int = 8, **rope: object) -> LlamaConfig:
    rope_parameters = {"rope_type": "default", "rope_theta": 500.0, **rope}
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaConfig(**sizes, head_dim=head_dim, rope_parameters=rope_parameters, attn_implementation="eager")


@pytest.mark.parametrize("head_dim", [8, 12])
def test_layer_equals_transformers_layer(head_dim: int) -> None:
    torch.manual_seed(0)
    config = llama(head_dim)
    theirs, ours = LlamaDecoderLayer(config, 0).eval(), DecoderLayer(config)
    ours.load_state_dict(theirs.state_dict())
    x, positions = torch.randn(2, 7, 32), torch.arange(7)[None]
    causal = torch.full((1, 1, 7, 7), torch.finfo(torch.float32).min).triu(1)
    expected = theirs(x, attention_mask=causal, position_embeddings=LlamaRotaryEmbedding(config)(x, positions))
    rope = rotary(positions, inverse_frequencies(head_dim, 500.0, (), torch.device("cpu")), torch.float32)
    found = ours(x, rope, lambda query, keys, values: masked_attention(query, KeyValues(keys, values), None))
    torch.testing.assert_close(found, expected[0] if isinstance(expected, tuple) else expected, atol=1e-5, rtol=1e-5)


def test_llama3_frequencies_equal_transformers() -> None:
    expected = LlamaRotaryEmbedding(llama(64, **LLAMA3, rope_theta=500000.0)).inv_freq
    found = inverse_frequencies(64, 500000.0, tuple(sorted(LLAMA3.items())), torch.device("cpu"))
    torch.testing.assert_close(found, expected)


def test_unknown_rope_scaling_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="yarn"):
        inverse_frequencies(8, 10000.0, (("rope_type", "yarn"),), torch.device("cpu"))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(0, 5), st.integers(1, 4), st.integers(0, 999)
)
def test_split_attention_equals_joined_attention(
    batch: int, rows: int, length: int, context: int, path: int, seed: int
) -> None:
    torch.manual_seed(seed)
    kv_heads, groups, head_dim = 2, 3, 4
    query = torch.randn(batch, rows, kv_heads * groups, length, head_dim)
    shared = KeyValues(*torch.randn(2, batch, kv_heads, context, head_dim))
    own = KeyValues(*torch.randn(2, batch, rows, kv_heads, path, head_dim))
    shared_mask = torch.rand(batch, rows, context) < 0.6
    own_mask = torch.rand(batch, rows, length, path) < 0.6
    own_mask[..., 0] = True
    found = split_attention(query, shared, own, shared_mask, own_mask)
    joined = [torch.cat((s[:, None].expand(-1, rows, -1, -1, -1), o), 3) for s, o in zip(shared, own, strict=True)]
    mask = torch.cat((shared_mask[:, :, None].expand(-1, -1, length, -1), own_mask), dim=-1)
    expected = masked_attention(
        query.flatten(0, 1), KeyValues(*(tensor.flatten(0, 1) for tensor in joined)), mask.flatten(0, 1)[:, None]
    )
    torch.testing.assert_close(found.flatten(0, 1), expected, atol=1e-5, rtol=1e-5)
    fused = joined_attention(query, shared, own, shared_mask, own_mask)
    torch.testing.assert_close(fused, found, atol=1e-5, rtol=1e-5)
    chosen = draft_attention(query, shared, own, None, own_mask)
    torch.testing.assert_close(chosen, split_attention(query, shared, own, None, own_mask), atol=1e-5, rtol=1e-5)
