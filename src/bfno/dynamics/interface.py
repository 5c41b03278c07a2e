"""The base of all dynamics: a field, a state of several components, and its start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bfno.fields.interface import Time, VectorField

__all__ = ["Dynamics", "InitialMoments", "InitialVelocity", "Start", "ZeroStart"]

Start = Callable[[Tensor], Tensor]
"""Maps an input to everything that follows it in the initial state."""


class ZeroStart(nn.Module):
    """Completes an input with zeros; learns nothing and works with every field.

    Args:
        components: Number of components of the state.
        augment: Extra channels of each component, beyond those of the input.

    Shape:
        `(batch, channels, *space)` to what is missing from
        `(batch, components * (channels + augment), *space)`.

    Example:
        >>> ZeroStart(components=2, augment=1)(torch.ones(1, 3)).shape
        torch.Size([1, 5])
    """

    def __init__(self, components: int, augment: int = 0) -> None:
        super().__init__()
        if augment < 0:
            raise ValueError(f"augment must not be negative, got {augment}; pass 0 for none")
        self.components = components
        self.augment = augment

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, *space = x.shape
        missing = self.components * (channels + self.augment) - channels
        return x.new_zeros(batch, missing, *space)


class InitialVelocity(nn.Module):
    """Learns the rest of the initial state from an image.

    Three convolutions, 1×1, 3×3 and 1×1, with leaky ReLUs of slope 0.3 between them. The result
    holds the extra channels of the position, if any, and then the velocity.

    Args:
        channels: Channels of the image.
        hidden: Channels between the convolutions.
        out_channels: Channels of the result: `components * state channels - channels`.

    Shape:
        `(batch, channels, height, width)` to `(batch, out_channels, height, width)`.

    References:
        Xia et al., Heavy Ball Neural Ordinary Differential Equations, 2021 (public code).

    Example:
        >>> InitialVelocity(channels=3, hidden=8, out_channels=21)(torch.ones(1, 3, 4, 4)).shape
        torch.Size([1, 21, 4, 4])
    """

    def __init__(self, channels: int, hidden: int, out_channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, hidden, 1),
            nn.LeakyReLU(0.3, inplace=True),
            nn.Conv2d(hidden, hidden, 3, padding=1),
            nn.LeakyReLU(0.3, inplace=True),
            nn.Conv2d(hidden, out_channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class InitialMoments(nn.Module):
    """Learns the initial moments of `AdamODE` from an image.

    A network `o` like `InitialVelocity` is followed by its squares: the rest of the state is
    `[o, o²]`, so the second moment, which comes last, is not negative.

    Args:
        channels: Channels of the image.
        hidden: Channels between the convolutions.
        state_channels: Channels of the position.

    Shape:
        `(batch, channels, height, width)` to what is missing from `3 * state_channels` channels.

    Example:
        >>> InitialMoments(channels=3, hidden=8, state_channels=5)(torch.ones(1, 3, 4, 4)).shape
        torch.Size([1, 12, 4, 4])
    """

    def __init__(self, channels: int, hidden: int, state_channels: int) -> None:
        super().__init__()
        missing = 3 * state_channels - channels
        # Squares must at least fill the second moment, which is a third of the state.
        if missing % 2 or missing < 2 * state_channels:
            raise ValueError(
                f"state_channels must be at least channels and 3 * state_channels - channels even, "
                f"got state_channels={state_channels} and channels={channels}; change the former"
            )
        self.network = InitialVelocity(channels, hidden, missing // 2)

    def forward(self, x: Tensor) -> Tensor:
        moments = self.network(x)
        return torch.cat((moments, moments.square()), dim=1)


class Dynamics(nn.Module, ABC):
    """How a field moves a state, and what is read out of it; the base of every dynamics.

    The state consists of components of equal size, side by side along axis 1. The first one is
    the position, which is what a model reads out; the others, a velocity for example, exist only
    while the equation is solved.

    Args:
        field: Any callable of time and state.
        start: Maps the input to everything that follows it in the initial state; zeros if not
            given.

    Attributes:
        components: Number of components of the state.
        interval: Start and end time of the equation.

    Shape:
        Input `(batch, channels, *space)`, state `(batch, components * state channels, *space)`.

    Example:
        >>> class Friction(Dynamics):
        ...     components = 2
        ...     def forward(self, t, y):
        ...         position, velocity = y.chunk(2, dim=1)
        ...         return torch.cat((velocity, self.field(t, position) - velocity), dim=1)
        >>> moved = Friction(lambda t, y: -y)
        >>> moved(0.0, moved.initial(torch.ones(1, 2)))
        tensor([[ 0.,  0., -1., -1.]]...)
    """

    components: int = 1
    interval: tuple[float, float] = (0.0, 1.0)

    def __init__(self, field: VectorField, start: Start | None = None) -> None:
        super().__init__()
        self.field = field
        self.start = ZeroStart(self.components) if start is None else start

    def initial(self, x: Tensor) -> Tensor:
        """The state at the first time of the interval."""
        y0 = torch.cat((x, self.start(x)), dim=1)
        if y0.shape[1] % self.components:
            raise ValueError(
                f"the initial state must have a multiple of {self.components} channels, got "
                f"{y0.shape[1]}, of which the input has {x.shape[1]}; change the start's channels"
            )
        return y0

    @abstractmethod
    def forward(self, t: Time, y: Tensor) -> Tensor:
        """Rate of change of the state `y` at time `t`."""

    def position(self, t: Time, y: Tensor) -> Tensor:
        """The position in the state `y` at time `t`."""
        return self._split(y)[0]

    def read_out(self, y: Tensor) -> Tensor:
        """The position in the state `y` at the last time of the interval."""
        return self.position(self.interval[1], y)

    def _split(self, y: Tensor) -> tuple[Tensor, ...]:
        return y.chunk(self.components, dim=1)
