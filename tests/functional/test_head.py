"""The head in pieces equals the plain product, whether its gradient is kept or computed again."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields

import pytest
import torch
from torch import Tensor

from specblock_zoo.functional import head as head_module
from specblock_zoo.functional.head import HeadSettings, SlotScores, product_dtype, score_slot
from specblock_zoo.functional.losses import LOSSES
from tests.support.scores import plain_scores

ROWS, HIDDEN, VOCAB = 23, 6, 40


@pytest.fixture(params=[1, 4 * VOCAB, 10**6], ids=["row by row", "pieces", "whole"])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "CPU_PIECE", request.param)


def slot(rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States, head, target probabilities that sum to less than one, weights with zeros among them."""
    draw = torch.Generator().manual_seed(rows)
    states = torch.randn(rows, HIDDEN, generator=draw).requires_grad_()
    head = torch.randn(VOCAB, HIDDEN, generator=draw).requires_grad_()
    probs = 0.9 * torch.randn(rows, VOCAB, generator=draw).softmax(-1)
    return states, head, probs, torch.rand(rows, generator=draw) * (torch.arange(rows) % 3 > 0)


def settings(loss: str = "cross_entropy", kept: int = 10**6) -> HeadSettings:
    return HeadSettings(LOSSES[loss], 20, kept)


def score(inputs: tuple[Tensor, Tensor, Tensor, Tensor], options: HeadSettings) -> SlotScores:
    states, head, probs, weights = inputs
    return score_slot(states, head, lambda piece: probs[piece], weights, options)


@pytest.mark.usefixtures("piece")
@pytest.mark.parametrize("kept", [0, 10**6], ids=["recomputed", "kept"])
@pytest.mark.parametrize("loss", LOSSES)
def test_scores_and_gradients_equal_the_plain_product(loss: str, kept: int) -> None:
    inputs = slot()
    found, expected = score(inputs, settings(loss, kept)), plain_scores(inputs[0] @ inputs[1].T, *inputs[2:], loss)
    for field in fields(SlotScores):
        torch.testing.assert_close(getattr(found, field.name), getattr(expected, field.name), msg=field.name)
    gradients = [torch.autograd.grad(3 * scores.draft_loss, inputs[:2]) for scores in (found, expected)]
    torch.testing.assert_close(*gradients)
    assert gradients[0][0][0].eq(0).all(), "a row of weight zero pulls at nothing"


@pytest.mark.parametrize("kept", [0, 10**6], ids=["recomputed", "kept"])
def test_a_slot_without_rows_is_zero_and_differentiable(kept: int) -> None:
    inputs = slot(rows=0)
    scores = score(inputs, settings(kept=kept))
    scores.draft_loss.backward()
    assert (scores.draft_loss.item(), scores.drafted.shape, scores.summary.shape) == (0.0, (0,), (0, 15))
    assert inputs[1].grad is not None
    assert inputs[1].grad.eq(0).all()


@pytest.mark.parametrize("kept", [0, 10**6], ids=["recomputed", "kept"])
def test_under_autocast_products_are_bfloat16_and_gradients_float32(kept: int) -> None:
    inputs = slot()
    with torch.autocast("cpu", torch.bfloat16):
        assert product_dtype(inputs[0]) == torch.bfloat16
        scores = score(inputs, settings(kept=kept))
        logits = inputs[0] @ inputs[1].T
        expected = plain_scores(logits, *inputs[2:])
    assert logits.dtype == torch.bfloat16
    assert torch.equal(scores.drafted, expected.drafted)
    torch.testing.assert_close(scores.draft_loss, expected.draft_loss, rtol=1e-4, atol=0)
    found, plain = (torch.autograd.grad(each.draft_loss, inputs[:2]) for each in (scores, expected))
    assert [gradient.dtype for gradient in found] == [torch.float32] * 2
    torch.testing.assert_close(found, plain, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_validation_computes_no_gradient(mode: Callable[[], AbstractContextManager[None]]) -> None:
    asked: list[bool] = []

    def loss(logits: Tensor, probs: Tensor) -> Tensor:
        asked.append(logits.requires_grad)
        return LOSSES["cross_entropy"](logits, probs)

    expected = score(slot(), settings()).draft_loss
    with mode():
        found = score(slot(), HeadSettings(loss, 20, 10**6)).draft_loss
    assert not found.requires_grad
    assert asked
    assert not any(asked)
    torch.testing.assert_close(found, expected.detach())


@pytest.mark.parametrize(("kept", "largest"), [(0, VOCAB * HIDDEN), (10**6, ROWS * VOCAB)], ids=["recomputed", "kept"])
def test_what_waits_for_the_backward_pass(kept: int, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "CPU_PIECE", 4 * VOCAB)
    saved: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        score(slot(), settings(kept=kept))
    assert max(saved) == largest
