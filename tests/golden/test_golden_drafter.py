"""The drafter reproduces the release's forward passes (numbers produced by the release itself, float32)."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.models.specblock.dense import dense_blocks
from specblock_zoo.structures import BranchMemory, KeyValues

TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}


@pytest.fixture
def drafter(golden_dir: Path) -> SpecBlockDrafter:
    drafter = SpecBlockDrafter.from_pretrained(golden_dir)
    drafter.attach(load_file(golden_dir / "target_embed.safetensors")["model.embed_tokens.weight"])
    return drafter


@pytest.fixture
def forward(golden_dir: Path) -> dict[str, Tensor]:
    return load_file(golden_dir / "forward.safetensors")


@pytest.fixture
def decoding(golden_dir: Path) -> dict[str, Tensor]:
    return load_file(golden_dir / "inference.safetensors")


def test_training_blocks_equal_the_release(drafter: SpecBlockDrafter, forward: dict[str, Tensor]) -> None:
    depths = forward["M"].tolist()
    blocks = dense_blocks(drafter, forward["target_features"], forward["input_ids"], depths, same_depth_keys=True)
    for number, block in enumerate(blocks):
        torch.testing.assert_close(block.hidden, forward[f"b{number}.hidden"], **TOLERANCE)
        torch.testing.assert_close(block.logits, forward[f"b{number}.logits"], **TOLERANCE)
        torch.testing.assert_close(block.rank_logits, forward[f"b{number}.rank_logits"], **TOLERANCE)


def test_input_layer_equals_the_release(drafter: SpecBlockDrafter, forward: dict[str, Tensor]) -> None:
    condition = drafter.condition(forward["target_features"])
    states = drafter.input_layer(condition, drafter.embed(forward["input_ids"]))
    torch.testing.assert_close(states, forward["b0.input_layer_out"], **TOLERANCE)
    torch.testing.assert_close(drafter.norm(forward["b0.hidden"]), forward["b0.normed_hidden"], **TOLERANCE)


def prefill(drafter: SpecBlockDrafter, numbers: dict[str, Tensor]):
    tokens = numbers["shifted_ids"]
    return drafter.extend(numbers["prompt_features"], tokens, torch.arange(tokens.shape[1])[None])


def test_cached_first_block_equals_the_release(drafter: SpecBlockDrafter, decoding: dict[str, Tensor]) -> None:
    output = prefill(drafter, decoding)
    torch.testing.assert_close(output.block.logits, decoding["aligned.logits"], **TOLERANCE)
    torch.testing.assert_close(output.block.hidden, decoding["aligned.hidden"], **TOLERANCE)
    torch.testing.assert_close(output.block.rank_logits, decoding["aligned.rank_logits_top20"], **TOLERANCE)
    for layer, (context, path) in enumerate(zip(output.context, output.path, strict=True)):
        groups = decoding[f"aligned.cross.{layer}.k"].shape[1] // context.keys.shape[1]
        for name, cached, own in (("k", context.keys, path.keys), ("v", context.values, path.values)):
            expected = decoding[f"aligned.cross.{layer}.{name}"]
            torch.testing.assert_close(cached.repeat_interleave(groups, dim=1), expected, **TOLERANCE)
            torch.testing.assert_close(own, decoding[f"aligned.ttt.{layer}.{name}"], **TOLERANCE)


def test_rank_summary_width_is_a_configuration(drafter: SpecBlockDrafter, decoding: dict[str, Tensor]) -> None:
    drafter.config.rank_top = 10
    output = prefill(drafter, decoding)
    torch.testing.assert_close(output.block.rank_logits, decoding["aligned.rank_logits_top10"], **TOLERANCE)


def test_second_block_equals_the_release(drafter: SpecBlockDrafter, decoding: dict[str, Tensor]) -> None:
    first = prefill(drafter, decoding)
    slots = decoding["block1.start_slots"]
    rows, width = len(slots), drafter.config.block_width
    context = tuple(KeyValues(kv.keys[:, :, :-width], kv.values[:, :, :-width]) for kv in first.context)
    path = tuple(KeyValues(kv.keys.expand(rows, -1, -1, -1), kv.values.expand(rows, -1, -1, -1)) for kv in first.path)
    memory = BranchMemory(context, path, decoding["block1.ttt_mask"].bool())
    output = drafter.branch(
        decoding["block1.start_tokens"], first.block.hidden[0, slots], slots + 1, decoding["block1.position_id"], memory
    )
    torch.testing.assert_close(output.block.logits, decoding["block1.logits"], **TOLERANCE)
    torch.testing.assert_close(output.block.hidden, decoding["block1.hidden"], **TOLERANCE)
    torch.testing.assert_close(output.block.rank_logits, decoding["block1.rank_logits_top20"], **TOLERANCE)


def test_aligned_refresh_equals_the_release(drafter: SpecBlockDrafter, decoding: dict[str, Tensor]) -> None:
    context = prefill(drafter, decoding).context
    tokens = torch.cat((decoding["refresh.accepted"], decoding["refresh.bonus"]), dim=1)
    output = drafter.extend(decoding["refresh.features"], tokens, torch.arange(9, 12)[None], context)
    torch.testing.assert_close(output.block.logits, decoding["refresh.aligned.logits"], **TOLERANCE)
    torch.testing.assert_close(output.block.hidden, decoding["refresh.aligned.hidden"], **TOLERANCE)
