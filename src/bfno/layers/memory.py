"""Tensors whose memory is reused once they are freed.

On a CPU, touching fresh memory for the first time costs about as much as the matrix product that
fills it, and the C library gives large blocks back to the system as soon as they are freed. Large
intermediate results therefore come from a stock of blocks. A block returns to the stock when the
last tensor on it dies, so nothing has to be returned explicitly.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["free_memory", "recycled"]

IDLE_BYTES = 512 << 20
"""Largest amount of memory kept in stock."""

SMALLEST = 1 << 16
"""Bytes below which the C library keeps freed memory itself."""

_DTYPES = {torch.float32: np.dtype("float32"), torch.float64: np.dtype("float64")}
_stock: defaultdict[tuple[int, np.dtype], list[np.ndarray]] = defaultdict(list)
_idle_bytes = 0


def free_memory() -> None:
    """Return the blocks in stock to the system."""
    global _idle_bytes
    for blocks in tuple(_stock.values()):
        while blocks:
            block = blocks.pop()
            _idle_bytes -= block.nbytes


def recycled(shape: Sequence[int], like: Tensor) -> Tensor:
    """A tensor with arbitrary content, of the dtype and on the device of `like`."""
    global _idle_bytes
    size, dtype = math.prod(shape), _DTYPES.get(like.dtype)
    # Other kinds of tensors, such as fake ones, may have no memory of their own.
    has_memory = like.device.type == "cpu" and type(like) in (Tensor, nn.Parameter)
    if not has_memory or dtype is None or size * dtype.itemsize < SMALLEST:
        return like.new_empty(tuple(shape))
    blocks = _stock[size, dtype]
    try:  # not `if blocks`, because another thread may take the last one in between
        block = blocks.pop()
        _idle_bytes -= block.nbytes
    except IndexError:
        block = torch.empty(size, dtype=like.dtype).numpy()
    lease = block.view(_Lease)
    lease.block = block
    return torch.from_numpy(lease).view(tuple(shape))


class _Lease(np.ndarray):
    """Held by the tensors on a block; returns the block to the stock when they are freed."""

    block: np.ndarray | None = None

    def __del__(self) -> None:
        global _idle_bytes
        block = self.block
        if block is not None and _idle_bytes + block.nbytes <= IDLE_BYTES:
            _idle_bytes += block.nbytes  # first, so that other threads see the place as taken
            _stock[block.size, block.dtype].append(block)
