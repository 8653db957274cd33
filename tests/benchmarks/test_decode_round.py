"""Both sides judge the same tokens, and a run ends with one JSON line."""

import json
from types import ModuleType

import pytest
import torch

from specblock_zoo.cli.tune import load_pair
from specblock_zoo.inference.verify import Form
from tests.support.scripts import load_script
from tests.support.tiny_pair import TinyFolders


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load_script("decode_round", "benchmarks")


@torch.no_grad()
def test_bare_and_verify_see_the_same_and_leave_the_cache_alone(
    benchmark: ModuleType, tiny_folders: TinyFolders
) -> None:
    model, drafter = load_pair(str(tiny_folders.target), str(tiny_folders.drafter), torch.float32, packed=False)
    bench = benchmark.RoundBench(model, drafter, Form.ADDITIVE, context=16)
    seen: list[torch.Tensor] = []
    model.register_forward_hook(lambda _, __, output: seen.append(output.logits))
    bench.verify(5)
    bench.bare(bench.inputs(5))
    torch.testing.assert_close(seen[0], seen[1], atol=1e-4, rtol=1e-4)
    assert bench.verifier.cache.get_seq_length() == 16


def test_a_run_ends_with_one_json_line(
    benchmark: ModuleType,
    tiny_folders: TinyFolders,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(benchmark, "WIDTHS", (1, 3))
    with torch.no_grad():
        benchmark.main(str(tiny_folders.drafter), str(tiny_folders.target), packed=False, rounds=1)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(figures["verify_over_bare"]) == {"1", "3"}
    assert min(figures["verify_over_bare"].values()) > 0.0
