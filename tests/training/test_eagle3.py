"""The training-time test sees exactly what decoding has, and the first weights come from the target."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.functional.losses import cross_entropy
from specblock_zoo.functional.vocab import build_vocab_map, target_to_draft
from specblock_zoo.models.eagle3 import Eagle3Config, Eagle3Drafter
from specblock_zoo.targets.registry import FAMILIES
from specblock_zoo.training.eagle3 import METHOD, initialise, layer_parameters, rollout
from specblock_zoo.training.initialise import drafter_config
from specblock_zoo.training.method import Assumptions
from specblock_zoo.training.rollout import RolloutSettings
from specblock_zoo.training.teachers import Teacher
from tests.support.drafters import DRAFT_VOCAB, HIDDEN, VOCAB, tiny_eagle3
from tests.support.eagle import logits_along

STEPS = 4
SETTINGS = RolloutSettings(block_sampling=(1.0,) * (STEPS - 1))
SMALL = {"draft_vocab_size": DRAFT_VOCAB, "train_blocks": STEPS}
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


def make_batch(drafter: Eagle3Drafter, lengths: tuple[int, ...] = (15, 9)) -> dict[str, Tensor]:
    longest = max(lengths)
    inside = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return {
        "input_ids": drafter.draft_tokens[torch.randint(DRAFT_VOCAB, inside.shape)],
        "features": torch.randn(*inside.shape, 3 * HIDDEN),
        "attention_mask": inside,
        "loss_mask": inside & (torch.arange(longest) >= 3),
        "last_hidden": torch.randn(*inside.shape, HIDDEN),
    }


def make_teacher(drafter: Eagle3Drafter) -> Teacher:
    return Teacher(torch.randn(DRAFT_VOCAB, HIDDEN), target_to_draft(drafter.t2d))


def decoded_logits(drafter: Eagle3Drafter, batch: Mapping[str, Tensor], sequence: int, position: int) -> list[Tensor]:
    """Draft logits of every step from one drafting position, decoded with the text's own tokens."""
    tokens, pairs = batch["input_ids"][sequence], position + 1
    path = tokens[pairs + 1 : pairs + STEPS].tolist()
    return logits_along(drafter, batch["features"][sequence : sequence + 1, :pairs], tokens[None, 1 : pairs + 1], path)


def decoded_losses(drafter: Eagle3Drafter, batch: Mapping[str, Tensor], teacher: Teacher) -> tuple[Tensor, Tensor]:
    """Loss sum and row count of every step, over every drafting position whose tokens so far count."""
    sums, rows = [torch.zeros(()) for _ in range(STEPS)], torch.zeros(STEPS, dtype=torch.int64)
    for sequence, counted in enumerate(batch["loss_mask"]):
        for position in range(len(counted) - 2):
            for step, logits in enumerate(decoded_logits(drafter, batch, sequence, position)):
                reached = position + 2 + step
                if reached >= len(counted) or not counted[reached]:
                    break
                state = batch["last_hidden"][sequence, reached - 1]
                sums[step] = sums[step] + cross_entropy(logits[None], (teacher.head @ state).softmax(-1)[None])[0]
                rows[step] += 1
    return torch.stack(sums), rows


def test_the_training_forward_equals_decoding_with_the_true_tokens() -> None:
    drafter = tiny_eagle3()
    batch, teacher = make_batch(drafter), make_teacher(drafter)
    report = rollout(drafter, batch, teacher, SETTINGS)
    sums, rows = decoded_losses(drafter, batch, teacher)
    assert torch.equal(report.rows[:, 0], rows)
    assert rows.tolist() == sorted(rows.tolist(), reverse=True)
    assert rows[-1] > 0
    torch.testing.assert_close(report.draft_loss[:, 0], sums, **CLOSE)
    names, parameters = zip(*drafter.named_parameters(), strict=True)
    found, expected = (torch.autograd.grad(loss.sum(), parameters) for loss in (report.draft_loss, sums))
    for name, first, second in zip(names, found, expected, strict=True):
        torch.testing.assert_close(first, second, atol=1e-3, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}")


def test_there_is_no_rank_loss_and_later_steps_weigh_less() -> None:
    drafter = tiny_eagle3()
    report = rollout(drafter, make_batch(drafter), make_teacher(drafter), SETTINGS)
    assert report.rank_loss.sum() == 0
    assert report.confusion[..., 0].sum() == report.rows.sum() == report.confusion.sum()
    means = (report.draft_loss / report.rows)[:, 0]
    expected = sum(0.8**step * mean for step, mean in enumerate(means))
    torch.testing.assert_close(report.total(block_weight=0.8), expected)
    torch.testing.assert_close(report.total(rank_weight=7.0), means.sum())


def test_a_share_of_positions_goes_on_and_the_first_step_stays_the_same() -> None:
    drafter = tiny_eagle3()
    batch, teacher = make_batch(drafter), make_teacher(drafter)
    whole = rollout(drafter, batch, teacher, SETTINGS)
    half = rollout(drafter, batch, teacher, replace(SETTINGS, block_sampling=(0.5, 0.5)), torch.Generator())
    torch.testing.assert_close(half.draft_loss[0], whole.draft_loss[0])
    assert int(half.rows[1, 0]) == int(whole.rows[0, 0]) // 2
    assert METHOD.report_shape(drafter.config, SETTINGS) == tuple(whole.rows.shape) == (STEPS, 1)


def test_a_prefix_mask_inside_a_block_of_one_slot_changes_nothing() -> None:
    drafter = tiny_eagle3()
    batch, teacher = make_batch(drafter), make_teacher(drafter)
    reports = [
        rollout(drafter, batch, teacher, replace(SETTINGS, valid_prefix=valid_prefix)) for valid_prefix in (True, False)
    ]
    assert torch.equal(reports[0].rows, reports[1].rows)
    assert torch.equal(reports[0].draft_loss, reports[1].draft_loss)


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_first_weights_make_the_layer_the_targets_own_where_the_pair_tells_its_state(family: str) -> None:
    """Features chosen so that a linear map of them, and of the token, is the state the copied layer was made for."""
    target = FAMILIES[family].tiny_model(vocab_size=VOCAB)
    hidden, taps = target.config.hidden_size, (1, 2, 3)
    facts = {"tap_layers": taps, "draft_vocab_size": DRAFT_VOCAB, "train_blocks": STEPS}
    drafter = Eagle3Drafter(drafter_config(target.config, facts, {"model_type": "eagle3"}))
    vocab = build_vocab_map(torch.arange(1, VOCAB + 1), DRAFT_VOCAB)
    drafter.d2t.copy_(vocab.d2t)
    drafter.t2d.copy_(vocab.t2d)
    drafter.attach(target.get_input_embeddings().weight)
    torch.manual_seed(0)
    tokens = torch.randint(VOCAB, (8, 40))
    features, mixing = torch.randn(8, 40, len(taps) * hidden), torch.randn(len(taps) * hidden, hidden)
    # The next token's last tap is a map of this token's features; its own share of the state is nothing.
    features[:, 1:, -hidden:] = features[:, :-1, :-hidden] @ mixing[:-hidden] / 8
    batch = {"input_ids": tokens, "features": features, "attention_mask": torch.ones(8, 40, dtype=torch.bool)}
    initialise(drafter, target, [batch], tokens=1)
    condition = drafter.condition(features[:, :-1])
    wanted = features[:, 1:, -hidden:]
    assert float((condition - wanted).norm() / wanted.norm()) < 0.1
    original = target.get_decoder().layers[-1]
    layer = drafter.layers[0]
    pair = torch.cat((layer.input_layernorm(drafter.embed(tokens[:, 1:])), layer.hidden_norm(condition)), -1)
    expected = original.self_attn.v_proj(original.input_layernorm(wanted))
    found = layer.self_attn.v_proj(pair)
    assert float((found - expected).norm() / expected.norm()) < 0.3
    torch.testing.assert_close(drafter.lm_head.weight, target.get_output_embeddings().weight[drafter.draft_tokens])
    torch.testing.assert_close(layer.mlp.up_proj.weight, original.mlp.up_proj.weight)


def test_work_counts_the_layers_matrices_and_a_row_per_step() -> None:
    drafter = tiny_eagle3()
    layer = drafter.layers[0]
    assert layer_parameters(drafter.config) == sum(weight.numel() for weight in layer.parameters() if weight.ndim == 2)
    work = METHOD.work(drafter.config, replace(SETTINGS, block_sampling=(1.0, 0.5)), Assumptions(supervised=0.5))
    assert work.graded == [[0.5], [0.5], [0.25]]
    assert (work.dense, work.advanced) == (1.0, 0.75)


def test_an_option_of_another_kind_of_drafter_is_refused() -> None:
    target = FAMILIES["llama"].tiny_config()
    config = drafter_config(target, {"draft_vocab_size": DRAFT_VOCAB}, {"model_type": "eagle3"})
    assert isinstance(config, Eagle3Config)
    with pytest.raises(ConfigurationError, match="shift"):
        drafter_config(target, {}, {"model_type": "eagle3", "shift": "none"})


def test_the_state_that_the_head_reads_is_known_up_to_its_size() -> None:
    """Where the batch has the target's last states, the condition is fitted to them, at the size of the tap."""
    target = FAMILIES["llama"].tiny_model(vocab_size=VOCAB)
    hidden = target.config.hidden_size
    drafter = Eagle3Drafter(drafter_config(target.config, {"tap_layers": (1, 2, 3), **SMALL}, {"model_type": "eagle3"}))
    drafter.attach(target.get_input_embeddings().weight)
    torch.manual_seed(0)
    tokens, features = torch.randint(VOCAB, (8, 40)), torch.randn(8, 40, 3 * hidden)
    batch = {"input_ids": tokens, "features": features, "attention_mask": torch.ones(8, 40, dtype=torch.bool)}
    wanted = features[:, :-1, :hidden]
    batch["last_hidden"] = torch.zeros(8, 40, hidden)
    batch["last_hidden"][:, 1:] = 5 * wanted * target.get_decoder().norm.weight.detach()
    initialise(drafter, target, [batch], tokens=1)
    with torch.no_grad():
        found = drafter.condition(features[:, :-1])
    assert float(torch.cosine_similarity(found, wanted, dim=-1).mean()) > 0.97
