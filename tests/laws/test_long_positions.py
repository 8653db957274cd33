"""A drafter keeps its footing far into a text: beyond 2,048 positions, and beyond any limit of its configuration.

Released drafters of several methods were trained with `max_position_embeddings` 2048 and accept little beyond it.
"""

import pytest
import torch

from specblock_zoo.targets.registry import FAMILIES
from specblock_zoo.training.initialise import drafter_config
from tests.support.drafters import tiny_drafter

FAR = 6000
FACTS = {"tap_layers": [1, 2, 3], "draft_vocab_size": 24}


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.layers_start_drafters])
def test_a_drafter_reaches_as_far_as_its_target(family: str) -> None:
    target = FAMILIES[family].tiny_config(max_position_embeddings=131072)
    assert drafter_config(target, FACTS).max_position_embeddings == 131072


def test_rotary_positions_beyond_the_configured_limit_go_on_as_before() -> None:
    """What attention sees of two positions is their distance, wherever they stand."""
    drafter = tiny_drafter(max_position_embeddings=2048)
    assert drafter.config.max_position_embeddings < FAR
    scores = []
    for start in (0, FAR):
        cos, sin = drafter.rope(torch.tensor([[start, start + 7]]))
        cos, sin = cos.flatten(0, -2), sin.flatten(0, -2)
        half = cos.shape[-1] // 2
        vector = torch.linspace(-1, 1, cos.shape[-1])
        turned = torch.cat((-vector[half:], vector[:half]))
        first, second = (vector * cos[i] + turned * sin[i] for i in (0, 1))
        scores.append(first @ second)
    torch.testing.assert_close(scores[1], scores[0], atol=2e-3, rtol=0)
