"""A tuning run times every width, and its picture and table show what was timed."""

from pathlib import Path

import pytest
import torch
from rich.console import Console

from specblock_zoo.bench import tune as tuning_module
from specblock_zoo.bench.tune import BRANCH, FIRST, VERIFY, can_branch, cases_of, plot, table_of, tune, tuning_of
from specblock_zoo.errors import MissingPackageError, UnsupportedOptionError
from specblock_zoo.inference.measure import Workbench
from specblock_zoo.inference.verify import Form
from tests.support.decoding import random_drafter, target_of

TAKEN = {(VERIFY, 1): [3.0, 1.0, 2.0], (VERIFY, 4): [6.0, 5.0, 5.5], (FIRST, 1): [1.0, 1.0, 4.0], (BRANCH, 2): [2.0]}


def test_medians_become_the_curve() -> None:
    costs = tuning_of(TAKEN).costs
    assert (costs.verify.sizes, costs.verify.ms) == ((1, 4), (2.0, 5.5))
    assert (costs.first_block, costs.branch.at(2)) == (1.0, 2.0)


def test_every_case_is_timed_and_the_warm_up_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_module, "VERIFY_SIZES", (1, 3))
    monkeypatch.setattr(tuning_module, "BRANCH_STARTS", (1, 2))
    target = target_of("llama")
    drafter = random_drafter(target, num_blocks=2)
    drafter.attach(target.get_input_embeddings().weight)
    ticks: list[int] = []
    tuning = tune(target, drafter, Form.ADDITIVE, rounds=2, advance=lambda: ticks.append(1))
    assert len(ticks) == 3
    assert list(tuning.summaries) == cases_of(branches=True)
    assert all(each.count == 2 and each.median > 0.0 for each in tuning.summaries.values())
    assert torch.is_grad_enabled()


def test_drafters_of_one_block_are_not_asked_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of("llama")
    drafter = random_drafter(target)
    drafter.attach(target.get_input_embeddings().weight)
    bench = Workbench(target, drafter, Form.ADDITIVE, context=8)

    def refuse(*_: object) -> None:
        raise UnsupportedOptionError("one block", "set num_blocks to 1")

    with torch.no_grad():
        assert can_branch(bench)
        monkeypatch.setattr(drafter, "branch", refuse)
        assert not can_branch(bench)
    assert all(kind != BRANCH for kind, _ in cases_of(branches=False))


def test_the_table_names_every_case() -> None:
    console = Console(width=120, record=True)
    console.print(table_of(tuning_of(TAKEN)))
    text = console.export_text()
    assert all(word in text for word in (VERIFY, FIRST, BRANCH, "5.50"))


def test_the_plot_is_a_png_or_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_module, "can_plot", lambda: False)
    with pytest.raises(MissingPackageError, match="matplotlib"):
        plot(tuning_of(TAKEN), tmp_path / "plot.png")
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    plot(tuning_of(TAKEN), tmp_path / "new" / "plot.png")
    assert (tmp_path / "new" / "plot.png").read_bytes()[1:4] == b"PNG"
