"""Shared parts of the spectral layers: input checks, precision, and the last transform."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bfno.layers.spectral import multiplicity
from bfno.tracing import is_autocast, without_autocast

__all__ = ["check_input", "in_full_precision", "inverse_last_axis", "is_empty", "other_axes"]


def check_input(x: Tensor, channels: int, dtype: torch.dtype) -> None:
    """Refuse input that a layer with this number of channels and this dtype cannot take.

    Raises:
        ValueError: If it is not `(batch, channels, *space)` with one to three space axes, or of
            another dtype outside of autocast.
    """
    if not 3 <= x.dim() <= 5 or x.shape[1] != channels or 0 in x.shape[2:]:
        raise ValueError(
            f"input must have shape (batch, {channels}, *space) with one to three space axes, "
            f"got {tuple(x.shape)}"
        )
    if x.dtype != dtype and not is_autocast(x):
        raise ValueError(
            f"input must have the layer's dtype {dtype}, got {x.dtype}; "
            f"convert one of them, for example layer.to({x.dtype})"
        )


def in_full_precision(
    function: Callable[[Tensor], Tensor], x: Tensor, dtype: torch.dtype
) -> Tensor:
    """Apply a function in a layer's own dtype: transforms in half precision lose small values.

    Autocast is off inside, and the result has the dtype of the input.
    """
    if x.dtype == dtype and not is_autocast(x):
        return function(x)
    with without_autocast(x):
        return function(x.to(dtype)).to(x.dtype)


def is_empty(x: Tensor) -> bool:
    """Whether a batch is empty; False for compilers and exporters, which leave its size open."""
    return not torch.compiler.is_compiling() and not len(x)


def other_axes(x: Tensor) -> tuple[int, ...]:
    """The space axes of `(batch, channels, *space)` except the last."""
    return tuple(range(2, x.dim() - 1))


def inverse_last_axis(spectrum: Tensor, size: int, norm: str) -> Tensor:
    """Transform the half spectrum of the last axis to `size` real values.

    Missing high frequencies count as zero. A learned spectrum need not be that of a real signal:
    the imaginary parts of the zero frequency and, on an even grid, of the highest one are dropped
    here, because libraries and devices differ in what they do with them.

    Args:
        spectrum: Frequencies from zero upwards along the last axis.
        size: Number of grid points along that axis.
        norm: Normalisation, by its name in `torch.fft`.
    """
    has_sine = multiplicity(size, spectrum.real)[: spectrum.shape[-1]] - 1
    imaginary = spectrum.imag * has_sine
    return torch.fft.irfft(torch.complex(spectrum.real, imaginary), n=size, norm=norm)
