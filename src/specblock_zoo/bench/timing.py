"""Fair timing on shared cores: methods in turn, item by item, ratios inside one run, medians with their spread.

The same case measured an hour apart moves by 15 % on a shared host while ratios inside one run move by under 5 %, so
only ratios of interleaved runs are ever reported.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Call = tuple[tuple[Any, ...], dict[str, Any]]

LOOP_NGRAM = 8
LOOP_REPEATS = 3
LOOP_MAX_PERIOD = 32


@dataclass(frozen=True)
class Timed(Generic[Outcome]):
    """What a case returned and how long it took, in seconds of wall time with the device synchronised."""

    outcome: Outcome
    seconds: float


@dataclass(frozen=True)
class Summary:
    """A median and its spread.

    Attributes:
        median: middle value.
        low, high: first and third quartile (equal to the median for fewer than two values).
        count: number of values.
    """

    median: float
    low: float
    high: float
    count: int

    @property
    def spread(self) -> float:
        """Interquartile range relative to the median, dimensionless, >= 0."""
        return (self.high - self.low) / self.median if self.median else 0.0


@contextmanager
def thread_limit(threads: int) -> Iterator[None]:
    """Runs the body with `threads` intra-op threads and restores the previous number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def synchronize() -> None:
    """Waits for the accelerator, where there is one; without it a host clock would time the launch, not the work."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def stopwatch() -> float:
    """Seconds of a clock that is read once the device has caught up."""
    synchronize()
    return time.perf_counter()


def time_call(case: Callable[[Item], Outcome], item: Item) -> Timed[Outcome]:
    """Calls `case(item)` once between two synchronisations."""
    start = stopwatch()
    outcome = case(item)
    return Timed(outcome, stopwatch() - start)


def turn_order(names: Sequence[str], turn: int, series: str = "") -> list[str]:
    """Who answers when: who goes first, and who has just left the caches warm for whom, is evened out.

    Every cycle of n turns is a Latin square, so each of the n names has each place once. For an even n each comes right
    after each other once in a cycle as well, for an odd n twice in two cycles (Williams 1949). Then the names are dealt
    anew. The same arguments give the same order, whatever was asked before.

    Args:
        turn: of the series, from 0.
        series: what is evened out by itself, such as one task at one temperature.
    """
    count = len(names)
    cycle, row = divmod(turn, count)
    design, mirrored = divmod(cycle, 1 + count % 2)
    dealt = random.Random(f"{series} {design}").sample(list(names), count)
    zigzag = [(place + 1) // 2 if place % 2 else -place // 2 for place in range(count)]
    order = [dealt[(row + step) % count] for step in zigzag]
    return order[::-1] if mirrored else order


def interleave(
    cases: Mapping[str, Callable[[Item], Outcome]], items: Sequence[Item], warm_up: Item | None = None
) -> dict[str, list[Timed[Outcome]]]:
    """Times every case on every item, item by item, so that slow minutes of the host hit all cases alike.

    Args:
        cases: name -> callable; in the order of `turn_order`.
        items: what each case is called with.
        warm_up: given to every case once, untimed, before the first measurement.
    Returns:
        name -> one `Timed` per item, in the order of `items`.
    """
    if warm_up is not None:
        for case in cases.values():
            case(warm_up)
    timings: dict[str, list[Timed[Outcome]]] = {name: [] for name in cases}
    for turn, item in enumerate(items):
        for name in turn_order(list(cases), turn):
            timings[name].append(time_call(cases[name], item))
    return timings


def paired_ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Ratio of each pair; both sequences come from the same interleaved run, item by item."""
    return [numerator / denominator for numerator, denominator in zip(numerators, denominators, strict=True)]


def summarize(values: Sequence[float]) -> Summary:
    """Median and quartiles of `values` (at least one)."""
    middle = statistics.median(values)
    if len(values) < 2:
        return Summary(middle, middle, middle, len(values))
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Summary(middle, low, high, len(values))


def interval_of_mean(
    groups: Sequence[Sequence[float]], seed: int = 0, confidence: float = 0.95
) -> tuple[float, float, float]:
    """The mean of the groups' medians, and its percentile bootstrap interval, resampled within each group.

    A group whose values are all alike adds nothing to the interval. The percentile method is used because the
    bias-corrected one is undefined when resampled medians tie.

    Args:
        groups: at least one, none empty.
    """
    middle = statistics.mean(statistics.median(group) for group in groups)
    spread = tuple(list(group) for group in groups if len(set(group)) > 1)
    if not spread:
        return middle, middle, middle
    import numpy as np
    import scipy.stats  # here, so that only a measurement needs it

    fixed = sum(statistics.median(group) for group in groups if len(set(group)) == 1)

    def mean_of_medians(*samples: Any, axis: int) -> Any:
        return (fixed + sum(np.median(sample, axis=axis) for sample in samples)) / len(groups)

    result = scipy.stats.bootstrap(
        spread, mean_of_medians, n_resamples=2000, confidence_level=confidence, method="percentile", rng=seed
    )
    return middle, float(result.confidence_interval.low), float(result.confidence_interval.high)


def is_looping(tokens: Sequence[int]) -> bool:
    """Whether the text falls into a loop, which flatters every drafter.

    An 8-gram repeated three times running, or as much of any other period: for some period of at most 32 tokens, at
    least three repeats that span at least 24 tokens.
    """
    for period in range(1, LOOP_MAX_PERIOD + 1):
        needed = max(LOOP_NGRAM * LOOP_REPEATS, period * LOOP_REPEATS) - period
        run = 0
        for earlier, later in zip(tokens, tokens[period:], strict=False):
            run = run + 1 if earlier == later else 0
            if run >= needed:
                return True
    return False


def loop_share(texts: Sequence[Sequence[int]]) -> float:
    """Share of token sequences that loop (see `is_looping`), 0..1; 0 for no sequences."""
    return sum(is_looping(tokens) for tokens in texts) / len(texts) if texts else 0.0


@contextmanager
def explicit_mask(model: nn.Module) -> Iterator[None]:
    """Within the body, one-token forwards of `model` get an additive 4-D mask instead of the 2-D one.

    A one-query bf16 attention without a mask takes a CPU kernel that is 10-15 % slower than the masked one, and that is
    what plain greedy decoding runs. Timing plain decoding both ways and comparing with the better keeps this artefact
    out of the speedup. Once a text is longer than a window of the model's layers, it decodes as it would without this.
    """
    window = getattr(getattr(model, "config", None), "sliding_window", None) or math.inf

    def with_mask(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        mask, tokens = kwargs.get("attention_mask"), kwargs.get("input_ids")
        if not (isinstance(mask, Tensor) and isinstance(tokens, Tensor) and mask.dim() == 2 and tokens.shape[1] == 1):
            return None
        if mask.shape[1] > window:
            return None
        dtype = next(module.parameters()).dtype
        hidden = (mask == 0)[:, None, None, :]
        additive = hidden.to(dtype) * torch.finfo(dtype).min
        return args, {**kwargs, "attention_mask": additive}

    handle = model.register_forward_pre_hook(with_mask, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
