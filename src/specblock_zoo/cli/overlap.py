"""`specblock overlap`: is a drafter measured on what it was trained on?"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from specblock_zoo.bench.tasks import Task, read_task
from specblock_zoo.data.files import check_lines, make_folder, replacing
from specblock_zoo.data.overlap import RUN_WORDS, Decode, Overlap, Prompts
from specblock_zoo.data.records import AnswerRecord, parse_fields, read_objects
from specblock_zoo.errors import ConfigurationError, TargetMismatchError
from specblock_zoo.targets.local import resolve

Keep = Callable[[str], object]
NAMED = 20


@dataclass(frozen=True)
class OverlapSettings:
    """Arguments of `specblock overlap`.

    Attributes:
        records: answer records, as `specblock cache` reads them; questions and answers are both looked at.
        tasks: task files, as `specblock bench` reads them.
        target: whose tokenizer turns the records' token ids into text; not loaded where they hold messages.
        words: length of a run.
        out: the `.jsonl` file for the records that share nothing, if they are to be kept.
    """

    records: list[str]
    tasks: list[str]
    target: str = "smollm2-135m"
    words: int = RUN_WORDS
    out: str | None = None


def overlap(settings: OverlapSettings) -> None:
    """Counts training records that share a run of words with an evaluation prompt.

    Prompts of fewer words are looked for whole, down to eight words; still shorter ones are left out and counted.

    Args:
        settings: which records, which prompts, and what counts as shared.

    Raises:
        BadRecordError, EmptyDataError: a line of a file cannot be read, or a file holds none.
        ConfigurationError: a file does not exist, `out` does not end in `.jsonl`, `words` is too few, or the tokenizer
            cannot be loaded.
        TargetMismatchError: token ids of another target.
    """
    if settings.out is not None:
        check_lines(settings.out)
    measured = [read_task(Path(path)) for path in settings.tasks]
    texts = (turn for task in measured for prompt in task.prompts for turn in prompt.turns)
    prompts, out = Prompts.of(texts, settings.words), settings.out
    with nullcontext() if out is None else writing_lines(Path(out)) as keep:
        records = [Path(path) for path in settings.records]
        found = compare(answers(records, settings.target), prompts, decoder(settings.target), keep)
    print(report(found, prompts, measured, left_out=out is not None))
    for name in [*found.shared, *found.whole][:NAMED]:
        sys.stderr.write(f"shared: {name}\n")


def answers(records: list[Path], target: str) -> Iterator[tuple[dict[str, Any], AnswerRecord]]:
    """Records, one at a time, as they are and as they are read; their token ids must be the target's."""
    for where, fields in read_objects(records):
        record = parse_fields(fields, where)
        if record.messages is None and record.target not in (None, target):
            raise TargetMismatchError(
                f"{where}: answered by the target {record.target!r}; its token ids would be read as {target!r}'s.",
                f"Give --target {record.target}.",
            )
        yield fields, record


def compare(
    records: Iterable[tuple[dict[str, Any], AnswerRecord]], prompts: Prompts, decode: Decode, keep: Keep | None
) -> Overlap:
    """Looks at every record, and gives the lines of those that share nothing to `keep`."""
    found = Overlap()
    for fields, record in records:
        if found.look_at(record, prompts, decode) and keep is not None:
            keep(json.dumps(fields) + "\n")
    return found


def report(found: Overlap, prompts: Prompts, tasks: list[Task], left_out: bool) -> str:
    """What was found, in the form in which a zoo entry's `training` records it, with comments that say more."""
    return (
        f"# {len(found.shared)} of {found.records:,} records share {prompts.run_words} words in a row with one of "
        f"{prompts.count:,} prompts; {len(found.whole)} more contain a shorter prompt whole\n"
        f"# {prompts.too_short} prompts are too short to be looked for\n"
        "overlap:\n"
        f"  words: {prompts.run_words}\n"
        f"  records: {found.records}\n"
        f"  shared: {len(found.shared) + len(found.whole)}\n"
        f"  prompts: {prompts.count}\n"
        f"  tasks: [{', '.join(task.name for task in tasks)}]\n"
        f"  left_out: {str(left_out).lower()}"
    )


def decoder(target: str) -> Decode:
    """Token ids to text, by the target's tokenizer, which is loaded when it is first needed."""

    @cache
    def tokenizer() -> PreTrainedTokenizerBase:
        try:
            loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(resolve(target))
        except (OSError, ValueError) as cause:
            raise ConfigurationError(
                f"The tokenizer of {target!r} cannot be loaded: {cause}", "Give --target: whose token ids these are."
            ) from cause
        return loaded

    return lambda ids: str(tokenizer().decode(list(ids), skip_special_tokens=True))


@contextmanager
def writing_lines(out: Path) -> Iterator[Keep]:
    """What writes to `out`, whole or not at all."""
    make_folder(out.parent)
    with replacing(out) as half_done:
        stream: IO[str]
        with half_done.open("w", encoding="utf-8") as stream:
            yield stream.write
