"""Maps of the channels that are the same at every grid point."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Pointwise", "channels_first", "channels_last", "time_column"]


def channels_last(x: Tensor) -> Tensor:
    """Reverse the axes after the batch: `(batch, channels, *space)` to space reversed, channels.

    Only the view changes; data that a layer of this package wrote is already contiguous in it.
    """
    return x.permute(0, *range(x.dim() - 1, 0, -1))


channels_first = channels_last
"""The way back: reversing the axes twice restores them."""


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
            return channels_first(F.linear(points, self.weight, self.bias))
        bias = self.bias + time_column(t, x) * self.weight[:, -1]
        weight = self.weight[:, :-1]
        if bias.dim() == 1:
            return channels_first(F.linear(points, weight, bias))
        bias = bias.view(len(x), *[1] * (x.dim() - 2), -1)
        return channels_first(F.linear(points, weight).add_(bias))


def time_column(t: Tensor | float, like: Tensor) -> Tensor | float:
    """Time as a factor of a weight vector: a scalar, or one row a sample.

    Args:
        t: A number, a tensor without axes, or one value a sample.
        like: The state, whose dtype and device the result takes.
    """
    if not isinstance(t, Tensor):
        return t
    t = t.to(dtype=like.dtype, device=like.device)
    if t.dim() == 0:
        return t
    if t.shape != like.shape[:1]:
        raise ValueError(
            f"t must be a scalar or hold one value a sample, got shape {tuple(t.shape)} for "
            f"{len(like)} samples; pass a tensor of shape ({len(like)},)"
        )
    return t[:, None]
