"""Configurations of independent heads: what they fix, and what they refuse."""

from pathlib import Path

import pytest

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.medusa import MedusaConfig


def test_the_heads_read_no_layers_whatever_the_cache_holds(tmp_path: Path) -> None:
    config = MedusaConfig(tap_layers=[1, 14, 26], max_nodes=7)
    assert config.tap_layers == ()
    config.save_pretrained(tmp_path)
    stored = MedusaConfig.from_pretrained(tmp_path)
    assert (tuple(stored.tap_layers), stored.max_nodes) == ((), 7)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_width": 0}, "block_width is 0"),
        ({"residual_layers": -1}, "residual_layers is -1"),
        ({"residual_layers": 1.5}, "residual_layers is 1.5"),
        ({"num_blocks": 2}, "num_blocks is 2"),
        ({"train_blocks": 3}, "block_sampling"),
        ({"hidden_size": 64}, r"hidden_size is 64; expected target_hidden_size \(576\)"),
        ({"draft_vocab_size": 50_000}, r"at most vocab_size \(49152\)"),
    ],
)
def test_values_out_of_range_are_refused_by_name(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        MedusaConfig(**changes)


def test_tree_settings_follow_the_configuration() -> None:
    settings = MedusaConfig(max_nodes=9, independent_slots=False, chain=True).tree_settings
    assert (settings.num_blocks, settings.max_nodes, settings.independent_slots, settings.chain) == (1, 9, False, True)
    assert MedusaConfig().tree_settings.independent_slots
