"""The folder of a run: what it is (`run.json`), and its records, each on disk before the next is measured."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specblock_zoo.bench.cost import CostPoint
from specblock_zoo.bench.records import (
    AnswerRecord,
    Place,
    Provenance,
    Record,
    describe,
    parse_lines,
    read_records,
    write_atomically,
)
from specblock_zoo.data.files import make_folder
from specblock_zoo.data.locks import writing
from specblock_zoo.errors import BadRecordError, ConfigurationError

RUN_FILE, RECORDS_FILE = "run.json", "records.jsonl"
RUN_VERSION = 1


class Run(Record):
    """The content of `run.json`.

    Attributes:
        version: of this format.
        sha256: of `identity`.
        identity: what makes two runs the same: name of a fact -> its value.
        methods: names in the order of the configuration -> kind.
        drafters: method -> drafter it ran with.
        reference: method that variants are compared with.
        provenance: where and how.
        verify_cost: what a target forward costs, by rows; empty until measured.
    """

    version: int
    sha256: str
    identity: dict[str, Any]
    target: str
    methods: dict[str, str]
    drafters: dict[str, str]
    reference: str | None
    provenance: Provenance
    verify_cost: tuple[CostPoint, ...] = ()

    @property
    def places(self) -> int:
        """How often each method is asked in the finished run."""
        facts = self.identity
        draws = sum(len(facts["seeds"]) if temperature > 0 else 1 for temperature in facts["temperatures"])
        return draws * sum(name.startswith("task ") for name in facts) * int(facts["prompts"])


def provenance_of(run: Run, records: Sequence[AnswerRecord]) -> Provenance:
    """A run's provenance with every commit and version its records were made on: a resumed run may have several."""

    def all_of(values: Iterable[str]) -> str:
        return ", ".join(dict.fromkeys(values))

    made = run.provenance
    versions = {
        package: all_of(record.versions.get(package, found) for record in records) or found
        for package, found in made.versions.items()
    }
    commit = all_of(record.commit for record in records) or made.commit
    return made.model_copy(update={"commit": commit, "versions": versions})


def hash_identity(identity: Mapping[str, Any]) -> str:
    """SHA-256 over the sorted facts."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


@dataclass
class RunFolder:
    """A folder being filled. `done`: (method, place) of every record in it."""

    path: Path
    run: Run
    done: set[tuple[str, Place]] = field(default_factory=set)

    @classmethod
    def open(cls, path: Path, run: Run) -> "RunFolder":
        """Makes the folder, or takes up the same run where it was left.

        What does not decide a record, the reference, may change; without a record, provenance is this call's.

        Raises:
            ConfigurationError: the folder holds another run; the message names every fact that differs.
            BadRecordError: a record other than a cut last line cannot be read.
        """
        make_folder(path)
        file = path / RUN_FILE
        if not file.is_file():
            if (path / RECORDS_FILE).exists():
                raise ConfigurationError(
                    f"{path} has {RECORDS_FILE} and no {RUN_FILE}, so it is not known what was measured.",
                    "Give another folder.",
                )
            folder = cls(path, run)
            folder.save()
            return folder
        found = read_run(path)
        if found.sha256 != run.sha256:
            raise ConfigurationError(
                f"{path} holds another run: {'; '.join(differences(found.identity, run.identity))}.",
                "Give another folder, or the configuration it was started with.",
            )
        drop_cut_line(path / RECORDS_FILE)
        records = parse_lines(path / RECORDS_FILE, AnswerRecord) if (path / RECORDS_FILE).is_file() else ()
        done = {(record.method, record.place) for record in records}
        kept = {"reference": run.reference} | ({} if done else {"provenance": run.provenance})
        folder = cls(path, found.model_copy(update=kept), done)
        if folder.run != found:
            folder.save()
        return folder

    def append(self, record: AnswerRecord) -> None:
        """Adds a record; it is on the disk when this returns."""
        with (self.path / RECORDS_FILE).open("a", encoding="utf-8") as stream:
            stream.write(record.model_dump_json() + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        self.done.add((record.method, record.place))

    def save(self) -> None:
        """Writes `run.json` anew."""
        write_atomically(self.path / RUN_FILE, self.run.model_dump_json(indent=1) + "\n")


@contextmanager
def measuring_into(path: Path) -> Iterator[None]:
    """Makes the folder of a run and holds it against others until the block ends; who is killed lets go.

    Raises:
        ConfigurationError: another process measures into it; the message names it.
    """
    make_folder(path)
    with writing(path / RECORDS_FILE, hint="Wait until it is done, end it, or give another --out."):
        yield


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What differs between two identities, e.g. `max_new_tokens is 64 there and 128 here`."""
    absent = "nothing"
    return [
        f"{name} is {there.get(name, absent)} there and {here.get(name, absent)} here"
        for name in sorted({*there, *here})
        if there.get(name, absent) != here.get(name, absent)
    ]


def drop_cut_line(path: Path) -> None:
    """Removes what a kill left of a line at the end of a file."""
    if not path.is_file():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def read_run(path: Path) -> Run:
    """Reads `run.json` of a folder.

    Raises:
        ConfigurationError: there is none.
        BadRecordError: it cannot be read.
    """
    file = path / RUN_FILE
    if not file.is_file():
        raise ConfigurationError(f"{path} has no {RUN_FILE}.", "Give the folder of a run: `specblock bench --out`.")
    try:
        return Run.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise BadRecordError(f"{file}: {describe(error)}.", "Run the benchmark into another folder.") from error


def read_folder(path: Path) -> tuple[Run, tuple[AnswerRecord, ...]]:
    """A run and its records.

    Raises:
        ConfigurationError, BadRecordError: see `read_run`.
        EmptyDataError: nothing was measured yet.
    """
    return read_run(path), read_records(path / RECORDS_FILE)
