"""Records of a measurement: one JSON line per answer, one results file with provenance; both strictly typed."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specblock_zoo.bench.timing import is_looping
from specblock_zoo.data.files import replacing
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


class Work(Record):
    """What an answer cost, whatever decoded it; the prefill is kept apart from the decode rounds.

    Attributes:
        rounds, committed: decode rounds (target forwards after the prefill) and tokens they committed.
        accepted: drafted tokens kept, round by round.
        offered, hit: per "block.slot", rounds in which the walk reached a node with children proposed there, and those
            in which one of them was the target's token; their ratio is alpha. Empty for what drafts no blocks.
        depth_offered, depth_hit: the same per depth from 1, whatever proposed the token.
        rank_confusion: per "predicted.true" rank bucket, slots of first blocks on the valid prefix.
        prefill_ms: reading the prompt.
        draft_ms: the drafter's time in the rounds, its refresh included (an assistant's reading of the prompt, too).
        verify_ms: the target's time in the rounds.
        commit_ms: keeping the accepted rows of the target's cache.
        other_ms: the rest of the rounds; of what transformers decodes, the rest of the answer.
        drafter_calls: drafter forwards, refreshes included.
        nodes: drafted tokens that the target judged.
        lookup_nodes, lookup_accepted: those that a drafter's round found in the text so far alone, and how many of them
            were kept.
        undrafted_rounds: rounds judged without a drafter forward.
    """

    rounds: Count
    committed: Count
    accepted: tuple[Count, ...]
    offered: dict[str, Count]
    hit: dict[str, Count]
    depth_offered: dict[str, Count]
    depth_hit: dict[str, Count]
    rank_confusion: dict[str, Count]
    prefill_ms: Milliseconds
    draft_ms: Milliseconds
    verify_ms: Milliseconds
    commit_ms: Milliseconds
    other_ms: Milliseconds
    drafter_calls: Count
    nodes: Count
    lookup_nodes: Count = 0
    lookup_accepted: Count = 0
    undrafted_rounds: Count = 0

    @property
    def round_ms(self) -> float:
        """Time of all rounds, milliseconds."""
        return self.draft_ms + self.verify_ms + self.commit_ms + self.other_ms

    def __add__(self, other: "Work") -> "Work":
        return Work(**{name: _added(getattr(self, name), getattr(other, name)) for name in Work.model_fields})


def _added(one: Any, other: Any) -> Any:
    return dict(Counter(one) + Counter(other)) if isinstance(one, dict) else one + other


class AnswerRecord(Work):
    """One prompt answered by one method: a line of `records.jsonl`.

    Attributes:
        method: its name in the configuration.
        kind: what it is, a name of `methods.KINDS`.
        task, id, category: where the prompt came from.
        temperature: 0 for greedy.
        seed: of the sampling.
        prompt_tokens: of all turns; a later turn's prompt holds the earlier ones and their answers.
        answers: new token ids, turn by turn.
        seconds: wall time of all turns, the prefill included, the device synchronised.
        dtype, threads, packed: of both models.
        commit, versions: of this package's checkout, and of the packages it ran on.
    """

    method: str
    kind: str
    task: str
    id: str
    category: str
    temperature: Annotated[float, Field(ge=0)]
    seed: int
    prompt_tokens: PositiveCount
    answers: Annotated[tuple[tuple[Count, ...], ...], Field(min_length=1)]
    seconds: Annotated[float, Field(gt=0)]
    dtype: str
    threads: PositiveCount
    packed: bool
    commit: str
    versions: dict[str, str]

    @property
    def place(self) -> "Place":
        """What was asked, and how: records of one place differ in the method only."""
        return Place(self.task, self.id, self.temperature, self.seed)

    @property
    def new_tokens(self) -> int:
        """Tokens of all answers: the one counter that every throughput is taken with."""
        return sum(map(len, self.answers))

    @property
    def looping(self) -> bool:
        """Whether an answer falls into a loop, see `timing.is_looping`."""
        return any(map(is_looping, self.answers))


class Place(NamedTuple):
    """A prompt of a task, asked at a temperature with a seed."""

    task: str
    id: str
    temperature: float
    seed: int


class Ratio(Record):
    """Median ratio of paired throughputs, its bootstrap interval (95 %) and its quartiles.

    Over several tasks `median` is the mean of the tasks' medians, so that each task weighs the same.
    """

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
        alpha_by_depth: the same per depth from 1.
        rank_confusion: per "predicted.true" rank bucket, slots of first blocks on the valid prefix.
        speedup: throughput over the better plain baseline of the run.
        prompt_lookup_speedup: the same of transformers' prompt lookup, where it ran beside.
        baseline: which plain baseline that was.
        draft_ms, verify_ms, other_ms: means per round; `commit_ms` is the part of `other_ms` that keeps accepted rows.
        draft_share: drafter time / round time.
        drafter_calls, nodes: means per round.
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
    alpha_by_depth: dict[str, Share] = Field(default_factory=dict)
    rank_confusion: dict[str, Count] = Field(default_factory=dict)
    commit_ms: Milliseconds = 0.0
    drafter_calls: Annotated[float, Field(ge=0)] = 0.0
    nodes: Annotated[float, Field(ge=0)] = 0.0


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
    """The content of `results.json`: a drafter's measured numbers, greedy, per task and overall.

    Attributes:
        version: 1, where the overall speedup is the median over all prompts; 2, where it is the mean over tasks.
        sampled: the overall figures at temperature 1, where that was measured.
    """

    drafter: str
    target: str
    provenance: Provenance
    overall: TaskResult
    tasks: Annotated[tuple[TaskResult, ...], Field(min_length=1)]
    sampled: TaskResult | None = None
    version: Literal[1, 2] = 1


def describe(error: ValidationError) -> str:
    """The failures of a validation in one line: field, reason and the value found."""
    parts = []
    for failure in error.errors(include_url=False):
        where = ".".join(str(step) for step in failure["loc"]) or "record"
        found = "" if isinstance(failure["input"], dict | BaseModel) else f" (found {failure['input']!r})"
        parts.append(f"{where}: {failure['msg']}{found}")
    return "; ".join(parts)


def write_atomically(path: Path, text: str) -> None:
    """Writes `text` to `path` whole or not at all; errors as `data.files.replacing`."""
    with replacing(path) as half_done:
        half_done.write_text(text, encoding="utf-8")


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


def write_records(records: Iterable[AnswerRecord], path: Path) -> None:
    """Writes one JSON line per record."""
    write_atomically(path, "".join(record.model_dump_json() + "\n" for record in records))


def read_records(path: Path) -> tuple[AnswerRecord, ...]:
    """Reads the lines of `write_records`, or of a run.

    Raises:
        BadRecordError: a line is not a record; the message names file and line.
        EmptyDataError: there is no record.
    """
    records = tuple(parse_lines(path, AnswerRecord)) if path.is_file() else ()
    if not records:
        raise EmptyDataError(f"{path} holds 0 records; expected at least 1.", "Run the benchmark first.")
    return records


def parse_lines(path: Path, kind: type[Line]) -> Iterator[Line]:
    """Yields the JSON lines of `path` as `kind`; blank lines are skipped."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                yield kind.model_validate_json(line)
            except ValidationError as error:
                raise BadRecordError(f"{path}:{number}: {describe(error)}.", "Correct or drop the line.") from error
