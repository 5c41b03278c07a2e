"""The vector fields of continuous flows of images."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfno.fields.convolution import TimedConv
from bfno.fields.interface import Time
from bfno.fields.operator import OperatorField
from bfno.layers.activation import ActivationChoice
from bfno.layers.pointwise import is_stand_in, time_column

__all__ = ["FlowConvField", "FlowOperatorField", "Kernels"]


_PIECE_BYTES = 2 << 20
"""Most bytes of a layer's result for the samples that are handled at once."""


class FlowConvField(nn.Module):
    """Convolutions of 3×3 points with softplus between them; each also sees the time.

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
        """The field and `cotangentᵀ ∂f/∂y`; see `bfno.fields.interface`."""
        return self.prepare(y).pull_back(t, y, cotangent)

    def prepare(self, y: Tensor) -> _PreparedConvField:
        """The field, prepared for many evaluations on the grid of `y` with its present weights."""
        return _PreparedConvField(self._convolutions(), y)


class _PreparedConvField:
    """Computes once what all evaluations with the same weights on the same grid share."""

    def __init__(self, layers: Sequence[TimedConv], y: Tensor) -> None:
        self.kernels = Kernels([layer.kernel for layer in layers])
        self.biases = [layer.bias[:, None, None] for layer in layers]
        self.responses = [layer.time_response(y) for layer in layers]

    def __call__(self, t: Time, y: Tensor) -> Tensor:
        pieces = self._pieces(self._timed_biases(t, y), y)
        return _joined([self.kernels.convolve(part, biases) for biases, part in pieces])

    def pull_back(self, t: Time, y: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        pieces = self._pieces(self._timed_biases(t, y), y, cotangent)
        found = [self.kernels.pull_back(part, pull, biases) for biases, part, pull in pieces]
        values, pulled = zip(*found, strict=True)
        return _joined(values), _joined(pulled)

    def _pieces(self, biases: list[Tensor], *tensors: Tensor) -> Iterator[Any]:
        """A few samples at a time, whose results are still in the cache when they are used."""
        y = tensors[0]
        widest = max(len(weight) for weight in self.kernels.weights)
        count = max(1, _PIECE_BYTES // (widest * math.prod(y.shape[2:]) * y.element_size()))
        if y.device.type != "cpu" or is_stand_in(y) or count >= len(y):
            return iter([(biases, *tensors)])
        parts = [tensor.split(count) for tensor in tensors]
        if all(bias.dim() == 4 and len(bias) == len(y) for bias in biases):
            # Times of single samples make biases of single samples.
            own = zip(*(bias.split(count) for bias in biases), strict=True)
            return zip(own, *parts, strict=True)
        return zip(itertools.repeat(biases), *parts, strict=False)

    def _timed_biases(self, t: Time, y: Tensor) -> list[Tensor]:
        time = time_column(t, y)
        if isinstance(time, Tensor):
            time = time.reshape(-1, 1, 1, 1)
        pairs = zip(self.biases, self.responses, strict=True)
        return [bias + time * response for bias, response in pairs]


class Kernels:
    """Convolutions with softplus between them, and one product with their Jacobian.

    With inputs `a_0`, weights `W_i` and biases `m_i`, the layers compute

        h_i = W_i a_{i-1} + m_i,    a_i = softplus(h_i),    value = W_n a_{n-1} + m_n,

    and a cotangent ε of the value is pulled back by `c_{n-1} = W_nᵀ ε`, `c_{i-1} = W_iᵀ (c_i
    softplus'(h_i))`. Written in these operations, the product can be trained without
    differentiating autograd's backward pass, which would be slower. (A handwritten backward pass
    was tried and is slower, too.) The kernels are stored in the forms that convolutions and their
    transposes need, made once for many uses.

    Args:
        weights: Kernels of odd size, one for each convolution; the grid stays as it is.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.weights = [_fast(weight) for weight in weights]
        # With its kernel flipped, a transpose is itself a convolution on the same grid.
        self.turned = [_fast(weight.flip(2, 3).transpose(0, 1)) for weight in weights]

    def convolve(self, x: Tensor, biases: Sequence[Tensor]) -> Tensor:
        """Apply convolutions with softplus between them.

        Args:
            x: `(batch, channels, height, width)`.
            biases: What is added to each convolution's result, in any shape that broadcasts to it.
        """
        x = _fast(x)
        for weight, bias in zip(self.weights[:-1], biases[:-1], strict=True):
            x = F.softplus(_convolve(x, weight).add_(bias))
        return _convolve(x, self.weights[-1]).add_(biases[-1])

    def pull_back(
        self, x: Tensor, cotangent: Tensor, biases: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Apply the convolutions, and pull a cotangent back through them.

        Args:
            x: `(batch, channels, height, width)`.
            cotangent: A tensor like the value.
            biases: What is added to each convolution's result.

        Returns:
            The value, and the cotangent times the Jacobian of the value.
        """
        x, slopes = _fast(x), []
        for weight, bias in zip(self.weights[:-1], biases[:-1], strict=True):
            before = _convolve(x, weight).add_(bias)
            slopes.append(torch.sigmoid(before))
            x = F.softplus(before)
        value = _convolve(x, self.weights[-1]).add_(biases[-1])
        pulled = _convolve(_fast(cotangent), self.turned[-1])
        for turned, slope in zip(reversed(self.turned[:-1]), reversed(slopes), strict=True):
            pulled = _convolve(pulled * slope, turned)
        return value, pulled


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _convolve(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=weight.shape[-1] // 2)


def _fast(x: Tensor) -> Tensor:
    """The memory format in which convolutions of a CPU need not reorder their inputs."""
    # Function transforms do not support memory formats.
    return x if is_stand_in(x) else x.contiguous(memory_format=torch.channels_last)


class FlowOperatorField(OperatorField):
    """Operator layers, each followed by softplus, the last one too.

    The decoder's weights start at zero: the flow starts as a shift.

    Args:
        layer: Name of the layer, see `OperatorField`.
        channels: Channels of the state.
        width: Channels of the layers.
        depth: Number of layers.
        inner_activation: The layers' own activation; None leaves them their default. With ReLU, a
            small change of the input does not change the Jacobian, so the trace cannot train the
            weights before it.
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
        inner_activation: ActivationChoice | None = None,
        **layer_options: Any,
    ) -> None:
        super().__init__(
            layer,
            channels,
            width,
            depth,
            activation="softplus",
            last_activation=True,
            inner_activation=inner_activation,
            **layer_options,
        )
        nn.init.zeros_(self.decoder.weight)
