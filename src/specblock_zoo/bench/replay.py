"""Replay a stream of prompts under several adaptation policies, interleaved; one JSON line per prompt and policy."""

import hashlib
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from specblock_zoo.adaptation.session import AdaptiveDrafter
from specblock_zoo.bench.folder import differences, drop_cut_line
from specblock_zoo.bench.records import Record, parse_lines, write_atomically
from specblock_zoo.bench.tasks import Prompt, read_task
from specblock_zoo.bench.timing import turn_order
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.base import Drafter

RECORDS, STATES, PROGRESS = "records.jsonl", "states", "progress.json"


@dataclass(frozen=True)
class Segment:
    """Prompts of one task file: `task` is the file's name without `.jsonl`; `prompts` are taken evenly from it."""

    task: str
    prompts: int


@dataclass(frozen=True)
class Stream:
    """The order in which prompts arrive.

    Attributes:
        name: in the summary.
        segments: what arrives.
        order: `sequence` sends one segment after the other (an abrupt shift between them), `mixed` shuffles them.
        passes: times the whole stream is sent.
        seed: of the shuffle; each pass has its own order.
    """

    name: str = "stream"
    segments: list[Segment] | None = None
    order: Literal["sequence", "mixed"] = "sequence"
    passes: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Arrival:
    """One prompt of a stream."""

    number: int
    turn: int
    task: str
    prompt: Prompt


class QueryRecord(Record):
    """One prompt answered under one policy.

    Attributes:
        stream, policy, task, id: what was asked, and of whom.
        number: place in the stream, from 0; `turn`: pass, from 0.
        tokens: of the answer.
        seconds: wall time of the whole generate call, update work included.
        update_seconds: taken from serving by updates in it.
        rounds, committed: decode rounds and tokens they committed.
        action, reason, reward: of the bandit; `synced`: the update that began to serve.
        digest: of the answer's tokens, so that policies can be compared.
    """

    stream: str
    policy: str
    task: str
    id: str
    number: int
    turn: int
    tokens: int
    seconds: float
    update_seconds: float
    rounds: int
    committed: int
    action: str
    reason: str
    reward: float | None
    synced: str | None
    digest: str


def arrivals(stream: Stream, folder: Path, limit: int | None = None) -> list[Arrival]:
    """The prompts of a stream in order.

    Args:
        folder: where the task files are.
        limit: prompts of each segment at most.

    Raises:
        ConfigurationError: the stream is empty, or a file is absent.
    """
    if not stream.segments or stream.passes < 1:
        raise ConfigurationError(
            f"The stream {stream.name} has {len(stream.segments or ())} segments and {stream.passes} passes.",
            "Give at least one of each.",
        )
    counts = [segment.prompts if limit is None else min(limit, segment.prompts) for segment in stream.segments]
    tasks = [
        read_task(folder / f"{segment.task}.jsonl", count)
        for segment, count in zip(stream.segments, counts, strict=True)
    ]
    one_pass = [(task.name, prompt) for task in tasks for prompt in task.prompts]
    every: list[Arrival] = []
    for turn in range(stream.passes):
        order = list(one_pass)
        if stream.order == "mixed":
            random.Random(f"{stream.seed}/{turn}").shuffle(order)
        every += [Arrival(len(every) + place, turn, *each) for place, each in enumerate(order)]
    return every


Ask = Callable[[Drafter | None, Prompt], Tensor]
"""(drafter, prompt) -> the new tokens, int64 `[tokens]`; without a drafter the target decodes alone."""


@dataclass(frozen=True)
class Replay:
    """A stream, the drafter that serves under each policy, and where the records go.

    Attributes:
        identity: what makes two replays the same beside stream and policies: name of a fact -> its JSON value.
    """

    stream: str
    drafters: Mapping[str, Drafter | None]
    ask: Ask
    out: Path
    save_every: int = 50
    identity: Mapping[str, Any] = field(default_factory=dict)

    def run(self, every: Sequence[Arrival], advance: Callable[[], None] = lambda: None) -> list[QueryRecord]:
        """Answers what is left of a stream under every policy in turn; goes on where an earlier run stopped.

        Nothing is timed before every policy has answered the first of these prompts once, untold.

        Raises:
            ConfigurationError: the folder holds something else; the message names every fact that differs.
        """
        done = self._resume(every)
        self._note(every[:done])
        self._warm_up(every[done:])
        with (self.out / RECORDS).open("a", encoding="utf-8") as file:
            for arrival in every[done:]:
                for policy in turn_order(list(self.drafters), arrival.number):
                    record = self._answer(policy, arrival)
                    file.write(record.model_dump_json() + "\n")
                    advance()
                file.flush()
                if (arrival.number + 1) % self.save_every == 0:
                    self._save(every[: arrival.number + 1])
        return list(parse_lines(self.out / RECORDS, QueryRecord))

    def _warm_up(self, left: Sequence[Arrival]) -> None:
        """Each policy's first query would be timed cold. An adapting drafter warms up unseen by its bandit."""
        for drafter in self.drafters.values() if left else ():
            self.ask(drafter.serving if isinstance(drafter, AdaptiveDrafter) else drafter, left[0].prompt)

    def _answer(self, policy: str, arrival: Arrival) -> QueryRecord:
        drafter = self.drafters[policy]
        started = time.perf_counter()
        tokens = self.ask(drafter, arrival.prompt)
        seconds = time.perf_counter() - started
        stats = drafter.last_stats if drafter is not None else None
        report = drafter.last_report if isinstance(drafter, AdaptiveDrafter) else None
        return QueryRecord(
            stream=self.stream,
            policy=policy,
            task=arrival.task,
            id=arrival.prompt.id,
            number=arrival.number,
            turn=arrival.turn,
            tokens=len(tokens),
            seconds=seconds,
            update_seconds=report.update_seconds if report else 0.0,
            rounds=stats.rounds if stats else len(tokens),
            committed=stats.committed if stats else len(tokens),
            action=str(report.decision.action) if report else "skip",
            reason=report.decision.reason if report else policy,
            reward=report.decision.reward if report else None,
            synced=str(report.synced) if report and report.synced else None,
            digest=hashlib.sha256(str(tokens.tolist()).encode()).hexdigest()[:16],
        )

    def _adaptive(self, done: int) -> Iterator[tuple[AdaptiveDrafter, Path]]:
        """With where each is saved after `done` questions: a folder a count, so that all are of the same moment."""
        for policy, drafter in self.drafters.items():
            if isinstance(drafter, AdaptiveDrafter):
                yield drafter, self.out / STATES / str(done) / policy

    def _facts(self, asked: Sequence[Arrival]) -> dict[str, Any]:
        text = json.dumps([[each.task, each.prompt.model_dump(mode="json")] for each in asked])
        own = {"stream": self.stream, "policies": list(self.drafters)}
        return {**self.identity, **own, "what was asked": hashlib.sha256(text.encode()).hexdigest()[:12]}

    def _save(self, asked: Sequence[Arrival]) -> None:
        done = len(asked)
        for drafter, folder in self._adaptive(done):
            drafter.save(folder)
        self._note(asked)
        for older in (self.out / STATES).glob("*"):
            if older.name != str(done):
                shutil.rmtree(older, ignore_errors=True)

    def _note(self, asked: Sequence[Arrival]) -> None:
        write_atomically(self.out / PROGRESS, json.dumps({"done": len(asked), "run": self._facts(asked)}))

    def _resume(self, every: Sequence[Arrival]) -> int:
        """Questions whose records and states are saved; what came after them is asked again."""
        self.out.mkdir(parents=True, exist_ok=True)
        progress, records = self.out / PROGRESS, self.out / RECORDS
        # A replay that was killed at once leaves an empty one.
        if records.exists() and records.stat().st_size and not progress.is_file():
            raise ConfigurationError(
                f"{self.out} has {RECORDS} and no {PROGRESS}: they are not of a replay.", "Give another --out."
            )
        found: dict[str, Any] = (
            json.loads(progress.read_text()) if progress.is_file() else {"done": 0, "run": self._facts(())}
        )
        if differing := differences(found.get("run", {}), self._facts(every[: found["done"]])):
            raise ConfigurationError(
                f"{self.out} holds another replay: {'; '.join(differing)}.",
                "Give another --out, or the configuration it was started with.",
            )
        done: int = found["done"]
        drop_cut_line(records)
        kept = [each for each in parse_lines(records, QueryRecord) if each.number < done] if done else []
        write_atomically(records, "".join(each.model_dump_json() + "\n" for each in kept))
        if done:
            for drafter, folder in self._adaptive(done):
                drafter.restore(folder)
        return done


def asker(model: Any, encode: Callable[[str], Tensor], max_new_tokens: int) -> Ask:
    """Greedy answers to the first turn of a prompt, with the drafter given."""

    def ask(drafter: Drafter | None, prompt: Prompt) -> Tensor:
        ids = encode(prompt.turns[0]).to(model.device)
        ids_out: Tensor = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            assistant_model=drafter,
        )
        return ids_out[0, ids.shape[1] :]

    return ask
