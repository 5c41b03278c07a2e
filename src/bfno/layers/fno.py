"""The Fourier neural operator layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bfno.layers.fourier import check_input, inverse_last_axis, is_empty, other_axes
from bfno.layers.pointwise import Pointwise, channels_first, channels_last
from bfno.layers.spectral import analyse, require_transformable, synthesise

__all__ = ["FNO"]


class FNO(nn.Module):
    """Multiplies every low frequency by its own complex matrix and discards the others.

    With `G` the Fourier transform of the input, the output's spectrum is `G[k] R[k]` for each kept
    frequency `k`. Along every axis but the last, positive and negative frequencies are kept; along
    the last, the positive ones are enough, because the input is real.

    Args:
        channels: Width of input and output.
        modes: Number of kept frequencies of one sign: one number for all axes, or one per axis.
        skip: What is added to the result: the input (`identity`), a pointwise affine map of it
            (`linear`) or nothing (`none`).
        axes: Number of space axes if `modes` is one number.

    Shape:
        `(batch, channels, *space)` to the same, for one to three space axes.

    Note:
        The weights do not depend on the grid, and the transforms are normalised backwards, so a
        band-limited signal gives the same function on every grid that holds its frequencies.
        `weight` is stored as pairs of reals `(real, imaginary)`; `count_parameters` of
        `bfno.models` counts a pair once.

    References:
        Li et al., Fourier Neural Operator for Parametric Partial Differential Equations, 2021.

    Example:
        >>> layer = FNO(channels=4, modes=3)
        >>> layer(torch.zeros(1, 4, 8, 8)).shape
        torch.Size([1, 4, 8, 8])
    """

    result_may_be_overwritten = True  # no derivative needs it

    def __init__(
        self,
        channels: int,
        modes: int | tuple[int, ...],
        skip: str = "identity",
        *,
        axes: int = 2,
    ) -> None:
        super().__init__()
        self.modes = (modes,) * axes if isinstance(modes, int) else tuple(modes)
        _check_modes(self.modes)
        if skip not in ("identity", "linear", "none"):
            raise ValueError(
                f"skip must be identity, linear or none, got {skip!r}; pass one of these"
            )
        self.skip = skip
        # The corner blocks of the spectrum are adjacent in one tensor, in the order in which
        # the kept frequencies appear: 0, 1, ..., and then the negative ones up to -1.
        kept = (*(2 * m for m in self.modes[:-1]), self.modes[-1])
        self.weight = nn.Parameter(torch.rand(channels, channels, *kept, 2) / channels**2)
        self.linear = Pointwise(channels, channels) if skip == "linear" else None

    def forward(self, x: Tensor) -> Tensor:
        self._check_grid(x)
        check_input(x, len(self.weight), self.weight.dtype)
        if is_empty(x):
            return x.clone()
        y = self._in_reals(x) if torch.compiler.is_compiling() else self._filter(x)
        if self.linear is not None:
            return y + self.linear(x)
        return y + x if self.skip == "identity" else y

    def _filter(self, x: Tensor) -> Tensor:
        require_transformable(x)
        # Contiguous because moving a model to another memory format also permutes its weights.
        weight = torch.view_as_complex(self.weight.contiguous())
        return self._synthesise(_multiply(self._analyse(x), weight), x)

    def _in_reals(self, x: Tensor) -> Tensor:
        """The same without complex numbers, for compilers and exporters, which lack them."""
        spectrum = analyse(channels_last(x).contiguous())
        last, *others = reversed(self.modes)  # as the axes are
        axes = list(enumerate(others, start=2))
        low = spectrum[:, :last]
        for axis, modes in axes:
            low = _ends(low, axis, modes)
        real, imaginary = self.weight.permute(*range(self.weight.dim() - 2, -1, -1), -1).unbind(-1)
        rows = torch.cat((real, -imaginary), dim=-1), torch.cat((imaginary, real), dim=-1)
        low = torch.einsum("b...i,...oi->b...o", low, torch.cat(rows, dim=-2))
        for axis, _ in axes:
            low = _with_gap(low, axis, spectrum.shape[axis])
        missing = low.new_zeros(x.shape[0], spectrum.shape[1] - last, *low.shape[2:])
        return channels_first(synthesise(torch.cat((low, missing), dim=1), x.shape[-1]))

    def _analyse(self, x: Tensor) -> Tensor:
        """Low frequencies of a signal; each axis is cut before the next one is transformed."""
        *others, last = self.modes
        spectrum = torch.fft.rfft(x)[..., :last]
        for axis, modes in zip(other_axes(x), others, strict=True):
            spectrum = _ends(torch.fft.fft(spectrum, dim=axis), axis, modes)
        return spectrum

    def _synthesise(self, spectrum: Tensor, like: Tensor) -> Tensor:
        """Signal on the grid of `like` whose frequencies other than the low ones are zero."""
        for axis in reversed(other_axes(like)):
            spectrum = torch.fft.ifft(_with_gap(spectrum, axis, like.shape[axis]), dim=axis)
        return inverse_last_axis(spectrum, like.shape[-1], norm="backward")

    def _check_grid(self, x: Tensor) -> None:
        space = tuple(x.shape[2:])
        if len(space) != len(self.modes):
            raise ValueError(
                f"input must have {len(self.modes)} space axes, as many as modes={self.modes}, got "
                f"shape {tuple(x.shape)}; pass one number of modes for each space axis"
            )
        smallest = (*(2 * m for m in self.modes[:-1]), 2 * self.modes[-1] - 2)
        if any(size < least for size, least in zip(space, smallest, strict=True)):
            raise ValueError(
                f"grid must have at least {smallest} points for modes={self.modes}, got {space}; "
                f"use a finer grid or fewer modes"
            )


def _check_modes(modes: tuple[int, ...]) -> None:
    if not 1 <= len(modes) <= 3 or min(modes) < 1:
        raise ValueError(
            f"modes must hold one positive number for each of 1 to 3 space axes, got {modes}; "
            f"pass for example modes=(8, 8)"
        )


def _ends(spectrum: Tensor, axis: int, modes: int) -> Tensor:
    """The lowest frequencies of either sign along an axis."""
    size = spectrum.shape[axis]
    low, high = spectrum.narrow(axis, 0, modes), spectrum.narrow(axis, size - modes, modes)
    return torch.cat((low, high), dim=axis)


def _with_gap(spectrum: Tensor, axis: int, size: int) -> Tensor:
    """The inverse: `size` frequencies, with zeros between the two ends."""
    low, high = spectrum.chunk(2, dim=axis)
    gap = list(spectrum.shape)
    gap[axis] = size - gap[axis]
    return torch.cat((low, spectrum.new_zeros(gap), high), dim=axis)


def _multiply(spectrum: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("bi...,io...->bo...", spectrum, weight)
