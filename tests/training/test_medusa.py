"""Training of independent heads: the same heads as decoding's, the same sums as the plain formula, a useful start."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specblock_zoo.errors import CacheMismatchError
from specblock_zoo.functional.losses import LOSSES
from specblock_zoo.functional.objective import LossReport
from specblock_zoo.functional.vocab import target_to_draft
from specblock_zoo.models.medusa import MedusaConfig, MedusaDrafter
from specblock_zoo.targets.llama import LLAMA
from specblock_zoo.training import medusa
from specblock_zoo.training.method import Assumptions
from specblock_zoo.training.rollout import RolloutSettings
from specblock_zoo.training.teachers import Teacher
from tests.support.drafters import DRAFT_VOCAB, HIDDEN, VOCAB, WIDTH, tiny_medusa

HEADS, LENGTHS = WIDTH, (17, 23, 4, 2)
ALL_POSITIONS = RolloutSettings(block_sampling=(), valid_prefix=False)


@pytest.fixture
def drafter() -> MedusaDrafter:
    return tiny_medusa().train()


@pytest.fixture
def teacher(drafter: MedusaDrafter) -> Teacher:
    return Teacher(torch.randn(DRAFT_VOCAB, HIDDEN), target_to_draft(drafter.t2d))


@pytest.fixture
def batch() -> dict[str, Tensor]:
    torch.manual_seed(1)
    shape = (len(LENGTHS), max(LENGTHS))
    inside = torch.arange(shape[1]) < torch.tensor(LENGTHS)[:, None]
    return {
        "input_ids": torch.randint(VOCAB, shape) * inside,
        "attention_mask": inside,
        "loss_mask": inside & (torch.rand(shape) < 0.8),
        "last_hidden": torch.randn(*shape, HIDDEN).bfloat16(),
    }


def position_by_position(
    drafter: MedusaDrafter, batch: dict[str, Tensor], teacher: Teacher, settings: RolloutSettings
) -> tuple[Tensor, list[list[int]]]:
    """Twin: `extend`, as decoding calls it, at each position alone; loss sums, and rows and hits of each slot."""
    losses: Any = [0.0] * HEADS
    rows, hits = [0] * HEADS, [0] * HEADS
    for ids, mask, states in zip(batch["input_ids"], batch["loss_mask"], batch["last_hidden"].float(), strict=True):
        for position in range(len(ids) - 1):
            so_far = slice(0, position + 1)
            block = drafter.extend(states[None, so_far], ids[None, 1 : position + 2], torch.arange(position + 1)[None])
            alive = True
            for slot in range(HEADS):
                reached = position + 2 + slot
                if reached >= len(ids) or not alive:
                    break
                logits = block.block.logits[:, slot]
                token, right = teacher.draft_ids[ids[reached]], True
                if mask[reached] and token >= 0:
                    probs = F.linear(states[None, reached - 1], teacher.head).softmax(-1)
                    losses[slot] = losses[slot] + LOSSES[settings.draft_loss](logits, probs).sum()
                    rows[slot] += 1
                    hits[slot] += int(logits.argmax() == probs.argmax())
                    right = bool(logits.argmax() == token)
                else:
                    right = False
                alive = right if settings.valid_prefix else True
    return torch.stack([torch.as_tensor(loss) for loss in losses]), [rows, hits]


@pytest.mark.parametrize(
    "settings",
    [
        ALL_POSITIONS,
        RolloutSettings(block_sampling=()),
        RolloutSettings(draft_loss="total_variation", block_sampling=(), valid_prefix=False, kept_logits=0),
    ],
    ids=["all", "prefix", "other loss"],
)
def test_training_grades_what_decoding_drafts(
    drafter: MedusaDrafter, batch: dict[str, Tensor], teacher: Teacher, settings: RolloutSettings
) -> None:
    """Equal in value, counts and gradient to decoding's own forward at every position."""
    if settings.valid_prefix:
        # Heads that are sure of one token, which stands at two of three places of the text: some paths go on.
        favourite = int(drafter.draft_tokens[5])
        for head in drafter.heads:
            head[0].linear.bias.data.fill_(5.0)
            head[-1].weight.data[5] = 1.0
        batch["input_ids"][:, torch.arange(max(LENGTHS)) % 3 > 0] = favourite
    report = medusa.rollout(drafter, batch, teacher, settings)
    report.draft_loss.sum().backward()
    found = [parameter.grad.clone() for parameter in drafter.parameters() if parameter.grad is not None]
    drafter.zero_grad()
    losses, (rows, hits) = position_by_position(drafter, batch, teacher, settings)
    losses.sum().backward()
    expected = [parameter.grad for parameter in drafter.parameters() if parameter.grad is not None]
    torch.testing.assert_close(report.draft_loss[0], losses, atol=1e-4, rtol=1e-4)
    assert (report.rows[0].tolist(), report.hits[0].tolist()) == (rows, hits)
    assert min(rows) > 0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_there_is_no_rank_loss(drafter: MedusaDrafter, batch: dict[str, Tensor], teacher: Teacher) -> None:
    report = medusa.rollout(drafter, batch, teacher, ALL_POSITIONS)
    assert report.rank_loss.tolist() == report.rank_weight.tolist() == [[0.0] * HEADS]
    assert torch.equal(report.total(rank_weight=1.0), report.total(rank_weight=0.0))
    assert medusa.METHOD.report_shape(drafter.config, ALL_POSITIONS) == tuple(report.rows.shape) == (1, HEADS)


def test_a_batch_too_short_for_a_head_adds_nothing_to_it(
    drafter: MedusaDrafter, batch: dict[str, Tensor], teacher: Teacher
) -> None:
    short = {name: column[:, :3] for name, column in batch.items()}
    short["input_ids"], short["loss_mask"] = drafter.draft_tokens[:12].view(4, 3), torch.ones(4, 3, dtype=torch.bool)
    report: LossReport = medusa.rollout(drafter, short, teacher, ALL_POSITIONS)
    assert report.rows[0, 0] > 0
    assert report.rows[0, 1:].tolist() == report.draft_loss[0, 1:].tolist() == [0, 0]


def test_a_cache_without_last_states_is_refused_with_the_way_out(
    drafter: MedusaDrafter, batch: dict[str, Tensor], teacher: Teacher
) -> None:
    del batch["last_hidden"]
    with pytest.raises(CacheMismatchError, match="--teacher=last_hidden"):
        medusa.rollout(drafter, batch, teacher, ALL_POSITIONS)


def test_a_linear_target_is_guessed_from_the_start() -> None:
    """Where each state is a matrix times the one before, the fitted heads know every later state."""
    torch.manual_seed(0)
    target = LLAMA.tiny_model(hidden_size=HIDDEN, vocab_size=VOCAB)
    drafter = MedusaDrafter(tiny_medusa().config)
    drafter.d2t.copy_(tiny_medusa().d2t)
    turn = torch.linalg.qr(torch.randn(HIDDEN, HIDDEN)).Q
    states = [torch.randn(200, HIDDEN)]
    for _ in range(HEADS + 2):
        states.append(states[-1] @ turn)
    batch = {"last_hidden": torch.stack(states, dim=1), "attention_mask": torch.ones(200, HEADS + 3)}
    medusa.initialise(drafter, target, [batch, batch], tokens=600)
    rows = LLAMA.head_weight(target)[drafter.draft_tokens]
    with torch.no_grad():
        logits = drafter.draft(states[0]).logits
    for head in range(HEADS):
        expected = states[1 + head] @ rows.T
        assert (logits[:, head] - expected).norm() < 0.02 * expected.norm()


def test_padding_stays_out_of_the_start(batch: dict[str, Tensor]) -> None:
    batch["last_hidden"][~batch["attention_mask"]] = torch.nan
    known, wanted = medusa.states_and_later_ones(batch, HEADS)
    assert len(known) == len(wanted) == sum(max(0, length - HEADS) for length in LENGTHS)
    assert not known.isnan().any()
    assert not wanted.isnan().any()
    assert torch.equal(wanted[0, :HIDDEN], known[1])


def test_the_price_follows_heads_and_mask() -> None:
    config, assumed = MedusaConfig(block_width=2, residual_layers=1), Assumptions(supervised=0.5, alpha=0.6)
    everywhere = medusa.work(config, ALL_POSITIONS, assumed)
    assert everywhere.graded == [[0.5, 0.5]]
    assert (everywhere.dense, everywhere.advanced, everywhere.layer_parameters) == (0.0, 1.0, 576**2)
    assert medusa.work(config, RolloutSettings(block_sampling=()), assumed).graded == [[0.5, 0.3]]
