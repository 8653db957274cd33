"""The published 8B configurations and the 32B recipe give exactly the tensors they should; no memory is used."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specblock_zoo.models.folders import Shapes
from specblock_zoo.models.pretrained import shapes_of, skeleton
from specblock_zoo.models.specblock import SpecBlockConfig, SpecBlockDrafter, published
from tests.support import REPOSITORY

SCALE: dict[str, dict[str, Any]] = {
    "llama_tiny": {"vocab_size": 128256, "intermediate_size": 14336},
    "qwen3_tiny": {"vocab_size": 151936, "intermediate_size": 12288},
}
BOTH: dict[str, Any] = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
PARAMETERS = {"llama_tiny": 702_599_936, "qwen3_tiny": 652_268_288}


def expected(config: SpecBlockConfig) -> Shapes:
    """The state dict of a two-layer drafter that shifts between layers, written out."""
    hidden, draft, width = config.hidden_size, config.draft_vocab_size, config.block_width
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    shapes: Shapes = {
        "input_layer.condition_proj.weight": (hidden, 3 * config.target_hidden_size),
        "input_layer.condition_norm.weight": (hidden,),
        "input_layer.token_norm.weight": (hidden,),
        "input_layer.position_queries.weight": (width, hidden),
        "input_layer.query_norm.weight": (hidden,),
        "input_layer.fuse.weight": (hidden, 3 * hidden),
        "norm.weight": (hidden,),
        "lm_head.weight": (draft, hidden),
        "rank_head.0.weight": (256, hidden + 15),
        "rank_head.2.weight": (4, 256),
        "d2t": (draft,),
        "t2d": (config.vocab_size,),
    }
    for layer in range(2):
        shapes |= {
            f"layers.{layer}.input_layernorm.weight": (hidden,),
            f"layers.{layer}.post_attention_layernorm.weight": (hidden,),
            f"layers.{layer}.self_attn.q_proj.weight": (queries, hidden),
            f"layers.{layer}.self_attn.k_proj.weight": (keys, hidden),
            f"layers.{layer}.self_attn.v_proj.weight": (keys, hidden),
            f"layers.{layer}.self_attn.o_proj.weight": (hidden, queries),
            f"layers.{layer}.mlp.gate_proj.weight": (config.intermediate_size, hidden),
            f"layers.{layer}.mlp.up_proj.weight": (config.intermediate_size, hidden),
            f"layers.{layer}.mlp.down_proj.weight": (hidden, config.intermediate_size),
        }
    shifts = range(config.shift == "between_layers", 2)
    return shapes | {f"shift_proj.{index}.weight": (hidden, 2 * hidden) for index, _ in enumerate(shifts)}


def parameters(drafter: SpecBlockDrafter) -> int:
    return sum(parameter.numel() for parameter in drafter.parameters())


@pytest.mark.parametrize("name", sorted(SCALE))
def test_published_8b_configurations_have_exactly_these_tensors(name: str, fixtures_dir: Path, tmp_path: Path) -> None:
    raw = json.loads((fixtures_dir / name / "config.json").read_text())
    config = {**raw, **BOTH, **SCALE[name], "draft_vocab_size": 32000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert published.is_published(tmp_path)
    read = published.read_config(tmp_path)
    drafter = skeleton(SpecBlockDrafter, read)
    assert {tensor.device for tensor in drafter.state_dict().values()} == {torch.device("meta")}
    assert shapes_of(drafter) == expected(read)
    assert parameters(drafter) == PARAMETERS[name]


def test_the_32b_recipe_keeps_the_targets_head_size() -> None:
    folder = REPOSITORY / "zoo" / "specblock-qwen3-32b.k4m2-recipe"
    config = SpecBlockConfig.from_pretrained(folder)
    assert (config.head_dim, config.hidden_size // config.num_attention_heads) == (128, 80)
    drafter = skeleton(SpecBlockDrafter, config)
    shapes = shapes_of(drafter)
    assert shapes == expected(config)
    assert shapes["layers.0.self_attn.q_proj.weight"] == (8192, 5120)
    assert config.tap_layers == [1, 31, 60]
