"""Sums over records, divided once: tau, alpha, speedup and shares of a task, for one method."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from specblock_zoo.bench.records import AnswerRecord, Place, Ratio, TaskResult
from specblock_zoo.bench.timing import interval_of_mean, summarize

PLAIN, PLAIN_MASKED, DRAFTED = "plain", "plain_masked", "drafted"
BASELINE_KINDS = ("plain", "plain_masked")
PROMPT_LOOKUP_KIND = "prompt_lookup"

Records = Sequence[AnswerRecord]


def of_method(records: Iterable[AnswerRecord], method: str) -> dict[Place, AnswerRecord]:
    """A method's records by place."""
    return {record.place: record for record in records if record.method == method}


def names_of(records: Iterable[AnswerRecord], kinds: Sequence[str]) -> list[str]:
    """Methods of these kinds, in the order they first occur."""
    return list(dict.fromkeys(record.method for record in records if record.kind in kinds))


def pairs(records: Records, method: str, other: str) -> list[tuple[AnswerRecord, AnswerRecord]]:
    """Records of two methods at the places both have answered."""
    others = of_method(records, other)
    return [(record, others[place]) for place, record in of_method(records, method).items() if place in others]


def throughput(record: AnswerRecord) -> float:
    """Tokens per second of one record."""
    return record.new_tokens / record.seconds


def per_prompt(values: Iterable[tuple[AnswerRecord, float]]) -> dict[str, list[float]]:
    """Task -> one value per prompt, the median over its seeds: seeds of one prompt are no independent prompts."""
    found: dict[str, dict[str, list[float]]] = {}
    for record, value in values:
        found.setdefault(record.task, {}).setdefault(record.id, []).append(value)
    return {task: [statistics.median(each) for each in prompts.values()] for task, prompts in found.items()}


def ratios(records: Records, method: str, other: str) -> dict[str, list[float]]:
    """A method's over another's throughput: task -> one ratio per prompt."""
    paired = pairs(records, method, other)
    return per_prompt((one, throughput(one) / throughput(two)) for one, two in paired)


def better_baseline(records: Records) -> str:
    """The plain method with the higher throughput over the places all plain methods have answered."""
    names = names_of(records, BASELINE_KINDS)
    by_name = {name: of_method(records, name) for name in names}
    shared = set.intersection(*(set(found) for found in by_name.values()))

    def total(name: str) -> float:
        found = [by_name[name][place] for place in shared]
        return sum(record.new_tokens for record in found) / max(sum(record.seconds for record in found), 1e-9)

    return max(names, key=total)


def by_task(records: Iterable[AnswerRecord]) -> dict[str, list[AnswerRecord]]:
    """Records task by task, in the order the tasks first occur."""
    groups: dict[str, list[AnswerRecord]] = {}
    for record in records:
        groups.setdefault(record.task, []).append(record)
    return groups


def speedup(records: Records, method: str, baseline: str, seed: int = 0) -> Ratio:
    """A method's over another's throughput: the median over the prompts of a task, the mean of these over tasks.

    The interval (95 %) is a bootstrap over prompts within each task.
    """
    groups = list(ratios(records, method, baseline).values())
    middle, low, high = interval_of_mean(groups, seed)
    summary = summarize([ratio for group in groups for ratio in group])
    return Ratio(median=middle, low=low, high=high, quartiles=(summary.low, summary.high))


def tau(records: Iterable[AnswerRecord]) -> float | None:
    """Committed tokens over decode rounds; none without a round."""
    records = list(records)
    rounds = sum(record.rounds for record in records)
    return sum(record.committed for record in records) / rounds if rounds else None


def alpha(records: Records) -> dict[str, float]:
    """Per "block.slot": hits over offers, both summed first."""
    return _shares(records, lambda record: record.offered, lambda record: record.hit)


def alpha_by_depth(records: Records) -> dict[str, float]:
    """Per depth from 1: hits over offers, both summed first."""
    return _shares(records, lambda record: record.depth_offered, lambda record: record.depth_hit)


def _shares(
    records: Records, offers: Callable[[AnswerRecord], dict[str, int]], hits: Callable[[AnswerRecord], dict[str, int]]
) -> dict[str, float]:
    offered, hit = Counter[str](), Counter[str]()
    for record in records:
        offered.update(offers(record))
        hit.update(hits(record))
    places = sorted(offered, key=lambda place: [int(number) for number in place.split(".")])
    return {place: hit[place] / offered[place] for place in places if offered[place]}


def confusion(records: Records) -> dict[str, int]:
    """Per "predicted.true" bucket: slots of all records."""
    counts = Counter[str]()
    for record in records:
        counts.update(record.rank_confusion)
    return dict(sorted(counts.items()))


def equal_count(records: Records, method: str, baseline: str) -> int:
    """Places where a method's answers are the baseline's, token for token."""
    return sum(one.answers == two.answers for one, two in pairs(records, method, baseline))


def task_result(name: str, records: Records, baseline: str, seed: int = 0, method: str = DRAFTED) -> TaskResult:
    """Everything a method's records of a task, or of all tasks, add up to.

    Args:
        name: of the task.
        records: of all methods; places that the baseline has not answered yet are left out.
        baseline: plain method to compare with, chosen once for the whole run (`better_baseline`).
        seed: of the bootstrap.
        method: whose figures these are.
    """
    own = [record for record, _ in pairs(records, method, baseline)]
    rounds = sum(record.rounds for record in own)
    draft_ms, verify_ms, commit_ms, other_ms = (
        sum(getattr(record, part) for record in own) for part in ("draft_ms", "verify_ms", "commit_ms", "other_ms")
    )
    lookups = names_of(records, (PROMPT_LOOKUP_KIND,))
    round_ms = draft_ms + verify_ms + commit_ms + other_ms
    per_round = 1 / max(rounds, 1)
    return TaskResult(
        task=name,
        prompts=len(own),
        new_tokens=sum(record.new_tokens for record in own),
        rounds=rounds,
        committed=sum(record.committed for record in own),
        equal=equal_count(records, method, baseline),
        tau=tau(own),
        tau_without_loops=tau(record for record in own if not record.looping),
        loop_share=sum(record.looping for record in own) / len(own),
        alpha=alpha(own),
        alpha_by_depth=alpha_by_depth(own),
        rank_confusion=confusion(own),
        speedup=speedup(records, method, baseline, seed),
        prompt_lookup_speedup=speedup(records, lookups[0], baseline, seed) if lookups else None,
        baseline=baseline,
        draft_ms=draft_ms * per_round,
        verify_ms=verify_ms * per_round,
        commit_ms=commit_ms * per_round,
        other_ms=(commit_ms + other_ms) * per_round,
        draft_share=draft_ms / round_ms if round_ms else 0.0,
        drafter_calls=sum(record.drafter_calls for record in own) * per_round,
        nodes=sum(record.nodes for record in own) * per_round,
    )


def summarize_run(
    records: Records, method: str = DRAFTED, baseline: str | None = None, seed: int = 0
) -> tuple[TaskResult, tuple[TaskResult, ...]]:
    """A method's overall result and one result per task, all against the same plain baseline.

    Args:
        records: of all methods, at one temperature.
        method: whose figures these are.
        baseline: plain method to compare with; the better one when not given.
        seed: of the bootstrap.
    """
    baseline = baseline or better_baseline(records)
    groups = {name: each for name, each in by_task(records).items() if pairs(each, method, baseline)}
    tasks = tuple(task_result(name, each, baseline, seed, method) for name, each in groups.items())
    return task_result("all", records, baseline, seed, method), tasks
