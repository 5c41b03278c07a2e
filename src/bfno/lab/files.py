"""All writing to disk: whole files or none, in an order that survives a power cut.

A file gets its name only when all of its content is on the disk, and a name is on the disk once its
folder was synced. Writers follow no link that someone has put in place of a file, and nothing waits
for a pipe.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bfno.lab.errors import ConfigError, DataError

__all__ = [
    "append_line",
    "cut_file",
    "existing_folder",
    "lock_file",
    "make_folder",
    "open_plain",
    "parse_yaml",
    "read_plain",
    "remove_file",
    "remove_folder",
    "remove_leftovers",
    "sync_folder",
    "write_atomically",
]

_LEFTOVER = ".partial"
_MOST_YAML_NODES = 10_000
_MOST_DIGITS = 1_000  # of an integer: Python itself prints no more than 4,300


def write_atomically(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Replace a file; all of the new content is on the disk before it gets the name.

    Missing folders are made. An existing file keeps its mode.

    Args:
        path: The file.
        content: Its new content.
        sync: Whether to wait until the disk has the name too; else `sync_folder` has to be called
            before anything relies on it.

    Raises:
        DataError: If the disk is full or the folder cannot be written to; the old file stays.
    """
    # In the same folder, because a rename across file systems would be a copy. It is named after
    # the process.
    partial = path.with_name(f".{path.name}.{os.getpid()}{_LEFTOVER}")
    with _explained(path, len(content)):
        make_folder(path.parent)
        try:
            _unlink(partial)
            others = os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            mode = _mode(path)
            rights = 0o666 if mode is None else 0o600
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | others, rights)
            if mode is not None:
                with contextlib.suppress(OSError):  # some file systems have no modes
                    os.fchmod(descriptor, mode)
            _write(descriptor, content)
            os.replace(partial, path)
        except BaseException:
            _unlink(partial)
            raise
        if sync:
            sync_folder(path.parent)


def append_line(path: Path, line: str) -> None:
    """Add a line to a file and wait until the disk has it.

    Raises:
        DataError: If the disk is full, or the file is not a plain one that can be written to.
    """
    content = line.encode() + b"\n"
    with _explained(path, len(content)):
        is_new = not os.path.lexists(path)
        _write(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), content)
        if is_new:
            sync_folder(path.parent)


def cut_file(path: Path, size: int) -> None:
    """Cut a file to a number of bytes.

    Raises:
        DataError: If it is not a plain file that can be written to.
    """
    with _explained(path, 0):
        descriptor = open_plain(path, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def open_plain(path: Path, flags: int) -> int:
    """Open a plain file for writing, without following a link or waiting for a pipe.

    Returns:
        The descriptor, which the caller closes.

    Raises:
        DataError: If there is something else in its place.
        OSError: If it cannot be opened.
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):  # what systems say of a link
            raise _not_plain(path, "is a link") from None
        if error.errno == errno.ENXIO:  # a pipe without a reader
            raise _not_plain(path, "is not a plain file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_plain(path, "is not a plain file")
    return descriptor


def lock_file(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file until it is closed, without waiting for others.

    The kernel releases the lock when the process ends, however it ends: no lock goes stale.

    Args:
        descriptor: The file.
        shared: Whether others may lock it in the same way at the same time.

    Returns:
        Whether it is locked; if not, another process has locked it.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_plain(path: Path, most: int | None = None) -> bytes:
    """The content of a file, through links but never from a pipe.

    Args:
        path: The file.
        most: Largest number of bytes to read.

    Raises:
        DataError: If it is not a plain file.
        OSError: If it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_plain(path, "is not a plain file")
    with open(descriptor, "rb") as file:
        return file.read(-1 if most is None else most)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, if they are missing, and wait until they are on the disk.

    Raises:
        OSError: If it cannot be made.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        if not path.is_dir():
            raise
    sync_folder(path.parent)


def existing_folder(path: Path) -> Path:
    """The nearest existing folder above a path; those between the two would have to be made.

    Raises:
        ConfigError: If the path lies below something that is not a folder.
    """
    nearest = next(place for place in path.absolute().parents if os.path.lexists(place))
    if not nearest.is_dir():
        raise ConfigError(path, f"{nearest} is not a folder", "name a file in a folder")
    return nearest


def remove_file(path: Path, *, sync: bool = True) -> None:
    """Delete a file, if it exists, and wait until that is on the disk.

    Raises:
        DataError: If it cannot be deleted.
    """
    with _explained(path, 0, "removed"):
        if _unlink(path) and sync:
            sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Delete a folder with all its content; the folder above it is not synced.

    Raises:
        DataError: If it cannot be deleted.
    """
    with _explained(path, 0, "removed"):
        if path.is_symlink() or not path.is_dir():
            _unlink(path)
            return
        for inner in list(path.iterdir()):
            remove_folder(inner)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)


def remove_leftovers(folder: Path) -> None:
    """Delete leftovers of killed writers in a folder to which no other program writes."""
    for partial in folder.glob(f".*{_LEFTOVER}"):
        _unlink(partial)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder.

    Raises:
        OSError: If it cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_octal(number: str) -> bool:
    """Whether YAML reads a number as another one than people do, because it begins with a 0."""
    digits = number.lstrip("+-")
    return digits.startswith("0") and digits.isdecimal() and int(digits) != int(digits, 8)


def parse_yaml(content: str | bytes) -> Any:
    """Read YAML, unless its aliases blow it up beyond any sensible size.

    Raises:
        ValueError: If it is not YAML, too deep, too large with its aliases expanded, or has a key
            twice or an octal number; the message says which.

    Example:
        >>> parse_yaml("train: {lr: 0.1}")
        {'train': {'lr': 0.1}}
    """
    import yaml  # only readers of settings need it

    class Loader(yaml.SafeLoader):
        """Counts nodes before aliases are resolved; an alias counts as the nodes it refers to."""

        def __init__(self, stream: str | bytes) -> None:
            super().__init__(stream)
            self.count, self.sizes = 0, {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            before, is_alias = self.count, self.check_event(yaml.AliasEvent)
            node: Any = super().compose_node(parent, index)
            if is_alias:
                # Within itself, the size of a node is not known yet: it has no end.
                self.count += self.sizes.get(id(node), _MOST_YAML_NODES)
            else:
                self.count += 1
                self.sizes[id(node)] = self.count - before
            if self.count > _MOST_YAML_NODES:
                raise ValueError(f"stands for more than {_MOST_YAML_NODES:,} values")
            is_integer = isinstance(node, yaml.ScalarNode) and node.tag.endswith(":int")
            if is_integer and len(node.value) > _MOST_DIGITS:
                raise ValueError(f"has a number of {len(node.value):,} digits")
            if is_integer and _is_octal(node.value):
                values = f"{int(node.value, 8)}, not {int(node.value)}"
                raise ValueError(f"has the number {node.value}, which YAML takes for {values}")
            return node

        def compose_mapping_node(self, anchor: Any) -> Any:
            # Of a key that is there twice, the first value would be lost without a word.
            node: Any = super().compose_mapping_node(anchor)
            seen: set[str] = set()
            for key in (key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key in seen:
                    raise ValueError(f"has {key[:40]!r} twice")
                seen.add(key)
            return node

    try:
        return yaml.load(content, Loader)
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise ValueError("is not YAML") from error


def _write(descriptor: int, content: bytes) -> None:
    """Write to an open file, wait until the disk has it, and close it."""
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _mode(path: Path) -> int | None:
    """The mode of a plain file; None if there is no such file."""
    try:
        found = os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    return stat.S_IMODE(found) if stat.S_ISREG(found) else None


def _unlink(path: Path) -> bool:
    """Delete a file; whether it was there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def _not_plain(path: Path, why: str) -> DataError:
    return DataError(path, why, "remove it; bfno writes to plain files only")


@contextlib.contextmanager
def _explained(path: Path, size: int, how: str = "written") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            need = f"{max(1, round(size / 2**20))} MB"
            raise DataError(path, "the disk is full", f"free {need} there and try again") from error
        why = (error.strerror or str(error)).lower()
        raise DataError(path, f"cannot be {how}: {why}", "check the folder's rights") from error
