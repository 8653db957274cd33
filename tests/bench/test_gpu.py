"""Every part of the accelerator check runs on a CPU with tiny shapes, and its figures hang together."""

import json
from typing import Any

import pytest
import torch

from specblock_zoo.bench.gpu import PARTS, Bench, tiny
from specblock_zoo.targets.llama import LLAMA


@pytest.fixture(scope="module")
def bench() -> Bench:
    config = LLAMA.tiny_config(vocab_size=96, hidden_size=64, tie_word_embeddings=False, max_position_embeddings=512)
    return tiny(Bench(config, torch.device("cpu"), torch.float32, compiled=False))


@pytest.fixture(scope="module")
def found(bench: Bench) -> dict[str, dict[str, Any]]:
    return {name: part(bench) for name, part in PARTS.items()}


def test_figures_are_json_without_nan(found: dict[str, dict[str, Any]]) -> None:
    assert json.loads(json.dumps(found, allow_nan=False)) == json.loads(json.dumps(found))


def test_forwards_name_every_drafter_and_tree_size(bench: Bench, found: dict[str, dict[str, Any]]) -> None:
    times = found["forwards"]["milliseconds"]
    verified = {f"verify, {nodes} nodes" for nodes in bench.nodes}
    assert set(times) == {"draft specblock", "draft eagle3", "target, 1 token", *verified}
    assert all(0 < each["low"] <= each["ms"] <= each["high"] for each in times.values())
    assert all(0 < share < 1 for share in found["forwards"]["draft_share"].values())
    assert found["forwards"]["nodes"]["specblock"] == 12
    assert found["forwards"]["drafter_calls"] == {"specblock": 2, "eagle3": 2}


def test_all_texts_are_the_known_one(found: dict[str, dict[str, Any]]) -> None:
    assert found["decoding"]["equal"] == {"plain": True, "chain": True, "tree": True}
    drafted = found["decoding"]["drafted"]
    assert drafted["tree"]["tau"] >= drafted["chain"]["tau"] > 1


def test_a_training_step_grades_later_slots_too(bench: Bench, found: dict[str, dict[str, Any]]) -> None:
    sequences, length = bench.batch
    assert found["training"]["rows_graded"] > sequences * length * 7 // 8
    assert found["training"]["tokens_per_s"] > 0


def test_captured_decoding_gives_the_known_text_with_the_same_trees(found: dict[str, dict[str, Any]]) -> None:
    captured = found["captured"]
    assert captured["captured"] is torch.cuda.is_available()
    assert captured["equal"] == {"plain": True, "captured": True}
    assert captured["drafted"]["captured"]["tau"] == captured["drafted"]["plain"]["tau"] > 1
    assert captured["draft_milliseconds"].keys() == captured["tokens_per_s"].keys() == captured["equal"].keys()
