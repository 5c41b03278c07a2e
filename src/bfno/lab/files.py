"""Writing files so that a crash at any moment leaves the old content or the new, no mixture."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from bfno.lab.errors import DataError

__all__ = ["append_line", "remove_leftovers", "write_atomically"]

_LEFTOVER = ".partial"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file's content: the whole of it is on the disk before it gets the name.

    Folders on the way to it are made.

    Raises:
        DataError: If the disk is full or the folder cannot be written to; the old file stays.
    """
    # In the same folder, for a rename across file systems would be a copy; named after the process.
    partial = path.with_name(f".{path.name}.{os.getpid()}{_LEFTOVER}")
    with _explained(path, len(content)):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(partial, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def append_line(path: Path, line: str) -> None:
    """Add a line to a file and wait until the disk has it.

    Raises:
        DataError: If the disk is full or the file cannot be written to.
    """
    content = line.encode() + b"\n"
    with _explained(path, len(content)), open(path, "ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def remove_leftovers(folder: Path) -> None:
    """Delete what writers that were killed have left in a folder that nobody else writes to."""
    for partial in folder.glob(f".*{_LEFTOVER}"):
        partial.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explained(path: Path, size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            need = f"{max(1, round(size / 2**20))} MB"
            raise DataError(path, "the disk is full", f"free {need} there and try again") from error
        why = (error.strerror or str(error)).lower()
        raise DataError(path, f"cannot be written: {why}", "check the folder's rights") from error
