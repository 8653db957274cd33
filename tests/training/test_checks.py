"""What must agree before a run starts, and the words of a refusal."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specblock_zoo.data.manifest import Fingerprint, Manifest
from specblock_zoo.errors import CacheMismatchError, ConfigurationError
from specblock_zoo.models.specblock import SpecBlockConfig
from specblock_zoo.targets.identity import TargetIdentity
from specblock_zoo.training.checks import check_options, check_same_drafter, check_same_vocabulary

FINGERPRINT = Fingerprint(
    target="a/target",
    target_revision=None,
    weights_sha256="feed",
    config_sha256="c0ffee",
    tokenizer_sha256="beef",
    hidden_size=32,
    num_hidden_layers=7,
    vocab_size=96,
    tap_layers=(1, 2, 3),
    dtype="bfloat16",
    data_sha256="data",
    max_length=64,
    max_prompt_tokens=None,
    max_records=None,
    max_tokens=None,
    seed=0,
    shard_size=8,
    draft_vocab_size=48,
)
IDENTITY = TargetIdentity("elsewhere/target", None, "feed", "c0ffee", "beef")
SHAPE = {"hidden_size": 32, "num_hidden_layers": 7, "vocab_size": 96}


def check(fingerprint: Fingerprint, identity: TargetIdentity, **shape: Any) -> None:
    manifest = Manifest(fingerprint, {}, 1.0, 0, "test")
    manifest.require_target(Path("cache"), identity, SimpleNamespace(**{**SHAPE, **shape}))  # type: ignore[arg-type]  # fields


def test_the_same_target_under_another_path_is_accepted() -> None:
    check(FINGERPRINT, IDENTITY)


def test_a_cache_from_the_hub_fits_a_folder_with_the_same_configuration() -> None:
    check(replace(FINGERPRINT, target_revision="abc", weights_sha256=None), IDENTITY)


@pytest.mark.parametrize("field", ["weights_sha256", "config_sha256", "tokenizer_sha256"])
def test_another_target_is_refused_by_any_hash(field: str) -> None:
    with pytest.raises(CacheMismatchError, match=f"{field} is '.*', not 'other'"):
        check(FINGERPRINT, replace(IDENTITY, **{field: "other"}))


@pytest.mark.parametrize("field", sorted(SHAPE))
def test_another_shape_is_refused_with_both_values(field: str) -> None:
    with pytest.raises(CacheMismatchError, match=f"{field} is {SHAPE[field]}, not 5"):
        check(FINGERPRINT, IDENTITY, **{field: 5})


def test_an_unknown_drafter_option_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="no option blok_width"):
        check_options(SpecBlockConfig, {"blok_width": 4}, {})


def test_an_option_may_repeat_a_fact_but_not_contradict_it() -> None:
    facts = {"tap_layers": [1, 2, 3], "train_blocks": 3}
    check_options(SpecBlockConfig, {"tap_layers": (1, 2, 3), "block_width": 5}, facts)
    with pytest.raises(CacheMismatchError, match=r"tap_layers is \[1, 2, 3\], not \[1\]"):
        check_options(SpecBlockConfig, {"tap_layers": [1]}, facts)


def test_a_checkpoint_may_draft_otherwise_but_not_be_another_drafter() -> None:
    stored = SpecBlockConfig(max_nodes=7, num_blocks=1, target_name="there")
    check_same_drafter(SpecBlockConfig(target_name="here"), stored)
    with pytest.raises(ConfigurationError, match="block_width is 4 there and 5 here"):
        check_same_drafter(SpecBlockConfig(block_width=5), stored)


def test_two_vocabularies_of_one_size_are_told_apart() -> None:
    mine = torch.tensor([True, False, True])
    check_same_vocabulary(mine, mine.clone())
    with pytest.raises(CacheMismatchError, match="2 tokens"):
        check_same_vocabulary(mine, torch.tensor([True, True, False]))
