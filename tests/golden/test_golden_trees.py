"""The release's draft trees, node for node."""

from pathlib import Path
from typing import Any

import pytest
import torch

from specblock_zoo.functional import tree as trees
from specblock_zoo.inference.cache import DrafterCache
from specblock_zoo.inference.grow import Limits, Pairs, grow_tree, refresh
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.structures import DraftTree, TreeSettings
from tests.support import golden_json, golden_tensors

NAMES = (
    "release_default",
    "release_default_budget30",
    "rank_only_budget60",
    "rank_only_beam4_m3_budget60",
    "no_giveup_m1",
    "strict_linear_m2",
)
ANY_DEPTH = 1000


def release_settings(golden: dict[str, Any]) -> TreeSettings:
    """A fixture's settings in our terms."""
    return TreeSettings(
        num_blocks=golden["max_blocks"],
        max_nodes=golden["total_tokens"],
        beam_width=golden["beam_width"],
        branching=tuple(golden["rank_slot_topk"]),
        confident_root=bool(golden["adaptive_slot0"]),
        confident_slots=bool(golden["adaptive_all"]),
        merge_duplicates=False,
        chain=golden.get("strict_linear", False),
        bound_all_starts=False,
    )


@torch.inference_mode()
def golden_tree(golden_dir: Path, name: str) -> DraftTree:
    """The tree our drafter grows from a fixture's prompt under the fixture's settings."""
    drafter = SpecBlockDrafter.from_pretrained(golden_dir, dtype=torch.float32)
    drafter.config.rank_top = 10
    drafter.attach(golden_tensors(golden_dir, "target_embed")["model.embed_tokens.weight"])
    prompt, cache = golden_tensors(golden_dir, "inference"), DrafterCache()
    first = refresh(drafter, cache, Pairs(prompt["prompt_features"], prompt["shifted_ids"], 0))
    settings = release_settings(golden_json(golden_dir, "trees")[name]["settings"])
    position = prompt["shifted_ids"].shape[1] - 1
    return grow_tree(drafter, cache, first, position, Limits(settings, ANY_DEPTH))[0]


@pytest.mark.parametrize("name", NAMES)
def test_tree_equals_the_release_node_for_node(golden_dir: Path, name: str) -> None:
    golden, tree = golden_json(golden_dir, "trees")[name], golden_tree(golden_dir, name)
    assert tree.tokens.tolist() == golden["tokens"]
    assert tree.parents.tolist() == golden["parents"]
    assert tree.blocks.tolist() == golden["block"]
    assert tree.slots.tolist() == golden["slot"]
    assert tree.buckets.tolist() == golden["rank_class"]
    assert [0, *tree.depths.tolist()] == golden["depth"]
    assert trees.paths(tree.parents.tolist()).tolist() == golden["paths"]
    torch.testing.assert_close(tree.log_probs, torch.tensor(golden["cum_logprob"]), atol=1e-4, rtol=0.0)
