"""Keeps the result of parsing large text files, so that the next run starts at once."""

from __future__ import annotations

import hashlib
import io
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from bfno.lab.data.places import cache_folder
from bfno.lab.errors import DataError
from bfno.lab.files import write_atomically

__all__ = ["Arrays", "cached", "fingerprint"]

Arrays = dict[str, np.ndarray]
_DIGEST_BYTES = 32
_logger = logging.getLogger(__name__)


def fingerprint(pieces: Iterable[bytes]) -> str:
    """Return the SHA-256 of the pieces and their boundaries.

    Example:
        >>> fingerprint([b"ab", b"c"]) == fingerprint([b"a", b"bc"])
        False
    """
    found = hashlib.sha256()
    for piece in pieces:
        found.update(len(piece).to_bytes(8, "big"))
        found.update(piece)
    return found.hexdigest()


def cached(name: str, key: str, make: Callable[[], Arrays]) -> Arrays:
    """Return the result of `make`, from the user's cache folder if it is there.

    A file with a wrong checksum is made again. If the folder cannot be written to, nothing is kept.

    Args:
        name: Description of the arrays, for the file's name.
        key: Fingerprint of everything they depend on.
        make: Makes the arrays, none of which may hold objects.
    """
    path = cache_folder() / "parsed" / f"{name}-{key}.bin"
    found = _read(path)
    if found is None:
        found = make()
        _write(path, found)
    return found


def _read(path: Path) -> Arrays | None:
    if not os.path.isfile(path):
        return None
    try:
        with open(path, "rb") as stream:
            digest, content = stream.read(_DIGEST_BYTES), stream.read()
    except OSError:
        return None
    if hashlib.sha256(content).digest() != digest:
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _write(path: Path, arrays: Arrays) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    content = buffer.getvalue()
    try:
        write_atomically(path, hashlib.sha256(content).digest() + content)
    except DataError as error:
        _logger.info("parsed data are not kept for the next run: %s", error)
