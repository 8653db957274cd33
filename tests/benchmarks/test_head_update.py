"""The comparison trains copies on what taught, and ends with one JSON line."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from specblock_zoo.adaptation.updater import UpdateSettings
from tests.adaptation.test_heads import slots
from tests.support.drafters import tiny_drafter
from tests.support.scripts import load_script
from tests.support.tiny_pair import TinyFolders


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load_script("head_update", "benchmarks")


def test_a_run_ends_with_one_json_line(
    benchmark: ModuleType, tiny_folders: TinyFolders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        lines = [json.dumps({"id": f"{name}/{n}", "category": "c", "turns": [f"who is {n}"]}) for n in range(4)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    run = benchmark.HeadRun(tasks=["a", "b"], prompts=4, max_new_tokens=12, repeats=1)
    pair = {"target": str(tiny_folders.target), "drafter": str(tiny_folders.drafter)}
    assert benchmark.main(str(tmp_path), **pair, run=run) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(figures["slots"]) == ["taught", "a, unseen", "b"]
    assert all(count > 0 for count in figures["slots"].values())
    assert set(figures["settings"]) == set(benchmark.GRID)


def test_what_is_taught_is_learned_by_a_copy(benchmark: ModuleType) -> None:
    drafter = tiny_drafter()
    before = drafter.lm_head.weight.clone()
    settings = {"hard": UpdateSettings(head_learning_rate=0.05, head_epochs=30, head_beta=0.0)}
    found = benchmark.compare(drafter, {"taught": slots(8), "other": slots(8, seed=2)}, settings, 2)["hard"]
    assert found["taught"] > 0.5
    assert found["ms"] > 0
    assert torch.equal(before, drafter.lm_head.weight)
