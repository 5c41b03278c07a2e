"""Networks for your own images: a convolutional stem, blocks on a coarse grid, a pooled head."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from bfno.ode import NeuralODE, Stats

__all__ = ["ConvNet", "ResidualBlock", "coarse_grid", "ode_net", "residual_net"]

# Side of the grid, or about that, of the residual block in the stem; what follows has half of it.
_FINE = 16


class ConvNet(nn.Module):
    """Maps images to features on a coarse grid, and classifies their mean with one linear layer.

    The mean works on any grid, so images of other sizes than in training can be classified too.
    `ode_net` and `residual_net` make the two kinds.

    Args:
        body: Maps `(batch, in_shape[0], height, width)` to `(batch, channels, *)`.
        channels: Number of features.
        in_shape: Shape of one image, `(channels, height, width)`.
        classes: Number of classes.

    Attributes:
        class_names: Name of each class; numbers until you set others.

    Shape:
        `(batch, *in_shape)` to scores `(batch, classes)`.

    Example:
        >>> net = residual_net((3, 32, 32), classes=4, width=8)
        >>> net(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self, body: nn.Module, channels: int, in_shape: tuple[int, int, int], classes: int
    ) -> None:
        super().__init__()
        self.body = body
        self.in_shape = tuple(in_shape)
        self.class_names = tuple(str(number) for number in range(classes))
        self.head = nn.Linear(channels, classes)
        # On a processor, convolutions take two thirds of the time with channels last.
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                kernel = part.weight.data.contiguous(memory_format=torch.channels_last)
                part.weight.data = kernel

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """Input of the head for each image: `(batch, channels)`."""
        if x.dim() != 4 or x.shape[1] != self.in_shape[0]:
            raise ValueError(
                f"images must have shape (batch, {self.in_shape[0]}, height, width), got "
                f"{tuple(x.shape)}"
            )
        return self.body(x.contiguous(memory_format=torch.channels_last)).mean((2, 3))

    @property
    def blocks(self) -> tuple[NeuralODE, ...]:
        """Its neural ODEs, in order; none in a network of residual blocks."""
        return tuple(part for part in self.body.modules() if isinstance(part, NeuralODE))

    @property
    def stats(self) -> Stats:
        """Cost of the last call, over all of its neural ODEs."""
        return Stats.together(block.stats for block in self.blocks)


def ode_net(
    blocks: Iterable[nn.Module], width: int, in_shape: tuple[int, int, int], classes: int
) -> ConvNet:
    """A network whose blocks are neural ODEs on a grid of about 8×8.

    Args:
        blocks: The blocks that the features go through in order: each maps `(batch, 2 * width,
            *grid)` to the same shape.
        width: Channels of the stem; the blocks have twice as many.
        in_shape: Shape of one image.
        classes: Number of classes.

    Example:
        >>> from bfno.dynamics import FirstOrder
        >>> from bfno.fields import NormedField
        >>> block = NeuralODE(FirstOrder(NormedField("bfno", 16)), method="midpoint", step=1.0)
        >>> net = ode_net([block], width=8, in_shape=(3, 32, 32), classes=4)
        >>> len(net.blocks)
        1
    """
    down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False)
    end = (nn.BatchNorm2d(2 * width), nn.ReLU())
    body = nn.Sequential(*_stem(in_shape, width), down, nn.BatchNorm2d(2 * width), *blocks, *end)
    return ConvNet(body, 2 * width, in_shape, classes)


def residual_net(
    in_shape: tuple[int, int, int], classes: int, width: int, blocks: int = 1
) -> ConvNet:
    """A small ResNet: the same stem, and residual blocks of convolutions.

    Args:
        in_shape: Shape of one image.
        classes: Number of classes.
        width: Channels of the stem; the blocks have twice as many.
        blocks: Number of residual blocks behind the stem, of which the first halves the grid.

    References:
        He et al., Deep Residual Learning for Image Recognition, 2016.

    Example:
        >>> residual_net((1, 28, 28), classes=10, width=8).blocks  # no neural ODEs
        ()
    """
    first = ResidualBlock(width, 2 * width, stride=2)
    others = (ResidualBlock(2 * width, 2 * width) for _ in range(blocks - 1))
    body = nn.Sequential(*_stem(in_shape, width), first, *others)
    return ConvNet(body, 2 * width, in_shape, classes)


class ResidualBlock(nn.Module):
    """Two convolutions with batch normalisation, and a path around them.

    Args:
        channels: Channels of the input.
        out_channels: Channels of the output; those of the input if None.
        stride: Factor by which the grid becomes coarser.

    Shape:
        `(batch, channels, height, width)` to `(batch, out_channels, *)`.
    """

    def __init__(self, channels: int, out_channels: int | None = None, stride: int = 1) -> None:
        super().__init__()
        out_channels = channels if out_channels is None else out_channels
        self.inner = nn.Sequential(
            nn.Conv2d(channels, out_channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.around = nn.Sequential()
        if stride != 1 or out_channels != channels:
            self.around.append(nn.Conv2d(channels, out_channels, 1, stride, bias=False))
            self.around.append(nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        return (self.inner(x) + self.around(x)).relu()


def coarse_grid(in_shape: tuple[int, int, int]) -> tuple[int, int]:
    """Height and width of the grid that the blocks of a network work on.

    Example:
        >>> coarse_grid((3, 32, 32)), coarse_grid((1, 28, 28))
        ((8, 8), (7, 7))
    """
    sides = in_shape[1:]
    for _ in range(_halvings(in_shape) + 1):
        sides = tuple((side + 1) // 2 for side in sides)
    return sides[0], sides[1]


def _halvings(in_shape: tuple[int, int, int]) -> int:
    """How often the stem halves the grid before its residual block."""
    return max(0, round(math.log2(min(in_shape[1:]) / _FINE)))


def _stem(in_shape: tuple[int, int, int], width: int) -> Iterable[nn.Module]:
    """From the image to a residual block on a grid of about 16×16."""
    halvings = _halvings(in_shape)
    for number in range(max(1, halvings)):
        stride = 2 if halvings else 1
        before = width if number else in_shape[0]
        yield nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        yield nn.BatchNorm2d(width)
        yield nn.ReLU()
    yield ResidualBlock(width)
