"""Records of a measurement: one JSON line per prompt, one results file with provenance; both strictly typed."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specblock_zoo.errors import BadRecordError, EmptyDataError

RESULTS_FILE = "results.json"

Line = TypeVar("Line", bound=BaseModel)

Count = Annotated[int, Field(ge=0)]
PositiveCount = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Milliseconds = Annotated[float, Field(ge=0)]


class Record(BaseModel):
    """Base of every stored record: immutable, strictly typed, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PromptRecord(Record):
    """One prompt decoded plainly and with the drafter, greedily and interleaved.

    Attributes:
        task, id, category: where the prompt came from.
        prompt_tokens, new_tokens: lengths; `new_tokens` of the speculative answer.
        equal: the speculative answer equals the plain one token for token.
        looping: the answer falls into a loop (`timing.is_looping`).
        rounds, committed: decode rounds and tokens they committed, prefill excluded.
        offered, hit: per "block.slot", rounds in which the walk reached a node with children proposed there, and those
            in which one of them was the target's token; their ratio is alpha.
        draft_ms, verify_ms, other_ms: sums over the rounds.
        seconds: case name -> wall time of the whole answer.
        tokens: case name -> new tokens of that case.
    """

    task: str
    id: str
    category: str
    prompt_tokens: PositiveCount
    new_tokens: Count
    equal: bool
    looping: bool
    rounds: Count
    committed: Count
    offered: dict[str, Count]
    hit: dict[str, Count]
    draft_ms: Milliseconds
    verify_ms: Milliseconds
    other_ms: Milliseconds
    seconds: dict[str, float]
    tokens: dict[str, Count]


class Ratio(Record):
    """Median ratio of paired throughputs, its bootstrap interval (95 %) and its quartiles."""

    median: float
    low: float
    high: float
    quartiles: tuple[float, float]


class TaskResult(Record):
    """What one task, or all tasks together, came to. Counts are stored beside every ratio.

    Attributes:
        prompts, new_tokens, rounds, committed: counts.
        equal: answers equal to plain decoding, out of `prompts`.
        tau: committed / rounds; none without a round.
        tau_without_loops: the same over answers that do not loop; none when all do.
        loop_share: share of answers that loop.
        alpha: per "block.slot", probability that a child proposed there is the target's token, once the walk got there.
        speedup: throughput over the better plain baseline of the run.
        prompt_lookup_speedup: the same of transformers' prompt lookup, where it ran beside.
        baseline: which plain baseline that was.
        draft_ms, verify_ms, other_ms: means per round.
        draft_share: drafter time / round time.
    """

    task: str
    prompts: PositiveCount
    new_tokens: Count
    rounds: Count
    committed: Count
    equal: Count
    tau: float | None
    tau_without_loops: float | None
    loop_share: Share
    alpha: dict[str, Share]
    speedup: Ratio
    prompt_lookup_speedup: Ratio | None
    baseline: str
    draft_ms: Milliseconds
    verify_ms: Milliseconds
    other_ms: Milliseconds
    draft_share: Share


class Provenance(Record):
    """Where, when and how a measurement was made."""

    commit: str
    command: str
    device: str
    cpu_capability: str
    threads: PositiveCount
    dtype: str
    packed: bool
    seed: int
    max_new_tokens: PositiveCount
    versions: dict[str, str]


class Results(Record):
    """The content of `results.json`: a drafter's measured numbers, per task and overall."""

    drafter: str
    target: str
    provenance: Provenance
    overall: TaskResult
    tasks: Annotated[tuple[TaskResult, ...], Field(min_length=1)]


def describe(error: ValidationError) -> str:
    """The failures of a validation in one line: field, reason and the value found."""
    parts = []
    for failure in error.errors(include_url=False):
        where = ".".join(str(step) for step in failure["loc"]) or "record"
        found = "" if isinstance(failure["input"], dict | BaseModel) else f" (found {failure['input']!r})"
        parts.append(f"{where}: {failure['msg']}{found}")
    return "; ".join(parts)


def write_atomically(path: Path, text: str) -> None:
    """Writes `text` to `path` whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def write_results(results: Results, folder: Path) -> Path:
    """Writes `folder/results.json` and returns its path."""
    path = folder / RESULTS_FILE
    write_atomically(path, results.model_dump_json(indent=2) + "\n")
    return path


def read_results(folder: Path) -> Results | None:
    """Reads `folder/results.json`; none when the drafter has not been measured.

    Raises:
        BadRecordError: the file is not a results file.
    """
    path = folder / RESULTS_FILE
    if not path.is_file():
        return None
    try:
        return Results.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BadRecordError(f"{path}: {describe(error)}.", "Measure again; results files are not edited.") from error


def write_records(records: Iterable[PromptRecord], path: Path) -> None:
    """Writes one JSON line per record."""
    write_atomically(path, "".join(record.model_dump_json() + "\n" for record in records))


def read_records(path: Path) -> tuple[PromptRecord, ...]:
    """Reads the lines of `write_records`.

    Raises:
        BadRecordError: a line is not a record; the message names file and line.
        EmptyDataError: the file holds no record.
    """
    records = tuple(parse_lines(path, PromptRecord))
    if not records:
        raise EmptyDataError(f"{path} holds 0 records; expected at least 1.", "Measure again.")
    return records


def parse_lines(path: Path, kind: type[Line]) -> Iterator[Line]:
    """Yields the JSON lines of `path` as `kind`; blank lines are skipped."""
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                yield kind.model_validate_json(line)
            except ValidationError as error:
                raise BadRecordError(f"{path}:{number}: {describe(error)}.", "Correct or drop the line.") from error
