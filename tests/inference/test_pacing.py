"""The account of a drafter: what is booked, what it decides, and that the text never depends on it."""

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specblock_zoo.functional.costs import Curve, RoundCosts, Spending
from specblock_zoo.inference import hf_generate
from specblock_zoo.inference.pacing import Account, account_of
from tests.support.decoding import generate, prompt_ids, random_drafter, scripted_drafter, target_of

NEW = 14
FREE = RoundCosts(Curve((1, 64), (10.0, 10.0)), 0.0, Curve((1,), (0.0,)))
DEAR = RoundCosts(Curve((1, 2), (1.0, 1000.0)), 1.0, Curve((1,), (1000.0,)))


@pytest.fixture(scope="module")
def target() -> Any:
    return target_of("llama")


def paced(monkeypatch: pytest.MonkeyPatch, costs: RoundCosts) -> None:
    monkeypatch.setattr(hf_generate, "costs_for", lambda *_, **__: costs)


MS = st.floats(0.0, 100.0)


@settings(max_examples=12, deadline=None)
@given(steps=st.lists(MS, min_size=3, max_size=3), first=MS, branch=MS, sampled=st.booleans())
def test_no_cost_curve_changes_the_text(
    target: Any, steps: list[float], first: float, branch: float, sampled: bool
) -> None:
    verify = Curve((1, 2, 6), (steps[0], sum(steps[:2]), sum(steps)))
    costs = RoundCosts(verify, first, Curve((1, 2), (branch, branch)))
    ids = prompt_ids(9)
    script = generate(target, ids, NEW)
    drafter = scripted_drafter(target, script, place=lambda index: index % 3, num_blocks=3)
    with pytest.MonkeyPatch.context() as patch:
        paced(patch, costs)
        options = {"do_sample": sampled, "top_k": 0}
        texts = []
        for assistant in (None, drafter, drafter):
            torch.manual_seed(3)
            texts.append(generate(target, ids, NEW, assistant_model=assistant, **options).tolist())
    assert texts[1] == texts[2] == texts[0]


def test_free_nodes_fill_the_bound_and_dear_ones_are_not_drafted(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = prompt_ids(9)
    drafter = random_drafter(target, num_blocks=2, max_nodes=9, min_path_prob=0.9)
    sizes = {}
    for name, costs in (("free", FREE), ("dear", DEAR)):
        paced(monkeypatch, costs)
        generate(target, ids, NEW, assistant_model=drafter)
        sizes[name] = [len(each.tree) for each in drafter.last_stats.history]
    assert max(sizes["free"]) == 9, "min_path_prob is not read where a curve decides"
    assert set(sizes["dear"]) == {0}
    drafter.config.cost_curve = "off"
    generate(target, ids, NEW, assistant_model=drafter)
    assert {len(each.tree) for each in drafter.last_stats.history} == {0}, "and is read without one"


def test_a_later_block_that_does_not_pay_is_not_run(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = prompt_ids(9)
    drafter = scripted_drafter(target, generate(target, ids, NEW), num_blocks=3, max_nodes=40)
    calls = {}
    for name, branch in (("free", 0.0), ("dear", 1000.0)):
        paced(monkeypatch, replace(FREE, branch=Curve((1,), (branch,))))
        generate(target, ids, NEW, assistant_model=drafter)
        calls[name] = [each.drafter_calls for each in drafter.last_stats.history]
    assert max(calls["free"]) == 3
    assert max(calls["dear"]) == 1


def test_rows_of_a_batch_keep_their_text(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    paced(monkeypatch, RoundCosts(Curve((1, 8), (5.0, 9.0)), 1.0, Curve((1,), (1.0,))))
    ids = torch.cat((prompt_ids(9), prompt_ids(9, seed=1)))
    drafter = random_drafter(target, num_blocks=2)
    assert generate(target, ids, NEW, assistant_model=drafter).tolist() == generate(target, ids, NEW).tolist()


def test_the_same_rounds_leave_the_same_account(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Booked times are the curve's, not the clock's; the account outlives the call and belongs to one object."""
    costs = RoundCosts(Curve((1, 8), (5.0, 9.0)), 1.0, Curve((1,), (1.0,)))
    paced(monkeypatch, costs)
    ids, accounts = prompt_ids(9), []
    script = generate(target, ids, NEW)
    for rank in (0, 0, 1):
        drafter = scripted_drafter(target, script, lambda _, rank=rank: rank, num_blocks=2, max_nodes=40)
        generate(target, ids, NEW, assistant_model=drafter)
        accounts.append(account_of(drafter, costs, sampled=False).spending)
        assert account_of(drafter, costs, sampled=True).spending == Spending()
    assert accounts[0] == accounts[1] != accounts[2]
    assert accounts[0].tokens > 0.0
    assert accounts[0].blocks > 0.0


def test_rounds_that_spare_the_drafter_are_booked_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = RoundCosts(Curve((1, 2), (1.0, 1.0)), 100.0, Curve((1,), (0.0,)))
    paced(monkeypatch, costs)
    looping, ids = target_of("llama", initializer_range=0.05), prompt_ids(9)
    spent = {}
    for alone in (0.3, 1.0):
        drafter = random_drafter(looping, num_blocks=1, lookup_tokens=3, lookup_alone=alone)
        generate(looping, ids, NEW, assistant_model=drafter)
        drafted = sum(each.drafter_calls > 0 for each in drafter.last_stats.history)
        spent[alone] = account_of(drafter, costs, sampled=False).spending
        assert spent[alone].ms == pytest.approx(101.0 * drafted, rel=0.2), "nearly nothing is forgotten yet"
    assert spent[0.3].ms < spent[1.0].ms
    assert spent[0.3].tokens > 0.5 * spent[1.0].tokens


def test_threads_lose_no_round() -> None:
    account = Account(FREE)

    def book() -> None:
        for _ in range(200):
            account._book(0.0, 0, [], [[1.0]])

    threads = [threading.Thread(target=book) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    one = Account(FREE)
    for _ in range(800):
        one._book(0.0, 0, [], [[1.0]])
    assert account.spending == one.spending
