"""One training step of the release: loss and gradients from features to parameters, number for number."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from specblock_zoo.functional.objective import release_objective
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.models.specblock.dense import dense_blocks


def test_total_loss_and_every_recorded_gradient(golden_dir: Path) -> None:
    numbers = load_file(golden_dir / "loss.safetensors")
    facts = json.loads((golden_dir / "loss.json").read_text())
    drafter = SpecBlockDrafter.from_pretrained(golden_dir)
    drafter.attach(load_file(golden_dir / "target_embed.safetensors")["model.embed_tokens.weight"])
    tokens, mask = numbers["input_ids"], numbers["loss_mask"].squeeze(-1).bool()
    blocks = dense_blocks(drafter, numbers["target_features"], tokens, facts["M"], same_depth_keys=True)
    report = release_objective(blocks, numbers["target_logits"], mask, drafter.t2d, facts["target_offsets"])
    total = report.total(facts["position_loss_weight"])
    torch.testing.assert_close(total, numbers["total.loss"], atol=1e-4, rtol=1e-4)
    total.backward()
    gradients = {name.removeprefix("grad."): tensor for name, tensor in numbers.items() if name.startswith("grad.")}
    assert len(gradients) == 12
    for name, expected in gradients.items():
        found = drafter.get_parameter(name).grad
        assert found is not None, name
        scale = float(expected.abs().max())
        torch.testing.assert_close(
            found / scale, expected / scale, atol=1e-4, rtol=1e-4, msg=lambda text, n=name: n + text
        )
