"""Keeps decoded images, so that the next start need not decode them or hold all in memory.

The images of a folder in one shape are in the user's cache folder, in files that are written once
and completely. Each names the image files that it was made from, with their sizes and modification
times, and ends with a checksum. New and changed images go into new files; an interrupted start
keeps what it had decoded, except for the last seconds.
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import itertools
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bfno.lab.data.listing import ImageFile, Listing
from bfno.lab.data.pixels import SystemFailure, decode, quiet_pillow
from bfno.lab.data.places import cache_folder
from bfno.lab.data.stored import Rows, Shelf, file_identity
from bfno.lab.errors import DataError
from bfno.lab.files import remove_file, write_atomically

__all__ = ["Decoded", "decode_images", "telling"]

_logger = logging.getLogger(__name__)
_MAGIC = b"bfno decoded images 1\n"
_DIGEST, _LENGTH = 32, 8
_TAIL = _LENGTH + len(_MAGIC) + _DIGEST
# Limits of a file, so that little is lost when a start is interrupted.
_MOST_IMAGES, _MOST_BYTES, _MOST_SECONDS = 4096, 64 << 20, 20.0
_CHUNK = 256  # images that wait for the decoders at a time
_MOST_THREADS = 16
_MANY = 2000  # images that take long enough to decode to be announced
_PIECE = 1 << 20

Progress = Callable[[int, int], object]
_Key = tuple[str, int, int]
_told: contextvars.ContextVar[Progress | None] = contextvars.ContextVar("told", default=None)


@contextlib.contextmanager
def telling(progress: Progress | None) -> Iterator[None]:
    """Report decoding progress to `progress` while the context is active.

    Args:
        progress: Called with the number of images decoded so far and the total; None reports
            nothing.
    """
    token = _told.set(progress)
    try:
        yield
    finally:
        _told.reset(token)


@dataclass(frozen=True)
class Decoded:
    """Images decoded now or before.

    Attributes:
        rows: Where they are.
        kept: The numbers of their files.
        errors: Why the other files cannot be read, by their number.
    """

    rows: Rows
    kept: np.ndarray
    errors: dict[int, DataError]


def decode_images(
    listing: Listing, files: Sequence[ImageFile], shape: tuple[int, int, int]
) -> Decoded:
    """Decode images of a folder; those that are not in the cache are decoded in parallel.

    Args:
        listing: All images of the folder; cached images of other files are deleted.
        files: The requested files; no others are decoded.
        shape: Their channels, height and width.

    Raises:
        ConfigError: If Pillow is missing.
        SystemFailure: If images cannot be read for a reason other than their content.
    """
    with quiet_pillow():
        cache = _Cache(listing, shape)
        wanted = {_key(file): number for number, file in enumerate(files)}
        new = [file for file in files if _key(file) not in cache.places]
        errors = cache.add(new)
    kept = np.array([n for key, n in wanted.items() if key in cache.places], np.int64)
    places = np.array([cache.places[_key(files[n])] for n in kept], np.int64).reshape(-1, 2)
    rows = Rows(cache.shelves, places[:, 0], places[:, 1], shape)
    numbered = {wanted[key]: error for key, error in errors.items()}
    return Decoded(rows, kept, numbered)


def _key(file: ImageFile) -> _Key:
    return file.name, file.size, file.modified


class _Cache:
    """The decoded images of a folder in one shape.

    Args:
        listing: The images of the folder.
        shape: The shape.
    """

    def __init__(self, listing: Listing, shape: tuple[int, int, int]) -> None:
        self.folder, self.shape = listing.folder, shape
        self.shelves: list[Shelf] = []
        self.places: dict[_Key, tuple[int, int]] = {}
        """Shelf and first byte there of each decoded image."""
        self._is_writable = True
        self._place = cache_folder() / "images" / _name(listing.folder, shape)
        self._open({_key(file) for file in listing.files})

    def _open(self, known: set[_Key]) -> None:
        """Open intact files, and delete damaged or useless ones."""
        damaged, failures = 0, list[OSError]()
        for path in sorted(self._place.glob("*.bin")):
            try:
                found = _read(path, self.shape)
            except FileNotFoundError:  # another process has deleted it
                continue
            except OSError as error:  # which says nothing of the file
                failures.append(error)
                continue
            if found is None:
                damaged += 1
            elif not known.isdisjoint(found[1]):
                self._put(*found)
                continue
            with contextlib.suppress(DataError):
                remove_file(path, sync=False)
        if damaged:
            what = "file of decoded images was" if damaged == 1 else "files of decoded images were"
            _logger.warning(
                "%s: %d %s damaged or foreign and will be recreated", self._place, damaged, what
            )
        if failures:
            _logger.warning(
                "%s: %d %s of decoded images could not be read (%s); what %s is decoded again",
                self._place,
                len(failures),
                "files" if failures[1:] else "file",
                failures[0].strerror or failures[0],
                "they hold" if failures[1:] else "it holds",
            )

    def _put(self, shelf: Shelf, keys: Sequence[_Key]) -> None:
        size = math.prod(self.shape)
        for row, key in enumerate(keys):
            self.places[key] = len(self.shelves), row * size
        self.shelves.append(shelf)

    def add(self, files: Sequence[ImageFile]) -> dict[_Key, DataError]:
        """Decode files, keep those that can be decoded, and return why the others cannot."""
        errors: dict[_Key, DataError] = {}
        if len(files) >= _MANY:
            _logger.warning(
                "%s: decodes %s images into %s", self.folder, f"{len(files):,}", self._place
            )
        buffer, keys, since = bytearray(), list[_Key](), time.monotonic()
        for done, (file, found) in enumerate(self._decoded(files), 1):
            if isinstance(found, DataError):
                errors[_key(file)] = found
            else:
                buffer += found.tobytes()
                keys.append(_key(file))
            is_full = len(keys) == _MOST_IMAGES or len(buffer) >= _MOST_BYTES
            if keys and (is_full or time.monotonic() - since > _MOST_SECONDS or done == len(files)):
                self._write(buffer, keys)
                buffer, keys, since = bytearray(), [], time.monotonic()
        if keys:  # the last file was a bad one
            self._write(buffer, keys)
        return errors

    def _decoded(
        self, files: Sequence[ImageFile]
    ) -> Iterator[tuple[ImageFile, np.ndarray | DataError]]:
        """Every file with its pixels, or with its error."""

        def attempt(file: ImageFile) -> np.ndarray | DataError:
            try:
                return decode(self.folder / file.name, self.shape)
            except SystemFailure:
                raise
            except DataError as error:
                return error

        tell, done = _told.get() or (lambda done, total: None), itertools.count(1)
        # Pillow's decoders let other threads run; processes would take longer to start.
        pool = ThreadPoolExecutor(min(_cores(), _MOST_THREADS))
        try:
            for start in range(0, len(files), _CHUNK):
                chunk = files[start : start + _CHUNK]
                for file, found in zip(chunk, pool.map(attempt, chunk), strict=True):
                    yield file, found
                    tell(next(done), len(files))
        finally:
            pool.shutdown(cancel_futures=True)

    def _write(self, pixels: bytearray, keys: list[_Key]) -> None:
        """Keep images on disk or, if that fails, in memory."""
        contents = _framed(pixels, keys, self.shape)
        path = self._place / f"{hashlib.sha256(contents[-_DIGEST:]).hexdigest()[:24]}.bin"
        if self._is_writable:
            try:
                write_atomically(path, contents)
                self._put(Shelf(path), keys)
                return
            except (DataError, OSError) as error:
                self._is_writable = False
                _logger.warning("decoded images are not kept for the next start: %s", error)
        self._put(Shelf(pixels), keys)


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _name(folder: Path, shape: tuple[int, int, int]) -> str:
    """The name for the decoded images of a folder: different decoders may give different pixels."""
    import PIL

    told = f"{folder.resolve()}\0{shape}\0{PIL.__version__}"
    sizes = "x".join(map(str, shape))
    return f"{sizes}-{hashlib.sha256(os.fsencode(told)).hexdigest()[:24]}"


def _framed(pixels: bytearray, keys: list[_Key], shape: tuple[int, int, int]) -> bytes:
    """The content of a file: pixels, their description, its length, and a checksum of all."""
    about = json.dumps({"shape": shape, "files": keys}, ensure_ascii=True).encode()
    tail = about + len(about).to_bytes(_LENGTH, "big") + _MAGIC
    digest = hashlib.sha256(pixels)
    digest.update(tail)
    return b"".join((pixels, tail, digest.digest()))


def _read(path: Path, shape: tuple[int, int, int]) -> tuple[Shelf, list[_Key]] | None:
    """The content of a file; None if it is damaged, or something else.

    Raises:
        OSError: If the system cannot read it.
    """
    with open(path, "rb") as stream:
        try:
            keys = _checked_keys(stream, shape)
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        if keys is None:
            return None
        shelf = Shelf(path)
        if shelf.identity != file_identity(stream.fileno()):
            raise FileNotFoundError(path)  # another one has its name now
        return shelf, keys


def _checked_keys(stream: BinaryIO, shape: tuple[int, int, int]) -> list[_Key] | None:
    """The images in a file; None if its checksum or format is wrong."""
    size = os.fstat(stream.fileno()).st_size
    if size < _TAIL:
        return None
    digest, left = hashlib.sha256(), size - _DIGEST
    while left > 0 and (piece := stream.read(min(_PIECE, left))):
        digest.update(piece)
        left -= len(piece)
    if left or digest.digest() != stream.read():
        return None
    stream.seek(size - _TAIL)
    length = int.from_bytes(stream.read(_LENGTH), "big")
    if stream.read(len(_MAGIC)) != _MAGIC or length > size - _TAIL:
        return None
    stream.seek(size - _TAIL - length)
    about = json.loads(stream.read(length))
    keys = [(str(name), int(size_), int(changed)) for name, size_, changed in about["files"]]
    expected = len(keys) * math.prod(shape) + length + _TAIL
    return keys if tuple(about["shape"]) == shape and size == expected else None
