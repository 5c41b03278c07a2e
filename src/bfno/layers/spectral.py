"""Discrete Fourier transforms of channels-last tensors, with their adjoints.

Signals are stored as `(batch, *reversed space axes, channels)`. A spectrum is stored the same way,
with two real planes side by side in the channels, `[real | imaginary]`, because what follows it is
a real matrix product over channels. In this layout every one-dimensional transform is one batched
matrix product over contiguous memory, and no axis is ever moved.

The inverse consists of one-dimensional steps only: a complex inverse transform along each axis but
the last, then a real one along the last, which ignores the imaginary part of its zero frequency
and, on an even grid, of its highest one. Being explicit, this also holds for spectra without
Hermitian symmetry, for which libraries and devices otherwise differ.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from bfno.layers.memory import recycled
from bfno.tracing import is_autocast, is_exporting, traces_without_dynamo

__all__ = [
    "DFT_LIMIT",
    "analyse",
    "analyse_rows",
    "frequencies",
    "multiplicity",
    "require_transformable",
    "synthesise",
    "synthesise_rows",
]

DFT_LIMIT = 64
"""Longest axis that is transformed by a matrix product.

Up to here the product costs no more than a fast Fourier transform of the same data and leaves its
result where the next product wants it; on longer axes the fast transform is used.
"""

FOLD_FROM = 24
"""Shortest even axis whose complex transform is folded, which halves its product.

A folded transform takes 0.7 of the time on 28 and 32 points, as long on 16, 1.5 times as long on 8.
"""


def frequencies(size: int) -> int:
    """Number of frequencies that a real signal of `size` points keeps."""
    return size // 2 + 1


def _by_products(grid: list[int]) -> bool:
    """Whether a grid is transformed by matrix products; exports support no complex numbers."""
    return max(grid) <= DFT_LIMIT or is_exporting()


def analyse(signal: Tensor, *, adjoint: bool = False) -> Tensor:
    """Transform a signal to its half spectrum, orthonormally.

    Args:
        signal: Real values on a grid.
        adjoint: Apply the adjoint of `synthesise` instead, which counts inner frequencies twice.

    Shape:
        `(batch, *reversed grid, channels)` to `(batch, frequencies, *other axes, 2 * channels)`.
    """
    batch, *grid, channels = signal.shape
    if not _by_products(grid):
        return _analyse_fast(signal, adjoint)
    x, leads = signal, _leads(batch, grid)
    for matrix, lead in zip(_matrices_like(signal, grid, adjoint), leads, strict=True):
        x = torch.bmm(matrix.expand(lead, -1, -1), x.reshape(lead, matrix.shape[1], -1))
    return x.view(batch, frequencies(grid[0]), *grid[1:], 2 * channels)


def synthesise(spectrum: Tensor, size: int, *, adjoint: bool = False) -> Tensor:
    """Transform a half spectrum, symmetric or not, back to a signal, orthonormally.

    Args:
        spectrum: Real and imaginary planes side by side.
        size: Number of grid points along the axis of the half spectrum.
        adjoint: Apply the adjoint of `analyse` instead, which counts every frequency once.

    Shape:
        `(batch, frequencies, *other axes, 2 * channels)` to `(batch, *reversed grid, channels)`.
    """
    batch, _, *others, channels = spectrum.shape
    grid = [size, *others]
    if not _by_products(grid):
        return _synthesise_fast(spectrum, size, adjoint)
    x, leads = spectrum, _leads(batch, grid)
    matrices = _matrices_like(spectrum, grid, not adjoint)
    for matrix, lead in zip(reversed(matrices), reversed(leads), strict=True):
        x = torch.bmm(matrix.T.expand(lead, -1, -1), x.reshape(lead, matrix.shape[0], -1))
    return x.view(batch, *grid, channels // 2)


def analyse_rows(signal: Tensor, *, adjoint: bool = False, ordered: bool = False) -> Tensor:
    """`analyse` in recycled memory, which autograd cannot record, as one matrix.

    Args:
        signal: Real values on a grid, contiguous.
        adjoint: As in `analyse`.
        ordered: Keep the order of `analyse`; otherwise rows are in the order that is fastest.

    Shape:
        `(batch, *reversed grid, channels)` to `(batch * all frequencies, 2 * channels)`.
    """
    batch, *grid, channels = signal.shape
    if max(grid) > DFT_LIMIT:
        return _analyse_fast(signal, adjoint).view(-1, 2 * channels)
    x, leads = signal, _leads(batch, grid)
    for matrix, lead in zip(_steps(signal, grid, adjoint, ordered), leads, strict=True):
        if matrix.dim() == 2:
            x = _product(matrix, x.view(lead, matrix.shape[1], -1))
        else:
            x = _fold(matrix, x.view(lead, 2, 2, matrix.shape[1] // 2, -1))
    return x.view(-1, 2 * channels)


def synthesise_rows(
    rows: Tensor, out: Tensor, *, adjoint: bool = False, ordered: bool = False
) -> Tensor:
    """`synthesise` of what `analyse_rows` returned; overwrites it.

    Args:
        rows: A spectrum as one matrix.
        out: Where the signal goes, `(batch, *reversed grid, channels)`, contiguous.
        adjoint: As in `synthesise`.
        ordered: As in `analyse_rows`.
    """
    batch, *grid, channels = out.shape
    if max(grid) > DFT_LIMIT:
        spectrum = rows.view(batch, frequencies(grid[0]), *grid[1:], 2 * channels)
        return out.copy_(_synthesise_fast(spectrum, grid[0], adjoint))
    x, leads = rows, _leads(batch, grid)
    first, *others = _steps(rows, grid, not adjoint, ordered)
    for matrix, lead in zip(reversed(others), reversed(leads), strict=False):
        if matrix.dim() == 2:
            x = _product(matrix.T, x.view(lead, matrix.shape[0], -1))
        else:
            x = _unfold(matrix, x.view(2, lead, matrix.shape[1], -1))
    values = x.view(batch, len(first), -1)
    torch.bmm(first.T.expand(batch, -1, -1), values, out=out.view(batch, grid[0], -1))
    return out


def _product(matrix: Tensor, x: Tensor) -> Tensor:
    """A matrix times each of several matrices."""
    result = recycled((len(x), len(matrix), x.shape[2]), like=x)
    return torch.bmm(matrix.expand(len(x), -1, -1), x, out=result)


def _fold(pair: Tensor, x: Tensor) -> Tensor:
    """Complex transform of an even axis, `(lead, planes, halves, half the points, others)`.

    Even frequencies see the sum of both halves of the points, odd ones the difference. The result
    lies in the memory of `x`, all even frequencies before the odd ones.
    """
    lead, _, _, half, others = x.shape
    folded = recycled((2, lead, 2, half, others), like=x)
    torch.add(x[:, :, 0], x[:, :, 1], out=folded[0])
    torch.sub(x[:, :, 0], x[:, :, 1], out=folded[1])
    result = x.view(2, lead, 2 * half, others)
    for matrix, part, target in zip(pair, folded.view_as(result), result, strict=True):
        torch.bmm(matrix.expand(lead, -1, -1), part, out=target)
    return result


def _unfold(pair: Tensor, x: Tensor) -> Tensor:
    """Transpose of `_fold`; the result lies in the memory of `x`."""
    _, lead, points, others = x.shape
    folded = recycled(x.shape, like=x)
    for matrix, part, target in zip(pair, x, folded, strict=True):
        torch.bmm(matrix.T.expand(lead, -1, -1), part, out=target)
    even, odd = folded.view(2, lead, 2, points // 2, others)
    result = x.view(lead, 2, 2, points // 2, others)
    torch.add(even, odd, out=result[:, :, 0])
    torch.sub(even, odd, out=result[:, :, 1])
    return result


def _leads(batch: int, grid: list[int]) -> list[int]:
    """Number of independent products for each axis: one for every index before it."""
    leads = [batch]
    for size in [frequencies(grid[0]), *grid[1:-1]][: len(grid) - 1]:
        leads.append(leads[-1] * size)
    return leads


def _matrices_like(like: Tensor, grid: list[int], doubled: bool) -> tuple[Tensor, ...]:
    return _beside(like, _matrices(tuple(grid), doubled, like.dtype, like.device))


def _steps(like: Tensor, grid: list[int], doubled: bool, ordered: bool) -> tuple[Tensor, ...]:
    """Matrices of all axes, or pairs of them where an axis is folded."""
    if ordered:
        return _matrices_like(like, grid, doubled)
    return _beside(like, _folded_matrices(tuple(grid), doubled, like.dtype, like.device))


def _beside(like: Tensor, kept: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A kept tensor in the form that `like` needs: fake tensors may accept only fake ones."""
    mode = None if type(like) is Tensor else getattr(like, "fake_mode", None)
    if mode is None or mode.allow_non_fake_inputs:
        return kept
    return tuple(mode.from_tensor(one) for one in kept)


@contextlib.contextmanager
def _lasting(device: torch.device) -> Iterator[None]:
    """Makes kept tensors suitable for any later use.

    Training refuses tensors made in inference mode, and those made under an exporter's mode, or
    that of fake tensors, hold no numbers. For devices other than the processor, there may be only
    fake tensors.
    """
    with torch.inference_mode(False):
        # Dynamo keeps nothing and does not support modes.
        is_real = device.type == "cpu" and not torch.compiler.is_dynamo_compiling()
        if is_real or traces_without_dynamo():
            with _disable_current_modes():
                yield
        else:
            yield


@functools.lru_cache(maxsize=64)
def _matrices(
    grid: tuple[int, ...], doubled: bool, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """Real transform of the first axis, then complex transforms of the others.

    The real one maps points to rows ordered (frequency, plane); a complex one maps (plane, point)
    to (frequency, plane), so that each product leaves its planes next to the axis that follows.
    `doubled` counts the inner frequencies of the first axis twice.
    """
    with _lasting(device):
        first = [part[: frequencies(grid[0])] for part in _waves(grid[0])]
        cosine, sine = first[0], first[1] * _inner_frequencies(grid[0])[:, None]
        real = torch.stack((cosine, -sine), dim=1)
        if doubled:
            real *= (1 + _inner_frequencies(grid[0])).view(-1, 1, 1)
        matrices = [real.flatten(0, 1)]
        for size in grid[1:]:
            cosine, sine = _waves(size)
            real = torch.stack((cosine, -sine), dim=1)  # (frequency, plane, point) acting on reals
            imaginary = torch.stack((sine, cosine), dim=1)  # and on imaginary parts
            matrices.append(torch.stack((real, imaginary), dim=2).flatten(2).flatten(0, 1))
        return tuple(matrix.to(device=device, dtype=dtype) for matrix in matrices)


@functools.lru_cache(maxsize=64)
def _folded_matrices(
    grid: tuple[int, ...], doubled: bool, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """`_matrices`, with pairs for even and odd frequencies of the axes that are folded."""
    with _lasting(device):
        first, *others = _matrices(grid, doubled, dtype, device)
        return first, *(_folded(matrix) for matrix in others)


def _folded(matrix: Tensor) -> Tensor:
    """The part of a complex transform that acts on the first half of an even axis."""
    size = len(matrix) // 2
    if size < FOLD_FROM or size % 2:
        return matrix
    half = matrix.view(size // 2, 2, 2, 2, size)[..., : size // 2]  # parity is the second axis
    return half.transpose(0, 1).reshape(2, size, size)


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
    with _lasting(device):
        return (1 + _inner_frequencies(size)).to(device=device, dtype=dtype)


def multiplicity(size: int, like: Tensor) -> Tensor:
    """How often each stored frequency counts in a signal: once, or twice where it has a sine."""
    return _beside(like, (_multiplicities(size, like.dtype, like.device),))[0]


def _per_frequency(size: int, like: Tensor) -> Tensor:
    """`multiplicity` along the first space axis of a tensor."""
    return multiplicity(size, like).view(-1, *[1] * (like.dim() - 2))


def require_transformable(signal: Tensor) -> None:
    """Refuse signals in half precision where torch has no fast transform in it.

    Raises:
        ValueError: If the signal is in half precision; autocast takes it to single precision.
    """
    device, dtype = signal.device.type, signal.dtype
    has_transform = dtype.itemsize >= 4 or (device == "cuda" and dtype == torch.float16)
    if not has_transform and not is_autocast(signal):
        raise ValueError(
            f"input on this grid is transformed in float32 or float64, got {signal.dtype}; keep "
            "the layer in float32 and use torch.autocast"
        )


def _analyse_fast(signal: Tensor, adjoint: bool) -> Tensor:
    require_transformable(signal)
    spectrum = torch.fft.rfft(signal, dim=1, norm="ortho")
    others = tuple(range(2, signal.dim() - 1))
    if others:
        spectrum = torch.fft.fftn(spectrum, dim=others, norm="ortho")
    planes = torch.cat((spectrum.real, spectrum.imag), dim=-1)
    return planes * _per_frequency(signal.shape[1], planes) if adjoint else planes


def _synthesise_fast(spectrum: Tensor, size: int, adjoint: bool) -> Tensor:
    if adjoint:
        spectrum = spectrum / _per_frequency(size, spectrum)
    real, imaginary = spectrum.chunk(2, dim=-1)
    values = torch.complex(real.contiguous(), imaginary.contiguous())
    others = tuple(range(2, spectrum.dim() - 1))
    if others:
        values = torch.fft.ifftn(values, dim=others, norm="ortho")
    inner = _per_frequency(size, real) - 1
    values = torch.complex(values.real, values.imag * inner)
    return torch.fft.irfft(values, n=size, dim=1, norm="ortho")
