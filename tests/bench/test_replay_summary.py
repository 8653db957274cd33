"""Figures of a replay, against numbers worked out by hand."""

import pytest

from specblock_zoo.bench.replay import QueryRecord
from specblock_zoo.bench.replay_summary import WINDOW, ratio_interval, recoveries, summarize_replay


def record(policy: str, number: int, seconds: float, **changes: object) -> QueryRecord:
    values = {
        "stream": "s",
        "policy": policy,
        "task": "one",
        "id": f"one/{number}",
        "number": number,
        "turn": 0,
        "tokens": 10,
        "seconds": seconds,
        "update_seconds": 0.0,
        "rounds": 5,
        "committed": 10,
        "action": "skip",
        "reason": "",
        "reward": None,
        "synced": None,
        "digest": str(number),
    }
    return QueryRecord(**{**values, **changes})


def test_update_time_counts_against_throughput() -> None:
    records = [record("none", n, 1.0) for n in range(4)] + [record("plain", n, 2.0) for n in range(4)]
    records += [record("always", n, 0.5 + 0.25, update_seconds=0.25, synced="head", rounds=4) for n in range(4)]
    records += [record("bandit", n, 0.8, turn=n % 2, digest="x") for n in range(4)]
    figures = summarize_replay(records)["s"]
    assert figures["always"]["net_tokens_per_s_ratio"] == pytest.approx(1 / 0.75)
    assert figures["always"]["update_share"] == pytest.approx(1 / 3)
    assert figures["always"]["updates"] == {"head": 4}
    assert figures["always"]["tau"] == pytest.approx(2.5)
    assert figures["always"]["interval"] == pytest.approx((1 / 0.75, 1 / 0.75))
    assert figures["always"]["speedup"] == pytest.approx(2 / 0.75)
    assert (figures["always"]["equal"], figures["bandit"]["equal"]) == (4, 0)
    assert figures["bandit"]["tau_by_pass"] == [2.0, 2.0]
    assert figures["oracle"]["is"] == "always"
    assert figures["bandit"]["regret"] == pytest.approx(1 - 0.75 / 0.8)


def test_without_a_baseline_nothing_is_compared() -> None:
    figures = summarize_replay([record("bandit", n, 1.0) for n in range(2)])["s"]
    assert "net_tokens_per_s_ratio" not in figures["bandit"]
    assert "oracle" not in figures


def test_the_interval_holds_the_ratio() -> None:
    own = [record("bandit", n, 1.0 + n % 3) for n in range(30)]
    baseline = [record("none", n, 2.0 + n % 2) for n in range(30)]
    low, high = ratio_interval(own, baseline)
    assert low < sum(each.seconds for each in baseline) / sum(each.seconds for each in own) < high


def test_a_prompt_that_comes_back_is_one_prompt() -> None:
    """Four passes over the same prompts tell no more of other prompts than one pass does."""
    once = {"bandit": [1.0 + n % 5 for n in range(20)], "none": [2.0 + n % 3 for n in range(20)]}
    single = {policy: [record(policy, n, each) for n, each in enumerate(times)] for policy, times in once.items()}
    again = {
        policy: [
            record(policy, 20 * turn + n, each, id=f"one/{n}") for turn in range(4) for n, each in enumerate(times)
        ]
        for policy, times in once.items()
    }
    assert ratio_interval(again["bandit"], again["none"]) == pytest.approx(
        ratio_interval(single["bandit"], single["none"])
    )


@pytest.mark.parametrize(("slow", "expected"), [(0, WINDOW), (10, WINDOW + 10), (10**6, None)])
def test_recovery_counts_queries_after_the_shift(slow: int, expected: int | None) -> None:
    count = 3 * WINDOW
    plain = [record("plain", n, 2.0) for n in range(2 * count)]
    own = [record("bandit", n, 1.0) for n in range(count)]
    # After the shift: so slow at first that a window with one such query has not recovered.
    own += [record("bandit", count + n, 9.0 if n < slow else 1.0, task="two") for n in range(count)]
    assert recoveries(own, plain) == [expected]
