"""Every transition of the bandit, by hand and under random traffic."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.adaptation.bandit import BanditSettings, BanditState, Decision, epsilon_at, from_json, step, to_json
from specblock_zoo.adaptation.drift import DriftSettings, Fall
from specblock_zoo.adaptation.events import Action, Answered, Dropped, Event, RolledBack, Sample, Synced
from specblock_zoo.errors import ConfigurationError

BOTH = (Action.HEAD, Action.FULL)
DEAF = DriftSettings(alarm=1e9)
FEW = BanditSettings(warm_up=2, cold_start=2, window=3, explore_share=1.0, horizon=20, drift=DEAF)
EVEN = Sample(0.0, 1.0, 2.0)


def query(log_rate: float = 0.0, tau: float = 2.0, difficulty: float = 1.0, **changes: object) -> Answered:
    return Answered(Sample(log_rate, difficulty, tau), 1.0, **{"trigger": 9, "ready": BOTH, **changes})


def play(settings: BanditSettings, state: BanditState, *events: Event) -> tuple[BanditState, list[Decision]]:
    decisions = []
    for event in events:
        state, decision = step(settings, state, event)
        decisions.append(decision)
    return state, decisions


def settled(**changes: object) -> BanditState:
    """Past warm-up and cold start, with nothing open."""
    return replace(BanditState(queries=50, events=8, served=50.0, recent=(EVEN,) * 3), **changes)


@st.composite
def traffic(draw: st.DrawFn) -> list[tuple[Answered, bool, int]]:
    """Queries, whether an update that starts then works out, and after how many more it ends."""
    rows = draw(
        st.lists(
            st.tuples(
                st.floats(-1, 1),
                st.floats(1, 4),
                st.sets(st.sampled_from(BOTH)),
                st.integers(0, 9),
                st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)),
                st.booleans(),
                st.integers(0, 2),
            ),
            max_size=60,
        )
    )
    return [
        (query(rate, tau, ready=tuple(sorted(ready)), trigger=trigger, draws=draws), works, delay)
        for rate, tau, ready, trigger, draws, works, delay in rows
    ]


@given(traffic(), st.sampled_from([BOTH, (Action.HEAD,), (Action.FULL,)]))
def test_life_cycle(rows: list[tuple[Answered, bool, int]], actions: tuple[Action, ...]) -> None:
    settings = BanditSettings(actions=actions, warm_up=3, cold_start=2, window=3, horizon=10)
    state, due, since_sync = BanditState(), None, settings.cool_down
    for event, works, delay in rows:
        before = state
        state, decision = step(settings, state, event)
        assert from_json(to_json(state)) == state
        assert len(state.recent) <= settings.window
        assert (decision.shift is not None) == (state.alert == settings.alert)
        assert state.queries == before.queries + 1
        if decision.action is not Action.SKIP:
            assert decision.action in event.ready
            assert decision.action in actions
            assert before.queries >= settings.warm_up
            assert since_sync >= settings.cool_down
            assert before.pending is None
            assert state.measurement is None
            assert not decision.revert
            promising = state.gains.get(decision.action, 0) > 0 and state.agreeing[decision.action] >= settings.confirm
            known = state.costs.get(decision.action)
            allowed = max(settings.explore_share * state.served, state.allowance if state.alert else 0.0)
            assert promising or known is None or state.spent + known <= allowed
            assert decision.shift is None
            due = (delay, works)
        since_sync += 1
        if due is not None and due[0] == 0:
            ended = Synced(state.pending, 0.5) if due[1] else Dropped(state.pending, 0.5)
            state, _ = step(settings, state, ended)
            assert state.pending is None
            assert (state.measurement is not None) == due[1]
            due, since_sync = None, 0
        elif due is not None:
            due = (due[0] - 1, due[1])


@given(traffic())
def test_the_same_events_give_the_same_state(rows: list[tuple[Answered, bool, int]]) -> None:
    events = [event for event, _, _ in rows]
    assert play(FEW, BanditState(), *events) == play(FEW, BanditState(), *events)


@given(traffic())
def test_frozen_never_updates(rows: list[tuple[Answered, bool, int]]) -> None:
    _, decisions = play(FEW, BanditState(frozen=True), *(event for event, _, _ in rows))
    assert {decision.action for decision in decisions} <= {Action.SKIP}


def test_warm_up_then_the_unmeasured() -> None:
    state, decisions = play(FEW, BanditState(), query(), query(), query())
    assert [each.reason for each in decisions] == ["warm-up", "warm-up", "unmeasured"]
    assert (decisions[-1].action, state.pending) == (Action.HEAD, Action.HEAD)


def test_nothing_while_an_update_is_at_work() -> None:
    assert play(FEW, settled(pending=Action.HEAD), query())[1][0].reason == "updating"


def test_cool_down_counts_queries() -> None:
    state, _ = step(FEW, settled(gains={Action.HEAD: 1.0, Action.FULL: 1.0}, recent=()), Synced(Action.HEAD, 0.1))
    assert [each.reason for each in play(FEW, state, query(), query(), query())[1]] == [
        "cool-down",
        "cool-down",
        "gain",
    ]


def test_a_window_is_measured_without_interference() -> None:
    state, _ = step(FEW, settled(gains={Action.FULL: 1.0}), Synced(Action.HEAD, 0.0))
    state, decisions = play(FEW, state, *[query(0.2)] * 3)
    assert [each.reason for each in decisions[:2]] == ["cool-down", "cool-down"]
    assert decisions[2].reward == pytest.approx(0.2)
    longer = replace(FEW, window=5)
    state, _ = step(longer, settled(gains={Action.FULL: 1.0}), Synced(Action.HEAD, 0.0))
    assert play(longer, state, *[query()] * 4)[1][3].reason == "measuring"


def test_reward_subtracts_the_cost_over_the_horizon() -> None:
    state, _ = step(FEW, replace(settled(), trigger=9), Synced(Action.FULL, 4.0))
    state, decisions = play(FEW, state, *[query(0.5)] * 3)
    assert decisions[-1].reward == pytest.approx(0.5 - 4.0 / (20 * 1.0))
    assert state.gains == {Action.FULL: decisions[-1].reward}


def test_gains_are_moving_averages() -> None:
    state = settled(gains={Action.HEAD: 0.1}, trigger=9)
    state, _ = step(FEW, state, Synced(Action.HEAD, 0.0))
    state, _ = play(FEW, state, *[query(0.5, ready=())] * 3)
    assert state.gains[Action.HEAD] == pytest.approx(0.1 + 0.3 * (0.5 - 0.1))


@pytest.mark.parametrize(("trigger", "believed"), [(4, False), (5, True)])
def test_weak_triggers_teach_nothing(trigger: int, believed: bool) -> None:
    state, _ = play(FEW, settled(events=0), query(trigger=trigger))
    state, _ = step(FEW, state, Synced(Action.HEAD, 0.0))
    state, _ = play(FEW, state, *[query(0.5, ready=())] * 3)
    assert (Action.HEAD in state.gains) is believed


@pytest.mark.parametrize(
    ("gains", "chosen"),
    [
        ({Action.HEAD: -0.1, Action.FULL: -0.2}, Action.SKIP),
        ({Action.HEAD: 0.0, Action.FULL: 0.0}, Action.SKIP),
        ({Action.HEAD: 0.1, Action.FULL: 0.2}, Action.FULL),
        ({Action.HEAD: 0.3, Action.FULL: 0.2}, Action.HEAD),
        ({Action.HEAD: -0.3, Action.FULL: 0.2}, Action.FULL),
    ],
)
def test_the_larger_positive_gain_wins(gains: dict[Action, float], chosen: Action) -> None:
    assert play(FEW, settled(gains=gains), query())[1][0].action is chosen


def test_epsilon_falls_over_the_cold_start() -> None:
    values = [epsilon_at(BanditSettings(), events) for events in range(9)]
    assert values[0] == pytest.approx(0.30)
    assert values[7] == pytest.approx(0.10)
    assert values[8] == 0
    assert all(early > late for early, late in pairwise(values))


@pytest.mark.parametrize(("draw", "reason"), [(0.29, "explore"), (0.31, "no gain")])
def test_exploration_follows_the_draw(draw: float, reason: str) -> None:
    poor = settled(events=0, gains={Action.HEAD: -1.0, Action.FULL: -1.0})
    decision = play(FEW, poor, query(draws=(draw, 0.99)))[1][0]
    assert decision.reason == reason
    assert decision.action is (Action.FULL if reason == "explore" else Action.SKIP)


def test_exploring_stays_within_its_budget() -> None:
    state = settled(costs={Action.HEAD: 0.6, Action.FULL: 9.0}, spent=0.0)
    strict = replace(FEW, explore_share=0.01)
    assert play(strict, state, query())[1][0].reason == "budget"
    assert play(strict, replace(state, served=60.0), query())[1][0].reason == "unmeasured"


def test_a_first_update_is_priced_before_anyone_has_measured_it() -> None:
    strict = replace(FEW, explore_share=0.1, first_cost=(0.0, 5.0))
    young = settled(queries=40, served=40.0, gains={Action.HEAD: -1.0})
    assert play(strict, young, query())[1][0].reason == "budget"
    assert play(strict, replace(young, queries=50, served=50.0), query())[1][0].action is Action.FULL
    assert play(strict, replace(young, gains={}), query())[1][0].action is Action.HEAD


def test_an_update_out_of_reach_does_not_keep_a_gain_from_being_taken() -> None:
    strict = replace(FEW, explore_share=0.0)
    confirmed = settled(gains={Action.HEAD: 0.1}, agreeing={Action.HEAD: strict.confirm})
    assert play(strict, confirmed, query())[1][0].reason == "gain"
    dearer = replace(confirmed, gains={Action.HEAD: 0.1, Action.FULL: 0.5}, agreeing={Action.HEAD: 2, Action.FULL: 1})
    assert play(strict, dearer, query())[1][0].action is Action.HEAD


def test_a_gain_of_too_few_windows_stays_within_the_budget() -> None:
    strict = replace(FEW, explore_share=0.01, confirm=2)
    lucky = settled(gains={Action.HEAD: 0.5, Action.FULL: -1.0}, agreeing={Action.HEAD: 1}, costs={Action.HEAD: 0.6})
    assert play(strict, lucky, query())[1][0] == Decision(reason="budget")
    assert play(strict, replace(lucky, served=60.0), query())[1][0].reason == "gain"
    assert play(strict, replace(lucky, agreeing={Action.HEAD: 2}), query())[1][0].reason == "gain"


@pytest.mark.parametrize(
    ("rewards", "agreeing"),
    [((0.5,), 1), ((0.5, 0.4), 2), ((0.5, -0.1), 0), ((-0.1, -0.1, 0.9), 1), ((0.9, -0.1, 0.1), 1)],
)
def test_a_gain_is_confirmed_by_windows_that_agree(rewards: tuple[float, ...], agreeing: int) -> None:
    """However large one of them is: the average may stay above 0."""
    state = settled()
    for reward in rewards:
        state = replace(state, recent=(EVEN,) * 3, trigger=9)
        state, _ = step(FEW, state, Synced(Action.HEAD, 0.0))
        state, _ = play(FEW, state, *[query(reward, ready=())] * 3)
    assert state.agreeing == {Action.HEAD: agreeing}
    assert step(FEW, state, RolledBack())[0].agreeing == {}
    assert harder(WATCHFUL, agreeing={Action.HEAD: 2})[0].agreeing == {}


def test_weights_that_an_update_at_work_has_moved_are_not_kept() -> None:
    """A worker trains while the window of the update before closes."""
    always = replace(FEW, policy="always")
    measured = (*[query(ready=())] * 2, query())
    state, decisions = play(always, settled(), Synced(Action.HEAD, 0.1), *measured)
    assert [each.keep for each in decisions] == [False, False, False, True]
    state, _ = play(always, settled(), Synced(Action.HEAD, 0.1), query())
    assert state.pending is not None
    assert not any(each.keep for each in play(always, state, *measured)[1])


def test_the_best_is_tried_again_after_the_horizon() -> None:
    poor = {Action.HEAD: -0.1, Action.FULL: -0.2}
    assert play(FEW, settled(gains=poor, since_event=18), query(), query())[1][1].reason == "recheck"


def test_three_falling_windows_take_the_weights_back() -> None:
    state, reverts = settled(trigger=9), []
    for tau in (1.9, 1.8, 1.7):
        state, _ = step(FEW, state, Synced(Action.HEAD, 0.0))
        state, decisions = play(FEW, state, *[query(tau=tau, ready=())] * 3)
        reverts.append(decisions[-1].revert)
        assert not decisions[-1].keep
    assert reverts == [False, False, True]
    assert state.declines == 0


def test_a_window_that_does_not_fall_is_good() -> None:
    state, _ = step(FEW, settled(declines=2), Synced(Action.HEAD, 0.0))
    state, decisions = play(FEW, state, *[query(tau=2.1, ready=())] * 3)
    assert decisions[-1].keep
    assert state.declines == 0


def test_easier_prompts_do_not_credit_an_update() -> None:
    state = settled()
    for number in range(12):
        difficulty = 1.0 + (number % 3) / 10
        state, _ = play(FEW, state, query(-difficulty, difficulty=difficulty, ready=()))
    before = state.recent
    state, _ = step(FEW, state, Synced(Action.HEAD, 0.0))
    state, decisions = play(FEW, state, *[query(-0.5, difficulty=0.5, ready=())] * 3)
    raw = -0.5 - sum(each.log_rate for each in before) / 3
    assert raw > 0.5
    assert decisions[-1].reward == pytest.approx(0.0, abs=0.05)


WATCHFUL = replace(FEW, drift=DriftSettings(), explore_share=0.0, shift_credit=1.5, alert=10)


def harder(settings: BanditSettings, **changes: object) -> tuple[BanditState, list[Decision]]:
    """Twenty queries like each other, then harder ones until the alarm."""
    state = settled(gains={Action.HEAD: -1.0, Action.FULL: -1.0}, **changes)
    for number in range(20):
        state, decisions = play(settings, state, query(tau=2.0 + (number % 2) / 10, ready=()))
    while decisions[-1].shift is None:
        state, more = play(settings, state, query(tau=1.5))
        decisions += more
    return state, decisions[1:]


def test_a_shift_is_noticed_and_said() -> None:
    state, decisions = harder(WATCHFUL)
    assert len(decisions) <= 4
    assert decisions[-1] == Decision(reason="shift", shift=70)
    assert (state.gains, state.fall, state.alert) == ({}, Fall(), WATCHFUL.alert)
    assert {each.tau for each in state.recent} == {1.5}


def test_an_easier_traffic_is_no_shift() -> None:
    state, _ = play(WATCHFUL, BanditState(), *[query(tau=2.0, ready=())] * 20)
    state, decisions = play(WATCHFUL, state, *[query(tau=4.0, ready=())] * 20)
    assert all(each.shift is None for each in decisions)


def test_a_window_across_a_shift_teaches_nothing() -> None:
    longer = replace(WATCHFUL, window=8)
    state, _ = play(longer, settled(), *[query(tau=2.0 + (number % 2) / 10, ready=()) for number in range(20)])
    state, _ = play(longer, replace(state, trigger=9), Synced(Action.HEAD, 0.0), *[query(tau=1.5, ready=())] * 8)
    assert (state.measurement, state.gains, state.declines) == (None, {}, 0)


def test_a_shift_affords_trying_anew_whatever_was_spent() -> None:
    state, _ = harder(WATCHFUL, spent=40.0, costs={Action.HEAD: 1.0, Action.FULL: 9.0})
    assert state.allowance == pytest.approx(40.0 + WATCHFUL.shift_credit)
    state, decisions = play(WATCHFUL, state, query())
    assert (decisions[-1].action, decisions[-1].reason) == (Action.HEAD, "explore")
    state, _ = play(WATCHFUL, state, Synced(Action.HEAD, 1.0))
    poor = replace(state, measurement=None, cool_down=0, gains={Action.HEAD: -0.1})
    assert play(WATCHFUL, poor, query(draws=(0.0, 0.0)))[1][0].reason == "budget", "the credit is spent"


def test_an_alert_ends() -> None:
    state, _ = harder(WATCHFUL, spent=40.0, costs=dict.fromkeys(BOTH, 1.0))
    state, _ = play(WATCHFUL, state, *[query(ready=())] * WATCHFUL.alert)
    assert state.alert == 0
    assert play(WATCHFUL, state, query())[1][0].reason == "budget"


def test_on_the_alert_the_credit_is_spent_whatever_was_measured() -> None:
    alert = settled(alert=5, spent=8.0, allowance=9.0, gains=dict.fromkeys(BOTH, -1.0), costs=dict.fromkeys(BOTH, 1.0))
    strict = replace(FEW, explore_share=0.0)
    assert play(strict, alert, query())[1][0].reason == "explore"
    assert play(strict, replace(alert, spent=8.1), query())[1][0].reason == "budget"
    assert play(strict, replace(alert, alert=0), query())[1][0].reason == "no gain"


def test_exploring_draws_among_what_can_be_afforded() -> None:
    alert = settled(alert=5, allowance=1.0, gains=dict.fromkeys(BOTH, -1.0), costs={Action.HEAD: 0.5, Action.FULL: 9.0})
    strict = replace(FEW, explore_share=0.0)
    assert play(strict, alert, query(draws=(0.0, 0.99)))[1][0].action is Action.HEAD


@given(st.lists(st.floats(1, 4), min_size=1, max_size=80), st.floats(0, 3))
def test_trying_costs_no_more_than_the_budget_and_one_credit_an_alarm(taus: list[float], credit: float) -> None:
    """With updates that never gain: whatever the traffic does."""
    settings = replace(WATCHFUL, explore_share=0.05, shift_credit=credit, first_cost=(0.5, 0.5), actions=(Action.HEAD,))
    state, alarms, ends = BanditState(), 0, 0.0
    for tau in taus:
        state, decision = step(settings, replace(state, gains={}), query(tau=tau))
        alarms += decision.shift is not None
        if decision.action is not Action.SKIP:
            ends = 0.5
            state, _ = step(settings, state, Synced(decision.action, ends))
        assert state.spent <= 0.05 * state.served + credit * alarms + 1e-9
    assert ends == 0 or state.spent > 0


def test_states_saved_before_alarms_were_kept_are_read() -> None:
    old = BanditState(queries=3, served=2.0)
    text = to_json(old).replace('"fall":', '"lengths":')
    assert from_json(text) == old


def test_always_and_never() -> None:
    always, never = replace(FEW, policy="always"), replace(FEW, policy="never")
    assert play(always, BanditState(), query())[1][0].action is Action.FULL
    assert play(always, BanditState(), query(ready=(Action.HEAD,)))[1][0].action is Action.HEAD
    assert play(never, settled(gains=dict.fromkeys(BOTH, 1.0)), query())[1][0].action is Action.SKIP


@pytest.mark.parametrize(
    "changes",
    [
        {"window": 0},
        {"ewma": 1.5},
        {"epsilon": (0.3, -0.1)},
        {"actions": ()},
        {"actions": (Action.SKIP,)},
        {"alert": -1},
        {"shift_credit": -0.5},
        {"policy": "Bandit"},
        {"confirm": 0},
        {"epsilon": (1.1, 0.1)},
    ],
)
def test_settings_out_of_range(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(changes))):
        BanditSettings(**changes)
