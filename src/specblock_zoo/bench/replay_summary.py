"""What a replay shows: per stream and policy the net throughput, accepted length, update share and regret."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from specblock_zoo.adaptation.policies import NONE, PLAIN
from specblock_zoo.bench.replay import QueryRecord

LEARNED, ORACLE = "bandit", "oracle"
RECOVERED, WINDOW = 0.95, 16
"""Share of the throughput before a shift that counts as recovered; queries averaged over."""
RESAMPLES = 2000


def summarize_replay(records: Sequence[QueryRecord]) -> dict[str, dict[str, dict[str, Any]]]:
    """`{stream: {policy: figures}}`.

    Figures: `net_tokens_per_s` (all update time counted), `net_tokens_per_s_ratio` over no adaptation with its 95 %
    bootstrap interval over prompts, `tau`, `tau_by_pass`, `update_share` (update seconds / all seconds), `updates` by
    action, `equal` (answers that equal the baseline's), `regret` (share of the oracle's throughput that is missing);
    where plain decoding was asked too, `speedup` over it and `recovery_queries` per change of task. The oracle is the
    policy that was best in hindsight, the bandit with both updates left out.
    """
    streams: dict[str, dict[str, list[QueryRecord]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        streams[record.stream][record.policy].append(record)
    return {stream: _of_stream(policies) for stream, policies in streams.items()}


def _of_stream(policies: Mapping[str, list[QueryRecord]]) -> dict[str, dict[str, Any]]:
    figures = {name: {**_figures(own), **_compared(own, policies)} for name, own in policies.items()}
    fixed = {name: each["net_tokens_per_s"] for name, each in figures.items() if name not in (LEARNED, PLAIN)}
    if fixed:
        best = max(fixed, key=lambda name: fixed[name])
        figures[ORACLE] = {**figures[best], "is": best}
        for each in figures.values():
            each["regret"] = 1 - each["net_tokens_per_s"] / fixed[best]
    return figures


def _figures(own: Sequence[QueryRecord]) -> dict[str, Any]:
    by_pass = {turn: tau([each for each in own if each.turn == turn]) for turn in sorted({each.turn for each in own})}
    return {
        "queries": len(own),
        "net_tokens_per_s": rate(own),
        "tau": tau(own),
        "tau_by_pass": list(by_pass.values()),
        "update_share": sum(each.update_seconds for each in own) / sum(each.seconds for each in own),
        "updates": dict(Counter(each.synced for each in own if each.synced)),
    }


def _compared(own: Sequence[QueryRecord], policies: Mapping[str, Sequence[QueryRecord]]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if NONE in policies:
        baseline = policies[NONE]
        texts = {each.number: each.digest for each in baseline}
        figures["net_tokens_per_s_ratio"] = rate(own) / rate(baseline)
        figures["interval"] = ratio_interval(own, baseline)
        figures["equal"] = sum(each.digest == texts.get(each.number) for each in own)
    if PLAIN in policies:
        figures["speedup"] = rate(own) / rate(policies[PLAIN])
        figures["recovery_queries"] = recoveries(own, policies[PLAIN])
    return figures


def rate(records: Sequence[QueryRecord]) -> float:
    """Tokens per second of wall time, updates included."""
    return sum(each.tokens for each in records) / sum(each.seconds for each in records)


def tau(records: Sequence[QueryRecord]) -> float:
    """Committed tokens per round; 0 without a round."""
    return sum(each.committed for each in records) / max(1, sum(each.rounds for each in records))


def ratio_interval(own: Sequence[QueryRecord], baseline: Sequence[QueryRecord]) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio of rates, prompts drawn in pairs with all their returns.

    Returns of one prompt are no independent prompts. The interval is of other prompts, given when updates fell.
    """
    import numpy as np  # here, so that only a summary needs it

    reference = {each.number: each for each in baseline}
    prompts: dict[tuple[str, str], Any] = defaultdict(lambda: np.zeros(4))
    for one in own:
        if (two := reference.get(one.number)) is not None:
            prompts[one.task, one.id] += (one.tokens, one.seconds, two.tokens, two.seconds)
    columns = np.array(list(prompts.values()))
    drawn = np.random.default_rng(0).integers(len(columns), size=(RESAMPLES, len(columns)))
    sums = columns[drawn].sum(axis=1)
    ratios = (sums[:, 0] / sums[:, 1]) / (sums[:, 2] / np.maximum(sums[:, 3], 1e-12))
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(low), float(high)


def recoveries(own: Sequence[QueryRecord], plain: Sequence[QueryRecord]) -> list[int | None]:
    """For each change of task: queries until the speedup over plain decoding is back to 95 % of what it was before.

    None where it is not within the task. Changes after less than a window of one task are none (a mixed stream).
    """
    reference = {each.number: each for each in plain}
    ordered = sorted((each for each in own if each.number in reference), key=lambda each: each.number)
    tasks = [each.task for each in ordered]
    changes = [index for index in range(1, len(tasks)) if tasks[index] != tasks[index - 1]]
    found: list[int | None] = []
    for begin, end in pairwise([*changes, len(ordered)]):
        if len(set(tasks[max(0, begin - WINDOW) : begin])) > 1 or begin < WINDOW:
            continue
        before = ordered[max(0, begin - WINDOW) : begin]
        wanted = RECOVERED * rate(before) / rate([reference[each.number] for each in before])
        windows = ((stop - begin, ordered[stop - WINDOW : stop]) for stop in range(begin + WINDOW, end + 1))
        back = (
            count
            for count, window in windows
            if rate(window) / rate([reference[each.number] for each in window]) >= wanted
        )
        found.append(next(back, None))
    return found
