"""Maps of the channels that are the same at every grid point."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfno import tracing
from bfno.layers.memory import recycled
from bfno.tracing import is_autocast, is_recorded, without_autocast

__all__ = [
    "Pointwise",
    "channels_first",
    "channels_last",
    "is_stand_in",
    "time_column",
]


def channels_last(x: Tensor) -> Tensor:
    """Reverse the axes after the batch: `(batch, channels, *space)` to space reversed, channels.

    Only the view changes; data that a layer of this package wrote is already contiguous in it.
    """
    return x.permute(0, *range(x.dim() - 1, 0, -1))


channels_first = channels_last
"""The inverse: reversing the axes twice restores them."""


def is_stand_in(x: Tensor) -> bool:
    """Whether torch can follow only ordinary operations, or a tensor holds no numbers."""
    return tracing.is_transformed() or x.is_meta


class Pointwise(nn.Module):
    """Affine map of the channels, applied at every grid point, optionally aware of time.

    Time enters as one more, constant input channel, the last one. Its product with the weights is
    the same at every point, so it is added to the bias and the channel never exists in memory.

    Args:
        in_channels: Channels of the input, time not counted.
        out_channels: Channels of the output.
        time: Whether the map has a time channel.

    Shape:
        `(batch, in_channels, *space)` to `(batch, out_channels, *space)`.

    Example:
        >>> encoder = Pointwise(3, 8, time=True)
        >>> encoder(torch.zeros(2, 3, 4, 4), 0.5).shape
        torch.Size([2, 8, 4, 4])
    """

    def __init__(self, in_channels: int, out_channels: int, *, time: bool = False) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels + time))
        self.bias = nn.Parameter(torch.empty(out_channels))
        bound = 1 / math.sqrt(max(in_channels + time, 1))
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor, t: Tensor | float | None = None) -> Tensor:
        points = channels_last(x)
        if t is None:
            return channels_first(_linear(points, self.weight, self.bias))
        bias = self.bias + time_column(t, x) * self.weight[:, -1]
        weight = self.weight[:, :-1]
        if bias.dim() == 1:
            return channels_first(_linear(points, weight, bias))
        bias = bias.view(len(x), *[1] * (x.dim() - 2), len(weight))
        return channels_first(F.linear(points, weight) + bias)

    def transposed(self, y: Tensor) -> Tensor:
        """Apply the transpose of the map of the input's channels."""
        weight = self.weight[:, : self.in_channels]
        return channels_first(F.linear(channels_last(y), weight.T))


def _linear(points: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`F.linear`, in recycled memory if only reverse-mode autograd records it."""
    if is_stand_in(points) or is_autocast(points):
        return F.linear(points, weight, bias)
    return _Linear.apply(points, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, points: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows = points.reshape(-1, points.shape[-1])
        result = recycled((len(rows), len(weight)), like=points)
        # Contiguous: with one channel, a slice of a matrix takes three times as long.
        torch.addmm(bias, rows, weight.contiguous().T, out=result)
        ctx.save_for_backward(points, weight)
        return result.view(*points.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        points, weight = ctx.saved_tensors
        # Nothing was cast in the forward pass, so nothing is in the backward pass.
        with without_autocast(gradients[0]):
            return _gradients(points, weight, gradients[0])


def _gradients(points: Tensor, weight: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of points, weight and bias."""
    gradient, rows = gradient.reshape(-1, len(weight)), points.reshape(-1, points.shape[-1])
    if is_recorded(gradient):
        pulled = (gradient @ weight).view(points.shape)
    else:
        pulled = recycled(points.shape, like=points)
        torch.mm(gradient, weight, out=pulled.view_as(rows))
    return pulled, gradient.T @ rows, gradient.sum(0)


def time_column(t: Tensor | float, like: Tensor) -> Tensor | float:
    """Time as a factor of a weight vector: a scalar, or one row per sample.

    Args:
        t: A number, a tensor without axes, or one value per sample.
        like: The state, whose dtype and device the result takes.
    """
    if not isinstance(t, Tensor):
        return t
    t = t.to(dtype=like.dtype, device=like.device)
    if t.dim() == 0:
        return t
    if t.shape != like.shape[:1]:
        raise ValueError(
            f"t must be a scalar or hold one value per sample, got shape {tuple(t.shape)} for "
            f"{len(like)} samples; pass a tensor of shape ({len(like)},)"
        )
    return t[:, None]
