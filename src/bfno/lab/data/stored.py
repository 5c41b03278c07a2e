"""Images that stay on disk, and are read when they are used."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from bfno.lab.errors import DataError

__all__ = ["Rows", "Shelf", "StoredImages"]

# Slices up to this size are read at once: then they are plain tensors.
_SMALL = 64 << 20


class Shelf:
    """Bytes that images lie in: an open file, which nobody can change or take away, or memory.

    Args:
        content: The descriptor of a file, which this closes in the end; or the bytes.
        name: Where they come from, for messages.
    """

    def __init__(self, content: int | bytes | bytearray, name: str) -> None:
        self._content, self._name = content, name
        if isinstance(content, int):
            weakref.finalize(self, os.close, content)

    def read(self, into: memoryview, start: int) -> None:
        """Fill a buffer with the bytes from a place on.

        Raises:
            DataError: If there are not as many, or the disk fails.
        """
        if not isinstance(self._content, int):
            into[:] = memoryview(self._content)[start : start + len(into)]
            return
        try:
            found = os.preadv(self._content, [into], start)
        except OSError as error:
            found = error.strerror
        if found != len(into):
            why = f"cannot be read ({found if isinstance(found, str) else 'it was cut off'})"
            raise DataError(self._name, why, "start again; decoded images are then made anew")


@dataclass(frozen=True)
class Rows:
    """Where decoded images are.

    Attributes:
        shelves: What they lie in.
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
        """Those of some images, by anything that indexes an array."""
        return Rows(self.shelves, self.shelf[which], self.start[which], self.shape)

    def read(self) -> Tensor:
        """The images."""
        images = np.empty((len(self), math.prod(self.shape)), np.uint8)
        for row, shelf, start in zip(images, self.shelf, self.start, strict=True):
            self.shelves[shelf].read(row.data, int(start))
        return torch.from_numpy(images.reshape(len(self), *self.shape))


class StoredImages(Tensor):
    """Images on disk that look like a tensor of bytes, `(count, channels, height, width)`.

    An index reads those images, as a batch of training needs them. Parts of a `split` and large
    slices stay on disk; every other operation reads all images. A file on disk does not change
    while this is open, so that whatever is read is the same at any time.

    The bytes are read with the calls of the system and not mapped into memory: mapped pages count
    as memory of the process, and a file that is cut off would end it.

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
        if isinstance(which, Tensor) and which.ndim == 1:
            return self.rows.take(which.cpu().numpy()).read()
        return self.rows.read()[which]

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


# What a tensor is asked about itself, besides its attributes.
_ABOUT = {Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__, Tensor.is_floating_point}
