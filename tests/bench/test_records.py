"""Records and results survive the disk, and nothing malformed is read."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from specblock_zoo.bench.records import (
    AnswerRecord,
    Work,
    read_records,
    read_results,
    write_atomically,
    write_records,
    write_results,
)
from specblock_zoo.errors import BadRecordError, EmptyDataError
from tests.support.measured import DISTINCT, LOOPING, record, results


def work() -> Work:
    return Work(**{name: value for name, value in vars(record()).items() if name in Work.model_fields})


def test_records_survive_the_disk(tmp_path: Path) -> None:
    written = (record(), record(task="code", number=3))
    write_records(written, tmp_path / "records.jsonl")
    assert read_records(tmp_path / "records.jsonl") == written


def test_results_survive_the_disk(tmp_path: Path) -> None:
    assert read_results(tmp_path) is None
    write_results(results(), tmp_path)
    assert read_results(tmp_path) == results()


def test_results_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    path = write_results(results(), tmp_path)
    fields = json.loads(path.read_text())
    for name in ("version", "sampled"):
        del fields[name]
    for task in (fields["overall"], *fields["tasks"]):
        for name in ("alpha_by_depth", "rank_confusion", "commit_ms", "drafter_calls", "nodes"):
            del task[name]
    path.write_text(json.dumps(fields))
    found = read_results(tmp_path)
    assert found is not None
    assert (found.version, found.sampled, found.overall.tau) == (1, None, results().overall.tau)


def test_the_cost_of_turns_adds_up() -> None:
    both = Work(**vars(work())) + work()
    assert (both.rounds, both.draft_ms, both.accepted) == (20, 200.0, work().accepted * 2)
    assert both.offered == {"0.0": 20, "0.1": 8}
    assert both.round_ms == pytest.approx(2 * 400.0)


def test_a_record_counts_the_tokens_of_all_turns_and_loops_in_any() -> None:
    turns = record(answers=(DISTINCT, LOOPING))
    assert (turns.new_tokens, turns.looping) == (len(DISTINCT) + len(LOOPING), True)
    assert not record(answers=(DISTINCT, DISTINCT)).looping


def test_edited_results_are_refused(tmp_path: Path) -> None:
    path = write_results(results(), tmp_path)
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "remark": "looks good"}))
    with pytest.raises(BadRecordError, match="remark"):
        read_results(tmp_path)


def test_a_bad_line_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(record().model_dump_json() + "\n\n{}\n")
    with pytest.raises(BadRecordError, match=r"records\.jsonl:3: rounds: Field required"):
        read_records(path)


def test_no_record_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text("\n")
    with pytest.raises(EmptyDataError, match="0 records"):
        read_records(tmp_path / "records.jsonl")


@pytest.mark.parametrize(("field", "value"), [("rounds", "3"), ("draft_ms", float("nan")), ("seconds", 0.0)])
def test_records_are_strictly_typed(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=field):
        AnswerRecord.model_validate({**record().model_dump(), field: value})


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"


def test_a_line_in_another_encoding_is_named_too(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes((record().model_dump_json() + "\n").encode() + '{"id": "Stra\u00dfe"}\n'.encode("latin-1"))
    with pytest.raises(BadRecordError, match=r"records\.jsonl:2"):
        read_records(path)
