"""A configuration is checked when it is made, and its defaults are the dynamic tree of EAGLE-2."""

from pathlib import Path

import pytest

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.eagle3 import Eagle3Config


@pytest.mark.parametrize(
    ("field", "value"),
    [("block_width", 2), ("num_hidden_layers", 2), ("branching", [1, 2]), ("head_dim", 7), ("hidden_size", 0)],
)
def test_values_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"Eagle3Config\.{field}") as caught:
        Eagle3Config(**{field: value})
    assert repr(value) in str(caught.value)


def test_every_slot_is_as_wide_as_the_beam_unless_told_otherwise() -> None:
    assert Eagle3Config(beam_width=7).tree_settings.branching == (7, 7, 7, 7)
    assert Eagle3Config(beam_width=7, branching=[3, 3, 3, 3]).tree_settings.branching == (3, 3, 3, 3)


def test_file_round_trip_keeps_every_field(tmp_path: Path) -> None:
    config = Eagle3Config(tap_layers=[0, 1, 2], beam_width=3, train_blocks=7, vocab_coverage=0.9)
    config.save_pretrained(tmp_path)
    loaded = Eagle3Config.from_pretrained(tmp_path)
    assert {**loaded.to_dict(), "_name_or_path": ""} == {**config.to_dict(), "_name_or_path": ""}
