"""What each event leads to, one by one."""

import math
from dataclasses import replace

import pytest

from specblock_zoo.adaptation.bandit import BanditSettings, BanditState, Decision, step
from specblock_zoo.adaptation.events import Action, Answered, Dropped, Event, Frozen, RolledBack, Sample, Spent, Synced

SETTINGS = BanditSettings(warm_up=2, cold_start=2, window=3, explore_share=1.0, horizon=20)
EVEN = Sample(0.0, 1.0, 2.0)
QUERY = Answered(EVEN, 1.0, trigger=9, ready=(Action.HEAD, Action.FULL))
STATE = BanditState(queries=50, events=8, served=50.0, recent=(EVEN,) * 3)


def play(state: BanditState, *events: Event) -> tuple[BanditState, list[Decision]]:
    decisions = []
    for event in events:
        state, decision = step(SETTINGS, state, event)
        decisions.append(decision)
    return state, decisions


def test_whatever_an_update_costs_besides_counts_too() -> None:
    state, decisions = play(replace(STATE, spent=1.0), Spent(0.25), RolledBack(0.5), Dropped(Action.FULL, 2.0))
    assert state.spent == 3.75
    assert [each.reason for each in decisions] == ["spent", "rolled back", "dropped"]
    assert state.cool_down == SETTINGS.cool_down


def test_saving_after_an_update_is_part_of_its_price() -> None:
    opened, _ = play(STATE, Synced(Action.HEAD, 0.25))
    saved, _ = play(opened, Spent(0.5))
    assert (saved.spent, saved.costs, saved.measurement.seconds) == (0.75, {Action.HEAD: 0.75}, 0.75)
    assert replace(saved.measurement, seconds=0.25) == opened.measurement
    assert play(STATE, Spent(0.5))[0] == replace(STATE, spent=0.5), "no window is open"
    assert play(opened, RolledBack(0.25))[0].measurement is None


@pytest.mark.parametrize("broken", [(math.nan, 1.0, 2.0), (0.0, math.inf, 2.0), (0.0, 1.0, math.nan)])
def test_a_query_without_rounds_is_counted_and_not_measured(broken: tuple[float, float, float]) -> None:
    nothing = Answered(Sample(*broken), 0.1)
    state, _ = play(STATE, nothing)
    assert (state.queries, state.recent) == (51, (EVEN,) * 3)


def test_freezing_and_rolling_back_by_hand() -> None:
    state, _ = play(replace(STATE, gains=dict.fromkeys(QUERY.ready, 1.0)), Frozen(True), QUERY)
    assert state.frozen
    state, decisions = play(state, Frozen(False), QUERY)
    assert decisions[-1].action is Action.HEAD
    state, _ = play(state, Synced(Action.HEAD, 0.1), RolledBack())
    assert (state.measurement, state.pending, state.cool_down) == (None, None, SETTINGS.cool_down)
