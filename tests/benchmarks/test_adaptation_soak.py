"""A soak adapts, compares texts, and does not pass when one differs."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from specblock_zoo.adaptation.events import Action
from specblock_zoo.bench.tasks import Prompt
from specblock_zoo.inference.stats import DecodeStats
from tests.support.adapting import adaptive, eager
from tests.support.scripts import load_script
from tests.support.tiny_pair import TinyFolders


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load_script("adaptation_soak", "benchmarks")


def test_a_run_adapts_and_ends_with_one_json_line(
    benchmark: ModuleType, tiny_folders: TinyFolders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"id": f"q/{n}", "category": "c", "turns": [f"who is {n}"]}) for n in range(2)]
    (tmp_path / "natural_questions.jsonl").write_text("\n".join(lines) + "\n")
    pair = {"target": str(tiny_folders.target), "drafter": str(tiny_folders.drafter)}
    run = benchmark.Soak(queries=6, max_new_tokens=8, check_every=2)
    assert benchmark.main(str(tmp_path), **pair, run=run, adaptation=eager(Action.HEAD)) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["queries"], figures["checked"], figures["differing"]) == (6, 3, [])
    assert figures["updates"]["head"] >= 1
    assert figures["weights_finite"]
    assert 0 < figures["buffer_bytes"] <= figures["buffer_bound"]
    assert min(figures["resident_mib"]) > 0


def test_a_text_that_differs_is_named(benchmark: ModuleType) -> None:
    prompts = [Prompt(id=str(n), category="c", turns=("x",)) for n in range(2)]
    drafter = adaptive(Action.HEAD)

    def ask(asked: object, prompt: Prompt) -> torch.Tensor:
        if asked is not None:
            drafter.last_stats = DecodeStats((), 0.0)
        return torch.tensor([int(asked is None and prompt.id == "1")])

    seen = benchmark.soak(drafter, ask, prompts, benchmark.Soak(queries=4, check_every=1))
    assert seen.differing == ["1", "1"]
    assert benchmark.soak(drafter, ask, prompts, benchmark.Soak(queries=4, seconds=-1.0)).checked == 0
