"""Matrix products with the faster of torch's two libraries.

torch multiplies matrices with MKL, which does not use the AVX-512 of AMD's processors. oneDNN, with
which torch computes convolutions, does: there it takes half the time. The choice depends only on
the processor and on shapes, so repeating a run gives the same bits.
"""

from __future__ import annotations

import functools
import math
import platform
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["product"]

_LEAST = 1 << 23
"""Number of multiplications from which oneDNN is faster there; a call of it takes 10 µs."""

_NARROWEST = 1 << 12
"""Product of the two shorter sides from which it is faster.

It puts results into fresh memory, from which they are copied: in narrower products that costs more
than it gains. Layers of 4 to 24 channels with one branch took 1.1 to 1.2 times as long with it.
"""


def product(
    rows: Tensor, matrix: Tensor, *, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """`rows @ matrix`, and a bias for each column, which autograd cannot record.

    Args:
        rows: `(rows, inputs)`.
        matrix: `(inputs, outputs)`.
        bias: `(outputs,)`.
        out: Where the result goes, `(rows, outputs)`; None makes a new tensor.
    """
    if _suits_onednn(rows, matrix):
        found = torch.ops.mkldnn._linear_pointwise(rows, matrix.T, bias, "none", [], None)
        return found if out is None else out.copy_(found)
    if bias is None:
        return torch.mm(rows, matrix, out=out)
    return torch.addmm(bias, rows, matrix, out=out)


def _suits_onednn(rows: Tensor, matrix: Tensor) -> bool:
    sides = (*rows.shape, matrix.shape[1])
    return (
        rows.dtype == torch.float32
        and rows.device.type == "cpu"
        and math.prod(sides) >= max(_LEAST, _NARROWEST * max(sides))
        and _is_onednn_faster()
        and torch.backends.mkldnn.enabled
        # For a transposed slice of a matrix, it takes a thousand times as long.
        and all(one.stride(1) == 1 or one.T.is_contiguous() for one in (rows, matrix))
    )


@functools.cache
def _is_onednn_faster() -> bool:
    """Whether this is a processor whose AVX-512 MKL does not use."""
    return (
        torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and _vendor() == "AuthenticAMD"
    )


def _vendor() -> str:
    """The vendor of the processor, if Linux reports it."""
    if platform.system() != "Linux":
        return ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split()[-1] for line in lines if line.startswith("vendor_id")), "")
