"""What the layers on truncated spectra share: checks of the input, and their last transform."""

from __future__ import annotations

import torch
from torch import Tensor

from bfno.layers.spectral import multiplicity

__all__ = ["check_space", "inverse_last_axis", "other_axes"]


def check_space(x: Tensor) -> None:
    """Refuse input that is not `(batch, channels, *space)` with one to three space axes."""
    if not 3 <= x.dim() <= 5:
        raise ValueError(
            f"input must be (batch, channels, *space) with 1 to 3 space axes, got shape "
            f"{tuple(x.shape)}; reshape it to one of these"
        )


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
        norm: Normalisation as `torch.fft` names it.
    """
    has_sine = multiplicity(size, spectrum.real)[: spectrum.shape[-1]] - 1
    imaginary = spectrum.imag * has_sine
    return torch.fft.irfft(torch.complex(spectrum.real, imaginary), n=size, norm=norm)
