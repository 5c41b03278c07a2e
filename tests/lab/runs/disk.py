"""A disk that loses its power: what a program has done to it, and what may be left of that.

All writes go through `bfno.lab.files`, whose `os` is replaced here by one that notes or fails.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Operation = tuple[str, tuple[Any, ...]]


class RecordingOS:
    """Stands for `os` in `bfno.lab.files`, and notes what changes something below a folder.

    Args:
        root: The folder, which the disk has already.
        note: Called before each operation; may raise in its place.
    """

    def __init__(self, root: Path, note: Callable[[str], None] = lambda _: None) -> None:
        self.root, self.operations, self._note = root, list[Operation](), note
        self._open: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def mark(self, name: str, *values: Any) -> None:
        """Note something that is no operation of the disk."""
        self.operations.append((name, values))

    def _name(self, path: Any) -> str:
        return os.path.relpath(path, self.root)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY):  # not to read
            self._note("open")
        descriptor = os.open(path, flags, mode)
        self._open[descriptor] = self._name(path)
        if is_new:
            self.mark("create", self._name(path))
        return descriptor

    def write(self, descriptor: int, content: Any) -> int:
        try:
            self._note("write")
        except BaseException:
            os.write(descriptor, bytes(content)[: len(content) // 2])  # torn
            raise
        count = os.write(descriptor, content)
        self.mark("write", self._open[descriptor], bytes(content)[:count])
        return count

    def ftruncate(self, descriptor: int, size: int) -> None:
        self._note("truncate")
        os.ftruncate(descriptor, size)
        self.mark("truncate", self._open[descriptor], size)

    def fsync(self, descriptor: int) -> None:
        self._note("sync")
        os.fsync(descriptor)
        self.mark("sync", self._open[descriptor])

    def replace(self, source: Any, target: Any) -> None:
        self._note("rename")
        os.replace(source, target)
        self.mark("rename", self._name(source), self._name(target))

    def unlink(self, path: Any) -> None:
        self._note("unlink")
        os.unlink(path)
        self.mark("unlink", self._name(path))

    def mkdir(self, path: Any) -> None:
        self._note("mkdir")
        os.mkdir(path)
        self.mark("mkdir", self._name(path))

    def rmdir(self, path: Any) -> None:
        self._note("rmdir")
        os.rmdir(path)
        self.mark("rmdir", self._name(path))


@dataclass
class _File:
    content: bytes = b""
    synced: bytes = b""

    def after_a_crash(self, chance: random.Random | None) -> bytes:
        if chance is None or self.content == self.synced:
            return self.synced
        cut = chance.randrange(len(self.content) + 1)
        whole, holes = self.content, self.content[:cut] + bytes(len(self.content) - cut)
        return chance.choice([self.synced, whole, whole[:cut], holes])


@dataclass
class _Folder:
    names: dict[str, Any] = field(default_factory=dict)
    synced: dict[str, Any] = field(default_factory=dict)
    pending: list[dict[str, Any]] = field(default_factory=list)

    def change(self, **names: Any) -> None:
        """Let names mean something else, all at once; None is no longer there."""
        self._apply(self.names, names)
        self.pending.append(names)

    @staticmethod
    def _apply(entries: dict[str, Any], names: dict[str, Any]) -> None:
        for name, node in names.items():
            entries.pop(name, None)
            if node is not None:
                entries[name] = node

    def sync(self) -> None:
        self.synced, self.pending = dict(self.names), []

    def after_a_crash(self, chance: random.Random | None) -> dict[str, Any]:
        kept = dict(self.synced)
        for change in self.pending:
            if chance is not None and chance.random() < 0.5:
                self._apply(kept, change)
        return kept


class Disk:
    """What has been done to a folder, as far as a loss of power could tell.

    A file's content is safe when the file was synced, its name when its folder was. All else may
    be there or not, each change by itself; a rename is one change.
    """

    def __init__(self) -> None:
        self._root = _Folder()

    def apply(self, operation: Operation) -> None:
        """Take in the next operation; marks are none."""
        kind, (name, *values) = operation
        if kind == "saved":
            return
        parts = [part for part in name.split(os.sep) if part != "."]
        if kind == "sync":
            node = self._find(parts)
            if isinstance(node, _File):
                node.synced = node.content
            else:
                node.sync()
        elif kind in ("write", "truncate"):
            file = self._find(parts)
            (value,) = values
            file.content = file.content + value if kind == "write" else file.content[:value]
        else:
            folder, last = self._find(parts[:-1]), parts[-1]
            if kind == "rename":
                target = values[0].split(os.sep)
                assert target[:-1] == parts[:-1], "a rename stays in its folder"
                folder.change(**{last: None, target[-1]: folder.names[last]})
            else:
                made = {"create": _File, "mkdir": _Folder}.get(kind)
                folder.change(**{last: made() if made else None})

    def crash(self, place: Path, chance: random.Random | None = None) -> None:
        """Write what a loss of power leaves to a folder: nothing unsynced, or some of it."""
        self._restore(self._root, place, chance)

    def _restore(self, folder: _Folder, place: Path, chance: random.Random | None) -> None:
        place.mkdir(parents=True)
        for name, node in folder.after_a_crash(chance).items():
            if isinstance(node, _File):
                (place / name).write_bytes(node.after_a_crash(chance))
            else:
                self._restore(node, place / name, chance)

    def _find(self, parts: list[str]) -> Any:
        node: Any = self._root
        for part in parts:
            node = node.names[part]
        return node
