"""A reader sees the old file or the new one, never half of it."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specblock_zoo.data import files
from specblock_zoo.data.files import replacing
from specblock_zoo.errors import ConfigurationError

KILLED = """
import os, signal, sys
from pathlib import Path
from specblock_zoo.data.files import replacing

with replacing(Path(sys.argv[1])) as half_done:
    half_done.write_text("hal")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_new_content_takes_the_place_of_the_old(tmp_path):
    for content in ("old", "new"):
        with replacing(tmp_path / "file") as half_done:
            half_done.write_text(content)
            assert half_done.parent == tmp_path, "a rename is one step only within a file system"
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("file", "new")]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_the_old_content_alone(tmp_path, error):
    (tmp_path / "file").write_text("old")

    def fail():
        with replacing(tmp_path / "file") as half_done:
            half_done.write_text("hal")
            raise error

    with pytest.raises(error):
        fail()
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("file", "old")]


def test_a_kill_in_mid_write_leaves_the_old_content(tmp_path):
    (tmp_path / "file").write_text("old")
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "file")], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_is_told_with_the_file(tmp_path, monkeypatch):
    (tmp_path / "scratch").symlink_to("/dev/full")
    monkeypatch.setattr(files, "scratch_of", lambda path: path.with_name("scratch"))
    with pytest.raises(ConfigurationError, match=r"disk is full: .*file could"), replacing(tmp_path / "file") as half:
        half.write_text("x" * 100_000)
    assert list(tmp_path.iterdir()) == []


def test_two_writers_of_a_file_do_not_tear_each_others(tmp_path):
    with replacing(tmp_path / "file") as first, replacing(tmp_path / "file") as second:
        assert first != second
        first.write_text("first, longer")
        second.write_text("second")
        assert first.read_text() == "first, longer"
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("file", "first, longer")]


def test_what_the_killed_left_is_removed_by_the_next_writer_and_nothing_else(tmp_path):
    place = str(tmp_path / "file")
    subprocess.run([sys.executable, "-c", KILLED, place], check=False)
    (tmp_path / ".file.tmp").write_text("of an older release")
    others = [tmp_path / name for name in (".file.txt.0123456789abcdef.tmp", ".file2.tmp", "file.tmp")]
    for other in others:
        other.touch()
    assert len(list(tmp_path.iterdir())) == 5
    with replacing(tmp_path / "file") as half_done:
        half_done.write_text("new")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "file", *others])


def test_a_file_that_a_sweep_took_before_it_was_held_is_not_written_to(tmp_path, monkeypatch):
    hold, claimed = files._hold, []

    def swept(handle):
        claimed.append(handle)
        if len(claimed) == 1:
            next(tmp_path.iterdir()).unlink()
        return hold(handle)

    monkeypatch.setattr(files, "_hold", swept)
    with replacing(tmp_path / "file") as half_done:
        assert half_done.exists()
        half_done.write_text("new")
    assert len(claimed) == 2


def test_a_replaced_file_has_the_mode_of_a_new_one(tmp_path):
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "file") as half_done:
        half_done.write_text("new")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("lacks", ["disk", "system"])
def test_where_there_are_no_locks_files_are_written_and_nothing_is_swept(tmp_path, monkeypatch, lacks):
    def has_none(handle, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    if lacks == "disk":
        monkeypatch.setattr(files.FCNTL, "flock", has_none)
    else:
        monkeypatch.setattr(files, "FCNTL", None)
    (tmp_path / ".file.tmp").touch()
    with replacing(tmp_path / "file") as half_done:
        half_done.write_text("new")
    assert sorted(file.name for file in tmp_path.iterdir()) == [".file.tmp", "file"]
