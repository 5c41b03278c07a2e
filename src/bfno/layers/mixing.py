"""How a BFNO layer mixes the channels of a spectrum, fused and plain.

All branches share one product: with `a` and `b` the real and imaginary parts of the spectrum,

    [u_1 … u_L | v_1 … v_L] = σ([a | b] · [[A_1 … A_L, B_1 … B_L], [-B_1 … -B_L, A_1 … A_L]] + p)

is the real form of the complex affine maps of all branches, and two more products merge the real
and the imaginary parts. The fused version walks through the batch in pieces whose intermediate
results stay in the processor's cache, writes its own backward pass and keeps two tensors for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from bfno.layers.activation import Activation
from bfno.layers.spectral import analyse, frequencies, synthesise

__all__ = ["Weights", "merge", "mix", "mix_plainly", "samples_at_once"]

PIECE_BYTES = 6 << 20
"""Size of a piece's largest intermediate result: a few of them fit into a shared cache."""


class Weights(NamedTuple):
    """Weights of one layer in the form that the products want."""

    inner: Tensor  # (2 channels, 2 branches * channels): see the module's formula
    inner_bias: Tensor  # (2 * branches * channels,)
    real: Tensor  # (channels, branches * channels)
    real_bias: Tensor  # (channels,)
    imaginary: Tensor
    imaginary_bias: Tensor


def mix(signal: Tensor, weights: Weights, sigma: Activation, *, keep_signal: bool) -> Tensor:
    """Transform, mix and transform back, by the fused route where it applies.

    Args:
        signal: `(batch, *reversed grid, channels)`, contiguous.
        weights: The layer's weights.
        sigma: Activation inside the branches.
        keep_signal: Whether to add the signal to the result.
    """
    if _is_transformed(signal):
        mixed = mix_plainly(signal, weights, sigma)
        return signal + mixed if keep_signal else mixed
    return _Mix.apply(signal, sigma, keep_signal, *weights)


def mix_plainly(signal: Tensor, weights: Weights, sigma: Activation) -> Tensor:
    """The same in a few differentiable operations, for compilers and higher derivatives."""
    spectrum = analyse(signal)
    hidden = sigma.apply(F.linear(spectrum, weights.inner.T, weights.inner_bias))
    return synthesise(merge(hidden, weights), signal.shape[1])


def merge(hidden: Tensor, weights: Weights) -> Tensor:
    """Merge the branches, real and imaginary parts apart."""
    real, imaginary = hidden.chunk(2, dim=-1)
    return torch.cat(
        (
            F.linear(real, weights.real, weights.real_bias),
            F.linear(imaginary, weights.imaginary, weights.imaginary_bias),
        ),
        dim=-1,
    )


def samples_at_once(grid: tuple[int, ...], width: int, like: Tensor) -> int:
    """How many samples of a grid (reversed) with `width` features a point make one piece."""
    if like.device.type != "cpu":
        return like.shape[0]
    points = frequencies(grid[0])
    for size in grid[1:]:
        points *= size
    return max(1, PIECE_BYTES // (points * width * like.element_size()))


def _is_transformed(signal: Tensor) -> bool:
    """Whether a compiler, a function transform or forward-mode differentiation is at work."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or signal.is_meta
    )


class _Mix(torch.autograd.Function):
    """`mix`, with a backward pass that allocates little."""

    @staticmethod
    def forward(
        ctx: Any, signal: Tensor, sigma: Activation, keep_signal: bool, *weights: Tensor
    ) -> Tensor:
        named = Weights(*weights)
        result = torch.empty_like(signal)
        kept: list[tuple[Tensor, Tensor]] | None = [] if any(ctx.needs_input_grad) else None
        for piece, target in _pieces(named, signal, result):
            spectrum = analyse(piece)
            rows = spectrum.flatten(0, -2)
            hidden = sigma.apply_(torch.addmm(named.inner_bias, rows, named.inner))
            mixed = synthesise(_merge_rows(hidden, named).view_as(spectrum), signal.shape[1])
            torch.add(mixed, piece, out=target) if keep_signal else target.copy_(mixed)
            if kept is not None:
                kept.append((rows, hidden))
        ctx.sigma, ctx.keep_signal, ctx.kept = sigma, keep_signal, kept
        ctx.save_for_backward(signal, *weights)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        signal, *weights = ctx.saved_tensors
        named = Weights(*weights)
        if torch.is_grad_enabled():  # somebody will differentiate this gradient once more
            with torch.enable_grad():
                mixed = mix_plainly(signal, named, ctx.sigma)
                result = signal + mixed if ctx.keep_signal else mixed
            first, *rest = torch.autograd.grad(
                result, (signal, *weights), gradient, create_graph=True, allow_unused=True
            )
            return first, None, None, *rest
        sums = Weights(*(torch.zeros_like(weight) for weight in weights))
        result = torch.empty_like(signal)
        pieces = _pieces(named, gradient.contiguous(), result)
        for (piece, target), (rows, hidden) in zip(pieces, ctx.kept, strict=True):
            pulled = _pull_back(piece, rows, hidden, named, sums, ctx.sigma)
            torch.add(pulled, piece, out=target) if ctx.keep_signal else target.copy_(pulled)
        return result, None, None, *sums


def _pieces(weights: Weights, source: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    grid = tuple(source.shape[1:-1])
    count = samples_at_once(grid, weights.inner.shape[1], source)
    return zip(source.split(count), target.split(count), strict=True)


def _merge_rows(hidden: Tensor, weights: Weights) -> Tensor:
    """`merge` of a matrix, each half written in place."""
    branches, channels = hidden.shape[1] // 2, len(weights.real)
    merged = hidden.new_empty(len(hidden), 2 * channels)
    real, imaginary = hidden[:, :branches], hidden[:, branches:]
    torch.addmm(weights.real_bias, real, weights.real.T, out=merged[:, :channels])
    torch.addmm(weights.imaginary_bias, imaginary, weights.imaginary.T, out=merged[:, channels:])
    return merged


def _pull_back(
    gradient: Tensor,
    rows: Tensor,
    hidden: Tensor,
    weights: Weights,
    sums: Weights,
    sigma: Activation,
) -> Tensor:
    """Gradient of one piece's input; the weights' gradients are added to `sums`."""
    branches, channels = hidden.shape[1] // 2, len(weights.real)
    spectrum = analyse(gradient, adjoint=True)
    merged = spectrum.flatten(0, -2)
    real, imaginary = merged[:, :channels], merged[:, channels:]
    sums.real.addmm_(real.T, hidden[:, :branches])
    sums.imaginary.addmm_(imaginary.T, hidden[:, branches:])
    bias = merged.sum(0)
    sums.real_bias.add_(bias[:channels])
    sums.imaginary_bias.add_(bias[channels:])
    inner = torch.empty_like(hidden)
    torch.mm(real, weights.real, out=inner[:, :branches])
    torch.mm(imaginary, weights.imaginary, out=inner[:, branches:])
    sigma.pull_back_(inner, hidden)
    sums.inner.addmm_(rows.T, inner)
    sums.inner_bias.add_(inner.sum(0))
    pulled = torch.mm(inner, weights.inner.T, out=merged)
    return synthesise(pulled.view_as(spectrum), gradient.shape[1], adjoint=True)
