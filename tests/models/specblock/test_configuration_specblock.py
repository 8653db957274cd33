"""A configuration is checked when it is made, and survives a file."""

from pathlib import Path

import pytest

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.specblock import SpecBlockConfig
from tests.support.drafters import tiny_config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shift", "sideways"),
        ("context_slots", 0),
        ("context_slots", 4),
        ("draft_vocab_size", 41),
        ("branching", (1, 2, 3)),
        ("num_key_value_heads", 3),
        ("head_dim", 7),
        ("num_key_value_heads", 0),
        ("hidden_size", "abc"),
        ("hidden_size", 8.0),
        ("num_hidden_layers", -1),
        ("rank_top", 0),
        ("rope_scaling", {"rope_type": "yarn"}),
        ("rope_theta", 0.0),
        ("rope_theta", "1e4"),
        ("rms_norm_eps", -1e-5),
        ("initializer_range", float("inf")),
        ("max_position_embeddings", 0),
        ("block_width", 0),
        ("train_blocks", -1),
        ("target_num_hidden_layers", 0),
        ("vocab_coverage", 1.5),
        ("tap_layers", (1, 1, 2)),
        ("tap_layers", (-2, 1)),
        ("tap_layers", (1.0, 2)),
    ],
)
def test_values_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=field) as caught:
        tiny_config(**{field: value})
    assert repr(value) in str(caught.value)


def test_file_round_trip_keeps_every_field(tmp_path: Path) -> None:
    config = tiny_config(tap_layers=[0, 1, 2], rope_theta=123.0, vocab_coverage=0.97, branching=[1, 2, 3, 4])
    config.save_pretrained(tmp_path)
    loaded = SpecBlockConfig.from_pretrained(tmp_path)
    assert {**loaded.to_dict(), "_name_or_path": ""} == {**config.to_dict(), "_name_or_path": ""}


def test_tree_settings_follow_the_configuration() -> None:
    settings = tiny_config(num_blocks=3, max_nodes=7, branching=[1, 2, 3, 0], merge_duplicates=False).tree_settings
    assert (settings.num_blocks, settings.max_nodes, settings.branching) == (3, 7, (1, 2, 3, 0))
    assert not settings.merge_duplicates
