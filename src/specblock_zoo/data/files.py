"""Files written whole or not at all, whatever interrupts, however many write them."""

import errno
import importlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specblock_zoo.errors import ConfigurationError

TOKEN_BYTES = 8
FCNTL: Any = importlib.import_module("fcntl") if os.name == "posix" else None


def make_folder(folder: Path) -> None:
    """Makes a folder and those it lies in.

    Raises:
        ConfigurationError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise ConfigurationError(
            f"out is {str(folder)!r}; no folder can be made there ({cause.strerror}).", "Give another --out."
        ) from cause


def check_lines(out: str) -> None:
    """Raises `ConfigurationError` unless a file that is written line by line has a name that says so."""
    if Path(out).suffix != ".jsonl":
        raise ConfigurationError(
            f"out is {out!r}; expected a name ending in .jsonl.", "Compress the file once it is finished."
        )


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to; it becomes `path` if all goes well, and vanishes if not.

    Beside it, because only within one file system is a rename one step. Each call has a place of its own, so two
    writers cannot tear each other's file: the later one stays. What a killed writer left is removed by the next one.

    Raises:
        ConfigurationError: the disk is full; `path` is as it was.
    """
    _sweep(path)
    half_done, handle = _claim(path)
    try:
        yield half_done
        with half_done.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(half_done, path)
    except BaseException as cause:
        half_done.unlink(missing_ok=True)
        if not (isinstance(cause, OSError) and cause.errno == errno.ENOSPC):
            raise
        free = shutil.disk_usage(path.parent).free
        raise ConfigurationError(
            f"The disk is full: {path} could not be written, {free / 1e6:.0f} MB are free.",
            "Free some space and run the same command again: what is finished stays.",
        ) from cause
    finally:
        if handle is not None:
            os.close(handle)


def scratch_of(path: Path) -> Path:
    """A new name beside `path` for what is to become it."""
    return path.with_name(f".{path.name}.{secrets.token_hex(TOKEN_BYTES)}.tmp")


def _claim(path: Path) -> tuple[Path, int | None]:
    """A scratch file with the mode of any new file, held until its handle is closed: one that is free is a dead one."""
    while True:
        half_done = scratch_of(path)
        handle = os.open(half_done, os.O_RDWR | os.O_CREAT, 0o666)
        # A sweep may have taken it between these two lines.
        if _hold(handle) is not False and half_done.exists():
            if FCNTL is None:  # Windows renames no file that is open.
                os.close(handle)
                return half_done, None
            return half_done, handle
        os.close(handle)
        half_done.unlink(missing_ok=True)


def _sweep(path: Path) -> None:
    """Removes what killed writers of `path` left beside it."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.([0-9a-f]{{{2 * TOKEN_BYTES}}}\.)?tmp")
    for found in path.parent.glob(".*.tmp"):
        if not ours.fullmatch(found.name):
            continue
        try:
            handle = os.open(found, os.O_RDWR)
        except OSError:
            continue
        if _hold(handle):
            found.unlink(missing_ok=True)
        os.close(handle)


def _hold(handle: int) -> bool | None:
    """Whether an open file is ours alone now; None where the system or its disk has no such locks."""
    if FCNTL is None:
        return None
    try:
        FCNTL.flock(handle, FCNTL.LOCK_EX | FCNTL.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
