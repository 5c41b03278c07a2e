"""What discrete flows of images are built of: invertible parts, squeezes and splits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bfno.models.flows.interface import Encoding, Flow
from bfno.models.flows.squeeze import squeeze, unsqueeze

__all__ = [
    "Bijection",
    "Chain",
    "ChannelSplit",
    "FactoringFlow",
    "Shape",
    "Split",
    "Squeeze",
    "halvings",
    "image_shape",
    "refuse_below_one",
]

Shape = tuple[int, int, int]


class Bijection(nn.Module, ABC):
    """An invertible map between images of equal size."""

    @abstractmethod
    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map images; the logarithm of the volume gained is one number, or one for each image."""

    @abstractmethod
    def decode(self, y: Tensor) -> Tensor:
        """Undo `encode`."""


class Chain(Bijection):
    """Maps that are applied one after the other."""

    def __init__(self, parts: Iterable[Bijection]) -> None:
        super().__init__()
        self.parts: Any = nn.ModuleList(parts)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_det = x.new_zeros(len(x))
        for part in self.parts:
            x, gained = part.encode(x)
            log_det = log_det + gained
        return x, log_det

    def decode(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part.decode(y)
        return y


class Squeeze(Bijection):
    """Lays every block of 2×2 pixels into four channels."""

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return squeeze(x), x.new_zeros(())

    def decode(self, y: Tensor) -> Tensor:
        return unsqueeze(y)


class Split(nn.Module, ABC):
    """Divides the channels into those that go on and those that are latent already."""

    @abstractmethod
    def encode(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Channels to keep, latent channels, and the logarithm of the volume gained."""

    @abstractmethod
    def decode(self, kept: Tensor, left: Tensor) -> Tensor:
        """Undo `encode`."""


class ChannelSplit(Split):
    """Keeps the first half of the channels, the larger one if their number is odd."""

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kept, left = x.chunk(2, dim=1)
        return kept, left, x.new_zeros(())

    def decode(self, kept: Tensor, left: Tensor) -> Tensor:
        return torch.cat((kept, left), dim=1)


class FactoringFlow(Flow):
    """Stages of invertible maps, between which some channels become latent variables.

    The latent variable lists what each split leaves, first stage first, and then what the last
    stage gives.

    Args:
        event_shape: Channels, height and width of an image.
        stages: The maps.
        splits: What happens between two stages.
        latent_shapes: Shapes of what the splits leave and of what the last stage gives.
    """

    def __init__(
        self,
        event_shape: Shape,
        stages: Sequence[Bijection],
        splits: Sequence[Split],
        latent_shapes: Sequence[Shape],
    ) -> None:
        super().__init__(event_shape)
        self.stages: Any = nn.ModuleList(stages)
        self.splits: Any = nn.ModuleList(splits)
        self._shapes = tuple(latent_shapes)

    def encode(self, x: Tensor) -> Encoding:
        self.check(x)
        x, log_det = self.stages[0].encode(x)
        latents = []
        for split, stage in zip(self.splits, self.stages[1:], strict=True):
            kept, left, divided = split.encode(x)
            x, gained = stage.encode(kept)
            latents.append(left.flatten(1))
            log_det = log_det + divided + gained
        return Encoding(torch.cat((*latents, x.flatten(1)), dim=1), log_det)

    def decode(self, latent: Tensor) -> Tensor:
        self.check_latent(latent)
        parts = latent.split([math.prod(shape) for shape in self._shapes], dim=1)
        shaped = zip(parts, self._shapes, strict=True)
        *lefts, x = (part.reshape(-1, *shape) for part, shape in shaped)
        x = self.stages[-1].decode(x)
        backwards = zip(self.splits, self.stages[:-1], lefts, strict=True)
        for split, stage, left in reversed(list(backwards)):
            x = stage.decode(split.decode(x, left))
        return x

    def check_latent(self, latent: Tensor) -> None:
        """Refuse latent variables of another shape."""
        if latent.dim() != 2 or latent.shape[1] != self.dimensions:
            expected = f"(batch, {self.dimensions})"
            raise ValueError(f"latent must have shape {expected}, got {tuple(latent.shape)}")


def image_shape(event_shape: Sequence[int]) -> Shape:
    """Channels, height and width of an image; anything else is refused."""
    if len(event_shape) != 3 or min(event_shape) < 1:
        shape = tuple(event_shape)
        raise ValueError(f"event_shape must be (channels, height, width) above 0, got {shape}")
    channels, height, width = event_shape
    return channels, height, width


def halvings(height: int, width: int, *, smallest: int = 2) -> int:
    """How often both sides can be halved.

    Args:
        height: One side.
        width: The other.
        smallest: Least side of the result.

    Example:
        >>> halvings(28, 28), halvings(8, 8), halvings(7, 7)
        (2, 2, 0)
    """
    count = 0
    while height % 2 == 0 and width % 2 == 0 and min(height, width) >= 2 * smallest:
        height, width, count = height // 2, width // 2, count + 1
    return count


def refuse_below_one(**numbers: int) -> None:
    """Refuse numbers below 1 by name."""
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
