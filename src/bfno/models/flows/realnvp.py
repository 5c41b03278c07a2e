"""RealNVP: couplings of pixels and of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from bfno.models.flows.factoring import (
    Bijection,
    Chain,
    FactoringFlow,
    LatentSplit,
    Shape,
    Squeeze,
    halvings,
    image_shape,
    load_normflows,
    refuse_below_one,
    through,
)

__all__ = [
    "ChannelCoupling",
    "CheckerboardCoupling",
    "CouplingNet",
    "DiagonalSplit",
    "Norm",
    "RealNVP",
    "WeightNormConv2d",
]

Norm = Literal["batch", "none"]


class WeightNormConv2d(nn.Conv2d):
    """A convolution whose weights are given by a direction and a length per output channel.

    (The parametrisation in torch does the same, but modules that use it cannot be pickled.)

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        side: Side of the kernel; the image keeps its size.
        bias: Whether a bias is added.
    """

    def __init__(
        self, in_channels: int, out_channels: int, side: int, *, bias: bool = True
    ) -> None:
        super().__init__(in_channels, out_channels, side, padding=side // 2, bias=bias)
        self.length = nn.Parameter(self._lengths().detach().clone())

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight * (self.length / self._lengths())
        return self._conv_forward(input, weight, self.bias)

    def _lengths(self) -> Tensor:
        return torch.linalg.vector_norm(self.weight, dim=(1, 2, 3), keepdim=True)


class _ResidualBlock(nn.Module):
    def __init__(self, width: int, norm: Norm) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _norm(norm, width),
            nn.ReLU(),
            WeightNormConv2d(width, width, 3, bias=False),
            _norm(norm, width),
            nn.ReLU(),
            WeightNormConv2d(width, width, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class CouplingNet(nn.Module):
    """A residual network that gives the shift and scale of the other part of an image.

    The outputs of the blocks are added up, each through a convolution of side 1. The scale's
    logarithm is a learned factor per channel times a hyperbolic tangent. Both it and the shift
    start at zero.

    Args:
        in_channels: Channels that it sees.
        out_channels: Channels that are changed.
        width: Channels inside.
        blocks: Residual blocks.
        norm: `"batch"` normalises the channels inside, `"none"` does not.

    Shape:
        `(batch, in_channels, height, width)` to `(batch, 2 * out_channels, height, width)`: shift
        and logarithm of the scale of the first channel, then those of the next.
    """

    def __init__(
        self, in_channels: int, out_channels: int, width: int, blocks: int, norm: Norm
    ) -> None:
        super().__init__()
        self.first_norm = _norm(norm, in_channels)
        self.first = WeightNormConv2d(2 * in_channels, width, 3)
        self.blocks = nn.ModuleList(_ResidualBlock(width, norm) for _ in range(blocks))
        self.skips = nn.ModuleList(WeightNormConv2d(width, width, 1) for _ in range(blocks + 1))
        self.last_norm = _norm(norm, width)
        self.last = WeightNormConv2d(width, 2 * out_channels, 1)
        nn.init.zeros_(self.last.length)
        if self.last.bias is not None:
            nn.init.zeros_(self.last.bias)
        self.factor = nn.Parameter(torch.ones(out_channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first_norm(x)
        # Both signs, so that the ReLU loses nothing.
        x = self.first(torch.cat((x, -x), dim=1).relu())
        total = self.skips[0](x)
        for block, skip in zip(self.blocks, self.skips[1:], strict=True):
            x = block(x)
            total = total + skip(x)
        shift, raw = self.last(self.last_norm(total).relu()).chunk(2, dim=1)
        return torch.stack((shift, self.factor * raw.tanh()), dim=2).flatten(1, 2)


class CheckerboardCoupling(Bijection):
    """Transforms the pixels of one colour of a checkerboard depending on those of the other.

    (The one in normflows packs each colour into an image of half the width, which separates
    neighbours and needs even sides; its masked one needs two networks for shift and scale.)

    Args:
        net: The network; its input is the image with zeros in place of the pixels to change.
        grid: Height and width of an image.
        white: Whether the pixel in the first corner is seen, not changed.
    """

    seen: Tensor

    def __init__(self, net: nn.Module, grid: tuple[int, int], *, white: bool) -> None:
        super().__init__()
        self.net = net
        rows, columns = (torch.arange(side) for side in grid)
        seen = (rows[:, None] + columns) % 2 == (0 if white else 1)
        self.register_buffer("seen", seen.to(torch.get_default_dtype()), persistent=False)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shift, log_scale = self._shift_and_log_scale(x)
        return x * log_scale.exp() + shift, log_scale.flatten(1).sum(1)

    def decode(self, y: Tensor) -> Tensor:
        shift, log_scale = self._shift_and_log_scale(y)
        return (y - shift) * (-log_scale).exp()

    def _shift_and_log_scale(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shift and logarithm of the scale, zero for pixels that are seen."""
        found = (1 - self.seen) * self.net(self.seen * x)
        return found[:, 0::2], found[:, 1::2]


class ChannelCoupling(Bijection):
    """Transforms one half of the channels depending on the other half.

    Args:
        net: The network, from the channels seen to shift and scale of the others.
        first: Whether the first half is seen, not changed.
    """

    def __init__(self, net: nn.Module, *, first: bool) -> None:
        super().__init__()
        mode = "channel" if first else "channel_inv"
        flows = load_normflows("RealNVP").flows
        self.coupling = flows.AffineCouplingBlock(net, scale_map="exp", split_mode=mode)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # Its map from latent variables to samples is RealNVP's from samples to latent variables.
        return through(self.coupling.flows, x)

    def decode(self, y: Tensor) -> Tensor:
        return through((one.inverse for one in reversed(self.coupling.flows)), y)[0]


class DiagonalSplit(LatentSplit):
    """Keeps the two pixels on the diagonal of every squeezed block of 2×2 pixels."""

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pixels = x.unflatten(1, (-1, 4))
        kept, left = pixels[:, :, ::3], pixels[:, :, 1:3]
        return kept.flatten(1, 2), left.flatten(1, 2), x.new_zeros(())

    def decode(self, kept: Tensor, left: Tensor) -> Tensor:
        (a, d), (b, c) = (part.unflatten(1, (-1, 2)).unbind(2) for part in (kept, left))
        return torch.stack((a, b, c, d), dim=2).flatten(1, 2)


class RealNVP(FactoringFlow):
    """RealNVP for images.

    Each scale has three couplings of pixels, a squeeze and three couplings of channels with
    networks of twice the width, and passes half of the pixels to the latent variable; the last
    scale has four couplings of pixels.

    There are as many scales as requested, but no more than the sides can be halved to at least 2:
    images are not padded, because padding would change the number of dimensions in bits/dim.

    With `norm="batch"` the networks normalise their channels, as published: in training mode by the
    batch, so the density of an image depends on its batch, and in evaluation mode by running means,
    so it does not. Decode in evaluation mode. There is no batch normalisation between couplings.

    Args:
        event_shape: Channels, height and width of an image.
        scales: Largest number of scales.
        width: Channels inside the networks of the first scale; they double with each scale.
        residual_blocks: Residual blocks in each network.
        norm: Normalisation inside the networks, `"batch"` or `"none"`.

    Attributes:
        scales: Number of scales.

    References:
        Dinh, Sohl-Dickstein and Bengio, Density estimation using Real NVP, ICLR 2017.

    Example:
        >>> flow = RealNVP((1, 28, 28), width=4, residual_blocks=1).eval()
        >>> flow.encode(torch.rand(5, 1, 28, 28)).latent.shape
        torch.Size([5, 784])
    """

    def __init__(
        self,
        event_shape: Sequence[int],
        *,
        scales: int = 2,
        width: int = 64,
        residual_blocks: int = 8,
        norm: Norm = "batch",
    ) -> None:
        refuse_below_one(scales=scales, width=width, residual_blocks=residual_blocks)
        channels, height, breadth = shape = image_shape(event_shape)
        scales = min(scales, 1 + halvings(height, breadth))
        stages: list[Bijection] = []
        shapes: list[Shape] = []
        for scale in range(scales - 1):
            nets = _Nets(2**scale * width, residual_blocks, norm)
            parts = nets.on_pixels(channels, (height, breadth), 3)
            nets = _Nets(2 ** (scale + 1) * width, residual_blocks, norm)
            stages.append(Chain([*parts, Squeeze(), *nets.on_channels(4 * channels, 3)]))
            channels, height, breadth = 2 * channels, height // 2, breadth // 2
            shapes.append((channels, height, breadth))
        nets = _Nets(2 ** (scales - 1) * width, residual_blocks, norm)
        stages.append(Chain(nets.on_pixels(channels, (height, breadth), 4)))
        shapes.append((channels, height, breadth))
        super().__init__(shape, stages, [DiagonalSplit() for _ in stages[1:]], shapes)
        self.scales = scales


class _Nets(NamedTuple):
    """Couplings with networks of one size, whose two sides alternate."""

    width: int
    blocks: int
    norm: Norm

    def on_pixels(self, channels: int, grid: tuple[int, int], count: int) -> list[Bijection]:
        nets = [CouplingNet(channels, channels, *self) for _ in range(count)]
        return [CheckerboardCoupling(net, grid, white=n % 2 == 0) for n, net in enumerate(nets)]

    def on_channels(self, channels: int, count: int) -> list[Bijection]:
        nets = [CouplingNet(channels // 2, channels // 2, *self) for _ in range(count)]
        return [ChannelCoupling(net, first=n % 2 == 0) for n, net in enumerate(nets)]


def _norm(norm: Norm, channels: int) -> nn.Module:
    if norm not in ("batch", "none"):
        raise ValueError(f"norm must be batch or none, got {norm!r}")
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.Identity()
