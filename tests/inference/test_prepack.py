"""Prepacking changes the layout of weights and nothing a user can read."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.inference.prepack import PackedLinear, can_prepack, optimize_for_cpu
from specblock_zoo.structures import BranchMemory, BranchOutput, ContextOutput, KeyValues
from tests.support.drafters import HIDDEN, VOCAB, tiny_drafter, tiny_eagle3

needs_onednn = pytest.mark.skipif(not can_prepack(), reason="this torch build has no oneDNN operators")
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def tiny_target() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=VOCAB, tie_word_embeddings=True)).eval()


@needs_onednn
@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_packed_layer_equals_plain_layer(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    linear, x = torch.nn.Linear(24, 40, bias=bias), torch.randn(2, rows, 24)
    torch.testing.assert_close(PackedLinear(linear)(x), linear(x), **CLOSE)


@needs_onednn
@torch.no_grad()
def test_packed_target_gives_the_same_logits_and_keeps_its_embeddings() -> None:
    plain, packed = tiny_target(), optimize_for_cpu(tiny_target())
    ids = torch.arange(12)[None]
    torch.testing.assert_close(packed(ids).logits, plain(ids).logits, **CLOSE)
    assert torch.equal(packed.get_input_embeddings().weight, plain.get_input_embeddings().weight)
    assert sum(isinstance(module, PackedLinear) for module in packed.modules()) == 2 * 7 + 1


@needs_onednn
@torch.no_grad()
@pytest.mark.parametrize(("make", "layers"), [(tiny_drafter, 2 + 2 * 4 + 2 + 1 + 2), (tiny_eagle3, 1 + 4 + 1)])
def test_packed_drafter_drafts_the_same(make: Callable[[], Any], layers: int) -> None:
    """Condition, fuse, two products of attention and two of feed-forward a layer, shifts, head, rank head."""
    plain, packed = make(), optimize_for_cpu(optimize_for_cpu(make()))
    assert sum(isinstance(module, PackedLinear) for module in packed.modules()) == layers
    assert not any(isinstance(module, torch.nn.Linear) for module in packed.modules())
    inputs = (torch.randn(1, 5, 3 * HIDDEN), torch.randint(VOCAB, (1, 5)), torch.arange(5)[None])
    outputs = [drafter.extend(*inputs) for drafter in (packed, plain)]
    later = [branched(drafter, output) for drafter, output in zip((packed, plain), outputs, strict=True)]
    for found, expected in ((each[0].block, each[1].block) for each in (outputs, later)):
        torch.testing.assert_close(found.logits, expected.logits, **CLOSE)
        torch.testing.assert_close(found.rank_logits, expected.rank_logits, **CLOSE)


def branched(drafter: Any, output: ContextOutput) -> BranchOutput:
    """A later block from the first slot."""
    path = tuple(KeyValues(layer.keys[:, :, :1], layer.values[:, :, :1]) for layer in output.path)
    memory = BranchMemory(output.context, path, torch.ones(1, 1, dtype=torch.bool))
    return drafter.branch(torch.tensor([3]), output.block.hidden[:, 0], torch.tensor([1]), torch.tensor(4), memory)


@needs_onednn
def test_models_that_still_train_are_refused() -> None:
    with pytest.raises(UnsupportedOptionError, match="train mode"):
        optimize_for_cpu(tiny_target().train())


@needs_onednn
def test_other_dtypes_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedOptionError, match="float64"):
        optimize_for_cpu(tiny_target().double())
