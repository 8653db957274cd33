"""One writer per file; a folder is shared or held alone; the dead hold nothing."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from contextlib import nullcontext

import pytest

from specblock_zoo.data import locks
from specblock_zoo.data.locks import lock_of, locked_files, using_folder, writing
from specblock_zoo.errors import ConfigurationError

DIES = """
import os, signal, sys
from pathlib import Path
from specblock_zoo.data.locks import writing

with writing(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""
REFUSED = rf"Another process \(id {os.getpid()} on .+\) is writing .*shard"


def test_a_file_has_one_writer_and_its_lock_vanishes(tmp_path):
    shard = tmp_path / "shard"
    with writing(shard):
        assert locked_files(tmp_path) == [shard]
        with pytest.raises(ConfigurationError, match=REFUSED) as refused, writing(shard, hint="Take another."):
            pass
        assert refused.value.hint == "Take another."
        with writing(tmp_path / "another"):
            pass
    with writing(shard):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_lets_go(tmp_path):
    shard = tmp_path / "shard"
    ended = subprocess.run([sys.executable, "-c", DIES, str(shard)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert lock_of(shard).exists()
    with writing(shard):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_removed_while_we_waited_for_it_is_not_taken(tmp_path, monkeypatch):
    taken = []

    def removed_meanwhile(handle, kind):
        taken.append(handle)
        if len(taken) == 1:
            lock_of(tmp_path / "shard").unlink()
        fcntl.flock(handle, kind)

    monkeypatch.setattr(locks, "flock", removed_meanwhile)
    with writing(tmp_path / "shard", wait=True):
        assert len(taken) == 2, "the first lock stood for a file that is gone"
        assert lock_of(tmp_path / "shard").exists()


@pytest.mark.parametrize(
    ("held", "wanted", "refused"), [(False, False, False), (False, True, True), (True, False, True)]
)
def test_many_share_a_folder_or_one_has_it_alone(tmp_path, held, wanted, refused):
    expected = pytest.raises(ConfigurationError, match="Another process is writing") if refused else nullcontext()
    with using_folder(tmp_path / "new", alone=held), expected, using_folder(tmp_path / "new", alone=wanted):
        pass


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="no folder can be made"), using_folder(tmp_path / "file", alone=False):
        pass


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def has_none(handle, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(locks, "flock", has_none)
    for held in (writing(tmp_path / "shard"), using_folder(tmp_path, alone=True)):
        with pytest.raises(ConfigurationError, match=f"{tmp_path}.* cannot be locked .*has no flock"), held:
            pass


def test_what_goes_wrong_inside_is_not_taken_for_another_writer(tmp_path):
    with pytest.raises(BlockingIOError), using_folder(tmp_path, alone=False):
        raise BlockingIOError
