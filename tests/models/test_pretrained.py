"""What drafters that are transformers models share."""

import pytest
import torch

from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.models.pretrained import one_device


def test_a_device_map_names_one_device() -> None:
    assert one_device(None) == one_device({"": "cpu"}) == torch.device("cpu")
    assert one_device("meta") == torch.device("meta")
    for spread in ({"a": "cpu", "b": "meta"}, "balanced"):
        with pytest.raises(UnsupportedOptionError, match="spreads"):
            one_device(spread)
