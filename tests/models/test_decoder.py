"""Our decoder layer equals the transformers one; split attention equals plain attention over the joined memory."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.decoder import (
    ROTARY_ROWS,
    DecoderLayer,
    draft_attention,
    inverse_frequencies,
    joined_attention,
    masked_attention,
    rotary,
    rotary_table,
    short_attention,
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


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 5), st.booleans(), st.integers(0, 999))
def test_short_attention_is_causal_attention_over_past_and_new(
    batch: int, length: int, past_length: int, masked: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    kv_heads, groups, head_dim = 2, 3, 4
    query = torch.randn(batch, kv_heads * groups, length, head_dim)
    new = KeyValues(*torch.randn(2, batch, kv_heads, length, head_dim))
    # As a cache hands it out: the front of a larger buffer.
    past = KeyValues(*torch.randn(2, batch, kv_heads, past_length + 3, head_dim)[..., :past_length, :])
    seen = torch.rand(batch, past_length) < 0.6 if masked else torch.ones(batch, past_length, dtype=torch.bool)
    causal = torch.ones(length, length, dtype=torch.bool).tril().expand(batch, length, length)
    mask = torch.cat((seen[:, None].expand(-1, length, -1), causal), dim=-1)
    every = KeyValues(*(torch.cat(pair, dim=2) for pair in zip(past, new, strict=True)))
    expected = masked_attention(query, every, mask[:, None])
    found = short_attention(query, new, past, seen if masked else None)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_rotary_table_holds_what_would_be_computed() -> None:
    scaling = tuple(sorted(LLAMA3.items()))
    positions = torch.tensor([[0, 7, ROTARY_ROWS - 1]])
    frequencies = inverse_frequencies(8, 500.0, scaling, torch.device("cpu"))
    for table, expected in zip(
        rotary_table(8, 500.0, scaling, torch.float32), rotary(positions, frequencies, torch.float32), strict=True
    ):
        torch.testing.assert_close(table[positions[0]], expected[0, 0])


@torch.no_grad()
def test_a_prepacked_layer_is_the_same_with_fewer_products() -> None:
    torch.manual_seed(0)
    plain = DecoderLayer(llama())
    joined = copy.deepcopy(plain)
    joined.self_attn, joined.mlp = (each.prepacked(lambda linear: linear) for each in (plain.self_attn, plain.mlp))
    x, positions = torch.randn(2, 7, 32), torch.arange(7)[None]
    rope = rotary(positions, inverse_frequencies(8, 500.0, (), torch.device("cpu")), torch.float32)
    outputs = [
        layer(x, rope, lambda query, keys, values: masked_attention(query, KeyValues(keys, values), None))
        for layer in (plain, joined)
    ]
    torch.testing.assert_close(outputs[1], outputs[0], atol=1e-5, rtol=1e-5)
    products = [sum(isinstance(each, torch.nn.Linear) for each in layer.modules()) for layer in (plain, joined)]
    assert products == [7, 4]
