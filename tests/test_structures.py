"""Records that cross layers cannot be changed on the way, and their defaults are the method's."""

import dataclasses

import pytest
import torch

from specblock_zoo import structures
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.specblock.configuration_specblock import SpecBlockConfig
from specblock_zoo.structures import DraftTree, KeyValues, TreeSettings, default_tap_layers

RECORDS = [value for value in vars(structures).values() if dataclasses.is_dataclass(value)]


@pytest.mark.parametrize("record", RECORDS)
def test_records_are_frozen(record: type) -> None:
    name = dataclasses.fields(record)[0].name
    instance = object.__new__(record)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(instance, name, 0)


def test_a_tree_is_as_long_as_its_nodes() -> None:
    columns = {field.name: torch.zeros(5, dtype=torch.int64) for field in dataclasses.fields(DraftTree)}
    assert len(DraftTree(**columns)) == 5


def test_keys_come_before_values() -> None:
    keys, values = KeyValues(keys=torch.zeros(1), values=torch.ones(1))
    assert keys.item() == 0
    assert values.item() == 1


@pytest.mark.parametrize(("layers", "taps"), [(32, (1, 15, 28)), (36, (1, 17, 32)), (30, (1, 14, 26))])
def test_default_taps_are_the_published_ones(layers: int, taps: tuple[int, int, int]) -> None:
    assert default_tap_layers(layers) == taps


OUT_OF_RANGE = [
    *((name, value) for name in ("num_blocks", "max_nodes", "beam_width") for value in (0, -1, 2.0, True, "3", None)),
    *(("branching", value) for value in ((1, 2, 3), (1, 2, 3, 4, 5), (1, -1, 2, 0), (1.0, 2, 3, 0))),
    *((name, value) for name in ("min_path_prob", "lookup_alone") for value in (-0.1, 1.1, float("nan"), "0.5", None)),
    *(("max_slots", value) for value in (0, -1, True, 2.0, "3")),
    *(("lookup_tokens", value) for value in (-1, 65, True, 2.0, "3", None)),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
@pytest.mark.parametrize("made", [TreeSettings, SpecBlockConfig])
def test_drafting_options_out_of_range_are_named_with_their_value(made: type, name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=name) as caught:
        made(**{name: value})
    assert repr(value) in caught.value.problem


def test_configuration_and_tree_settings_share_their_defaults() -> None:
    assert SpecBlockConfig().tree_settings == TreeSettings()
