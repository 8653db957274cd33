"""Both sides of the comparison move the same bytes, and a run ends with one JSON line."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.support.scripts import load_script


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load_script("cache_io", "benchmarks")


@pytest.fixture(scope="module")
def bench(benchmark: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return benchmark.Bench(
        tmp_path_factory.mktemp("cache"), benchmark.Sizes(sequences=8, length=64, hidden=64, batch=3)
    )


def test_batches_hold_every_stored_state(bench: Any) -> None:
    states = 8 * 64 * 4 * 64 * 2
    assert bench.read(0) == states
    # Beside the states, files hold ids, masks and Arrow's own words.
    assert states < bench.copy(0) < 1.2 * states
    rows = [bench.cache[index] for index in range(len(bench.cache))]
    assert [row.id for row in rows] == [f"r{index % 2}" for index in range(8)]
    assert torch.equal(torch.from_numpy(rows[0].taps[0].copy()), torch.from_numpy(bench.columns[0]["layer_1"]).clone())


def test_the_floors_write_what_a_shard_holds(bench: Any) -> None:
    written = bench.write(0)
    assert written == bench.write_plainly(0) == bench.write_checked(0) == (bench.folder / "plain").stat().st_size
    assert (bench.folder / "again.arrow").read_bytes() == bench.files[0].read_bytes()


def test_a_run_ends_with_one_json_line(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(rounds=2, sizes=benchmark.Sizes(sequences=8, length=32, hidden=64, batch=4))
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    rates = ("gb_s", "of_floor", "rows_s")
    assert list(figures) == [f"{what}_{rate}" for what in ("read", "write") for rate in rates]
    assert all(value >= 0 for value in figures.values())


def test_nothing_is_left_behind(benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark.tempfile, "tempdir", str(tmp_path))
    benchmark.main(rounds=1, sizes=benchmark.Sizes(sequences=4, length=8, hidden=64, batch=4))
    assert list(tmp_path.iterdir()) == []
