"""Shared heads are read where they lie, and nothing else changes."""

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from specblock_zoo.inference.attention import GROUPED_SDPA, grouped_sdpa, use_grouped_attention
from specblock_zoo.inference.modes import FORMS
from specblock_zoo.inference.prepack import can_prepack, optimize_for_cpu
from tests.support.drafters import tiny_drafter


def layer(groups: int) -> nn.Module:
    module = nn.Module()
    module.num_key_value_groups = groups
    return module


def inputs(groups: int, queries: int, keys: int, dtype: torch.dtype, rows: int = 1) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(keys)
    sizes = ((3 * groups, queries), (3, keys), (3, keys))
    return tuple(torch.randn(rows, *size, 64, generator=generator).to(dtype) for size in sizes)


def tree_mask(rows: int, queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    seen = torch.rand(rows, 1, queries, keys, generator=torch.Generator().manual_seed(queries)) < 0.7
    seen[..., 0] = True
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "queries", "keys"), [(1, 2, 9), (1, 6, 70), (3, 5, 300), (1, 24, 700)])
@pytest.mark.parametrize("groups", [1, 3])
def test_equals_sdpa(groups: int, rows: int, queries: int, keys: int, dtype: torch.dtype) -> None:
    states, mask = inputs(groups, queries, keys, dtype, rows), tree_mask(rows, queries, keys, dtype)
    found, _ = grouped_sdpa(layer(groups), *states, mask, scaling=0.11)
    expected, _ = sdpa_attention_forward(layer(groups), *states, mask, scaling=0.11)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6 if dtype is torch.float32 else 1e-2)


def test_copies_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, bool]] = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def watching(query: Tensor, key: Tensor, value: Tensor, **options: object) -> Tensor:
        seen.append((key.shape[1], bool(options.get("enable_gqa"))))
        return plain(query, key, value, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watching)
    states, mask = inputs(3, 6, 20, torch.float32), tree_mask(1, 6, 20, torch.float32)
    grouped_sdpa(layer(3), *states, mask)
    sdpa_attention_forward(layer(3), *states, mask)
    assert seen == [(3, True), (9, False)]


@pytest.mark.parametrize(("queries", "masked"), [(1, True), (7, False)])
def test_leaves_the_rest_to_sdpa(queries: int, masked: bool) -> None:
    states = inputs(3, queries, 7, torch.float32)
    mask = tree_mask(1, queries, 7, torch.float32) if masked else None
    assert torch.equal(grouped_sdpa(layer(3), *states, mask)[0], sdpa_attention_forward(layer(3), *states, mask)[0])


def target(kv_heads: int, attention: str = "sdpa") -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(**sizes, vocab_size=64, num_key_value_heads=kv_heads, attn_implementation=attention)
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize(
    ("kv_heads", "attention", "expected"), [(2, "sdpa", GROUPED_SDPA), (4, "sdpa", "sdpa"), (2, "eager", "eager")]
)
def test_replaces_sdpa_of_shared_heads_only(kv_heads: int, attention: str, expected: str) -> None:
    model = target(kv_heads, attention)
    use_grouped_attention(model)
    assert model.config._attn_implementation == expected


def test_a_drafter_is_left_alone() -> None:
    drafter = tiny_drafter()
    before = drafter.config._attn_implementation
    use_grouped_attention(drafter)
    assert drafter.config._attn_implementation == before


@pytest.mark.skipif(not can_prepack(), reason="this torch build has no oneDNN operators")
@torch.no_grad()
def test_an_optimised_target_attends_so_and_pads_as_before() -> None:
    plain, fast = target(2), optimize_for_cpu(target(2))
    assert fast.config._attn_implementation in FORMS
    ids = torch.arange(24).view(2, 12)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    for options in ({}, {"attention_mask": mask}):
        found, expected = fast(ids, **options).logits, plain(ids, **options).logits
        torch.testing.assert_close(found[:, 5:], expected[:, 5:], atol=1e-5, rtol=1e-5)
