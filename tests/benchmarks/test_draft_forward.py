"""The linear layers replayed are those that drafting runs, and a run ends with one JSON line."""

import json
from types import ModuleType

import pytest
import torch

from specblock_zoo.cli.tune import load_pair
from specblock_zoo.inference.measure import Workbench
from specblock_zoo.inference.verify import Form
from tests.support.scripts import load_script
from tests.support.tiny_pair import TinyFolders


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load_script("draft_forward", "benchmarks")


@torch.no_grad()
def test_every_linear_call_of_a_block_is_replayed(benchmark: ModuleType, tiny_folders: TinyFolders) -> None:
    model, drafter = load_pair(str(tiny_folders.target), str(tiny_folders.drafter), torch.float32, packed=False)
    bench = Workbench(model, drafter, Form.ADDITIVE, context=16)
    calls = benchmark.linear_calls(drafter, bench.branch, 3)
    layers = drafter.config.num_hidden_layers
    # Seven in each layer and the heads: one over the vocabulary, two that judge ranks; later blocks skip the condition.
    assert len(calls) == 7 * layers + len(drafter.shift_proj) + 3
    assert all(inputs.shape[0] == 3 for _, inputs in calls)
    again = benchmark.linear_calls(drafter, benchmark.replayed(calls), 0)
    assert [layer for layer, _ in again] == [layer for layer, _ in calls]


def test_a_run_ends_with_one_json_line(
    benchmark: ModuleType,
    tiny_folders: TinyFolders,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(benchmark, "STARTS", (2,))
    with torch.no_grad():
        benchmark.main(str(tiny_folders.drafter), str(tiny_folders.target), packed=False, rounds=1)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(figures["draft_over_linears"]) == {"first block", "from 2 starts"}
