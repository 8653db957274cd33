import pytest
import torch
from transformers import PreTrainedConfig

from specblock_zoo.targets.identity import config_sha256, identify, weights_sha256
from specblock_zoo.targets.local import load_target
from tests.support.tiny import save_tiny_target


def identity_of(folder, name="any"):
    return identify(name, *load_target(folder))


def test_the_same_target_in_two_folders_has_one_identity(tmp_path):
    save_tiny_target(tmp_path / "a")
    save_tiny_target(tmp_path / "b")
    assert identity_of(tmp_path / "a") == identity_of(tmp_path / "b")


def test_other_weights_change_the_weight_hash_alone(tmp_path):
    save_tiny_target(tmp_path / "a", seed=0)
    save_tiny_target(tmp_path / "b", seed=1)
    a, b = identity_of(tmp_path / "a"), identity_of(tmp_path / "b")
    assert a.weights_sha256 != b.weights_sha256
    assert (a.config_sha256, a.tokenizer_sha256) == (b.config_sha256, b.tokenizer_sha256)


def test_another_shape_or_rotary_base_changes_the_config_hash(tmp_path):
    save_tiny_target(tmp_path / "a")
    save_tiny_target(tmp_path / "b", rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert identity_of(tmp_path / "a").config_sha256 != identity_of(tmp_path / "b").config_sha256


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 64},
        {"layer_types": ["sliding_attention", "full_attention"]},
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        {"final_logit_softcapping": 30.0},
    ],
)
def test_what_only_some_families_have_changes_the_config_hash_where_it_is(changes):
    plain = PreTrainedConfig(vocab_size=8)
    absent = PreTrainedConfig(vocab_size=8, **dict.fromkeys(changes))
    assert config_sha256(plain) == config_sha256(absent) != config_sha256(PreTrainedConfig(vocab_size=8, **changes))


def test_another_chat_template_changes_the_tokenizer_hash(tmp_path):
    save_tiny_target(tmp_path / "a")
    model, tokenizer = load_target(tmp_path / "a")
    plain = identify("any", model, tokenizer)
    tokenizer.chat_template = "{{ messages }}"
    assert identify("any", model, tokenizer).tokenizer_sha256 != plain.tokenizer_sha256


def test_the_dtype_of_loading_is_not_part_of_the_identity(tmp_path):
    save_tiny_target(tmp_path / "a")
    wide, narrow = (identify("any", *load_target(tmp_path / "a", dtype)) for dtype in (torch.float32, torch.bfloat16))
    assert wide == narrow


def test_a_folder_without_weight_files_has_no_weight_hash(tmp_path):
    assert weights_sha256(tmp_path) is None
