"""A vector field for the inside of a network, with normalisation before every layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bfno.fields.interface import Time
from bfno.fields.operator import find_layer
from bfno.layers.activation import ActivationChoice, find_activation, known_activation
from bfno.layers.pointwise import Pointwise, time_column

__all__ = ["NormedField"]

_GROUP = 8  # channels, or more, that are normalised together


class NormedField(nn.Module):
    """Normalises, activates and mixes its state, layer after layer: a residual block as a field.

    One Euler step of length one along it is a residual block with pre-activation. Each sample is
    normalised by itself, in groups of channels, so that nothing depends on the batch or on how
    often a solver calls the field. The result is scaled channel by channel, at first by little, so
    a new field hardly moves its state.

    Args:
        layer: `"conv"` for a convolution three points wide, `"bfno"`, `"fno"`, `"afno"`, or a
            callable that makes a layer of a given width: any module that maps
            `(batch, width, height, width)` to the same shape.
        channels: Channels of the state.
        depth: Number of layers.
        out_channels: Channels of the result; those of the state if None.
        activation: Activation before each layer: a name, such as relu, softplus or tanh, or an
            elementwise function.
        gain: The initial scale of the result.
        **layer_options: Further arguments of the layer.

    Shape:
        `t` a scalar or `(batch,)`, `y` `(batch, channels, height, width)` to
        `(batch, out_channels, height, width)`.

    Example:
        >>> field = NormedField("bfno", channels=16, skip="conv")
        >>> field(0.5, torch.zeros(2, 16, 8, 8)).shape
        torch.Size([2, 16, 8, 8])
    """

    def __init__(
        self,
        layer: str | Callable[..., nn.Module],
        channels: int,
        depth: int = 1,
        *,
        out_channels: int | None = None,
        activation: ActivationChoice = "relu",
        gain: float = 0.3,
        **layer_options: Any,
    ) -> None:
        super().__init__()
        out_channels = channels if out_channels is None else out_channels
        make = _find(layer)
        most = max(1, channels // _GROUP)
        groups = max(size for size in range(1, most + 1) if channels % size == 0)
        self.channels, self.activation = channels, known_activation(activation)
        self.norms = nn.ModuleList(nn.GroupNorm(groups, channels) for _ in range(depth))
        self.layers = nn.ModuleList(make(channels, **layer_options) for _ in range(depth))
        # The contribution of a unit of time to the channels before each layer.
        self.time = nn.Parameter(torch.zeros(depth, channels))
        self.leave = Pointwise(channels, out_channels) if out_channels != channels else None
        self.gain = nn.Parameter(torch.full((out_channels, 1, 1), float(gain)))

    def forward(self, t: Time, y: Tensor) -> Tensor:
        if y.dim() != 4 or y.shape[1] != self.channels:
            raise ValueError(
                f"the state must have shape (batch, {self.channels}, height, width), got "
                f"{tuple(y.shape)}"
            )
        activation, time = find_activation(self.activation), time_column(t, y)
        hidden = y
        for norm, layer, response in zip(self.norms, self.layers, self.time, strict=True):
            shift = (time * response).reshape(-1, self.channels, 1, 1)
            hidden = layer(activation.apply(norm(hidden) + shift))
        if self.leave is not None:
            hidden = self.leave(hidden)
        return hidden * self.gain


def _find(layer: str | Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    if layer == "conv":
        return lambda width, **options: nn.Conv2d(width, width, 3, padding=1, bias=False, **options)
    return find_layer(layer) if isinstance(layer, str) else layer
