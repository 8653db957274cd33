"""Prompts -> answers by the target itself: a drafter learns the distribution it will be judged by.

Batches are planned from all prompts, so that a resumed run makes the batches the interrupted one would have made, and
the finished file is the same to the byte. Their order is drawn, so that what an interrupted run has answered is a fair
sample of the prompts: of all temperatures and lengths.
"""

import hashlib
import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from transformers import PreTrainedTokenizerBase

from specblock_zoo.data.chat import prompt_ids
from specblock_zoo.data.engines import Answer, AnswerEngine, Question, engine_class
from specblock_zoo.data.files import check_lines, make_folder
from specblock_zoo.data.locks import writing
from specblock_zoo.data.records import checked_messages, is_object, objects_of, read_objects
from specblock_zoo.data.settings import DTYPES, check_device
from specblock_zoo.errors import BadRecordError, ConfigurationError, EmptyDataError
from specblock_zoo.targets.local import fast_dtype, load_target

FORM = "Each line needs an id and one of: prompt (text), turns (the first is asked), messages (role, content)."


@dataclass(frozen=True)
class AnswerSettings:
    """Arguments of `specblock answers`.

    Attributes:
        prompts: files, `.jsonl` or `.jsonl.gz`: id, and prompt, turns or messages; source and license are kept.
        target: name of an embedded target, a model folder, or a Hub repository.
        out: the `.jsonl` file of answers; an interrupted one is continued.
        temperatures: each prompt gets one of them, by a hash of its id; name one twice to give it twice the share.
        max_new_tokens: at most that many tokens of answer.
        max_prompt_tokens: longer prompts are left out and counted.
        max_prompts: only so many prompts, the first ones.
        batch_size: prompts of like length answered at once.
        thinking: sets the chat template's switch for reasoning; its own default when not given.
        engine: who runs the target: local.
        dtype: of the target's weights: float32, bfloat16, float16; the fastest exact one of the device when not given.
        device: where the target runs.
        seed: of the sampling, and of the order of the batches.
        max_seconds: begin no batch later than this after the start; what is left is for a later call.
    """

    prompts: list[str]
    target: str
    out: str
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    max_new_tokens: int = 384
    max_prompt_tokens: int = 512
    max_prompts: int | None = None
    batch_size: int = 16
    thinking: bool | None = None
    engine: str = "local"
    dtype: str | None = None
    device: str = "cpu"
    seed: int = 0
    max_seconds: float | None = None

    def check(self) -> None:
        """Raises `ConfigurationError` or `UnknownNameError` unless every value is in range."""
        engine_class(self.engine)
        check_device(self.device)
        for name in ("max_new_tokens", "max_prompt_tokens", "max_prompts", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} is {value}; expected at least 1.", "Correct the argument.")
        if self.max_seconds is not None and self.max_seconds <= 0:
            raise ConfigurationError(
                f"max_seconds is {self.max_seconds}; expected a number above 0.", "Correct the argument."
            )
        if not self.temperatures or min(self.temperatures) < 0:
            raise ConfigurationError(
                f"temperatures are {self.temperatures}; expected one or more, each at least 0.", "Correct them."
            )
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ConfigurationError(f"dtype is {self.dtype!r}; expected one of {', '.join(DTYPES)}.", "Choose one.")
        check_lines(self.out)


@dataclass(frozen=True)
class Prompt:
    """One prompt, and what of it goes into its record."""

    question: Question
    temperature: float
    facts: dict[str, Any]


def temperature_of(record_id: str, temperatures: Sequence[float]) -> float:
    """One of the temperatures, by the id alone."""
    return temperatures[int.from_bytes(hashlib.sha256(record_id.encode()).digest()[8:16]) % len(temperatures)]


def messages_of(fields: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The conversation a prompt's line stands for.

    Raises:
        BadRecordError: it has none of the three forms.
    """
    messages, turns = fields.get("messages"), fields.get("turns")
    text = turns[0] if isinstance(turns, list) and turns else fields.get("prompt")
    if messages:
        return [dict(message) for message in checked_messages(messages, where)]
    if isinstance(text, str) and text:
        return [{"role": "user", "content": text}]
    raise BadRecordError(f"{where}: keys are {', '.join(sorted(fields))}; no prompt among them can be read.", FORM)


def read_prompts(settings: AnswerSettings, tokenizer: PreTrainedTokenizerBase) -> tuple[list[Prompt], int]:
    """The prompts in order, and how many were too long.

    Raises:
        BadRecordError: a line cannot be read, or repeats an id; file and line are named.
        EmptyDataError: no prompt is left.
    """
    prompts: list[Prompt] = []
    too_long = 0
    for where, fields in read_objects([Path(file) for file in settings.prompts]):
        if len(prompts) == settings.max_prompts:
            break
        ids = prompt_ids(tokenizer, messages_of(fields, where), settings.thinking)
        if len(ids) > settings.max_prompt_tokens:
            too_long += 1
            continue
        facts: dict[str, Any] = {name: fields[name] for name in ("source", "license") if name in fields}
        temperature = temperature_of(fields["id"], settings.temperatures)
        prompts.append(Prompt(Question(fields["id"], tuple(ids)), temperature, facts))
    if not prompts:
        raise EmptyDataError(
            f"{', '.join(settings.prompts)}: no prompt is left; {too_long} exceed max_prompt_tokens "
            f"{settings.max_prompt_tokens}.",
            "Give prompts, or raise max_prompt_tokens.",
        )
    return prompts, too_long


def plan_batches(prompts: Sequence[Prompt], batch_size: int, seed: int = 0) -> list[list[Prompt]]:
    """Batches of one temperature and like length, in an order drawn with `seed`."""
    batches: list[list[Prompt]] = []
    for temperature in sorted({prompt.temperature for prompt in prompts}):
        like = [prompt for prompt in prompts if prompt.temperature == temperature]
        like.sort(key=lambda prompt: (len(prompt.question.prompt_ids), prompt.question.id))
        batches += [like[start : start + batch_size] for start in range(0, len(like), batch_size)]
    random.Random(seed).shuffle(batches)
    return batches


BEGINNING = b'{"id"'
"""Of every line that is written; what begins otherwise is somebody else's."""


def answered_ids(out: Path, target: str | None = None) -> set[str]:
    """Ids of a file's records; a last line that a killed run left unfinished is cut off, once the others are checked.

    Raises:
        BadRecordError: another line is no record or repeats an id, file and line are named; or the last one is no part
            of a record.
        ConfigurationError: a record names another target than this one.
    """
    if not out.exists():
        return set()
    content = out.read_bytes()
    last = content[content.rfind(b"\n") + 1 :]
    is_whole = not last or is_object(last)
    if not is_whole and not (last.startswith(BEGINNING) or BEGINNING.startswith(last)):
        raise BadRecordError(f"{out}: the last line is no record that was cut off.", "Give another --out.")
    whole = content if is_whole else content.removesuffix(last)
    found: dict[str, str] = {}
    for where, fields in objects_of(enumerate(whole.split(b"\n"), start=1), out, found):
        if target is not None and fields.get("target", target) != target:
            raise ConfigurationError(
                f"{where}: answered by {fields['target']!r}; --target is {target!r}.",
                "Give another --out: a drafter learns one target.",
            )
    with out.open("r+b") as stream:
        if not is_whole:
            stream.truncate(len(whole))
        elif last:
            stream.seek(0, os.SEEK_END)
            stream.write(b"\n")
    return set(found)


def as_line(prompt: Prompt, answer: Answer, target: str) -> str:
    """One answer record, as `records` reads it."""
    record = {
        "id": prompt.question.id,
        **prompt.facts,
        "prompt_ids": prompt.question.prompt_ids,
        "answer_ids": answer.answer_ids,
        "temperature": prompt.temperature,
        "finish": answer.finish,
        "target": target,
    }
    return json.dumps(record, separators=(",", ":")) + "\n"


def write_answers(settings: AnswerSettings) -> int:
    """Answers every prompt that `settings.out` has no answer for, as far as the time allows; returns how many it was.

    Raises:
        ConfigurationError, UnknownNameError, BadRecordError, EmptyDataError: bad input; another process is writing
            the file; it holds another target's answers.
        MissingPackageError: an embedded target whose package is absent.
    """
    settings.check()
    out = Path(settings.out)
    if out.resolve() in {Path(file).resolve() for file in settings.prompts}:
        raise ConfigurationError(f"--out {out} is among --prompts.", "Give another --out: answers are appended to it.")
    make_folder(out.parent)
    ends = time.monotonic() + (settings.max_seconds or float("inf"))
    dtype = DTYPES[settings.dtype] if settings.dtype else fast_dtype(settings.device)
    model, tokenizer = load_target(settings.target, dtype, settings.device)
    prompts, too_long = read_prompts(settings, tokenizer)
    console = Console(stderr=True)
    console.print(f"{len(prompts):,} prompts ({too_long} too long)", highlight=False)
    with writing(out, hint="Wait for it, or give another --out."):
        engine = engine_class(settings.engine)(model, tokenizer)
        return _answer_missing(settings, prompts, engine, ends, console)


def _answer_missing(
    settings: AnswerSettings, prompts: Sequence[Prompt], engine: AnswerEngine, ends: float, console: Console
) -> int:
    """Appends the answers that `settings.out` lacks until the clock (`time.monotonic`) says `ends`; their number."""
    out = Path(settings.out)
    done = answered_ids(out, settings.target)
    planned = plan_batches(prompts, settings.batch_size, settings.seed)
    batches = [batch for batch in planned if not _ids(batch) <= done]
    console.print(f"{sum(len(_ids(batch) - done) for batch in batches):,} without an answer", highlight=False)
    written = 0
    with out.open("a", encoding="utf-8") as stream:
        for batch in track(batches, description="answers", console=console):
            if time.monotonic() >= ends:
                break
            # A batch cut short by a kill is made again whole: its sampling depends on all of it.
            lines = _answer(engine, batch, settings)
            pairs = zip(batch, lines, strict=True)
            new = [line for prompt, line in pairs if prompt.question.id not in done]
            stream.write("".join(new))
            stream.flush()
            os.fsync(stream.fileno())
            written += len(new)
    return written


def _ids(batch: Sequence[Prompt]) -> set[str]:
    return {prompt.question.id for prompt in batch}


def _answer(engine: AnswerEngine, batch: Sequence[Prompt], settings: AnswerSettings) -> list[str]:
    questions = [prompt.question for prompt in batch]
    answers = engine.answer(questions, batch[0].temperature, settings.max_new_tokens, settings.seed)
    return [as_line(prompt, answer, settings.target) for prompt, answer in zip(batch, answers, strict=True)]
