"""A run can be killed at any time, and no folder holds two runs."""

import os
from pathlib import Path

import pytest

from specblock_zoo.bench.folder import (
    RECORDS_FILE,
    RUN_FILE,
    Run,
    RunFolder,
    differences,
    measuring_into,
    read_folder,
    read_run,
)
from specblock_zoo.errors import BadRecordError, ConfigurationError, EmptyDataError
from tests.support.measured import record, run


def test_what_was_recorded_is_done_when_the_folder_is_opened_again(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path / "run", run())
    folder.append(record())
    again = RunFolder.open(tmp_path / "run", run())
    assert again.done == {("drafted", record().place)}
    assert read_folder(tmp_path / "run") == (run(), (record(),))


def test_a_line_that_a_kill_cut_short_is_measured_again(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path, run())
    folder.append(record())
    path = tmp_path / RECORDS_FILE
    whole = path.read_text()
    path.write_text(whole + record(number=1).model_dump_json()[:90])
    again = RunFolder.open(tmp_path, run())
    assert path.read_text() == whole
    again.append(record(number=2))
    assert [each.id for each in read_folder(tmp_path)[1]] == ["chat/0", "chat/2"]


def test_another_run_is_refused_naming_what_differs(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, run())
    with pytest.raises(ConfigurationError, match="max_new_tokens is 20 there and 64 here"):
        RunFolder.open(tmp_path, run(max_new_tokens=64))
    assert read_run(tmp_path) == run()
    assert differences({"a": 1}, {"b": 2}) == ["a is 1 there and nothing here", "b is nothing there and 2 here"]


def test_folders_that_are_no_run_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"no {RUN_FILE}"):
        read_folder(tmp_path)
    (tmp_path / RECORDS_FILE).write_text("")
    with pytest.raises(ConfigurationError, match="not known what was measured"):
        RunFolder.open(tmp_path, run())
    (tmp_path / RUN_FILE).write_text("{}")
    with pytest.raises(BadRecordError, match="version"):
        read_run(tmp_path)
    (tmp_path / RUN_FILE).write_text(run().model_dump_json())
    with pytest.raises(EmptyDataError, match="0 records"):
        read_folder(tmp_path)


def test_a_folder_is_measured_into_by_one_process_and_the_dead_do_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    with measuring_into(folder):
        (lock,) = folder.iterdir()
        content = lock.read_bytes()
        named = rf"\(id {os.getpid()} on .+\) is writing {folder / RECORDS_FILE}"
        with pytest.raises(ConfigurationError, match=named) as refused, measuring_into(folder):
            pass
        assert "another --out" in str(refused.value.hint)
    # What a kill leaves: the file, which nobody holds.
    lock.write_bytes(content)
    with measuring_into(folder):
        pass
    assert list(folder.iterdir()) == []


def test_a_broken_line_within_the_file_is_named(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, run()).append(record())
    path = tmp_path / RECORDS_FILE
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(BadRecordError, match=r"records\.jsonl:1"):
        RunFolder.open(tmp_path, run())


def test_provenance_is_that_of_the_call_that_measured_first_and_the_reference_that_of_the_last(tmp_path: Path) -> None:
    def called(command: str, reference: str | None) -> Run:
        made = run().provenance.model_copy(update={"command": command})
        return run().model_copy(update={"provenance": made, "reference": reference})

    RunFolder.open(tmp_path, called("specblock bench --dry_run", None))
    RunFolder.open(tmp_path, called("specblock bench", "drafted")).append(record())
    RunFolder.open(tmp_path, called("specblock bench --resumed", "plain"))
    assert (read_run(tmp_path).provenance.command, read_run(tmp_path).reference) == ("specblock bench", "plain")
