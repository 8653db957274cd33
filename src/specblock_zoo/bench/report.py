"""Sums over prompt records, divided once: tau, alpha, speedup and shares of a task."""

from collections import Counter
from collections.abc import Sequence

from specblock_zoo.bench.records import PromptRecord, Ratio, TaskResult
from specblock_zoo.bench.timing import bootstrap_interval, paired_ratios, summarize

PLAIN, PLAIN_MASKED, PROMPT_LOOKUP, DRAFTED = "plain", "plain, explicit mask", "prompt lookup", "drafted"
BASELINES = (PLAIN, PLAIN_MASKED)


def throughputs(records: Sequence[PromptRecord], case: str) -> list[float]:
    """Tokens per second of one case, prompt by prompt."""
    return [record.tokens[case] / record.seconds[case] for record in records]


def better_baseline(records: Sequence[PromptRecord]) -> str:
    """The plain case with the higher throughput over all records: the one a speedup has to beat."""

    def total(case: str) -> float:
        return sum(record.tokens[case] for record in records) / sum(record.seconds[case] for record in records)

    return max((case for case in BASELINES if case in records[0].seconds), key=total)


def speedup(records: Sequence[PromptRecord], case: str, baseline: str, seed: int = 0) -> Ratio:
    """Median over prompts of a case's over the baseline's throughput, with its bootstrap interval and quartiles."""
    ratios = paired_ratios(throughputs(records, case), throughputs(records, baseline))
    low, high = bootstrap_interval(ratios, seed)
    summary = summarize(ratios)
    return Ratio(median=summary.median, low=low, high=high, quartiles=(summary.low, summary.high))


def tau(records: Sequence[PromptRecord]) -> float | None:
    """Committed tokens over decode rounds; none without a round."""
    rounds = sum(record.rounds for record in records)
    return sum(record.committed for record in records) / rounds if rounds else None


def alpha(records: Sequence[PromptRecord]) -> dict[str, float]:
    """Per "block.slot": hits over offers, both summed first."""
    offered: Counter[str] = sum((Counter(record.offered) for record in records), Counter())
    hit: Counter[str] = sum((Counter(record.hit) for record in records), Counter())
    return {place: hit[place] / count for place, count in sorted(offered.items()) if count}


def task_result(name: str, records: Sequence[PromptRecord], baseline: str, seed: int = 0) -> TaskResult:
    """Everything a task's records add up to.

    Args:
        name: of the task.
        records: at least one.
        baseline: plain case to compare with, chosen once for the whole run (`better_baseline`).
        seed: of the bootstrap.
    """
    rounds = sum(record.rounds for record in records)
    draft_ms, verify_ms, other_ms = (
        sum(getattr(record, part) for record in records) for part in ("draft_ms", "verify_ms", "other_ms")
    )
    with_lookup = PROMPT_LOOKUP in records[0].seconds
    round_ms = draft_ms + verify_ms + other_ms
    return TaskResult(
        task=name,
        prompts=len(records),
        new_tokens=sum(record.new_tokens for record in records),
        rounds=rounds,
        committed=sum(record.committed for record in records),
        equal=sum(record.equal for record in records),
        tau=tau(records),
        tau_without_loops=tau([record for record in records if not record.looping]),
        loop_share=sum(record.looping for record in records) / len(records),
        alpha=alpha(records),
        speedup=speedup(records, DRAFTED, baseline, seed),
        prompt_lookup_speedup=speedup(records, PROMPT_LOOKUP, baseline, seed) if with_lookup else None,
        baseline=baseline,
        draft_ms=draft_ms / max(rounds, 1),
        verify_ms=verify_ms / max(rounds, 1),
        other_ms=other_ms / max(rounds, 1),
        draft_share=draft_ms / round_ms if round_ms else 0.0,
    )


def summarize_run(
    comparisons: Sequence[Sequence[PromptRecord]], seed: int = 0
) -> tuple[TaskResult, tuple[TaskResult, ...]]:
    """The overall result and one result per task, all against the same plain baseline.

    Args:
        comparisons: records task by task, none empty.
        seed: of the bootstrap.
    """
    everything = [record for records in comparisons for record in records]
    baseline = better_baseline(everything)
    tasks = tuple(task_result(records[0].task, records, baseline, seed) for records in comparisons)
    return task_result("all", everything, baseline, seed), tasks
