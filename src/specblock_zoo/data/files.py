"""Files written whole or not at all, whatever interrupts."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specblock_zoo.errors import ConfigurationError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to; it becomes `path` if all goes well, and vanishes if not.

    Beside it, because only within one file system is a rename one step.

    Raises:
        ConfigurationError: the disk is full; `path` is as it was.
    """
    half_done = path.with_name(f".{path.name}.tmp")
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
