"""Read answer records: one JSON object a line, plain or gzipped.

A record has a unique `id` and either `prompt_ids` and `answer_ids` (token ids of the target) or `messages`;
`temperature`, `finish` and `target` (the name of the target that answered) are optional, other keys are ignored.
"""

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from specblock_zoo.errors import BadRecordError, ConfigurationError, EmptyDataError

MAX_TOKEN_ID = 2**31 - 1
FORM = "Each line needs an id and either prompt_ids and answer_ids (lists of token ids) or messages (role, content)."


@dataclass(frozen=True)
class AnswerRecord:
    """One answered prompt, as tokens or as messages (the other form is None).

    Attributes:
        where: file and line it came from, for error messages.
    """

    id: str
    where: str
    prompt_ids: tuple[int, ...] | None = None
    answer_ids: tuple[int, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    temperature: float | None = None
    finish: str | None = None
    target: str | None = None


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    if not path.is_file():
        raise ConfigurationError(f"There is no record file {path}.", "Give the path of a .jsonl or .jsonl.gz file.")
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with _open(path) as stream:
            for number, line in enumerate(stream, start=1):
                yield number, line
    except (EOFError, gzip.BadGzipFile) as cause:
        raise BadRecordError(
            f"{path}:{number + 1}: the compressed file ends or breaks here ({cause}).", "Fetch the file again."
        ) from cause


def _token_ids(fields: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    ids = fields[key]
    if not (isinstance(ids, list) and all(type(token) is int and 0 <= token <= MAX_TOKEN_ID for token in ids)):
        raise BadRecordError(f"{where}: {key} is {str(ids)[:60]!r}; expected token ids, 0..{MAX_TOKEN_ID}.", FORM)
    return tuple(ids)


def checked_messages(messages: Any, where: str) -> tuple[Mapping[str, Any], ...]:
    """At least one message, with a role and a content each.

    Raises:
        BadRecordError: something else.
    """
    if not (
        isinstance(messages, list)
        and messages
        and all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in messages)
    ):
        raise BadRecordError(
            f"{where}: messages is {str(messages)[:60]!r}; expected a list of objects with role and content.", FORM
        )
    return tuple(messages)


def _facts(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    facts = {key: fields.get(key) for key in ("temperature", "finish", "target")}
    for key, kinds in (("temperature", (int, float)), ("finish", (str,)), ("target", (str,))):
        if facts[key] is not None and type(facts[key]) not in kinds:
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise BadRecordError(f"{where}: {key} is {facts[key]!r}; expected {expected}, or no such key.", FORM)
    if facts["temperature"] is not None:
        facts["temperature"] = float(facts["temperature"])
    return facts


def parse_object(line: bytes | str, where: str) -> dict[str, Any]:
    """A line's JSON object, which has a string id; `where` is its file and line.

    Raises:
        BadRecordError: it is none, or has none.
    """
    try:
        fields = json.loads(line)
        # Half of a character that takes two (a cut emoji) is JSON, but no text.
        json.dumps(fields, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as cause:
        raise BadRecordError(f"{where}: not JSON ({cause}).", FORM) from cause
    if not isinstance(fields, dict) or not isinstance(fields.get("id"), str) or not fields["id"]:
        raise BadRecordError(f"{where}: expected a JSON object with a string id, found {str(fields)[:60]!r}.", FORM)
    return fields


def is_object(line: bytes) -> bool:
    """Whether `parse_object` reads it."""
    try:
        parse_object(line, "")
    except BadRecordError:
        return False
    return True


def parse_record(line: bytes | str, where: str) -> AnswerRecord:
    """One record from one line; `where` is its file and line.

    Raises:
        BadRecordError: not a JSON object, no id, or neither form of the text.
    """
    return parse_fields(parse_object(line, where), where)


def parse_fields(fields: Mapping[str, Any], where: str) -> AnswerRecord:
    """One record from the fields of its line.

    Raises:
        BadRecordError: neither form of the text, or a fact of the wrong type.
    """
    facts = _facts(fields, where)
    if "prompt_ids" in fields and "answer_ids" in fields:
        prompt_ids, answer_ids = (_token_ids(fields, key, where) for key in ("prompt_ids", "answer_ids"))
        return AnswerRecord(fields["id"], where, prompt_ids=prompt_ids, answer_ids=answer_ids, **facts)
    if "messages" in fields:
        return AnswerRecord(fields["id"], where, messages=checked_messages(fields["messages"], where), **facts)
    raise BadRecordError(f"{where}: keys are {', '.join(sorted(fields))}; the text is missing.", FORM)


Refusal = Callable[[BadRecordError], None]
"""What to do with a record that cannot be used: raise, or count it and go on."""


def refuse(error: BadRecordError) -> None:
    """Stops at the first bad record."""
    raise error


def read_objects(paths: Sequence[Path], on_bad: Refusal = refuse) -> Iterator[tuple[str, dict[str, Any]]]:
    """File and line, and JSON object, of every line of all files, in order; blank lines are skipped, ids are unique.

    Args:
        on_bad: receives the error of every line that cannot be read or repeats an id; file and line are in it.

    Raises:
        BadRecordError: from `on_bad`; or a compressed file ends too early.
        EmptyDataError: a file holds nothing.
        ConfigurationError: a file does not exist.
    """
    seen: dict[str, str] = {}
    for path in paths:
        before = len(seen)
        yield from objects_of(_lines(path), path, seen, on_bad)
        if len(seen) == before:
            raise EmptyDataError(f"{path} holds no record; at least one is needed.", "Give a file with records.")


def objects_of(
    lines: Iterable[tuple[int, bytes]], path: Path, seen: dict[str, str], on_bad: Refusal = refuse
) -> Iterator[tuple[str, dict[str, Any]]]:
    """File and line, and JSON object, of every numbered line; see `read_objects`.

    Args:
        path: the lines' file, for errors.
        seen: where each id was used before; receives those of these lines.
    """
    for number, line in lines:
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            fields = parse_object(line, where)
            _check_new(fields["id"], where, seen)
        except BadRecordError as error:
            on_bad(error)
            continue
        seen[fields["id"]] = where
        yield where, fields


def read_records(paths: Sequence[Path], on_bad: Refusal = refuse) -> Iterator[AnswerRecord]:
    """All records of all files, in order; see `read_objects`, a record that cannot be used goes to `on_bad` as well."""
    for where, fields in read_objects(paths, on_bad):
        try:
            record = parse_fields(fields, where)
        except BadRecordError as error:
            on_bad(error)
            continue
        yield record


def _check_new(record_id: str, where: str, seen: Mapping[str, str]) -> None:
    if record_id in seen:
        raise BadRecordError(
            f"{where}: the id {record_id!r} was used at {seen[record_id]}.",
            "Give every record its own id; the validation split hangs on it.",
        )


def content_sha256(paths: Iterable[Path]) -> str:
    """Hash of the records' text whatever the files are called and whether they are compressed."""
    digest = hashlib.sha256()
    for path in paths:
        for _, line in _lines(path):
            digest.update(line)
    return digest.hexdigest()
