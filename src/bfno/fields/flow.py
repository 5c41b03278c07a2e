"""The vector fields of continuous flows of images."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, nn

from bfno.fields.convolution import TimedConv
from bfno.fields.interface import Time
from bfno.fields.operator import OperatorField, find_layer
from bfno.layers.convolutions import Kernels
from bfno.layers.pointwise import time_column

__all__ = ["FlowConvField", "FlowOperatorField"]


class FlowConvField(nn.Module):
    """Convolutions of 3×3 points with softplus between them, each of which also sees the time.

    The weights of the last one start at zero: the flow starts as a shift.

    Args:
        channels: Channels of the state.
        width: Channels between the convolutions.
        hidden_layers: Number of layers of that width.

    Shape:
        `t` a scalar or `(batch,)`, `y` `(batch, channels, height, width)` to the same.

    References:
        Grathwohl et al., FFJORD, ICLR 2019; Finlay et al., How to Train Your Neural ODE, ICML 2020.

    Example:
        >>> import torch
        >>> field = FlowConvField(channels=1, width=8)
        >>> field(0.5, torch.zeros(2, 1, 6, 6)).shape
        torch.Size([2, 1, 6, 6])
    """

    def __init__(self, channels: int, width: int, hidden_layers: int = 3) -> None:
        super().__init__()
        if hidden_layers < 1:
            raise ValueError(f"hidden_layers must be at least 1, got {hidden_layers}")
        sizes = [channels, *[width] * hidden_layers, channels]
        self.layers = nn.ModuleList(
            TimedConv(one, other, size=3) for one, other in itertools.pairwise(sizes)
        )
        nn.init.zeros_(self._convolutions()[-1].weight)

    def _convolutions(self) -> list[TimedConv]:
        return [cast(TimedConv, layer) for layer in self.layers]

    def forward(self, t: Time, y: Tensor) -> Tensor:
        return self.prepare(y)(t, y)

    def pull_back(self, t: Time, y: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        """The field and `cotangentᵀ ∂f/∂y`; see `bfno.fields.pullback`."""
        return self.prepare(y).pull_back(t, y, cotangent)

    def prepare(self, y: Tensor) -> _PreparedConvField:
        """The field on the grid of `y` with its present weights, for many evaluations."""
        return _PreparedConvField(self._convolutions(), y)


class _PreparedConvField:
    """What all evaluations with the same weights on the same grid have in common, done once."""

    def __init__(self, layers: Sequence[TimedConv], y: Tensor) -> None:
        self.kernels = Kernels([layer.kernel for layer in layers])
        self.biases = [layer.bias[:, None, None] for layer in layers]
        self.responses = [layer.time_response(y) for layer in layers]

    def __call__(self, t: Time, y: Tensor) -> Tensor:
        return self.kernels.convolve(y, self._timed_biases(t, y))

    def pull_back(self, t: Time, y: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        return self.kernels.pull_back(y, cotangent, self._timed_biases(t, y))

    def _timed_biases(self, t: Time, y: Tensor) -> list[Tensor]:
        time = time_column(t, y)
        if isinstance(time, Tensor):
            time = time.reshape(-1, 1, 1, 1)
        pairs = zip(self.biases, self.responses, strict=True)
        return [bias + time * response for bias, response in pairs]


class FlowOperatorField(OperatorField):
    """Operator layers with softplus behind each, also the last.

    The decoder's weights start at zero: the flow starts as a shift.

    Args:
        layer: Name of the layer, see `OperatorField`.
        channels: Channels of the state.
        width: Channels of the layers.
        depth: Number of layers.
        inner_activation: The layers' own activation; None leaves them theirs. With ReLU the
            Jacobian does not change with a small change of what enters it, and the trace cannot
            teach what comes before.
        **layer_options: Further arguments of the layer.

    Shape:
        `t` a scalar or `(batch,)`, `y` `(batch, channels, *space)` to the same.

    Example:
        >>> import torch
        >>> field = FlowOperatorField("bfno", 1, width=8, depth=3, branches=3, skip="conv")
        >>> field(0.5, torch.zeros(2, 1, 6, 6)).shape
        torch.Size([2, 1, 6, 6])
    """

    def __init__(
        self,
        layer: str,
        channels: int,
        width: int,
        depth: int,
        *,
        inner_activation: str | None = None,
        **layer_options: Any,
    ) -> None:
        own = {} if inner_activation is None else {"activation": inner_activation}
        make = functools.partial(find_layer(layer), **own)
        super().__init__(
            make,
            channels,
            width,
            depth,
            activation="softplus",
            last_activation=True,
            **layer_options,
        )
        nn.init.zeros_(self.decoder.weight)
