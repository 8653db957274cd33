"""The comparison is fair: both steps grade the same rows when nothing is sampled, and both really train."""

import json
from types import ModuleType

import pytest
import torch

from tests.support.scripts import load_script


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load_script("train_step", "benchmarks")


def test_plain_and_unsampled_lean_grade_the_same_rows_with_the_same_loss(benchmark: ModuleType) -> None:
    bench = benchmark.Bench(benchmark.SETTINGS["tiny"])
    plain, lean = bench.step("plain"), bench.step("lean, no sampling")
    assert torch.equal(plain.rows[0], lean.rows[0])
    torch.testing.assert_close(plain.draft_loss[0], lean.draft_loss[0], rtol=1e-3, atol=1e-3)
    # Later blocks start at drawn slots in one and at fixed ones in the other.
    assert int(lean.rows[1:].sum()) == pytest.approx(int(plain.rows[1:].sum()), rel=0.5)
    assert int(bench.step("lean").rows[1:].sum()) < int(lean.rows[1:].sum())


@pytest.mark.parametrize("variant", ["plain", "lean"])
def test_every_weight_gets_a_gradient(benchmark: ModuleType, variant: str) -> None:
    bench = benchmark.Bench(benchmark.SETTINGS["tiny"])
    bench.step(variant)
    assert all(parameter.grad is not None for parameter in bench.drafter.parameters())
    assert bench.drafter.lm_head.weight.grad.abs().sum() > 0


def test_about_half_of_the_rows_survive_a_slot(benchmark: ModuleType) -> None:
    rows = benchmark.Bench(benchmark.SETTINGS["tiny"]).step("lean").rows[0].tolist()
    assert rows[1] / rows[0] == pytest.approx(0.5, abs=0.25)


def test_memory_of_one_kind_of_step_is_one_json_line(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(only="tiny", variant="lean")
    memory = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 0 < memory["before"] <= memory["peak"]
