"""A restored drafter is the saved one; a wrong save changes nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specblock_zoo.adaptation.events import Action
from specblock_zoo.adaptation.saving import BUFFERS, OPTIMIZER, STATE, base_of
from specblock_zoo.adaptation.session import AdaptiveDrafter
from specblock_zoo.adaptation.storage import current_version, flat_optimizer
from specblock_zoo.errors import ConfigurationError, WeightsMismatchError
from specblock_zoo.models.specblock import SpecBlockDrafter
from tests.support.adapting import adaptive, ask, eager, target
from tests.support.decoding import random_drafter
from tests.support.drafters import tiny_drafter


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[AdaptiveDrafter, Path]:
    drafter, folder = adaptive(Action.HEAD, Action.FULL), tmp_path_factory.mktemp("saved") / "state"
    for seed in range(4):
        ask(drafter, seed)
    assert set(drafter.bandit.costs) == {Action.HEAD, Action.FULL}
    drafter.save(folder)
    return drafter, folder


def test_everything_comes_back(saved: tuple[AdaptiveDrafter, Path]) -> None:
    drafter, folder = saved
    other = adaptive(Action.HEAD)
    other.restore(folder)
    assert other.bandit == drafter.bandit
    assert (other.trigger, other.updater.updates) == (drafter.trigger, drafter.updater.updates)
    for name in ("head_buffer", "text_buffer"):
        ours, theirs = getattr(drafter, name).state(), getattr(other, name).state()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    for ours, theirs in ((drafter.serving, other.serving), (drafter.updater.good, other.updater.good)):
        assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in ours.state_dict().items())
    ours, theirs = (flat_optimizer(each.updater.optimizer, "x") for each in (drafter, other))
    assert ours
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    ask(other)


def test_an_update_that_was_under_way_is_not_waited_for(tmp_path: Path) -> None:
    drafter = adaptive(Action.HEAD)
    ask(drafter)
    drafter.bandit = replace(drafter.bandit, pending=Action.HEAD)
    drafter.save(tmp_path / "state")
    other = adaptive(Action.HEAD)
    other.restore(tmp_path / "state")
    assert other.bandit == replace(drafter.bandit, pending=None)


def test_the_save_holds_a_drafter_like_any_other(saved: tuple[AdaptiveDrafter, Path]) -> None:
    drafter, folder = saved
    loaded = SpecBlockDrafter.from_pretrained(current_version(folder) / "drafter")
    assert torch.equal(loaded.lm_head.weight, drafter.serving.lm_head.weight)


def test_another_drafters_save_is_refused(saved: tuple[AdaptiveDrafter, Path]) -> None:
    other = AdaptiveDrafter(tiny_drafter(), eager())
    before = other.serving.lm_head.weight.clone()
    with pytest.raises(WeightsMismatchError, match="expected"):
        other.restore(saved[1])
    assert torch.equal(other.serving.lm_head.weight, before)


def test_a_save_of_other_weights_of_the_same_shapes_is_refused(saved: tuple[AdaptiveDrafter, Path]) -> None:
    """A newer version of a drafter would go back to the older one unseen."""
    drafter, folder = saved
    newer = random_drafter(target())
    with torch.no_grad():
        newer.lm_head.weight.mul_(2)
    other = AdaptiveDrafter(newer, drafter.settings)
    with pytest.raises(WeightsMismatchError, match=f"began from a drafter {drafter.base[:12]}.*{other.base[:12]}"):
        other.restore(folder)
    assert torch.equal(other.serving.lm_head.weight, newer.lm_head.weight)


def test_a_drafter_is_itself_in_float32_and_bfloat16() -> None:
    other = tiny_drafter()
    with torch.no_grad():
        next(other.layers.parameters()).mul_(1.1)
    assert base_of(tiny_drafter()) == base_of(tiny_drafter().to(torch.bfloat16)) != base_of(other)


def test_a_save_of_before_is_read(saved: tuple[AdaptiveDrafter, Path], tmp_path: Path) -> None:
    """Without what later versions write beside: its gains have to be confirmed anew."""
    drafter, _ = saved
    drafter.save(tmp_path)
    version = current_version(tmp_path)
    facts = json.loads((version / STATE).read_text())
    del facts["base"], facts["bandit"]["agreeing"]
    (version / STATE).write_text(json.dumps(facts))
    rows = load_file(version / BUFFERS["head_buffer"])
    save_file({name: each for name, each in rows.items() if name != "unread"}, version / BUFFERS["head_buffer"])
    moments = load_file(version / OPTIMIZER) | {"head.0.exp_avg": torch.zeros(2)}
    save_file(moments, version / OPTIMIZER)
    other = adaptive(Action.HEAD, Action.FULL)
    other.restore(tmp_path)
    assert other.bandit == replace(drafter.bandit, agreeing={})
    assert len(other.head_buffer) == len(drafter.head_buffer)
    ask(other)


def test_a_save_with_other_distributions_is_refused(saved: tuple[AdaptiveDrafter, Path]) -> None:
    """Rows of two widths could never be joined, and nothing would be learned any more."""
    drafter, folder = saved
    top = drafter.head_buffer.rows().target.ids.shape[-1]
    other = adaptive(Action.HEAD, capture=replace(drafter.settings.capture, top=top - 1))
    before = other.serving.lm_head.weight.clone()
    with pytest.raises(ConfigurationError, match=rf"{top} tokens each; here it is {top - 1}"):
        other.restore(folder)
    assert torch.equal(other.serving.lm_head.weight, before)


def test_a_damaged_save_is_refused(saved: tuple[AdaptiveDrafter, Path], tmp_path: Path) -> None:
    drafter, _ = saved
    drafter.save(tmp_path)
    (current_version(tmp_path) / STATE).write_text("{}")
    with pytest.raises(WeightsMismatchError, match="not a saved state"):
        adaptive(Action.HEAD).restore(tmp_path)
    with pytest.raises(ConfigurationError, match="no saved adaptation"):
        adaptive(Action.HEAD).restore(tmp_path / "absent")
