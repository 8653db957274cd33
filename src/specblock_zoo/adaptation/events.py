"""What a session tells the bandit, and what the bandit may ask for. No torch, no clock."""

import math
from dataclasses import dataclass
from enum import StrEnum


class Action(StrEnum):
    """What to do after a query."""

    SKIP = "skip"
    HEAD = "head"
    FULL = "full"


@dataclass(frozen=True)
class Sample:
    """What one query says about throughput.

    Attributes:
        log_rate: log of committed tokens per second, update work left out.
        difficulty: mean of -log of the target's own best probability, nats. The text does not depend on the drafter,
            so no update can change it: it tells traffic from action.
        tau: committed tokens per round.
    """

    log_rate: float
    difficulty: float
    tau: float

    @property
    def is_finite(self) -> bool:
        """Whether every number is one."""
        return all(map(math.isfinite, (self.log_rate, self.difficulty, self.tau)))


@dataclass(frozen=True)
class Answered:
    """A query has ended.

    Attributes:
        sample: of its rounds.
        seconds: its whole wall time without update work.
        trigger: buffered rejected positions whose target token was outside the tree, since the last update.
        ready: updates whose buffer is full.
        draws: two uniform numbers in [0, 1): whether to explore, and what.
    """

    sample: Sample
    seconds: float
    trigger: int = 0
    ready: tuple[Action, ...] = ()
    draws: tuple[float, float] = (1.0, 0.0)


@dataclass(frozen=True)
class Synced:
    """New weights serve; `seconds` is what the update took from serving."""

    action: Action
    seconds: float


@dataclass(frozen=True)
class Dropped:
    """An update failed and left everything as it was; `seconds` were lost on it."""

    action: Action
    seconds: float = 0.0


@dataclass(frozen=True)
class Frozen:
    """By hand: no updates from now on, or again."""

    frozen: bool


@dataclass(frozen=True)
class RolledBack:
    """The last good weights serve again; `seconds` were lost on it."""

    seconds: float = 0.0


@dataclass(frozen=True)
class Spent:
    """Serving lost `seconds` on keeping or saving weights after an update, or on trying to."""

    seconds: float


Event = Answered | Synced | Dropped | Frozen | RolledBack | Spent
