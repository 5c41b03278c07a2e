"""How a BFNO layer mixes the channels of a spectrum: a fused version and a plain one.

All branches share one product: with `a` and `b` the real and imaginary parts of the spectrum,

    [u_1 … u_L | v_1 … v_L] = σ([a | b] · [[A_1 … A_L, B_1 … B_L], [-B_1 … -B_L, A_1 … A_L]] + p)

is the real form of the complex affine maps of all branches, and two more products merge the real
and the imaginary parts. The fused version walks through the batch in pieces whose intermediate
results stay in the processor's cache, writes its own backward pass and keeps two tensors for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bfno.layers.activation import Activation, InPlaceActivation
from bfno.layers.memory import recycled
from bfno.layers.pointwise import is_transformed
from bfno.layers.spectral import analyse, frequencies, synthesise

__all__ = [
    "Recipe",
    "Weights",
    "linearise_mixing",
    "merge",
    "mix",
    "mix_plainly",
    "samples_at_once",
]

PIECE_BYTES = 11 << 19
"""Size of a piece's largest intermediate result: a few of them fit into a shared cache.

Measured on two cores: half and twice as much take longer.
"""


class Weights(NamedTuple):
    """Weights of one layer in the form that the products want."""

    inner: Tensor  # (2 channels, 2 branches * channels): see the module's formula
    inner_bias: Tensor  # (2 * branches * channels,)
    real: Tensor  # (channels, branches * channels)
    real_bias: Tensor  # (channels,)
    imaginary: Tensor
    imaginary_bias: Tensor


class Recipe(NamedTuple):
    """What a layer does besides its products.

    Attributes:
        sigma: Activation inside the branches.
        keep_signal: Whether the signal is added to the result.
        outer: Activation of the result, or None.
    """

    sigma: Activation
    keep_signal: bool
    outer: Activation | None = None

    @property
    def fuses(self) -> bool:
        """Whether outputs tell the derivatives of all activations, which is all that is kept."""
        others = (self.sigma, self.outer)
        return all(one is None or isinstance(one, InPlaceActivation) for one in others)

    def finish(self, mixed: Tensor, signal: Tensor) -> Tensor:
        """What follows the transform back, in differentiable operations."""
        result = signal + mixed if self.keep_signal else mixed
        return result if self.outer is None else self.outer.apply(result)


def mix(signal: Tensor, weights: Weights, recipe: Recipe) -> Tensor:
    """Transform, mix and transform back, by the fused route where it applies.

    Args:
        signal: `(batch, *reversed grid, channels)`, contiguous.
        weights: The layer's weights.
        recipe: What happens besides.
    """
    if is_transformed(signal) or not recipe.fuses:
        return recipe.finish(mix_plainly(signal, weights, recipe.sigma), signal)
    return _Mix.apply(signal, recipe, *weights)


def mix_plainly(signal: Tensor, weights: Weights, sigma: Activation) -> Tensor:
    """The same in a few differentiable operations, for compilers and higher derivatives."""
    spectrum = analyse(signal)
    hidden = sigma.apply(F.linear(spectrum, weights.inner.T, weights.inner_bias))
    return synthesise(merge(hidden, weights), signal.shape[1])


def linearise_mixing(
    signal: Tensor, weights: Weights, sigma: Activation
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """`mix_plainly`, and a function that pulls a cotangent back through it, both differentiable."""
    before = F.linear(analyse(signal), weights.inner.T, weights.inner_bias)
    hidden, size = sigma.apply(before), signal.shape[1]

    def pull_back(cotangent: Tensor) -> Tensor:
        real, imaginary = analyse(cotangent, adjoint=True).chunk(2, dim=-1)
        branches = torch.cat((real @ weights.real, imaginary @ weights.imaginary), dim=-1)
        inner = F.linear(branches * sigma.slope(before, hidden), weights.inner)
        return synthesise(inner, size, adjoint=True)

    return synthesise(merge(hidden, weights), size), pull_back


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
    """How many samples of a grid (reversed), with `width` features per point, make one piece."""
    if like.device.type != "cpu":
        return like.shape[0]
    points = frequencies(grid[0])
    for size in grid[1:]:
        points *= size
    return max(1, PIECE_BYTES // (points * width * like.element_size()))


class _Mix(torch.autograd.Function):
    """`mix`, with a backward pass that keeps two tensors and needs little fresh memory."""

    @staticmethod
    def forward(ctx: Any, signal: Tensor, recipe: Any, *weights: Tensor) -> Tensor:
        named, result = Weights(*weights), recycled(signal.shape, like=signal)
        wanted, kept = any(ctx.needs_input_grad), []  # two tensors for every piece
        for piece, target in _pieces(named, signal, result):
            spectrum = analyse(piece, recycle=True)
            rows = spectrum.flatten(0, -2)
            hidden = recycled((len(rows), named.inner.shape[1]), like=rows)
            recipe.sigma.overwrite(torch.addmm(named.inner_bias, rows, named.inner, out=hidden))
            merged = _merge_rows(hidden, named).view_as(spectrum)
            mixed = synthesise(merged, signal.shape[1], recycle=True)
            torch.add(mixed, piece, out=target) if recipe.keep_signal else target.copy_(mixed)
            if recipe.outer is not None:
                recipe.outer.overwrite(target)
            if wanted:
                kept += [rows, hidden]
        ctx.recipe = recipe
        ctx.save_for_backward(signal, result, *weights, *kept)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        signal, result, *others = ctx.saved_tensors
        count = len(Weights._fields)
        weights, kept = others[:count], others[count:]
        recipe, named, gradient = ctx.recipe, Weights(*weights), gradients[0]
        if torch.is_grad_enabled():  # somebody will differentiate this gradient once more
            again = recipe.finish(mix_plainly(signal, named, recipe.sigma), signal)
            inputs = (signal, *weights)
            first, *rest = torch.autograd.grad(again, inputs, gradient, create_graph=True)
            return first, None, *rest
        sums = Weights(*(torch.zeros_like(weight) for weight in weights))
        pulled = recycled(signal.shape, like=signal)
        gradient = _pull_outer(gradient.contiguous(), result, recipe.outer)
        pieces = _pieces(named, gradient, pulled)
        pairs = zip(kept[::2], kept[1::2], strict=True)
        for (piece, target), pair in zip(pieces, pairs, strict=True):
            spectrum = _pull_back(piece, pair, named, sums, recipe.sigma)
            back = synthesise(spectrum, signal.shape[1], adjoint=True, recycle=True)
            torch.add(back, piece, out=target) if recipe.keep_signal else target.copy_(back)
        return pulled, None, *sums


def _pull_outer(gradient: Tensor, result: Tensor, outer: InPlaceActivation | None) -> Tensor:
    if outer is None:
        return gradient
    return outer.pull_back_(recycled(gradient.shape, like=gradient).copy_(gradient), result)


def _pieces(weights: Weights, source: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    grid = tuple(source.shape[1:-1])
    count = samples_at_once(grid, weights.inner.shape[1], source)
    return zip(source.split(count), target.split(count), strict=True)


def _merge_rows(hidden: Tensor, weights: Weights) -> Tensor:
    """`merge` of a matrix, each half written in place."""
    branches, channels = hidden.shape[1] // 2, len(weights.real)
    merged = recycled((len(hidden), 2 * channels), like=hidden)
    real, imaginary = hidden[:, :branches], hidden[:, branches:]
    torch.addmm(weights.real_bias, real, weights.real.T, out=merged[:, :channels])
    torch.addmm(weights.imaginary_bias, imaginary, weights.imaginary.T, out=merged[:, channels:])
    return merged


def _pull_back(
    gradient: Tensor,
    kept: tuple[Tensor, Tensor],
    weights: Weights,
    sums: Weights,
    sigma: InPlaceActivation,
) -> Tensor:
    """Add the weights' gradients to `sums` and return the spectrum's."""
    rows, hidden = kept
    branches, channels = hidden.shape[1] // 2, len(weights.real)
    spectrum = analyse(gradient, adjoint=True, recycle=True)
    merged = spectrum.flatten(0, -2)
    real, imaginary = merged[:, :channels], merged[:, channels:]
    sums.real.addmm_(real.T, hidden[:, :branches])
    sums.imaginary.addmm_(imaginary.T, hidden[:, branches:])
    bias = merged.sum(0)
    sums.real_bias.add_(bias[:channels])
    sums.imaginary_bias.add_(bias[channels:])
    inner = recycled(hidden.shape, like=hidden)
    torch.mm(real, weights.real, out=inner[:, :branches])
    torch.mm(imaginary, weights.imaginary, out=inner[:, branches:])
    sigma.pull_back_(inner, hidden)
    sums.inner.addmm_(rows.T, inner)
    sums.inner_bias.add_(inner.sum(0))
    torch.mm(inner, weights.inner.T, out=merged)
    return spectrum
