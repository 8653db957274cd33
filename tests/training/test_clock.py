"""A run by the clock ends in time, on a multiple, with its schedule at the end."""

import csv
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.training.clock import FitToTime
from tests.support.fit import QUIET, fit
from tests.support.tiny import TinyRun

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]
STORING = [
    "--trainer.max_epochs=-1",
    "--trainer.max_steps=1000000",
    "--trainer.check_val_every_n_epoch=null",
    "--trainer.val_check_interval=5",
    "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint",
    "--trainer.callbacks.save_last=true",
    "--trainer.callbacks.every_n_train_steps=5",
    "--trainer.callbacks+=specblock_zoo.training.callbacks.ExportDrafter",
    "--trainer.callbacks+=specblock_zoo.training.clock.FitToTime",
    "--trainer.callbacks.multiple_of=5",
    "--trainer.callbacks.first=8",
]


def ticking(monkeypatch: pytest.MonkeyPatch, seconds: float, leap_at: int | None = None) -> None:
    """A clock that moves on by `seconds` whenever it is read: twice an update, and once when the callback is made."""
    reads = count()

    def monotonic() -> float:
        read = next(reads)
        return seconds * read + (1000.0 if leap_at is not None and read >= leap_at else 0.0)

    monkeypatch.setattr("specblock_zoo.training.clock.time", SimpleNamespace(monotonic=monotonic))


def last(folder: Path) -> dict:
    return torch.load(folder / "run" / "version_0" / "checkpoints" / "last.ckpt", weights_only=True)


def state(checkpoint: dict) -> dict:
    return next(kept for name, kept in checkpoint["callbacks"].items() if "FitToTime" in name)


def test_updates_are_sized_to_the_time_and_the_schedule_to_the_updates(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticking(monkeypatch, 0.5)
    # One update a second: 23 fit, 20 is the last multiple of 5.
    assert fit(tiny_run, tmp_path, *STORING, "--trainer.callbacks.seconds=23.5") == 0
    stored = last(tmp_path)
    assert stored["global_step"] == 20
    assert stored["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(0.0, abs=1e-12)
    assert (tmp_path / "run" / "version_0" / "checkpoints" / "drafter" / "model.safetensors").is_file()
    with (tmp_path / "run" / "version_0" / "metrics.csv").open() as lines:
        seen = [float(row["seen_tokens"]) for row in csv.DictReader(lines) if row.get("seen_tokens")]
    assert len(seen) == 4
    assert seen == sorted(set(seen))
    assert seen[-1] == state(stored)["tokens"]


@pytest.mark.parametrize(("bound", "updates"), [("--trainer.max_steps=10", 10), ("--trainer.max_epochs=10", 30)])
def test_no_more_updates_than_allowed(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, updates: int
) -> None:
    ticking(monkeypatch, 0.5)
    # An epoch is three batches of like length.
    flags = ["--trainer.callbacks.seconds=100", "--data.batch_tokens=4000", bound]
    assert fit(tiny_run, tmp_path, *STORING, *flags) == 0
    stored = last(tmp_path)
    assert stored["global_step"] == updates
    assert stored["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(0.0, abs=1e-12)


def test_a_run_that_slows_down_stops_in_time_and_keeps_what_it_has(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticking(monkeypatch, 0.5)
    # Not one multiple fits: six updates are made, and stored though six is no multiple.
    flags = [flag.replace("=5", "=50") for flag in STORING if not flag.startswith("--trainer.val_check")]
    assert fit(tiny_run, tmp_path, *flags, "--trainer.callbacks.seconds=6") == 0
    assert last(tmp_path)["global_step"] == 6
    assert (tmp_path / "run" / "version_0" / "checkpoints" / "drafter" / "model.safetensors").is_file()


def test_a_resumed_run_has_its_own_time_and_goes_on_counting(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first run is to have 20 updates, but its clock leaps at the eleventh.
    ticking(monkeypatch, 0.5, leap_at=22)
    assert fit(tiny_run, tmp_path / "first", *STORING, "--trainer.callbacks.seconds=23.5") == 0
    stored = last(tmp_path / "first")
    assert (stored["global_step"], state(stored)["total"]) == (11, 20)
    ticking(monkeypatch, 0.5)
    checkpoint = tmp_path / "first" / "run" / "version_0" / "checkpoints" / "last.ckpt"
    flags = ["--trainer.callbacks.seconds=17.5", f"--ckpt_path={checkpoint}"]
    assert fit(tiny_run, tmp_path / "second", *STORING, *flags) == 0
    resumed = last(tmp_path / "second")
    assert (resumed["global_step"], state(resumed)["total"]) == (25, 25)
    assert state(resumed)["tokens"] > state(stored)["tokens"] > 0
    assert resumed["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(0.0, abs=1e-12)


def test_a_run_that_had_come_to_its_end_stays_there(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticking(monkeypatch, 0.5)
    checkpoint = tmp_path / "run" / "version_0" / "checkpoints" / "last.ckpt"
    assert fit(tiny_run, tmp_path, *STORING, "--trainer.callbacks.seconds=13") == 0
    whole = last(tmp_path)
    flags = ["--trainer.callbacks.seconds=100", f"--ckpt_path={checkpoint}"]
    assert fit(tiny_run, tmp_path / "again", *STORING, *flags) == 0
    again = last(tmp_path / "again")
    assert again["global_step"] == whole["global_step"] == 10
    assert all(torch.equal(tensor, whole["state_dict"][name]) for name, tensor in again["state_dict"].items())


def test_a_validation_between_two_updates_does_not_end_the_run_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second an update and ten more after every eleventh: 200 s hold about 140 of them."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("specblock_zoo.training.clock.time", SimpleNamespace(monotonic=lambda: clock.now))
    timed = FitToTime(200.0)
    loop = SimpleNamespace(max_steps=10_000)
    trainer: Any = SimpleNamespace(
        global_step=0,
        estimated_stepping_batches=10_000,
        world_size=1,
        strategy=SimpleNamespace(broadcast=lambda given: given),
        fit_loop=SimpleNamespace(epoch_loop=loop),
        lr_scheduler_configs=[],
        should_stop=False,
    )
    module: Any = SimpleNamespace(adamw=SimpleNamespace(warmup_fraction=0.0))
    timed.on_train_start(trainer, module)
    while trainer.global_step < loop.max_steps and not trainer.should_stop:
        trainer.global_step += 1
        clock.now += 0.5
        timed.on_train_batch_end(trainer, module, None, {"input_ids": torch.ones(1, 1)}, 0)
        clock.now += 10.0 if trainer.global_step % 11 == 0 else 0.0
    assert 180.0 <= clock.now <= 211.0, "early, or late by more than one validation"
    assert loop.max_steps <= trainer.global_step + 10, "the schedule is near its end"


@pytest.mark.parametrize("bad", [{"seconds": 0.0}, {"multiple_of": 0}, {"first": 3}])
def test_values_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(bad))):
        FitToTime(**{"seconds": 1.0, **bad})


def test_the_parts_of_an_accumulated_update_are_one_update(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock is read at whole updates, so one takes a second here: 23 fit, 20 is the last multiple of 5.
    ticking(monkeypatch, 0.5)
    flags = ["--trainer.callbacks.seconds=23.5", "--trainer.accumulate_grad_batches=2"]
    assert fit(tiny_run, tmp_path, *STORING, *flags) == 0
    stored = last(tmp_path)
    assert stored["global_step"] == state(stored)["total"] == 20
    assert stored["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(0.0, abs=1e-12)


def test_tokens_of_all_processes_count() -> None:
    timed = FitToTime(10.0)
    strategy = SimpleNamespace(broadcast=lambda value: value)
    trainer = SimpleNamespace(global_step=1, world_size=4, strategy=strategy)
    timed.on_train_batch_end(trainer, None, None, {"input_ids": torch.zeros(2, 5)}, 0)
    assert timed.tokens == 40
