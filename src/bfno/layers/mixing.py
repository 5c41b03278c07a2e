"""The mixing of channels in a BFNO layer: a fused version and a plain one.

All branches share one product: with `a` and `b` the real and imaginary parts of the spectrum,

    [u_1 … u_L | v_1 … v_L] = σ([a | b] · [[A_1 … A_L, B_1 … B_L], [-B_1 … -B_L, A_1 … A_L]] + p)

is the real form of the complex affine maps of all branches, and two more products merge the real
and the imaginary parts. Filters multiply every frequency by its own numbers instead. The fused
version goes through the batch in pieces whose intermediate results stay in the processor's cache,
has its own backward pass and keeps two tensors for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bfno.layers.activation import Activation, InPlaceActivation
from bfno.layers.memory import recycled
from bfno.layers.pointwise import is_stand_in
from bfno.layers.products import product
from bfno.layers.spectral import (
    analyse,
    analyse_rows,
    frequencies,
    synthesise,
    synthesise_rows,
)
from bfno.tracing import is_recorded, without_autocast

__all__ = [
    "Recipe",
    "Weights",
    "complex_product",
    "linearise_mixing",
    "merge",
    "mix",
    "padded_width",
    "samples_at_once",
]

PIECE_BYTES = 11 << 18
"""Size of a piece's largest intermediate result, chosen so that its product stays in the cache.

Measured on one and on two cores, with grids of 28 and 32 points: twice as much takes 8 % longer,
half as much 2 % (and more on two cores).
"""


class Weights(NamedTuple):
    """Weights of one layer."""

    inner: Tensor  # (branches, 2, channels, channels), or (branches, 2, channels, *half spectrum)
    inner_bias: Tensor | None  # (branches, 2, channels); filters have none
    real: Tensor  # (channels, branches * channels)
    real_bias: Tensor  # (channels,)
    imaginary: Tensor
    imaginary_bias: Tensor

    def affine(self) -> tuple[Tensor, Tensor]:
        """The branches' maps as one real matrix and bias for `F.linear`: see the formula above."""
        assert self.inner_bias is not None
        real, imaginary = self.inner.permute(1, 2, 0, 3).flatten(2).unbind(0)
        upper, lower = torch.cat((real, imaginary), 1), torch.cat((-imaginary, real), 1)
        return torch.cat((upper, lower)).T, self.inner_bias.transpose(0, 1).flatten()


class Recipe(NamedTuple):
    """The operations of a layer besides its products.

    Attributes:
        sigma: Activation inside the branches; filters have none.
        keep_signal: Whether the signal is added to the result.
        outer: Activation of the result, or None.
    """

    sigma: Activation
    keep_signal: bool
    outer: Activation | None = None

    @property
    def fuses(self) -> bool:
        """Whether the outputs, all that is kept, determine the derivatives of all activations."""
        others = (self.sigma, self.outer)
        return all(one is None or isinstance(one, InPlaceActivation) for one in others)

    def join(self, mixed: Tensor, signal: Tensor, target: Tensor) -> None:
        """Write the mixed values to the target, without padding, and add the signal if it is kept.

        The mixed values may be the target itself.
        """
        own = mixed if mixed is target else mixed[..., : target.shape[-1]]
        if self.keep_signal:
            torch.add(own, signal, out=target)
        elif own is not target:
            target.copy_(own)

    def plainly(self, signal: Tensor, weights: Weights) -> Tensor:
        """The whole layer in differentiable operations, for compilers and higher derivatives."""
        mixed = _mix_plainly(signal, weights, self.sigma)
        result = signal + mixed if self.keep_signal else mixed
        return result if self.outer is None else self.outer.apply(result)


def mix(signal: Tensor, weights: Weights, recipe: Recipe) -> Tensor:
    """Transform, mix and transform back, with the fused version if it applies.

    Args:
        signal: `(batch, *reversed grid, channels)`, contiguous.
        weights: The layer's weights.
        recipe: The other operations.
    """
    if is_stand_in(signal) or not recipe.fuses:
        return recipe.plainly(signal, weights)
    if torch.is_grad_enabled():
        return _Mix.apply(signal, recipe, *weights)
    return _mix_pieces(signal, recipe, *_pack(weights, recipe), kept=None)


def _mix_plainly(signal: Tensor, weights: Weights, sigma: Activation) -> Tensor:
    spectrum = analyse(signal)
    if weights.inner_bias is None:
        real, imaginary = _filters(weights.inner)
        hidden = complex_product(real, imaginary, spectrum)
    else:
        hidden = sigma.apply(F.linear(spectrum, *weights.affine()))
    return synthesise(merge(hidden, weights), signal.shape[1])


def linearise_mixing(
    signal: Tensor, weights: Weights, sigma: Activation
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """`mix` of branches, and a function that pulls a cotangent back through it.

    Both consist of differentiable operations.
    """
    matrix, bias = weights.affine()
    before = F.linear(analyse(signal), matrix, bias)
    hidden, size = sigma.apply(before), signal.shape[1]

    def pull_back(cotangent: Tensor) -> Tensor:
        real, imaginary = analyse(cotangent, adjoint=True).chunk(2, dim=-1)
        branches = torch.cat((real @ weights.real, imaginary @ weights.imaginary), dim=-1)
        inner = (branches * sigma.slope(before, hidden)) @ matrix
        return synthesise(inner, size, adjoint=True)

    return synthesise(merge(hidden, weights), size), pull_back


def merge(hidden: Tensor, weights: Weights) -> Tensor:
    """Merge the branches, real and imaginary parts separately."""
    real, imaginary = hidden.chunk(2, dim=-1)
    return torch.cat(
        (
            F.linear(real, weights.real, weights.real_bias),
            F.linear(imaginary, weights.imaginary, weights.imaginary_bias),
        ),
        dim=-1,
    )


def complex_product(real: Tensor, imaginary: Tensor, spectrum: Tensor) -> Tensor:
    """Multiply every branch, `(…, branches, channels)`, with a spectrum of two planes."""
    a, b = spectrum.unsqueeze(-2).chunk(2, dim=-1)
    parts = (real * a - imaginary * b, imaginary * a + real * b)
    return torch.cat([part.flatten(-2) for part in parts], dim=-1)


def _filters(weight: Tensor) -> Tensor:
    """`(branches, 2, channels, *half spectrum)` to `(2, *reversed, branches, channels)`."""
    return weight.permute(1, *range(weight.dim() - 1, 2, -1), 0, 2)


def samples_at_once(signal: Tensor, features: int) -> int:
    """Number of samples per piece of the batch, with `features` numbers per frequency."""
    batch, *grid, _ = signal.shape
    if signal.device.type != "cpu":
        return batch
    points = frequencies(grid[0]) * math.prod(grid[1:])
    most = max(1, PIECE_BYTES // (points * features * signal.element_size()))
    return math.ceil(batch / max(1, math.ceil(batch / most)))


def padded_width(channels: int) -> int:
    """The width, or a slightly larger one for which the products take less time.

    Added channels hold zeros and change no result. Measured with AVX-512 on a grid of
    28×28: 47 channels take 1.26 times as long as 48, 79 take 1.19 times as long as 80, but 76 take
    0.98 times as long as 80.
    """
    remainder = channels % 8
    return channels + (8 - remainder if remainder > 4 else remainder == 3)


class _Mix(torch.autograd.Function):
    """`mix`, with a backward pass that keeps two tensors and needs little fresh memory."""

    @staticmethod
    def forward(ctx: Any, signal: Tensor, recipe: Any, *parameters: Any) -> Tensor:
        kernel, merging = _pack(Weights(*parameters), recipe)
        kept: list[Tensor] = []
        result = _mix_pieces(signal, recipe, kernel, merging, kept)
        ctx.recipe, ctx.kernel, ctx.merging = recipe, kernel, merging
        ctx.save_for_backward(signal, result, *parameters, *kept)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        signal, result, *others = ctx.saved_tensors
        count = len(Weights._fields)
        # Autocast was off in the layer; if it is on now, it is switched off here too.
        with without_autocast(gradients[0]):
            if is_recorded(gradients[0]):
                weights = Weights(*others[:count])
                return _gradients_plainly(signal, weights, ctx.recipe, gradients[0])
            return _gradients(ctx, (gradients[0], result), others[count:])


def _mix_pieces(
    signal: Tensor,
    recipe: Any,
    kernel: _Branches | _Filters,
    merging: _Merging,
    kept: list[Tensor] | None,
) -> Tensor:
    """Mix piece by piece, adding to `kept` two tensors of each for the backward pass."""
    result, ordered = recycled(signal.shape, like=signal), kernel.ordered
    for piece, target in _pieces(merging.features, signal, result):
        padded = _padded(piece, merging.width)
        rows = analyse_rows(padded, ordered=ordered)
        hidden = kernel.forward(rows)
        if kept is not None:
            kept += [rows, hidden]
        del rows  # its memory is used next, while it is in the cache
        wide = target if padded.shape == target.shape else padded
        mixed = synthesise_rows(merging.forward(hidden), wide, ordered=ordered)
        recipe.join(mixed, piece, target)
        if recipe.outer is not None:
            recipe.outer.overwrite(target)
    return result


def _gradients(
    ctx: Any, outside: tuple[Tensor, Tensor], kept: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The backward pass of `_Mix`, piece by piece.

    Args:
        ctx: Its context.
        outside: The gradient of the result, and the result.
        kept: Two tensors of each piece, see `_mix_pieces`.
    """
    recipe, kernel, merging, ordered = ctx.recipe, ctx.kernel, ctx.merging, ctx.kernel.ordered
    pulled = recycled(outside[1].shape, like=outside[1])
    totals: list[Tensor] = []
    pieces = _pieces(merging.features, *outside, pulled)
    for (piece, output, target), rows, hidden in zip(pieces, kept[::2], kept[1::2], strict=True):
        if recipe.outer is not None:
            piece = recipe.outer.pull_back_(recycled(piece.shape, piece).copy_(piece), output)
        padded = _padded(piece, merging.width)
        merged = analyse_rows(padded, adjoint=True, ordered=ordered)
        inside, found = merging.backward(merged, hidden)
        found += kernel.backward(inside, (rows, hidden), merged)
        totals = [a.add_(b) for a, b in zip(totals, found, strict=True)] if totals else found
        wide = target if padded.shape == target.shape else padded
        back = synthesise_rows(merged, wide, adjoint=True, ordered=ordered)
        recipe.join(back, piece, target)
    return pulled, None, *kernel.gradients(*totals[3:]), *merging.gradients(*totals[:3])


def _gradients_plainly(
    signal: Tensor, weights: Weights, recipe: Recipe, gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients in ordinary operations, to be differentiated once more or transformed."""
    once_more = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases: the signal itself may come from the same weights, used before, and autograd would
        # go through that use too, whose part in the gradient it adds by itself.
        signal = signal.view_as(signal)
        weights = Weights._make(one if one is None else one.view_as(one) for one in weights)
        inputs = (signal, *weights)
        wanted = [one for one in inputs if one is not None and one.requires_grad]
        again = recipe.plainly(signal, weights)
    found = iter(torch.autograd.grad(again, wanted, gradient, create_graph=once_more))
    first, *rest = (None if one is None or not one.requires_grad else next(found) for one in inputs)
    return first, None, *rest


def _pieces(features: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    count = samples_at_once(tensors[0], features)
    if count >= len(tensors[0]):
        return [tensors]
    return zip(*(tensor.split(count) for tensor in tensors), strict=True)


def _padded(x: Tensor, width: int) -> Tensor:
    """The same with additional channels of zeros, contiguous."""
    channels = x.shape[-1]
    if channels == width:
        return x.contiguous()
    padded = recycled((*x.shape[:-1], width), like=x)
    padded[..., :channels].copy_(x)
    padded[..., channels:].zero_()
    return padded


def _pack(weights: Weights, recipe: Any) -> tuple[_Branches | _Filters, _Merging]:
    """The weights in the form that the products need."""
    filters = weights.inner_bias is None
    kernel = _Filters(weights) if filters else _Branches(weights, recipe.sigma)
    return kernel, _Merging(weights)


class _Merging:
    """The two products that merge the branches, in padded channels."""

    def __init__(self, weights: Weights) -> None:
        self.channels, inputs = weights.real.shape
        self.width = padded_width(self.channels)
        self.branches = inputs // self.channels
        self.features = 2 * self.branches * self.width
        self.real, self.imaginary = self._pack(weights.real), self._pack(weights.imaginary)
        self.biases = [
            F.pad(bias, (0, self.width - self.channels)) if self.width > self.channels else bias
            for bias in (weights.real_bias, weights.imaginary_bias)
        ]

    def _pack(self, weight: Tensor) -> Tensor:
        channels, width = self.channels, self.width
        if channels == width:
            return weight
        packed = weight.new_zeros(width, self.branches, width)
        packed[:channels, :, :channels] = weight.view(channels, self.branches, channels)
        return packed.view(width, -1)

    def _unpack(self, gradient: Tensor) -> Tensor:
        own = gradient.view(self.width, self.branches, self.width)
        return own[: self.channels, :, : self.channels].reshape(self.channels, -1)

    def forward(self, hidden: Tensor) -> Tensor:
        half, width = hidden.shape[1] // 2, self.width
        merged = recycled((len(hidden), 2 * width), like=hidden)
        real, imaginary = hidden[:, :half], hidden[:, half:]
        product(real, self.real.T, bias=self.biases[0], out=merged[:, :width])
        product(imaginary, self.imaginary.T, bias=self.biases[1], out=merged[:, width:])
        return merged

    def backward(self, merged: Tensor, hidden: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The gradient of `hidden`, and those of the weights."""
        half, width = hidden.shape[1] // 2, self.width
        real, imaginary = merged[:, :width], merged[:, width:]
        found = [real.T @ hidden[:, :half], imaginary.T @ hidden[:, half:], merged.sum(0)]
        inside = recycled(hidden.shape, like=hidden)
        product(real, self.real, out=inside[:, :half])
        product(imaginary, self.imaginary, out=inside[:, half:])
        return inside, found

    def gradients(self, real: Tensor, imaginary: Tensor, biases: Tensor) -> tuple[Tensor, ...]:
        real_bias, imaginary_bias = biases.view(2, -1)[:, : self.channels]
        return self._unpack(real), real_bias, self._unpack(imaginary), imaginary_bias


class _Branches:
    """The branches' affine maps and their activation, in padded channels."""

    ordered = False  # the same for all frequencies

    def __init__(self, weights: Weights, sigma: InPlaceActivation) -> None:
        assert weights.inner_bias is not None
        branches, _, channels, _ = self.shape = weights.inner.shape
        width, self.sigma = padded_width(channels), sigma
        real, imaginary = weights.inner.permute(1, 2, 0, 3)
        self.matrix = weights.inner.new_zeros(2 * width, 2 * branches * width)
        blocks = self._blocks(self.matrix)
        blocks[0][0].copy_(real)
        blocks[0][1].copy_(imaginary)
        torch.neg(imaginary, out=blocks[1][0])
        blocks[1][1].copy_(real)
        self.bias = weights.inner.new_zeros(2, branches, width)
        self.bias[..., :channels] = weights.inner_bias.transpose(0, 1)

    def _blocks(self, matrix: Tensor) -> list[list[Tensor]]:
        """The blocks of a matrix from plane to plane: each `(channels, branches, channels)`."""
        branches, _, channels, _ = self.shape
        planes = matrix.view(2, -1, 2, branches, len(matrix) // 2)[:, :channels, ..., :channels]
        return [list(source.unbind(1)) for source in planes]

    def forward(self, rows: Tensor) -> Tensor:
        hidden = recycled((len(rows), self.matrix.shape[1]), like=rows)
        return self.sigma.overwrite(product(rows, self.matrix, bias=self.bias.view(-1), out=hidden))

    def backward(self, inside: Tensor, kept: tuple[Tensor, Tensor], target: Tensor) -> list[Tensor]:
        """Write the gradient of the spectrum to `target` and return those of the weights."""
        rows, hidden = kept
        self.sigma.pull_back_(inside, hidden)
        product(inside, self.matrix.T, out=target)
        return [product(rows.T, inside), inside.sum(0)]

    def gradients(self, matrix: Tensor, biases: Tensor) -> tuple[Tensor, Tensor]:
        blocks = self._blocks(matrix)
        weight = matrix.new_empty(self.shape)
        real, imaginary = weight.permute(1, 2, 0, 3)
        torch.add(blocks[0][0], blocks[1][1], out=real)
        torch.sub(blocks[0][1], blocks[1][0], out=imaginary)
        bias = biases.view(2, self.shape[0], -1)[..., : self.shape[2]]
        return weight, bias.transpose(0, 1)


class _Filters:
    """The filters' complex products, in padded channels."""

    ordered = True  # every frequency has its own weights

    def __init__(self, weights: Weights) -> None:
        self.shape = weights.inner.shape
        branches, _, channels, *half = self.shape
        filters = _filters(weights.inner).reshape(2, math.prod(half), branches, channels)
        width = padded_width(channels)
        real, self.imaginary = (
            F.pad(filters, (0, width - channels)) if width > channels else filters
        )
        # Once for each plane, so that a product reads contiguous memory.
        self.real = real.unsqueeze(1).repeat(1, 2, 1, 1)

    def _spectrum(self, rows: Tensor) -> Tensor:
        """Rows as `(batch, frequencies, planes, 1, channels)`."""
        return rows.view(-1, len(self.real), 2, 1, self.real.shape[-1])

    def _hidden(self, rows: Tensor) -> Tensor:
        return rows.view(-1, *self.real.shape)

    def forward(self, rows: Tensor) -> Tensor:
        spectrum, features = self._spectrum(rows), self.real[0].numel()
        hidden = recycled((len(rows), features), like=rows)
        product = torch.mul(spectrum, self.real, out=self._hidden(hidden))
        product[:, :, 0].addcmul_(spectrum[:, :, 1], self.imaginary, value=-1)
        product[:, :, 1].addcmul_(spectrum[:, :, 0], self.imaginary)
        return hidden

    def backward(self, inside: Tensor, kept: tuple[Tensor, Tensor], target: Tensor) -> list[Tensor]:
        """Write the gradient of the spectrum to `target` and return those of the weights."""
        spectrum, gradient = self._spectrum(kept[0]), self._hidden(inside)
        spare = recycled(gradient.shape, like=gradient)
        straight = torch.mul(gradient, spectrum, out=spare).sum(0)
        torch.mul(gradient[:, :, 0], spectrum[:, :, 1], out=spare[:, :, 0])
        torch.mul(gradient[:, :, 1], spectrum[:, :, 0], out=spare[:, :, 1])
        crossed = spare.sum(0)
        product = torch.mul(gradient, self.real, out=spare)
        product[:, :, 0].addcmul_(gradient[:, :, 1], self.imaginary)
        product[:, :, 1].addcmul_(gradient[:, :, 0], self.imaginary, value=-1)
        torch.sum(product, 3, keepdim=True, out=self._spectrum(target))
        return [straight[:, 0] + straight[:, 1], crossed[:, 1] - crossed[:, 0]]

    def gradients(self, real: Tensor, imaginary: Tensor) -> tuple[Tensor, None]:
        weight = real.new_empty(self.shape)
        for part, found in zip(_filters(weight), (real, imaginary), strict=True):
            part.copy_(found[..., : self.shape[2]].reshape(part.shape))
        return weight, None
