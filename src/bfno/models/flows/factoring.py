"""The parts of discrete flows of images: invertible maps, squeezes and splits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bfno.models.flows.interface import Encoding, Flow

__all__ = [
    "ActNorm",
    "Bijection",
    "Chain",
    "ChannelSplit",
    "FactoringFlow",
    "LatentSplit",
    "Shape",
    "Squeeze",
    "halvings",
    "image_shape",
    "load_normflows",
    "refuse_below_one",
    "squeeze",
    "through",
    "unsqueeze",
]

Shape = tuple[int, int, int]

_CONSTANT = 1e-6
"""Channels that vary less in the first batch are shifted only."""


class Bijection(nn.Module, ABC):
    """An invertible map between images of equal size."""

    @abstractmethod
    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map images; the logarithm of the volume gained is one number, or one per image."""

    @abstractmethod
    def decode(self, y: Tensor) -> Tensor:
        """Undo `encode`."""


class Chain(Bijection):
    """Maps applied one after the other."""

    def __init__(self, parts: Iterable[Bijection]) -> None:
        super().__init__()
        self.parts: Any = nn.ModuleList(parts)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return through((part.encode for part in self.parts), x)

    def decode(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part.decode(y)
        return y


def squeeze(x: Tensor) -> Tensor:
    """Turn every block of 2×2 pixels into four channels.

    Shape:
        `(batch, channels, height, width)` to `(batch, 4 * channels, height / 2, width / 2)`; the
        four channels made from one are next to each other.
    """
    batch, channels, height, width = x.shape
    if height % 2 or width % 2:
        raise ValueError(f"images to squeeze must have even sides, got {height}×{width}")
    blocks = x.reshape(batch, channels, height // 2, 2, width // 2, 2)
    return blocks.permute(0, 1, 3, 5, 2, 4).reshape(batch, 4 * channels, height // 2, width // 2)


def unsqueeze(x: Tensor) -> Tensor:
    """Undo `squeeze`."""
    batch, channels, height, width = x.shape
    if channels % 4:
        raise ValueError(f"images to unsqueeze must have 4n channels, got {channels}")
    blocks = x.reshape(batch, channels // 4, 2, 2, height, width)
    return blocks.permute(0, 1, 4, 2, 5, 3).reshape(batch, channels // 4, 2 * height, 2 * width)


class Squeeze(Bijection):
    """Turns every block of 2×2 pixels into four channels."""

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return squeeze(x), x.new_zeros(())

    def decode(self, y: Tensor) -> Tensor:
        return unsqueeze(y)


class ActNorm(Bijection):
    """Scales and shifts each channel; initially so that a batch has mean 0 and variance 1.

    The first batch is the first one encoded in training mode that holds an image. Whether it has
    been seen is part of the state, so saved weights are not overwritten. (The class of this name in
    normflows also initialises itself in evaluation, and cannot be built on the meta device.)

    Args:
        channels: Channels of an image.
    """

    initialised: Tensor
    # Whether this is known: asking a device in every call would make the host wait.
    _is_known = False

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(channels, 1, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1, 1))
        # An integer, because not every way to send tensors between processes supports booleans.
        self.register_buffer("initialised", torch.zeros((), dtype=torch.long))
        self.register_load_state_dict_post_hook(_ask_again)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.training and not self._is_known and len(x):
            if not self.initialised:
                self._initialise(x)
            self._is_known = True
        pixels = x.shape[-2] * x.shape[-1]
        return x * self.log_scale.exp() + self.shift, pixels * self.log_scale.sum()

    def decode(self, y: Tensor) -> Tensor:
        return (y - self.shift) * (-self.log_scale).exp()

    @torch.no_grad()
    def _initialise(self, x: Tensor) -> None:
        deviation, mean = torch.std_mean(x, dim=(0, 2, 3), correction=0)
        deviation = torch.where(deviation < _CONSTANT, torch.ones_like(deviation), deviation)
        self.log_scale.copy_(-deviation.log().view_as(self.log_scale))
        self.shift.copy_(-(mean / deviation).view_as(self.shift))
        self.initialised.fill_(1)


def _ask_again(loaded: nn.Module, _: Any) -> None:
    """Forget what was known about the previous state."""
    loaded._is_known = False  # type: ignore[assignment]


class LatentSplit(nn.Module, ABC):
    """Divides the channels into those that continue and those that are already latent."""

    @abstractmethod
    def encode(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Channels to keep, latent channels, and the logarithm of the volume gained."""

    @abstractmethod
    def decode(self, kept: Tensor, left: Tensor) -> Tensor:
        """Undo `encode`."""


class ChannelSplit(LatentSplit):
    """Keeps the first half of the channels, the larger one if their number is odd."""

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kept, left = x.chunk(2, dim=1)
        return kept, left, x.new_zeros(())

    def decode(self, kept: Tensor, left: Tensor) -> Tensor:
        return torch.cat((kept, left), dim=1)


class FactoringFlow(Flow):
    """Stages of invertible maps, between which some channels become latent variables.

    The latent variable consists of the channels removed by each split, in order of the stages, and
    then the result of the last stage.

    Args:
        event_shape: Channels, height and width of an image.
        stages: The maps.
        splits: The splits between stages.
        latent_shapes: Shapes of the splits' latent channels and of the last stage's result.
    """

    def __init__(
        self,
        event_shape: Shape,
        stages: Sequence[Bijection],
        splits: Sequence[LatentSplit],
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
        """Refuse latent variables of a wrong shape."""
        if latent.dim() != 2 or latent.shape[1] != self.dimensions:
            expected = f"(batch, {self.dimensions})"
            raise ValueError(f"latent must have shape {expected}, got {tuple(latent.shape)}")


def image_shape(event_shape: Sequence[int]) -> Shape:
    """Check that a shape is that of an image: channels, height and width."""
    if len(event_shape) != 3 or min(event_shape) < 1:
        shape = tuple(event_shape)
        raise ValueError(f"event_shape must be (channels, height, width) above 0, got {shape}")
    channels, height, width = event_shape
    return channels, height, width


def halvings(height: int, width: int, *, smallest: int = 2) -> int:
    """The number of times that both sides can be halved.

    Args:
        height: One side.
        width: The other side.
        smallest: Smallest side of the result.

    Example:
        >>> halvings(28, 28), halvings(8, 8), halvings(7, 7)
        (2, 2, 0)
    """
    count = 0
    while height % 2 == 0 and width % 2 == 0 and min(height, width) >= 2 * smallest:
        height, width, count = height // 2, width // 2, count + 1
    return count


def refuse_below_one(**numbers: int) -> None:
    """Raise ValueError, with the name, for a number below 1."""
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")


def through(
    maps: Iterable[Callable[[Tensor], tuple[Tensor, Tensor]]], x: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply maps one after the other; returns the result and the logarithm of the volume gained.

    (The blocks of normflows add up in place, which `torch.func.vmap` cannot follow.)
    """
    log_det = x.new_zeros(len(x))
    for one in maps:
        x, gained = one(x)
        log_det = log_det + gained
    return x, log_det


def load_normflows(what: str) -> Any:
    """The optional package `normflows`, which provides parts of some flows.

    Its maps go from latent variables to samples, and `inverse` goes back.

    Args:
        what: The name of the flow that needs it, for the error.

    Raises:
        ImportError: If it is not installed; the message says what to do.
    """
    try:
        import normflows
    except ImportError as error:
        message = f"{what} needs normflows, which is missing; pip install 'bfno[flows]'"
        raise ImportError(message) from error
    return normflows
