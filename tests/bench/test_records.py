"""Records and results survive the disk, and nothing malformed is read."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from specblock_zoo.bench.records import (
    PromptRecord,
    read_records,
    read_results,
    write_atomically,
    write_records,
    write_results,
)
from specblock_zoo.errors import BadRecordError, EmptyDataError
from tests.support.measured import record, results


def test_records_survive_the_disk(tmp_path: Path) -> None:
    written = (record(), record("code", 3))
    write_records(written, tmp_path / "records.jsonl")
    assert read_records(tmp_path / "records.jsonl") == written


def test_results_survive_the_disk(tmp_path: Path) -> None:
    assert read_results(tmp_path) is None
    write_results(results(), tmp_path)
    assert read_results(tmp_path) == results()


def test_edited_results_are_refused(tmp_path: Path) -> None:
    path = write_results(results(), tmp_path)
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "remark": "looks good"}))
    with pytest.raises(BadRecordError, match="remark"):
        read_results(tmp_path)


def test_a_bad_line_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(record().model_dump_json() + "\n\n{}\n")
    with pytest.raises(BadRecordError, match=r"records\.jsonl:3: task: Field required"):
        read_records(path)


def test_no_record_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text("\n")
    with pytest.raises(EmptyDataError, match="0 records"):
        read_records(tmp_path / "records.jsonl")


@pytest.mark.parametrize(("field", "value"), [("rounds", "3"), ("draft_ms", float("nan")), ("new_tokens", -1)])
def test_records_are_strictly_typed(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=field):
        PromptRecord.model_validate({**record().model_dump(), field: value})


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
