"""Who may write what of a folder that several processes write into; a killed process lets go by itself."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path

from specblock_zoo.data.files import make_folder
from specblock_zoo.errors import ConfigurationError

CACHE_HINT = "Wait for it, give each worker its own --worker, or give another --out."
SOMEBODY = "Another process"


@contextmanager
def using_folder(folder: Path, alone: bool) -> Iterator[None]:
    """Makes the folder and holds it: alone, or together with others who do not want to be alone.

    Raises:
        ConfigurationError: somebody holds it in a way that does not allow this, or it cannot be made.
    """
    make_folder(folder)
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not _lock(handle, folder, (LOCK_EX if alone else LOCK_SH) | LOCK_NB):
            raise in_use(folder)
        yield
    finally:
        os.close(handle)


@contextmanager
def writing(file: Path, wait: bool = False, hint: str = CACHE_HINT) -> Iterator[None]:
    """Holds one file against others, by a lock beside it that names us and vanishes afterwards.

    Args:
        wait: until the other is done, instead of refusing.
        hint: what can be done by who is refused.

    Raises:
        ConfigurationError: another process is writing it; the message names it.
    """
    handle = _acquire(file, wait, hint)
    try:
        yield
    finally:
        lock_of(file).unlink(missing_ok=True)
        os.close(handle)


def lock_of(file: Path) -> Path:
    """Name of the lock that stands for a file."""
    return file.with_name(f".{file.name}.lock")


def locked_files(folder: Path) -> list[Path]:
    """Files of a folder that have a lock, held or left behind."""
    return [folder / lock.name.removeprefix(".").removesuffix(".lock") for lock in folder.glob(".*.lock")]


def in_use(place: Path, holder: str = SOMEBODY, hint: str = CACHE_HINT) -> ConfigurationError:
    """What a second writer of `place` is told."""
    return ConfigurationError(f"{holder} is writing {place}.", hint)


def _acquire(file: Path, wait: bool, hint: str) -> int:
    lock = lock_of(file)
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _lock(handle, file, LOCK_EX | (0 if wait else LOCK_NB)):
                raise in_use(file, os.pread(handle, 200, 0).decode(errors="replace") or SOMEBODY, hint)
            # Who held it before may have removed it while we waited: then it stands for nothing.
            if _same(handle, lock):
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{SOMEBODY} (id {os.getpid()} on {socket.gethostname()})".encode(), 0)
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _lock(handle: int, place: Path, kind: int) -> bool:
    """Whether the lock is ours now; raises `ConfigurationError` where the file system has none."""
    try:
        flock(handle, kind)
    except BlockingIOError:
        return False
    except OSError as cause:
        raise ConfigurationError(
            f"{place} cannot be locked ({cause.strerror}): its file system has no flock.",
            "Give an --out on a local disk, or mount the file system with flock.",
        ) from cause
    return True


def _same(handle: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except FileNotFoundError:
        return False
