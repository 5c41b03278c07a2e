"""The convolutional vector field of the baselines."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfno.fields.interface import Time
from bfno.layers.activation import ActivationChoice, find_activation, known_activation
from bfno.layers.pointwise import time_column

__all__ = ["ConvField", "TimedConv"]


class ConvField(nn.Module):
    """Three convolutions, 1×1, 3×3 and 1×1; each also sees the time.

    Time is a constant image, the last input channel of every convolution.

    Args:
        channels: Channels of the state.
        hidden: Channels between the convolutions.
        out_channels: Channels of the result; those of the state if not given.
        activation: Activation after the first two convolutions: a name, such as relu, softplus or
            tanh, or an elementwise function.

    Shape:
        `t` a scalar or `(batch,)`, `y` `(batch, channels, height, width)` to
        `(batch, out_channels, height, width)`.

    Example:
        >>> field = ConvField(channels=3, hidden=8)
        >>> field(0.5, torch.zeros(2, 3, 6, 6)).shape
        torch.Size([2, 3, 6, 6])
    """

    def __init__(
        self,
        channels: int,
        hidden: int,
        out_channels: int | None = None,
        activation: ActivationChoice = "relu",
    ) -> None:
        super().__init__()
        self.enter = TimedConv(channels, hidden, size=1)
        self.mix = TimedConv(hidden, hidden, size=3)
        self.leave = TimedConv(hidden, channels if out_channels is None else out_channels, size=1)
        self.activation = known_activation(activation)

    def forward(self, t: Time, y: Tensor) -> Tensor:
        activation = find_activation(self.activation)
        hidden = activation.after(self.enter, self.enter(t, y))
        hidden = activation.after(self.mix, self.mix(t, hidden))
        return self.leave(t, hidden)


class TimedConv(nn.Module):
    """Convolution that keeps its grid and has the time as its last input channel.

    Its weights are those of the convolution over the concatenated channels. The time channel
    itself is never built, because that would copy all the others: it contributes the time
    multiplied by a response that is the same for all samples.

    Args:
        in_channels: Channels of the input, time not counted.
        out_channels: Channels of the output.
        size: Side of the kernel, odd.
    """

    result_may_be_overwritten = True  # no derivative needs it

    def __init__(self, in_channels: int, out_channels: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels + 1, size, size))
        self.bias = nn.Parameter(torch.empty(out_channels))
        # The distribution that `nn.Conv2d` starts from.
        bound = 1 / math.sqrt(self.weight[0].numel())
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, t: Time, x: Tensor) -> Tensor:
        size = self.weight.shape[-1]
        if size == 1:
            return self._pointwise(time_column(t, x), x)
        time = time_column(t, x)
        if isinstance(time, Tensor):
            time = time.reshape(-1, 1, 1, 1)
        y = F.conv2d(x, self.kernel, self.bias, padding=size // 2)
        return y.add_(time * self.time_response(x))

    @property
    def kernel(self) -> Tensor:
        """The weights of the input's channels."""
        return self.weight[:, :-1]

    def time_response(self, x: Tensor) -> Tensor:
        """Contribution of one unit of time to the convolution of any input on the grid of `x`."""
        # Next to the border the kernel also covers padding, where there is no time either.
        ones = x.new_ones(1, 1, *x.shape[2:])
        return F.conv2d(ones, self.weight[:, -1:], padding=self.weight.shape[-1] // 2)

    def _pointwise(self, time: Time, x: Tensor) -> Tensor:
        bias = self.bias + time * self.weight[:, -1, 0, 0]
        if bias.dim() == 1:
            return F.conv2d(x, self.weight[:, :-1], bias)
        return F.conv2d(x, self.weight[:, :-1]).add_(bias[:, :, None, None])
