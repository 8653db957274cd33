"""What drafters that are transformers models share."""

import pytest
import torch

from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.models.decoder import ROTARY_ROWS, inverse_frequencies, rotary
from specblock_zoo.models.pretrained import one_device
from tests.support.drafters import tiny_drafter


def test_a_device_map_names_one_device() -> None:
    assert one_device(None) == one_device({"": "cpu"}) == torch.device("cpu")
    assert one_device("meta") == torch.device("meta")
    for spread in ({"a": "cpu", "b": "meta"}, "balanced"):
        with pytest.raises(UnsupportedOptionError, match="spreads"):
            one_device(spread)


@pytest.mark.parametrize("last", [5, ROTARY_ROWS - 1, ROTARY_ROWS, 3 * ROTARY_ROWS])
def test_rotary_tables_are_the_same_inside_and_outside_of_what_is_kept(last: int) -> None:
    drafter, positions = tiny_drafter(), torch.tensor([[0, 3], [4, last]])
    frequencies = inverse_frequencies(drafter.config.head_dim, drafter.config.rope_theta, (), positions.device)
    for found, expected in zip(drafter.rope(positions), rotary(positions, frequencies, drafter.dtype), strict=True):
        torch.testing.assert_close(found, expected)
