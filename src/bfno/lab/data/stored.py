"""Images that stay on disk and are read when used."""

from __future__ import annotations

import errno
import itertools
import math
import os
import resource
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from bfno.lab.errors import DataError

__all__ = ["Rows", "Shelf", "StoredImages", "file_identity"]

# Slices up to this size are read at once: then they are plain tensors.
_SMALL = 64 << 20
_MOST_OPEN = 256  # files at a time


class _OpenFiles:
    """The files read last, which stay open as long as there are not too many."""

    def __init__(self) -> None:
        self._descriptors: OrderedDict[int, int] = OrderedDict()
        # No thread may close what another one reads; a shelf may be discarded at any moment.
        self._lock = threading.RLock()

    def open(self, number: int, path: Path) -> tuple[int, ...]:
        """Open the file of a shelf; return its identity."""
        with self._lock:
            descriptor = self._descriptors[number] = self._opened(path)
            identity = file_identity(descriptor)
            self._close_all_but(_most_open())
        return identity

    def read(self, shelf: Shelf, path: Path, into: memoryview, start: int) -> int:
        """Fill a buffer from the file of a shelf; return the number of bytes."""
        with self._lock:
            if shelf.number not in self._descriptors:
                descriptor = self._descriptors[shelf.number] = self._opened(path)
                if file_identity(descriptor) != shelf.identity:
                    self.close(shelf.number)
                    raise OSError(errno.ESTALE, "it was changed")
            self._descriptors.move_to_end(shelf.number)
            found = os.preadv(self._descriptors[shelf.number], [into], start)
            self._close_all_but(_most_open())
        return found

    def close(self, number: int) -> None:
        """Close the file of a shelf, if it is open."""
        with self._lock:
            if number in self._descriptors:
                os.close(self._descriptors.pop(number))

    def _opened(self, path: Path) -> int:
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            return os.open(path, flags)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        self._close_all_but(0)  # the rest of the program needs more than expected
        return os.open(path, flags)

    def _close_all_but(self, count: int) -> None:
        while len(self._descriptors) > count:
            os.close(self._descriptors.popitem(last=False)[1])


_FILES = _OpenFiles()
_NUMBERS = itertools.count()


def _most_open() -> int:
    """Number of files that may stay open: a part of those that the system allows."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_OPEN if allowed == resource.RLIM_INFINITY else min(_MOST_OPEN, allowed // 4)


def file_identity(descriptor: int) -> tuple[int, ...]:
    """Identify an open file among all others, and from itself after a change."""
    about = os.fstat(descriptor)
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


class Shelf:
    """The bytes of images: a file, which is opened when needed, or memory.

    As long as few enough are open, no file can be taken away; a file that is opened again is
    refused if it has changed.

    Args:
        content: The file or the bytes.

    Raises:
        OSError: If the file cannot be opened.
    """

    def __init__(self, content: Path | bytes | bytearray) -> None:
        self._content = content
        self.number = next(_NUMBERS)
        self.identity: tuple[int, ...] = ()
        if isinstance(content, Path):
            self.identity = _FILES.open(self.number, content)
            weakref.finalize(self, _FILES.close, self.number)

    def read(self, into: memoryview, start: int) -> None:
        """Fill a buffer with bytes from an offset on.

        Raises:
            DataError: If there are too few, or the disk fails.
        """
        if not isinstance(self._content, Path):
            into[:] = memoryview(self._content)[start : start + len(into)]
            return
        why = "it was cut off"
        try:
            if _FILES.read(self, self._content, into, start) == len(into):
                return
        except OSError as error:
            why = (error.strerror or str(error)).lower()
        fix = "start again; the images are then decoded again"
        raise DataError(self._content, f"cannot be read ({why})", fix)


@dataclass(frozen=True)
class Rows:
    """The location of decoded images.

    Attributes:
        shelves: The shelves that hold them.
        shelf: Number of the shelf of each image.
        start: Its first byte there.
        shape: Channels, height and width of each.
    """

    shelves: Sequence[Shelf]
    shelf: np.ndarray
    start: np.ndarray
    shape: tuple[int, int, int]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def size(self) -> int:
        """Bytes of all images."""
        return len(self) * math.prod(self.shape)

    def take(self, which: Any) -> Rows:
        """Return the rows of some images, selected by anything that indexes an array."""
        return Rows(self.shelves, self.shelf[which], self.start[which], self.shape)

    def read(self) -> Tensor:
        """The images."""
        images = np.empty((len(self), math.prod(self.shape)), np.uint8)
        for row, shelf, start in zip(images, self.shelf, self.start, strict=True):
            self.shelves[shelf].read(row.data, int(start))
        return torch.from_numpy(images.reshape(len(self), *self.shape))


class StoredImages(Tensor):
    """Images on disk that look like a tensor of bytes, `(count, channels, height, width)`.

    An index reads its images, as a training batch needs. Parts of a `split` and large slices stay
    on disk; every other operation reads all images. A file on disk does not change while this is
    open, so reads always give the same.

    The bytes are read with system calls and not mapped into memory: mapped pages count as memory of
    the process, and a truncated file would crash it.

    Args:
        rows: Where the images are.
    """

    rows: Rows

    @staticmethod
    def __new__(cls: type[StoredImages], rows: Rows) -> StoredImages:
        # A tensor without content: what passes by the methods below fails instead of reading zeros.
        empty = torch.empty(len(rows), *rows.shape, dtype=torch.uint8, device="meta")
        images = empty.as_subclass(cls)
        images.rows = rows
        return images

    def __init__(self, rows: Rows) -> None:
        super().__init__()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"StoredImages({tuple(self.shape)})"

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return torch.device("cpu")

    def __getitem__(self, which: Any) -> Tensor:
        if isinstance(which, slice):
            taken = self.rows.take(which)
            return StoredImages(taken) if taken.size > _SMALL else taken.read()
        rows = _row_numbers(which)
        if rows is None:
            return self.rows.read()[which]
        if rows.ndim == 0:
            return self.rows.take(rows[None]).read()[0]
        return self.rows.take(rows).read()

    def split(self, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
        if dim != 0 or not isinstance(split_size, int):
            return self.rows.read().split(split_size, dim)
        starts = range(0, len(self.rows), split_size)
        return tuple(StoredImages(self.rows.take(slice(k, k + split_size))) for k in starts)

    def numpy(self, *, force: bool = False) -> np.ndarray:
        return self.rows.read().numpy()

    def tolist(self) -> list[Any]:
        return self.rows.read().tolist()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in _ABOUT or getattr(func, "__name__", "") == "__get__":
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

        def whole(value: Any) -> Any:
            return value.rows.read() if isinstance(value, StoredImages) else value

        return func(*_pytree.tree_map(whole, args), **_pytree.tree_map(whole, kwargs or {}))


# Functions that only ask about a tensor itself, besides its attributes.
_ABOUT = {Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__, Tensor.is_floating_point}


def _row_numbers(which: Any) -> np.ndarray | None:
    """The images that an index selects, as numbers or a mask; None if it is of another kind."""
    if isinstance(which, Tensor):
        which = which.cpu().numpy()
    elif not isinstance(which, int | list | np.ndarray | np.integer):
        return None
    try:
        found = np.array(which) if np.size(which) else np.zeros(np.shape(which), np.int64)
    except ValueError:  # lists of different lengths
        return None
    # Bytes are a mask for torch, and a single truth value adds an axis.
    is_index = found.dtype.kind in "iu" and found.dtype != np.uint8
    is_mask = found.dtype.kind == "b" and found.ndim == 1
    return found if (is_index and found.ndim < 2) or is_mask else None
