import pytest
from transformers import LlamaConfig, PreTrainedConfig, Qwen3Config

from specblock_zoo.errors import UnknownNameError
from specblock_zoo.targets.llama import LLAMA
from specblock_zoo.targets.qwen3 import QWEN3
from specblock_zoo.targets.registry import FAMILIES, family_of


def test_a_config_finds_its_family():
    assert family_of(LlamaConfig()) is LLAMA
    assert family_of(Qwen3Config()) is QWEN3


def test_no_model_type_has_two_families():
    types = [model_type for family in FAMILIES.values() for model_type in family.model_types]
    assert len(types) == len(set(types))
    assert all(name == family.name for name, family in FAMILIES.items())


def test_an_unknown_model_type_is_refused_with_the_nearest_name():
    config = PreTrainedConfig()
    config.model_type = "qwen3_next"
    with pytest.raises(UnknownNameError, match=r"'qwen3_next'; nearest known: qwen3"):
        family_of(config)
