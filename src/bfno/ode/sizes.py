"""Sizes of states whose squares would overflow or underflow."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["euclidean_norm", "power_of_two"]


def power_of_two(values: Tensor) -> float:
    """A power of two near the largest size of some numbers; dividing by it rounds nothing.

    Example:
        >>> power_of_two(torch.tensor([3.0, -9.0]))
        8.0
    """
    largest = float(values.abs().amax()) if values.numel() else 1.0
    if not math.isfinite(largest):
        return 1.0
    return max(math.ldexp(0.5, math.frexp(largest)[1]), torch.finfo(values.dtype).tiny)


def euclidean_norm(values: Tensor) -> float:
    """Root of the sum of squares, even where these would overflow or vanish."""
    norm, kind = float(torch.linalg.vector_norm(values)), torch.finfo(values.dtype)
    if math.sqrt(kind.tiny) / kind.eps < norm < math.inf:  # squares that vanish do not count
        return norm
    unit = power_of_two(values)
    return float(torch.linalg.vector_norm(values / unit)) * unit
