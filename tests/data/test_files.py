"""A reader sees the old file or the new one, never half of it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
def test_a_full_disk_is_told_with_the_file(tmp_path):
    os.symlink("/dev/full", tmp_path / ".file.tmp")
    with pytest.raises(ConfigurationError, match=r"disk is full: .*file could"), replacing(tmp_path / "file") as half:
        half.write_text("x" * 100_000)
    assert list(tmp_path.iterdir()) == []
