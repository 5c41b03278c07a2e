"""The bytes of a data set's files: plain, gzipped or inside the official archive.

Nothing is read beyond the size of the official file, so a file that unpacks to more than it should
takes no more memory than a correct one.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bfno.lab.data.archives import read_members
from bfno.lab.data.catalogue import DataFile, DataSet
from bfno.lab.data.reading import read_up_to, refusing_damage
from bfno.lab.errors import DataError

__all__ = [
    "Content",
    "again",
    "file_matches",
    "find_files",
    "read_archive",
    "read_file",
    "read_files",
    "state_of",
]

_BLOCK = 1 << 20
_EXTRA_LIMIT = 1 << 20  # the small text files that come along


@dataclass(frozen=True)
class Content:
    """The bytes of one file.

    Attributes:
        source: Where they came from, for messages.
        data: The bytes.
        fix: What to do if they are wrong.
    """

    source: str
    data: np.ndarray
    fix: str

    def wrong(self, why: str) -> DataError:
        """Return the error that says what is wrong with this file."""
        return DataError(self.source, why, self.fix)


def again(data_set: DataSet) -> str:
    """Advice for a file that has to be replaced."""
    return f"replace it; `bfno data get {data_set.name}` downloads the official file"


def find_files(folder: Path, data_set: DataSet) -> dict[str, Path]:
    """Return the path of each needed file in the folder, by its official name."""
    found: dict[str, Path] = {}
    for file in data_set.contents:
        for path in (folder / spelling for spelling in file.spellings):
            # Unlike the method of a path, this answers also where a folder may not be read.
            if os.path.isfile(path):
                found.setdefault(file.name, path)
    return found


def read_file(path: Path, file: DataFile, fix: str) -> Content:
    """Read a file, gzipped or plain; at most one byte more than the official one has."""
    unpack = gzip.open if path.suffix == ".gz" else open
    with refusing_damage(path, fix), unpack(path, "rb") as stream:
        return Content(str(path), read_up_to(stream, file.size + 1), fix)


def read_files(files: Mapping[str, Path], data_set: DataSet) -> dict[str, Content]:
    """Read the needed files by their official names."""
    return {
        file.name: read_file(files[file.name], file, again(data_set)) for file in data_set.contents
    }


def read_archive(archive: Path, data_set: DataSet) -> dict[str, Content]:
    """Read the needed files, and the additional small ones, from the official archive.

    Raises:
        DataError: If the archive is damaged, or lacks a file or holds something else in its place.
    """
    limits = {file.name: file.size for file in data_set.contents}
    for extra in (data_set.names_file, *data_set.extras):
        if extra:
            limits[extra] = _EXTRA_LIMIT
    wanted = {f"{data_set.archive_folder}/{name}": limit for name, limit in limits.items()}
    fix = again(data_set)
    found = {
        member.rpartition("/")[2]: Content(f"{archive}, {member}", data, fix)
        for member, data in read_members(archive, wanted, fix)
    }
    lacking = [file.name for file in data_set.contents if file.name not in found]
    if lacking:
        raise DataError(archive, f"lacks {', '.join(lacking)}", fix)
    return found


def state_of(data: np.ndarray, file: DataFile) -> str:
    """Return how the bytes compare with the official file: `ok` or what is wrong.

    Example:
        >>> state_of(np.zeros(3, np.uint8), DataFile("x", 5, None, ("x",)))
        'truncated'
    """
    if len(data) != file.size:
        return "truncated" if len(data) < file.size else "too long"
    if file.digest is None:
        return "ok"
    algorithm, _, expected = file.digest.partition(":")
    found = hashlib.new(algorithm, data.data, usedforsecurity=False).hexdigest()
    return "ok" if found == expected else "wrong checksum"


def file_matches(path: Path, digest: str, fix: str) -> bool:
    """Return whether the file on disk has that checksum."""
    algorithm, _, expected = digest.partition(":")
    found = hashlib.new(algorithm, usedforsecurity=False)
    with refusing_damage(path, fix), open(path, "rb") as stream:
        while block := stream.read(_BLOCK):
            found.update(block)
    return found.hexdigest() == expected
