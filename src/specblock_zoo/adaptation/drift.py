"""Noticing that drafting has become harder: running moments, and a one-sided cumulative sum. Pure, as the bandit is."""

from dataclasses import dataclass, field, replace

from specblock_zoo.errors import ConfigurationError

MOST = 3.0
"""Standard deviations one number counts at most, so that a single odd query raises no alarm."""
FLOOR = 0.05
"""Smallest standard deviation believed: a text that comes again and again has none."""


@dataclass(frozen=True)
class Moments:
    """Running means, variances and covariance of two numbers; the newest counts 1 / min(count, memory)."""

    count: int = 0
    mean_x: float = 0.0
    mean_y: float = 0.0
    var_x: float = 0.0
    var_y: float = 0.0
    cov: float = 0.0

    def add(self, x: float, y: float, memory: int) -> "Moments":
        """The moments with one more pair."""
        count = self.count + 1
        share = 1 / min(count, memory)
        dx, dy, rest = x - self.mean_x, y - self.mean_y, 1 - share
        return Moments(
            count,
            self.mean_x + share * dx,
            self.mean_y + share * dy,
            rest * (self.var_x + share * dx * dx),
            rest * (self.var_y + share * dy * dy),
            rest * (self.cov + share * dx * dy),
        )


@dataclass(frozen=True)
class DriftSettings:
    """When a fall is one (Page's cumulative sum, Biometrika 1954), in standard deviations of the numbers so far.

    Attributes:
        slack: below the mean that counts as nothing; half the smallest fall worth noticing.
        alarm: what the sum must reach. With the defaults a false alarm comes once in about 1,000 steady queries, and a
            fall of two standard deviations is noticed after about 4.
        after: numbers needed before any is judged.
    """

    slack: float = 0.5
    alarm: float = 5.0
    after: int = 12

    def __post_init__(self) -> None:
        if self.slack < 0 or self.alarm <= 0 or self.after < 2:
            raise ConfigurationError(
                f"No fall can be judged with slack = {self.slack} (at least 0), alarm = {self.alarm} (above 0), "
                f"after = {self.after} (at least 2).",
                "Correct the settings.",
            )


@dataclass(frozen=True)
class Fall:
    """How far a sequence has fallen below what it was.

    Attributes:
        level: moments of the numbers so far (x = y).
        sum: of the shortfalls beyond the slack, standard deviations; never below 0.
        run: numbers since the sum was last 0, the newest included: those of a fall, if it is one.
    """

    level: Moments = field(default_factory=Moments)
    sum: float = 0.0
    run: int = 0

    def add(self, number: float, settings: DriftSettings, memory: int) -> "Fall":
        """With one more number, judged by those before it; `memory` is the level's."""
        level, after = self.level, self.level.add(number, number, memory)
        if level.count < settings.after:
            return replace(self, level=after)
        # Of a new number about a mean that is itself estimated.
        variance = level.var_x * (level.count + 1) / (level.count - 1)
        shortfall = (level.mean_x - number) / max(FLOOR, variance**0.5)
        total = max(0.0, self.sum + min(shortfall, MOST) - settings.slack)
        return Fall(after, total, self.run + 1 if total > 0 else 0)

    def is_alarm(self, settings: DriftSettings) -> bool:
        """Whether the sum has reached the alarm; start with a new `Fall` after one."""
        return self.sum >= settings.alarm
