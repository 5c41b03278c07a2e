"""Where a state starts: what follows the input in it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["InitialMoments", "InitialVelocity", "Start", "ZeroStart"]

Start = Callable[[Tensor], Tensor]
"""Maps an input to everything that follows it in the initial state."""


class ZeroStart(nn.Module):
    """Completes an input with zeros; has nothing to learn and suits every field.

    Args:
        components: Number of components of the state.
        augment: Channels of a component beyond those of the input.

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
    """Learns the rest of an initial state from an image.

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
