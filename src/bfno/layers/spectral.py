"""Discrete Fourier transforms of channels-last tensors, with their adjoints.

Signals are stored as `(batch, *reversed space axes, channels)`. A spectrum is stored the same way,
with two real planes side by side in the channels, `[real | imaginary]`, because what follows it is
a real matrix product over channels. In this layout every one-dimensional transform is one batched
matrix product over contiguous memory, and no axis is ever moved.

The inverse consists of one-dimensional steps only: a complex inverse transform along each axis but
the last, then a real one along the last, which ignores the imaginary part of its zero frequency
and, on an even grid, of its highest one. Said explicitly it also holds for spectra without
Hermitian symmetry, where libraries and devices otherwise differ.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from bfno.layers.memory import recycled

__all__ = ["DFT_LIMIT", "analyse", "frequencies", "multiplicity", "synthesise"]

DFT_LIMIT = 64
"""Longest axis that is transformed by a matrix product.

Up to here the product costs no more than a fast Fourier transform of the same data and leaves its
result where the next product wants it; on longer axes the fast transform is used.
"""


def frequencies(size: int) -> int:
    """Number of frequencies that a real signal of `size` points keeps."""
    return size // 2 + 1


def analyse(signal: Tensor, *, adjoint: bool = False, recycle: bool = False) -> Tensor:
    """Transform a signal to its half spectrum, orthonormally.

    Args:
        signal: Real values on a grid.
        adjoint: Apply the adjoint of `synthesise` instead, which counts inner frequencies twice.
        recycle: Use recycled memory, which autograd cannot record.

    Shape:
        `(batch, *reversed grid, channels)` to `(batch, frequencies, *other axes, 2 * channels)`.
    """
    batch, *grid, channels = signal.shape
    if max(grid) > DFT_LIMIT:
        spectrum = _analyse_fast(signal)
        if adjoint:
            spectrum *= multiplicity(grid[0], signal).view(-1, *[1] * len(grid))
        return spectrum
    last, *others = _matrices(tuple(grid), signal.dtype, signal.device)
    if adjoint:
        last = last * multiplicity(grid[0], signal).repeat_interleave(2)[:, None]
    x = signal
    for matrix, lead in zip((last, *others), _leads(batch, grid), strict=True):
        x = _contract(matrix, x, lead, recycle=recycle)
    return x.view(batch, frequencies(grid[0]), *grid[1:], 2 * channels)


def synthesise(
    spectrum: Tensor, size: int, *, adjoint: bool = False, recycle: bool = False
) -> Tensor:
    """Transform a half spectrum, symmetric or not, back to a signal, orthonormally.

    Args:
        spectrum: Real and imaginary planes side by side.
        size: Number of grid points along the axis of the half spectrum.
        adjoint: Apply the adjoint of `analyse` instead, which counts every frequency once.
        recycle: Use recycled memory, which autograd cannot record.

    Shape:
        `(batch, frequencies, *other axes, 2 * channels)` to `(batch, *reversed grid, channels)`.
    """
    batch, _, *others, channels = spectrum.shape
    grid = [size, *others]
    if max(grid) > DFT_LIMIT:
        if adjoint:
            spectrum = spectrum / multiplicity(size, spectrum).view(-1, *[1] * len(grid))
        return _synthesise_fast(spectrum, size)
    last, *rest = _matrices(tuple(grid), spectrum.dtype, spectrum.device)
    if not adjoint:
        last = last * multiplicity(size, spectrum).repeat_interleave(2)[:, None]
    x = spectrum
    for matrix, lead in zip(reversed((last, *rest)), reversed(_leads(batch, grid)), strict=True):
        x = _contract(matrix.T, x, lead, recycle=recycle)
    return x.view(batch, *grid, channels // 2)


def _leads(batch: int, grid: list[int]) -> list[int]:
    """How many independent products each axis needs: one for every index before it."""
    leads = [batch]
    for size in [frequencies(grid[0]), *grid[1:-1]][: len(grid) - 1]:
        leads.append(leads[-1] * size)
    return leads


def _contract(matrix: Tensor, x: Tensor, lead: int, *, recycle: bool) -> Tensor:
    rows, columns = matrix.shape
    values = x.reshape(lead, columns, -1)
    if not recycle:
        return torch.bmm(matrix.expand(lead, -1, -1), values)
    result = recycled((lead, rows, values.shape[2]), like=x)
    return torch.bmm(matrix.expand(lead, -1, -1), values, out=result)


@functools.lru_cache(maxsize=64)
def _matrices(
    grid: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """Real transform of the first axis, then complex transforms of the others.

    The real one maps points to rows ordered (frequency, plane); a complex one maps (plane, point)
    to (frequency, plane), so that each product leaves its planes next to the axis that follows.
    """
    with torch.inference_mode(False):  # kept for training too, which refuses inference tensors
        first = [part[: frequencies(grid[0])] for part in _waves(grid[0])]
        cosine, sine = first[0], first[1] * _inner_frequencies(grid[0])[:, None]
        matrices = [torch.stack((cosine, -sine), dim=1).flatten(0, 1)]
        for size in grid[1:]:
            cosine, sine = _waves(size)
            real = torch.stack((cosine, -sine), dim=1)  # (frequency, plane, point) acting on reals
            imaginary = torch.stack((sine, cosine), dim=1)  # and on imaginary parts
            matrices.append(torch.stack((real, imaginary), dim=2).flatten(2).flatten(0, 1))
        return tuple(matrix.to(device=device, dtype=dtype) for matrix in matrices)


def _waves(size: int) -> tuple[Tensor, Tensor]:
    index = torch.arange(size, device="cpu")
    # Reducing the integer product keeps the angles, and so the matrices, exact to the last digit.
    angle = (index[:, None] * index % size).double() * (2 * math.pi / size)
    return angle.cos() / math.sqrt(size), angle.sin() / math.sqrt(size)


def _inner_frequencies(size: int) -> Tensor:
    """One for the frequencies that have a sine, zero for the lowest and an even grid's highest."""
    index = torch.arange(frequencies(size), device="cpu")
    return ((index > 0) & (2 * index < size)).double()


@functools.lru_cache(maxsize=64)
def _multiplicities(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return (1 + _inner_frequencies(size)).to(device=device, dtype=dtype)


def multiplicity(size: int, like: Tensor) -> Tensor:
    """How often each stored frequency counts in a signal: once, or twice where it has a sine."""
    return _multiplicities(size, like.dtype, like.device)


def _analyse_fast(signal: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(signal, dim=1, norm="ortho")
    others = tuple(range(2, signal.dim() - 1))
    if others:
        spectrum = torch.fft.fftn(spectrum, dim=others, norm="ortho")
    return torch.cat((spectrum.real, spectrum.imag), dim=-1)


def _synthesise_fast(spectrum: Tensor, size: int) -> Tensor:
    real, imaginary = spectrum.chunk(2, dim=-1)
    values = torch.complex(real.contiguous(), imaginary.contiguous())
    others = tuple(range(2, spectrum.dim() - 1))
    if others:
        values = torch.fft.ifftn(values, dim=others, norm="ortho")
    inner = multiplicity(size, real).sub(1).view(-1, *[1] * (values.dim() - 2))
    values = torch.complex(values.real, values.imag * inner)
    return torch.fft.irfft(values, n=size, dim=1, norm="ortho")
