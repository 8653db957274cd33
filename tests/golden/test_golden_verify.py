"""The release's greedy acceptance on its default tree."""

from pathlib import Path
from typing import Any

import pytest

from specblock_zoo.functional.acceptance import greedy_walk
from specblock_zoo.functional.tree import Node, flatten
from specblock_zoo.structures import DraftTree
from tests.support import golden_json


@pytest.fixture(scope="module")
def folder(fixtures_dir: Path) -> Path:
    """The only folder of golden numbers with verifications."""
    return fixtures_dir / "llama_tiny"


def golden_nodes(golden: dict[str, Any]) -> DraftTree:
    """A fixture's tree."""
    columns = ("tokens", "parents", "cum_logprob", "block", "slot", "rank_class")
    rows = zip(*(golden[column] for column in columns), golden["depth"][1:], strict=True)
    return flatten([Node(*row) for row in rows])


@pytest.mark.parametrize("case", range(7))
def test_greedy_acceptance_equals_the_release(folder: Path, case: int) -> None:
    golden = golden_json(folder, "verify_greedy")["cases"][case]
    tree = golden_nodes(golden_json(folder, "trees")["release_default"])
    verdict = greedy_walk(tree, golden["target_argmax_per_node"])
    assert [0, *(node + 1 for node in verdict.accepted_nodes)] == golden["selected_nodes"]
    assert list(verdict.committed_tokens) == [*golden["accepted_tokens"], golden["next_token"]]
    assert len(verdict.accepted_nodes) == golden["accept_length"]
