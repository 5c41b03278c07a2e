"""Reads known files out of a `.tar.gz` without unpacking it.

Our own reader for the one simple format of the official archives: it reads only regular files with
exactly the expected names, so no path, link or device in an archive ever reaches the file system.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from bfno.lab.data.reading import read_up_to, refusing_damage
from bfno.lab.errors import DataError

__all__ = ["read_members"]

_BLOCK = 512
_PIECE = 1 << 20
_REGULAR = (b"0", b"\0")
# Pictures hardly compress: the official archives unpack to less than 1.2 times their size.
_RATIO, _ALLOWANCE = 4, 64 << 20


def read_members(
    archive: Path, wanted: Mapping[str, int], fix: str
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and bytes of the wanted files, in the archive's order.

    Args:
        archive: A gzipped tar file.
        wanted: Largest accepted size of each file, by its full name in the archive.
        fix: What to do if the archive cannot be used.

    Raises:
        DataError: If the archive is damaged or unpacks to far more than it should, or a wanted
            file is too large, occurs twice or is a link or a device.
    """
    seen: set[str] = set()
    with refusing_damage(archive, fix), gzip.open(archive) as stream:
        tar = _Tar(stream, _RATIO * archive.stat().st_size + _ALLOWANCE)
        while (header := tar.next_header()) is not None:
            name, kind, size = header
            if name in wanted:
                if kind not in _REGULAR or name in seen or size > wanted[name]:
                    why = "no regular file" if kind not in _REGULAR else "too large"
                    why = "there twice" if name in seen else why
                    raise DataError(archive, f"{name} in it is {why}", fix)
                seen.add(name)
                yield name, tar.take(size)
                size = -size % _BLOCK
            else:
                size += -size % _BLOCK
            tar.skip(size)
        tar.drain()


class _Tar:
    """A tar stream that is read from front to end, up to a limit."""

    def __init__(self, stream: gzip.GzipFile, limit: int) -> None:
        self._stream, self._left = stream, limit

    def next_header(self) -> tuple[str, bytes, int] | None:
        """Name, kind and size of the next entry; `None` at the end."""
        block = self.take(_BLOCK).tobytes()
        if not any(block):
            return None
        # The checksum is taken with its own field filled with blanks.
        if sum(block) - sum(block[148:156]) + 8 * ord(" ") != _octal(block[148:156]):
            raise ValueError("a header of the archive has a wrong checksum")
        name = _text(block[:100])
        if block[257:262] == b"ustar" and (prefix := _text(block[345:500])):
            name = f"{prefix}/{name}"
        return name, block[156:157], _octal(block[124:136])

    def take(self, size: int) -> np.ndarray:
        """The next bytes."""
        self._count(size)
        data = read_up_to(self._stream, size)
        if len(data) < size:
            raise EOFError("the archive ends too early")
        return data

    def skip(self, size: int) -> None:
        """Skip bytes without keeping them."""
        self._count(size)
        while size:
            got = len(self._stream.read(min(size, _PIECE)))
            if not got:
                raise EOFError("the archive ends too early")
            size -= got

    def drain(self) -> None:
        """Read to the end, where gzip checks its checksum."""
        while piece := self._stream.read(_PIECE):
            self._count(len(piece))

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ValueError("unpacks to far more than it should")


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "replace")


def _octal(field: bytes) -> int:
    digits = field.strip(b" \0")
    if not digits.isdigit():
        raise ValueError("a header of the archive holds no octal number")
    return int(digits, 8)
