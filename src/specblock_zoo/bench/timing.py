"""Fair timing on shared cores: cases interleaved item by item, ratios inside one run, medians with their spread.

The same case measured an hour apart moves by 15 % on a shared host while ratios inside one run move by under 5 %, so
only ratios of interleaved runs are ever reported.
"""

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


def time_call(case: Callable[[Item], Outcome], item: Item) -> Timed[Outcome]:
    """Calls `case(item)` once between two synchronisations."""
    synchronize()
    start = time.perf_counter()
    outcome = case(item)
    synchronize()
    return Timed(outcome, time.perf_counter() - start)


def interleave(
    cases: Mapping[str, Callable[[Item], Outcome]],
    items: Sequence[Item],
    warm_up: Item | None = None,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, list[Timed[Outcome]]]:
    """Times every case on every item in the order A B C, A B C, ... so that slow minutes of the host hit all alike.

    Args:
        cases: name -> callable; the order is the order of the table.
        items: what each case is called with.
        warm_up: given to every case once, untimed, before the first measurement.
        advance: called after each timed call (a progress bar).
    Returns:
        name -> one `Timed` per item, in the order of `items`.
    """
    if warm_up is not None:
        for case in cases.values():
            case(warm_up)
    timings: dict[str, list[Timed[Outcome]]] = {name: [] for name in cases}
    for item in items:
        for name, case in cases.items():
            timings[name].append(time_call(case, item))
            advance()
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


def bootstrap_interval(values: Sequence[float], seed: int = 0, confidence: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the median of `values`; the value itself twice when there is only one.

    The percentile method is used because the bias-corrected one is undefined when resampled medians tie.
    """
    if len(set(values)) < 2:
        return values[0], values[0]
    import scipy.stats  # here, so that only a measurement needs it

    result = scipy.stats.bootstrap(
        (list(values),),
        statistics.median,
        vectorized=False,
        n_resamples=2000,
        confidence_level=confidence,
        method="percentile",
        rng=seed,
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


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
    out of the speedup.
    """

    def with_mask(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        mask, tokens = kwargs.get("attention_mask"), kwargs.get("input_ids")
        if not (isinstance(mask, Tensor) and isinstance(tokens, Tensor) and mask.dim() == 2 and tokens.shape[1] == 1):
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
