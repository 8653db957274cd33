"""Drafters borrow the target's embeddings: shared while attached, left behind by copies and files."""

import copy
import pickle

import pytest
import torch

from specblock_zoo.errors import TargetMismatchError, UnboundDrafterError
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.structures import FINAL_NORM
from tests.support.drafters import tiny_drafter


def test_embeddings_are_shared_not_copied() -> None:
    drafter, table = tiny_drafter(attached=False), torch.randn(40, 16)
    drafter.attach(table)
    assert drafter.embedding.data_ptr() == table.data_ptr()
    assert not any("embed" in name for name in drafter.state_dict())


def test_drafting_before_meeting_a_target_says_what_to_do() -> None:
    with pytest.raises(UnboundDrafterError, match="attach"):
        _ = tiny_drafter(attached=False).embedding


@pytest.mark.parametrize("shape", [(41, 16), (40, 8)])
def test_another_targets_embeddings_are_refused_with_both_shapes(shape: tuple[int, int]) -> None:
    with pytest.raises(TargetMismatchError) as caught:
        tiny_drafter(attached=False).attach(torch.randn(shape))
    assert str(shape) in str(caught.value)
    assert "(40, 16)" in str(caught.value)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda drafter: pickle.loads(pickle.dumps(drafter))])
def test_copies_leave_the_targets_table_behind(duplicate) -> None:
    drafter = tiny_drafter()
    twin = duplicate(drafter)
    assert isinstance(twin, SpecBlockDrafter)
    assert drafter.is_attached
    assert not twin.is_attached
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(tensor, twin.state_dict()[name])


def test_a_drafter_of_the_last_state_taps_the_final_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = tiny_drafter()
    monkeypatch.setattr(drafter, "reads_last_hidden", True)
    assert drafter.tap_layers(32) == (FINAL_NORM,)


def test_tap_layers_default_to_the_method() -> None:
    drafter = tiny_drafter()
    drafter.config.tap_layers = []
    assert drafter.tap_layers(32) == (1, 15, 28)
    assert drafter.tap_layers(36) == (1, 17, 32)
