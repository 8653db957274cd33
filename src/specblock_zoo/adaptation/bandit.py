"""When to update the drafter: a pure state machine over measured throughput. No torch, no clock, no hidden randomness.

Events go in, decisions come out; the same state, event and settings give the same result, and a state is JSON.
"""

import math
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal, get_args

from pydantic import TypeAdapter

from specblock_zoo.adaptation.drift import DriftSettings, Fall, Moments
from specblock_zoo.adaptation.events import Action, Answered, Dropped, Event, Frozen, Sample, Spent, Synced
from specblock_zoo.errors import ConfigurationError

Policy = Literal["bandit", "always", "never"]


@dataclass(frozen=True)
class BanditSettings:
    """When updates are tried, measured, repeated and taken back. Counts are queries unless they say otherwise.

    Attributes:
        policy: `bandit` weighs gain against cost; `always` updates whenever a buffer is full; `never` only measures.
        actions: the updates it may choose from.
        warm_up: no update in the first queries.
        cold_start: updates with exploration.
        epsilon: probability of exploring at the first and at the last of them, falling linearly between.
        cool_down: after an update the next ones cannot trigger.
        window: measured before and after an update, N.
        horizon: over which an update's cost is spread; also after which without one the best is tried again.
        ewma: weight of the newest reward in a predicted gain, 0..1.
        min_trigger: rejected positions outside the tree below which a reward is not believed (the s_trig gate).
        revert_after: windows in a row with a falling accepted length that take the weights back.
        explore_share: share of the served time that updates without a confirmed gain may cost, 0..1 (ours).
        confirm: windows in a row with a reward above 0 that confirm a gain: fewer may be chance (ours).
        first_cost: mean query times that a head and a full update are taken to cost until one was measured (ours).
        drift: what the log of the accepted length must do to be a shift of the traffic (ours).
        alert: after a shift, how long trying is afforded anew, and a smaller buffer is enough (ours).
        shift_credit: mean query times that updates without a confirmed gain may then cost (ours).
    """

    policy: Policy = "bandit"
    actions: tuple[Action, ...] = (Action.HEAD, Action.FULL)
    warm_up: int = 10
    cold_start: int = 8
    epsilon: tuple[float, float] = (0.30, 0.10)
    cool_down: int = 2
    window: int = 8
    horizon: int = 200
    ewma: float = 0.3
    min_trigger: int = 5
    revert_after: int = 3
    explore_share: float = 0.009
    confirm: int = 2
    first_cost: tuple[float, float] = (0.0, 5.0)
    drift: DriftSettings = field(default_factory=DriftSettings)
    alert: int = 64
    shift_credit: float = 2.0

    def __post_init__(self) -> None:
        counts = ("window", "horizon", "revert_after", "confirm")
        wrong = [f"{name} = {getattr(self, name)} (at least 1)" for name in counts if getattr(self, name) < 1]
        sums = {"alert": self.alert, "shift_credit": self.shift_credit}
        wrong += [f"{name} = {value} (at least 0)" for name, value in sums.items() if value < 0]
        shares = {"ewma": self.ewma, "explore_share": self.explore_share}
        shares |= {f"epsilon[{place}]": value for place, value in enumerate(self.epsilon)}
        wrong += [f"{name} = {value} (0..1)" for name, value in shares.items() if not 0 <= value <= 1]
        if self.policy not in get_args(Policy):
            wrong.append(f"policy = {self.policy!r} ({', '.join(get_args(Policy))})")
        if Action.SKIP in self.actions or not self.actions:
            wrong.append(f"actions = {[str(action) for action in self.actions]} (head, full, or both)")
        if wrong:
            raise ConfigurationError(f"The bandit cannot work with {'; '.join(wrong)}.", "Correct the settings.")


@dataclass(frozen=True)
class Measurement:
    """A window that is open after an update: the samples before and so far."""

    action: Action
    seconds: float
    trigger: int
    before: tuple[Sample, ...]
    after: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class BanditState:
    """Everything the bandit remembers; bounded.

    Attributes:
        queries, events: answered and updates synced so far.
        since_event: queries since the last update.
        cool_down: queries that cannot trigger yet.
        pending: the update at work; `trigger` is its s_trig.
        measurement: the open window.
        recent: the newest samples, one window's.
        gains: predicted gain in log throughput of each measured action; `agreeing`: its latest windows in a row with a
            reward above 0.
        costs: seconds of each action's latest update; `served`: of all queries; `spent`: of all update work.
        slope: of log rate on difficulty (x = difficulty, y = log rate).
        fall: of the log of the accepted length since the start or the last shift.
        alert, allowance: queries left of the alert that a shift raised; seconds that `spent` may reach meanwhile.
        declines: windows in a row with a falling accepted length.
    """

    queries: int = 0
    events: int = 0
    since_event: int = 0
    cool_down: int = 0
    frozen: bool = False
    pending: Action | None = None
    trigger: int = 0
    measurement: Measurement | None = None
    recent: tuple[Sample, ...] = ()
    gains: dict[Action, float] = field(default_factory=dict)
    agreeing: dict[Action, int] = field(default_factory=dict)
    costs: dict[Action, float] = field(default_factory=dict)
    served: float = 0.0
    spent: float = 0.0
    slope: Moments = field(default_factory=Moments)
    fall: Fall = field(default_factory=Fall)
    alert: int = 0
    allowance: float = 0.0
    declines: int = 0


@dataclass(frozen=True)
class Decision:
    """What the session has to do now.

    Attributes:
        action: update to start, or skip.
        reason: why, in a word or two; goes into records.
        keep: the serving weights are the last good ones from now on.
        revert: the last good weights must serve again.
        reward: of the window that has just closed.
        shift: the traffic has changed; number, from 0, of the first query of the new one.
    """

    action: Action = Action.SKIP
    reason: str = ""
    keep: bool = False
    revert: bool = False
    reward: float | None = None
    shift: int | None = None


_STATE = TypeAdapter(BanditState)


def to_json(state: BanditState) -> str:
    """The state as JSON."""
    return _STATE.dump_json(state).decode()


def from_json(text: str) -> BanditState:
    """The state from `to_json`'s text. Raises `pydantic.ValidationError` for anything else."""
    return _STATE.validate_json(text)


def step(settings: BanditSettings, state: BanditState, event: Event) -> tuple[BanditState, Decision]:
    """The state after an event, and what to do now."""
    if isinstance(event, Answered):
        return _answered(settings, state, event)
    if isinstance(event, Synced):
        return _synced(settings, state, event), Decision(reason="synced")
    if isinstance(event, Dropped):
        lost = replace(state, pending=None, cool_down=settings.cool_down, spent=state.spent + event.seconds)
        return lost, Decision(reason="dropped")
    if isinstance(event, Frozen):
        return replace(state, frozen=event.frozen), Decision(reason="frozen" if event.frozen else "thawed")
    if isinstance(event, Spent):
        return _spent(state, event.seconds), Decision(reason="spent")
    back = replace(state, spent=state.spent + event.seconds, cool_down=settings.cool_down, agreeing={})
    return replace(back, measurement=None, pending=None, declines=0), Decision(reason="rolled back")


def _synced(settings: BanditSettings, state: BanditState, event: Synced) -> BanditState:
    return replace(
        state,
        pending=None,
        events=state.events + 1,
        since_event=0,
        cool_down=settings.cool_down,
        costs={**state.costs, event.action: event.seconds},
        spent=state.spent + event.seconds,
        measurement=Measurement(event.action, event.seconds, state.trigger, state.recent) if state.recent else None,
    )


def _spent(state: BanditState, seconds: float) -> BanditState:
    """What follows an update while its window is open is part of its price."""
    state, window = replace(state, spent=state.spent + seconds), state.measurement
    if window is None:
        return state
    costs = {**state.costs, window.action: state.costs.get(window.action, 0.0) + seconds}
    return replace(state, costs=costs, measurement=replace(window, seconds=window.seconds + seconds))


def _answered(settings: BanditSettings, state: BanditState, event: Answered) -> tuple[BanditState, Decision]:
    blocked, sample = state.cool_down > 0, event.sample
    state = replace(
        state,
        queries=state.queries + 1,
        since_event=state.since_event + 1,
        cool_down=max(0, state.cool_down - 1),
        alert=max(0, state.alert - 1),
        served=state.served + max(0.0, event.seconds),
    )
    closed = Decision()
    if sample.is_finite:
        state, closed = _measured(settings, state, sample)
        state = _remembered(settings, state, sample)
        if state.fall.is_alarm(settings.drift):
            closed = replace(closed, shift=max(0, state.queries - state.fall.run))
            state = _shifted(settings, state)
    action, reason = _choose(settings, state, event, blocked)
    if closed.revert or closed.shift is not None:
        # What has filled the buffers is another's: other weights', or for the most part another traffic's.
        action, reason = Action.SKIP, "revert" if closed.revert else "shift"
    if action is not Action.SKIP:
        state = replace(state, pending=action, trigger=event.trigger)
    return state, replace(closed, action=action, reason=reason)


def _remembered(settings: BanditSettings, state: BanditState, sample: Sample) -> BanditState:
    return replace(
        state,
        recent=(*state.recent, sample)[-settings.window :],
        slope=state.slope.add(sample.difficulty, sample.log_rate, settings.horizon),
        fall=state.fall.add(math.log(max(sample.tau, 1e-9)), settings.drift, settings.horizon),
    )


def _measured(settings: BanditSettings, state: BanditState, sample: Sample) -> tuple[BanditState, Decision]:
    """Adds a sample to the open window, and draws the conclusions of a full one."""
    window = state.measurement
    if window is None:
        return state, Decision()
    window = replace(window, after=(*window.after, sample))
    if len(window.after) < settings.window:
        return replace(state, measurement=window), Decision()
    reward = reward_of(settings, state, window)
    gains, agreeing = dict(state.gains), dict(state.agreeing)
    if window.trigger >= settings.min_trigger:
        before = gains.get(window.action)
        gains[window.action] = reward if before is None else before + settings.ewma * (reward - before)
        agreeing[window.action] = agreeing.get(window.action, 0) + 1 if reward > 0 else 0
    falling = fmean([each.tau for each in window.after]) < fmean([each.tau for each in window.before])
    declines = state.declines + 1 if falling else 0
    revert = declines >= settings.revert_after
    state = replace(state, measurement=None, gains=gains, agreeing=agreeing, declines=0 if revert else declines)
    # An update at work beside serving has moved the weights that would be kept: nobody has measured those.
    return state, Decision(keep=not falling and state.pending is None, revert=revert, reward=reward)


def reward_of(settings: BanditSettings, state: BanditState, window: Measurement) -> float:
    """Gain in log throughput that the traffic does not explain, less the update's cost spread over the horizon."""
    gained = fmean([each.log_rate for each in window.after]) - fmean([each.log_rate for each in window.before])
    harder = fmean([each.difficulty for each in window.after]) - fmean([each.difficulty for each in window.before])
    query = state.served / max(1, state.queries)
    cost = window.seconds / (settings.horizon * query) if query > 0 else 0.0
    return gained - _slope(settings, state.slope) * harder - cost


def _slope(settings: BanditSettings, moments: Moments) -> float:
    if moments.count < 2 * settings.window or moments.var_x <= 1e-12:
        return 0.0
    return moments.cov / moments.var_x


def _shifted(settings: BanditSettings, state: BanditState) -> BanditState:
    """Forgets gains and the open window, which were another traffic's; trying is afforded anew."""
    return replace(
        state,
        gains={},
        agreeing={},
        declines=0,
        measurement=None,
        recent=state.recent[-state.fall.run :],
        fall=Fall(),
        alert=settings.alert,
        allowance=state.spent + settings.shift_credit * state.served / max(1, state.queries),
    )


def _choose(settings: BanditSettings, state: BanditState, event: Answered, blocked: bool) -> tuple[Action, str]:
    ready = [action for action in settings.actions if action in event.ready]
    idle = (
        (settings.policy == "never", "never"),
        (state.frozen, "frozen"),
        (state.pending is not None, "updating"),
        (not ready, "filling"),
        (settings.policy == "bandit" and state.queries <= settings.warm_up, "warm-up"),
        (settings.policy == "bandit" and blocked, "cool-down"),
        (settings.policy == "bandit" and state.measurement is not None, "measuring"),
    )
    for applies, reason in idle:
        if applies:
            return Action.SKIP, reason
    if settings.policy == "always":
        return max(ready, key=lambda action: action is Action.FULL), "always"
    best = max(ready, key=lambda action: state.gains.get(action, -math.inf))
    # The credit of an alert is spent as soon as it can be: its first window may still be of texts that are new.
    explores = state.alert > 0 or event.draws[0] < epsilon_at(settings, state.events)
    unmeasured = [action for action in ready if action not in state.gains]
    recheck = state.since_event >= settings.horizon
    within = [action for action in ready if _affordable(settings, state, action)]
    if explores and within:
        return within[int(event.draws[1] * len(within))], "explore"
    for action in within:
        if action in unmeasured or (recheck and action is best):
            return action, "unmeasured" if action in unmeasured else "recheck"
    gaining = [action for action in ready if state.gains.get(action, 0.0) > 0]
    # A lucky window must not spend what no budget bounds.
    allowed = [action for action in gaining if action in within or state.agreeing.get(action, 0) >= settings.confirm]
    if allowed:
        return max(allowed, key=lambda action: state.gains[action]), "gain"
    return Action.SKIP, "budget" if explores or unmeasured or recheck or gaining else "no gain"


def _affordable(settings: BanditSettings, state: BanditState, action: Action) -> bool:
    """Without a confirmed gain an update is an expense; a first one of unknown cost is estimated."""
    unknown = settings.first_cost[action is Action.FULL] * state.served / max(1, state.queries)
    allowed = max(settings.explore_share * state.served, state.allowance if state.alert else 0.0)
    return state.spent + state.costs.get(action, unknown) <= allowed


def epsilon_at(settings: BanditSettings, events: int) -> float:
    """Probability of exploring after `events` updates; 0 once the cold start is over."""
    if events >= settings.cold_start:
        return 0.0
    first, last = settings.epsilon
    return first + (last - first) * events / max(1, settings.cold_start - 1)
