"""Updates learn what the buffers say, change what they may, and are all or nothing."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specblock_zoo.adaptation.buffers import HeadRows, TextRows, top_rows
from specblock_zoo.adaptation.events import Action
from specblock_zoo.adaptation.updater import (
    HEADS,
    Updater,
    UpdateSettings,
    collated,
    full_loss,
    serving_copy,
    with_modules,
)
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.inference.prepack import PackedLinear, can_prepack
from specblock_zoo.models.specblock import SpecBlockDrafter
from tests.support.drafters import DRAFT_VOCAB, HIDDEN, VOCAB, tiny_drafter

QUICK = UpdateSettings(head_learning_rate=0.01, full_learning_rate=0.003, head_epochs=6, full_epochs=6, head_batch=16)


def head_rows(count: int = 32) -> HeadRows:
    torch.manual_seed(1)
    flags = torch.ones(count, dtype=torch.bool)
    return HeadRows(torch.randn(count, HIDDEN).half(), top_rows(torch.randn(count, DRAFT_VOCAB) * 4, 8), flags, flags)


def texts(drafter: SpecBlockDrafter, count: int = 5) -> list[TextRows]:
    torch.manual_seed(2)
    made = []
    for number in range(count):
        length = 10 + number
        ids = drafter.draft_tokens[torch.randint(DRAFT_VOCAB, (length,))].int()
        mask = torch.arange(length) >= 4
        target = top_rows(torch.randn(length, DRAFT_VOCAB) * 4, 8)
        made.append(TextRows(ids, torch.randn(length, 3 * HIDDEN).bfloat16(), mask, target, 1))
    return made


def updater_of(drafter: SpecBlockDrafter, settings: UpdateSettings = QUICK) -> Updater:
    made = Updater(drafter, settings)
    made.embedding = drafter.embedding
    return made


def weights(drafter: SpecBlockDrafter) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in drafter.state_dict().items()}


def data_for(action: Action, drafter: SpecBlockDrafter) -> HeadRows | list[TextRows]:
    return head_rows() if action is Action.HEAD else texts(drafter)


@pytest.mark.parametrize("action", [Action.HEAD, Action.FULL])
def test_an_update_learns_and_leaves_the_given_drafter_alone(action: Action) -> None:
    drafter = tiny_drafter()
    before, updater = weights(drafter), updater_of(drafter)
    with torch.inference_mode():
        update = updater.update(action, data_for(action, drafter))
    assert update.losses[-1] < update.losses[0]
    assert all(torch.equal(before[name], value) for name, value in drafter.state_dict().items())
    changed = {name for name, value in updater.shadow.state_dict().items() if not torch.equal(before[name], value)}
    touched = {name.split(".")[0] for name in changed}
    assert touched == set(HEADS) if action is Action.HEAD else touched > set(HEADS)
    assert set(update.modules) == (set(HEADS) if action is Action.HEAD else set(drafter._modules))
    assert not any(parameter.requires_grad for parameter in updater.shadow.parameters())


@pytest.mark.parametrize(("least", "taken"), [(0, 4), (4, 4), (5, 6), (9, 10)])
def test_few_slots_are_passed_over_until_there_were_enough_steps(least: int, taken: int) -> None:
    updater = updater_of(tiny_drafter(), replace(QUICK, head_epochs=2))
    update = updater.update(Action.HEAD, head_rows(), least)
    assert len(update.losses) == taken, "two a pass"


@pytest.mark.parametrize("action", [Action.HEAD, Action.FULL])
def test_a_broken_update_is_dropped_whole(action: Action) -> None:
    drafter = tiny_drafter()
    updater = updater_of(drafter)
    updater.update(action, data_for(action, drafter))
    before, momentum = weights(updater.shadow), str(updater.optimizer.state_dict())
    data = data_for(action, drafter)
    poison = data.normed if isinstance(data, HeadRows) else data[0].features
    poison[:] = float("nan")
    with pytest.raises(FloatingPointError):
        updater.update(action, data)
    assert all(torch.equal(before[name], value) for name, value in updater.shadow.state_dict().items())
    assert str(updater.optimizer.state_dict()) == momentum
    assert bool(updater.optimizer.state) == (action is Action.FULL), "a head update has one of its own"
    assert updater.updates == 1


@pytest.mark.parametrize(
    "bad", [{"clip": -1.0}, {"head_batch": 0}, {"full_epochs": 0}, {"head_beta": -0.1}, {"least_pull": -1.0}]
)
def test_settings_that_could_never_train_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(bad))):
        UpdateSettings(**bad)


def test_the_reference_holds_an_update_back() -> None:
    drafter = tiny_drafter()
    moved = {}
    for beta in (0.0, 20.0):
        updater = updater_of(drafter, replace(QUICK, head_beta=beta))
        updater.update(Action.HEAD, head_rows())
        normed = head_rows().normed.float()
        moved[beta] = (drafter.lm_head(normed).softmax(-1) - updater.shadow.lm_head(normed).softmax(-1)).abs().sum()
    assert moved[20.0] < 0.5 * moved[0.0]


def test_full_loss_is_the_training_loss_and_the_anchor() -> None:
    drafter = tiny_drafter()
    generator = torch.Generator()

    def loss(beta: float) -> Tensor:
        generator.manual_seed(0)
        return full_loss(drafter, drafter, texts(drafter), UpdateSettings(full_beta=beta), generator).detach()

    assert loss(0.0) > 0
    # Against itself, the anchor is the entropy of the draft: at most log of the vocabulary.
    anchor = float(loss(1.0) - loss(0.0))
    assert 0 < anchor <= torch.log(torch.tensor(DRAFT_VOCAB)) + 1e-4


def test_texts_are_padded_where_nothing_counts() -> None:
    drafter = tiny_drafter()
    batch = collated(texts(drafter), drafter.device)
    assert batch["input_ids"].shape == (5, 14)
    assert batch["loss_mask"].sum(1).tolist() == [6, 7, 8, 9, 10]
    assert int(batch["input_ids"].max()) < VOCAB


def test_keep_and_revert() -> None:
    drafter = tiny_drafter()
    updater = updater_of(drafter)
    updater.update(Action.HEAD, head_rows())
    updater.keep()
    kept = weights(updater.shadow)
    updater.update(Action.FULL, texts(drafter))
    modules = updater.revert()
    assert all(torch.equal(kept[name], value) for name, value in updater.shadow.state_dict().items())
    assert torch.equal(modules["lm_head"].weight, kept["lm_head.weight"])
    assert not updater.optimizer.state


def test_swapping_shares_what_has_not_changed() -> None:
    serving = serving_copy(tiny_drafter(), prepack=False)
    head = torch.nn.Linear(HIDDEN, DRAFT_VOCAB, bias=False)
    swapped = with_modules(serving, {"lm_head": head})
    assert swapped.lm_head is head
    assert serving.lm_head is not head
    assert swapped.layers is serving.layers


@pytest.mark.skipif(not can_prepack(), reason="this torch build has no oneDNN operators")
def test_packed_serving_weights_come_from_a_plain_shadow() -> None:
    drafter = tiny_drafter()
    updater = Updater(drafter, QUICK, prepack=True)
    update = updater.update(Action.HEAD, head_rows())
    assert isinstance(update.modules["lm_head"], PackedLinear)
    normed = torch.randn(3, HIDDEN)
    expected = updater.shadow.lm_head(normed)
    torch.testing.assert_close(update.modules["lm_head"](normed), expected, atol=1e-5, rtol=1e-5)
    assert isinstance(serving_copy(drafter, prepack=True).lm_head, PackedLinear)
    assert not isinstance(drafter.lm_head, PackedLinear)


def test_low_precision_serving_trains_in_float32() -> None:
    drafter = tiny_drafter().to(torch.bfloat16)
    updater = Updater(drafter, QUICK)
    update = updater.update(Action.HEAD, head_rows())
    assert updater.shadow.dtype is torch.float32
    assert update.modules["lm_head"].weight.dtype is torch.bfloat16
