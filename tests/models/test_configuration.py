"""What all drafter configurations have in common."""

import pytest

from specblock_zoo.models.configuration import DrafterConfig, drafter_fields
from specblock_zoo.models.registry import DRAFTERS


@pytest.mark.parametrize("kind", DRAFTERS)
def test_fields_are_ours_and_all_of_them(kind: str) -> None:
    names = drafter_fields(DRAFTERS[kind].config)
    assert {"hidden_size", "tap_layers", "max_nodes", "train_blocks", "eos_token_id"} <= set(names)
    assert not {"sizes", "model_type", "architectures", "dtype"} & set(names)
    assert names == sorted(names)


def test_a_kinds_own_fields_are_its_own() -> None:
    shared = set(drafter_fields(DrafterConfig))
    assert {"shift", "rank_top"} <= set(drafter_fields(DRAFTERS["specblock"].config)) - shared


def test_without_widths_every_slot_is_as_wide_as_the_beam() -> None:
    assert DrafterConfig(beam_width=3).tree_settings.branching == (3, 3, 3, 3)
    assert DrafterConfig(branching=(1, 2, 3, 0)).tree_settings.branching == (1, 2, 3, 0)
