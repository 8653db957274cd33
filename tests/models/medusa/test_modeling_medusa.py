"""Independent heads on the target's last state."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from specblock_zoo.errors import TargetMismatchError, UnsupportedOptionError, WeightsMismatchError
from specblock_zoo.models.medusa import MedusaDrafter
from specblock_zoo.structures import FINAL_NORM, BranchMemory
from tests.support.drafters import HIDDEN, VOCAB, WIDTH, tiny_medusa

HEADS = WIDTH


@torch.no_grad()
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_each_head_is_the_papers_formula_on_the_last_state_alone(layers: int) -> None:
    drafter, features = tiny_medusa(residual_layers=layers), torch.randn(2, 5, HIDDEN)
    output = drafter.extend(features, torch.zeros(2, 5, dtype=torch.int64), torch.arange(5).expand(2, 5))
    weights = drafter.state_dict()
    for head in range(HEADS):
        x = features[:, -1]
        for block in range(layers):
            name = f"heads.{head}.{block}.linear"
            x = x + F.silu(x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])
        torch.testing.assert_close(output.block.hidden[:, head], x)
        torch.testing.assert_close(output.block.logits[:, head], x @ weights[f"heads.{head}.{layers}.weight"].T)
    assert output.block.rank_logits.shape == (2, HEADS, 4)
    assert (output.context, output.path) == ((), ())


@torch.no_grad()
def test_new_residual_blocks_pass_their_input_on_and_still_learn() -> None:
    torch.manual_seed(0)
    drafter = MedusaDrafter(tiny_medusa().config)
    states = torch.randn(2, HIDDEN)
    assert torch.equal(drafter.draft(states).hidden, states[:, None].expand(-1, HEADS, -1))
    with torch.enable_grad():
        drafter.draft(states).logits.logsumexp(-1).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in drafter.parameters())


def test_it_reads_the_final_norm_and_borrows_embeddings_without_need() -> None:
    drafter = tiny_medusa(attached=False)
    assert drafter.tap_layers(7) == (FINAL_NORM,)
    drafter.attach(torch.randn(VOCAB, HIDDEN))
    with pytest.raises(TargetMismatchError, match=r"\(41, 16\)"):
        drafter.attach(torch.randn(VOCAB + 1, HIDDEN))
    assert not [name for name in drafter.state_dict() if "embed" in name]


def test_a_later_block_is_refused() -> None:
    memory = BranchMemory((), (), torch.zeros(1, 0, dtype=torch.bool))
    one = torch.ones(1, dtype=torch.int64)
    with pytest.raises(UnsupportedOptionError, match="num_blocks"):
        tiny_medusa().branch(one, torch.zeros(1, HIDDEN), one, one[0], memory)


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    drafter = tiny_medusa()
    drafter.save_pretrained(tmp_path)
    stored = MedusaDrafter.from_pretrained(tmp_path)
    assert stored.config.to_diff_dict() == {**drafter.config.to_diff_dict(), "architectures": ["MedusaDrafter"]}
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(stored.state_dict()[name], tensor), name


@pytest.mark.parametrize("fault", ["missing", "extra", "shape"])
def test_wrong_tensors_are_named(tmp_path: Path, fault: str) -> None:
    tiny_medusa().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    if fault == "missing":
        del weights["heads.1.0.linear.bias"]
    elif fault == "extra":
        weights["heads.1.9.weight"] = torch.zeros(1)
    else:
        weights["heads.1.1.weight"] = torch.zeros(3, 3)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsMismatchError, match=r"heads\.1\."):
        MedusaDrafter.from_pretrained(tmp_path)
