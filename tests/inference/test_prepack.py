"""Prepacking changes the layout of weights and nothing a user can read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.inference import prepack
from specblock_zoo.inference.prepack import (
    Int8Linear,
    PackedLinear,
    can_prepack,
    can_round,
    is_packed,
    optimize_for_cpu,
    optimize_on_cpu,
)
from specblock_zoo.structures import BranchMemory, BranchOutput, ContextOutput, KeyValues
from tests.support.drafters import HIDDEN, VOCAB, tiny_drafter, tiny_eagle3

needs_onednn = pytest.mark.skipif(not can_prepack(), reason="this torch build has no oneDNN operators")
needs_vnni = pytest.mark.skipif(not can_round(), reason="this processor does not multiply 8-bit numbers")
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


@needs_onednn
def test_bfloat16_is_packed_only_where_the_processor_has_kernels_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [True]
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: answer[0])
    assert can_prepack(torch.bfloat16)
    answer[0] = False
    assert can_prepack()
    assert not any(map(can_prepack, (torch.bfloat16, torch.float16, torch.float64)))
    model = tiny_target().bfloat16()
    with pytest.raises(UnsupportedOptionError, match=r"needs float32 weights on this CPU; found torch\.bfloat16"):
        optimize_for_cpu(model)
    assert optimize_on_cpu(tiny_target(), model) is False
    assert not is_packed(model)
    assert optimize_on_cpu(tiny_target()) is True


@needs_onednn
@pytest.mark.parametrize("rounded", [pytest.param(True, marks=needs_vnni), False])
def test_a_packed_model_is_not_saved_without_its_weights(
    rounded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepack, "LARGE_WEIGHT", 1)
    drafter = optimize_for_cpu(tiny_drafter(), int8=rounded)
    with pytest.raises(UnsupportedOptionError, match=r"\.\w+ is packed .* cannot be saved") as refused:
        drafter.save_pretrained(tmp_path)
    assert "before optimize_for_cpu" in str(refused.value)
    assert not list(tmp_path.glob("*.safetensors"))
    kind = Int8Linear if rounded else PackedLinear
    with pytest.raises(UnsupportedOptionError, match="This layer is packed"):
        kind(torch.nn.Linear(8, 8)).state_dict()


@needs_vnni
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_rounded_layer_is_close_and_rows_do_not_depend_on_each_other(bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    linear, x = torch.nn.Linear(512, 300, bias=bias, dtype=dtype), torch.randn(2, 5, 512).to(dtype)
    x[0, 0] *= 1000
    rounded = Int8Linear(linear)
    found, expected = rounded(x), linear.float()(x.float())
    assert found.dtype == dtype
    assert ((found.float() - expected).norm(dim=-1) / expected.norm(dim=-1)).max() < 0.02
    for row, state in zip(found.flatten(0, 1), x.flatten(0, 1), strict=True):
        torch.testing.assert_close(rounded(state[None])[0], row, atol=1e-6, rtol=1e-6)


@needs_vnni
@torch.no_grad()
@pytest.mark.parametrize("value", [0.0, 1e-38, 1e30, float("inf"), float("nan")])
def test_rounded_layer_survives_any_number(value: float) -> None:
    linear = torch.nn.Linear(64, 32, bias=False)
    x = torch.randn(3, 64)
    expected = Int8Linear(linear)(x)
    x[1] = value
    found = Int8Linear(linear)(x)
    assert torch.equal(found[::2], expected[::2])
    assert value != 0 or not found[1].any()


@needs_vnni
@pytest.mark.parametrize(("make", "exact"), [(tiny_drafter, "input_layer.condition_proj"), (tiny_eagle3, "fc")])
def test_large_weights_of_drafters_are_rounded_but_what_reads_features(
    make: Callable[[], Any], exact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepack, "LARGE_WEIGHT", 1)
    drafter = optimize_for_cpu(make())
    assert is_packed(drafter)
    layers = {name: type(module) for name, module in drafter.named_modules() if hasattr(module, "in_features")}
    assert layers.pop(exact) is PackedLinear
    assert set(layers.values()) == {Int8Linear}


@needs_vnni
def test_targets_small_weights_and_whoever_asks_are_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(isinstance(module, Int8Linear) for module in optimize_for_cpu(tiny_drafter()).modules())
    monkeypatch.setattr(prepack, "LARGE_WEIGHT", 1)
    for model in (optimize_for_cpu(tiny_target()), optimize_for_cpu(tiny_drafter(), int8=False)):
        assert not any(isinstance(module, Int8Linear) for module in model.modules())


@needs_onednn
def test_processors_without_8_bit_products_get_float(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepack, "LARGE_WEIGHT", 1)
    monkeypatch.setattr(prepack, "can_round", lambda: False)
    assert not any(isinstance(module, Int8Linear) for module in optimize_for_cpu(tiny_drafter()).modules())
