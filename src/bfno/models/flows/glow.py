"""Glow: couplings between learned mixtures of the channels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bfno.models.flows.factoring import (
    ActNorm,
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

__all__ = ["ConditionalSplit", "Glow", "GlowStep"]


def _bounded(log_scale: Tensor, bound: float | None) -> Tensor:
    """Log-scales limited to both bounds, nearly unchanged if they are small."""
    return log_scale if bound is None else bound * (log_scale / bound).tanh()


class _BoundedNet(nn.Module):
    """A coupling's network whose log-scales, every other channel, are bounded."""

    def __init__(self, net: nn.Module, bound: float) -> None:
        super().__init__()
        self.net, self.bound = net, bound

    def forward(self, x: Tensor) -> Tensor:
        shift, log_scale = self.net(x).unflatten(1, (-1, 2)).unbind(2)
        return torch.stack((shift, _bounded(log_scale, self.bound)), dim=2).flatten(1, 2)


class GlowStep(Bijection):
    """Normalises channels, mixes them, and transforms one half of them depending on the other.

    The mixing is a full matrix that starts as a random rotation. The coupling's network has
    convolutions of sides 3, 1 and 3 with ReLU; the last one starts at zero, so at first all pixels
    are scaled alike.

    Args:
        channels: Channels of an image, at least 2.
        width: Channels inside the network.
        bound: Largest absolute logarithm of a scale of the coupling. None is as published: a
            sigmoid, by which decoding divides however small it is.
    """

    def __init__(self, channels: int, width: int, bound: float | None = None) -> None:
        super().__init__()
        parts = load_normflows("Glow")
        self.norm = ActNorm(channels)
        # Not as a product of triangular matrices: half of their entries would be idle parameters.
        self.mixing = parts.flows.Invertible1x1Conv(channels, use_lu=False)
        first, second = (channels + 1) // 2, channels // 2
        net = parts.nets.ConvNet2d((first, width, width, 2 * second), (3, 1, 3))
        if bound is None:
            self.coupling = parts.flows.AffineCouplingBlock(net, scale_map="sigmoid")
        else:
            self.coupling = parts.flows.AffineCouplingBlock(_BoundedNet(net, bound))

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, scaled = self.norm.encode(x)
        x, mixed = self.mixing.inverse(x)
        x, coupled = through((one.inverse for one in reversed(self.coupling.flows)), x)
        return x, scaled + mixed + coupled

    def decode(self, y: Tensor) -> Tensor:
        y = through(self.coupling.flows, y)[0]
        y = self.mixing(y)[0]
        return self.norm.decode(y)


class ConditionalSplit(LatentSplit):
    """Keeps half of the channels, from which it predicts mean and scale of the others.

    The rest is standard normal if the prediction is right. It starts as a plain split.

    Args:
        channels: Channels to divide; an even number.
        bound: Largest absolute logarithm of a scale; None is no bound.
    """

    def __init__(self, channels: int, bound: float | None = None) -> None:
        super().__init__()
        self.bound = bound
        self.predict = nn.Conv2d(channels // 2, channels, 3, padding=1)
        nn.init.zeros_(self.predict.weight)
        if self.predict.bias is not None:
            nn.init.zeros_(self.predict.bias)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kept, left = x.chunk(2, dim=1)
        mean, log_scale = self._mean_and_log_scale(kept)
        return kept, (left - mean) * (-log_scale).exp(), -log_scale.flatten(1).sum(1)

    def decode(self, kept: Tensor, left: Tensor) -> Tensor:
        mean, log_scale = self._mean_and_log_scale(kept)
        return torch.cat((kept, mean + left * log_scale.exp()), dim=1)

    def _mean_and_log_scale(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_scale = self.predict(kept).chunk(2, dim=1)
        return mean, _bounded(log_scale, self.bound)


class Glow(FactoringFlow):
    """Glow for images.

    Each level squeezes the image, applies some steps and, except for the last, passes half of the
    channels to the latent variable; the Gaussian of these channels depends on the other half.

    There are as many levels as requested, but no more than the sides can be halved: images are not
    padded, because padding would change the number of dimensions in bits/dim. The halves are at
    least 2×2, unless the image itself is smaller than 4×4.

    The first batch in training mode sets the scale of all channels; see `ActNorm`.

    As published, decoding divides by sigmoids of the networks' outputs. After little training, a
    rare latent variable meets a sigmoid near 0, the next network sees the large quotient and
    responds with an even smaller one, and within a few steps the sample is not finite. A `bound`
    prevents this.

    Args:
        event_shape: Channels, height and width of an image; even sides.
        levels: Largest number of levels.
        steps: Steps in each level.
        width: Channels inside the networks of the couplings.
        bound: Largest absolute logarithm of a scale that depends on the image; None is as
            published, without a bound.

    Attributes:
        levels: Number of levels.

    References:
        Kingma and Dhariwal, Glow: Generative Flow with Invertible 1×1 Convolutions, NeurIPS 2018.

    Example:
        >>> flow = Glow((1, 28, 28), steps=2, width=8)
        >>> flow.levels, flow.encode(torch.rand(5, 1, 28, 28)).latent.shape
        (2, torch.Size([5, 784]))
    """

    def __init__(
        self,
        event_shape: Sequence[int],
        *,
        levels: int = 3,
        steps: int = 32,
        width: int = 512,
        bound: float | None = None,
    ) -> None:
        refuse_below_one(levels=levels, steps=steps, width=width)
        if bound is not None and not bound > 0:
            raise ValueError(f"bound must be positive, got {bound}")
        channels, height, breadth = shape = image_shape(event_shape)
        levels = min(levels, _most_levels(height, breadth))
        stages: list[Bijection] = []
        splits: list[LatentSplit] = []
        shapes: list[Shape] = []
        for level in range(levels):
            channels, height, breadth = 4 * channels, height // 2, breadth // 2
            parts = (GlowStep(channels, width, bound) for _ in range(steps))
            stages.append(Chain([Squeeze(), *parts]))
            if level < levels - 1:
                splits.append(ConditionalSplit(channels, bound))
                channels //= 2
            shapes.append((channels, height, breadth))
        super().__init__(shape, stages, splits, shapes)
        self.levels = levels


def _most_levels(height: int, width: int) -> int:
    most = max(halvings(height, width), min(1, halvings(height, width, smallest=1)))
    if not most:
        raise ValueError(f"Glow needs images with even sides, got {height}×{width}")
    return most
