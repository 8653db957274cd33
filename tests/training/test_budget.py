"""The plan's counts equal the tensors, and its activation estimate is near what autograd really keeps."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specblock_zoo.functional.vocab import target_to_draft
from specblock_zoo.targets.registry import FAMILIES
from specblock_zoo.training.budget import (
    Batching,
    activation_values,
    drafter_parameters,
    plan_run,
    target_parameters,
    training_flops,
    updates,
)
from specblock_zoo.training.method import Assumptions
from specblock_zoo.training.rollout import RolloutSettings
from specblock_zoo.training.specblock import forward_rows, graded_rows, layer_parameters, rollout
from specblock_zoo.training.teachers import Teacher
from tests.support.drafters import tiny_config, tiny_drafter

OBJECTIVE = RolloutSettings(block_sampling=(0.5,))
ASSUMED = Assumptions(train_tokens=1000, supervised=0.5, alpha=0.5)


@pytest.mark.parametrize("shift", ["every_layer", "between_layers", "none"])
def test_counts_are_those_of_the_tensors(shift: str) -> None:
    drafter = tiny_drafter(shift=shift)
    assert drafter_parameters(drafter.config) == sum(tensor.numel() for tensor in drafter.parameters())
    matrices = [
        tensor.numel()
        for name, tensor in drafter.named_parameters()
        if name.startswith(("layers.", "shift_proj.")) and tensor.ndim == 2
    ]
    assert layer_parameters(drafter.config) == sum(matrices)


def test_tied_target_weights_count_once() -> None:
    model = FAMILIES["llama"].tiny_model()
    assert target_parameters(model.config) == sum(tensor.numel() for tensor in model.parameters())


def test_rows_fall_by_alpha_and_by_the_share_of_starts() -> None:
    graded = graded_rows(tiny_config(), OBJECTIVE, ASSUMED)
    assert graded == [[0.5, 0.25, 0.125], [0.25, 0.125, 0.0625]]
    assert forward_rows(tiny_config(context_slots=1), graded) == (1.0, 0.375 + 0.4375)
    assert graded_rows(tiny_config(), replace(OBJECTIVE, valid_prefix=False), ASSUMED)[0] == [0.5] * 3


def test_operations_are_linear_in_rows_and_dearer_when_logits_are_recomputed() -> None:
    config, batching = tiny_config(), Batching(batch_tokens=100, max_length=20)
    kept = training_flops(config, OBJECTIVE, batching, ASSUMED)
    layers = 6 * layer_parameters(config) * (1.0 + 0.375 + 0.4375)
    head = 1.3125 * config.draft_vocab_size * config.hidden_size
    assert kept == pytest.approx(layers + 8 * head)
    assert training_flops(config, replace(OBJECTIVE, kept_logits=0), batching, ASSUMED) == pytest.approx(
        layers + 12 * head
    )


def test_updates_and_tokens_of_an_update() -> None:
    batching = Batching(batch_tokens=6, max_length=3, devices=4, accumulate=2, epochs=5)
    assert batching.tokens_per_update == 48
    assert updates(batching, ASSUMED) == 105


@pytest.mark.parametrize("kept_logits", [0, 1 << 24], ids=["recomputed", "kept"])
def test_the_activation_estimate_is_near_what_autograd_keeps(kept_logits: int) -> None:
    sizes = {"hidden_size": 64, "target_hidden_size": 64, "intermediate_size": 160, "head_dim": 16}
    drafter = tiny_drafter(**sizes, draft_vocab_size=256, vocab_size=300)
    weight = drafter.lm_head.weight.data
    weight.mul_(0.01)
    # Opposite rows for the two tokens of the text: half of the rows survive each slot.
    weight[0], weight[1] = torch.ones(64), -torch.ones(64)
    tokens = drafter.draft_tokens[torch.randint(2, (6, 48))]
    batch = {"input_ids": tokens, "features": torch.randn(6, 48, 192), "last_hidden": torch.randn(6, 48, 64)}
    batch |= {"attention_mask": torch.ones(6, 48).bool(), "loss_mask": torch.ones(6, 48).bool()}
    teacher = Teacher(torch.randn(256, 64), target_to_draft(drafter.t2d))
    settings = replace(OBJECTIVE, kept_logits=kept_logits)
    saved: dict[int, int] = {}
    constant = {tensor.data_ptr() for tensor in (*drafter.parameters(), *batch.values(), teacher.head)}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in constant:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        report = rollout(drafter, batch, teacher, settings, torch.Generator().manual_seed(0)).total()
    assert report.requires_grad
    assumed = Assumptions(supervised=46 / 48, alpha=0.5)
    values = activation_values(drafter.config, settings, Batching(6 * 48, 48), assumed)
    assert sum(saved.values()) == pytest.approx(4 * sum(values), rel=0.35)


def test_a_plan_tells_every_figure_with_its_formula() -> None:
    target = FAMILIES["llama"].tiny_config()
    lines = plan_run(tiny_config(), target, OBJECTIVE, Batching(100, 20, devices=2), ASSUMED)
    figures = {line.name: line for line in lines}
    assert len(figures) == len(lines)
    assert all(line.formula for line in lines)
    assert figures["tokens per update"].value == 200
    assert figures["weights, gradients, AdamW"].value * (1 << 30) == 16 * figures["drafter parameters"].value
    assert figures["cache per token"].value == 4 * 16 * 2 + 5
    hours = figures["operations per token"].value * 1000 / (312e12 * 0.3 * 3600)
    assert figures["training"].value == pytest.approx(hours)
