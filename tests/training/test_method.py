"""What a training method tells the module and the plan."""

import pytest

from specblock_zoo.models.registry import DRAFTERS
from specblock_zoo.training.method import Assumptions, blocks_and_slots
from specblock_zoo.training.methods import METHODS
from specblock_zoo.training.rollout import RolloutSettings
from tests.support.drafters import tiny_config


def test_a_report_has_a_block_for_every_share_of_starts_and_one_more() -> None:
    assert blocks_and_slots(tiny_config(block_width=3), RolloutSettings(block_sampling=(0.5, 0.1))) == (3, 3)
    assert blocks_and_slots(tiny_config(block_width=3), RolloutSettings(block_sampling=())) == (1, 3)


@pytest.mark.parametrize("kind", METHODS)
def test_work_has_the_shape_of_the_report(kind: str) -> None:
    config, settings = DRAFTERS[kind].config(), RolloutSettings(block_sampling=())
    work = METHODS[kind].work(config, settings, Assumptions(supervised=0.5))
    blocks, slots = METHODS[kind].report_shape(config, settings)
    assert [len(block) for block in work.graded] == [slots] * blocks
    assert work.graded[0][0] == 0.5
    assert work.layer_parameters > 0
