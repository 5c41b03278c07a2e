"""Channels that are scaled and shifted by what a first batch shows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bfno.models.flows.factoring import Bijection

__all__ = ["ActNorm"]

_CONSTANT = 1e-6
"""Channels that vary less in the first batch are shifted only."""


class ActNorm(Bijection):
    """Scales and shifts each channel; starts so that a first batch has mean 0 and variance 1.

    The first batch is the first one encoded in training mode. That it has been seen is part of the
    state, so that saved weights are not overwritten. (The class of that name in normflows starts in
    evaluation, too, and cannot be made on the meta device.)

    Args:
        channels: Channels of an image.
    """

    initialised: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(channels, 1, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1, 1))
        # A whole number, since not every way to send tensors between processes knows booleans.
        self.register_buffer("initialised", torch.zeros((), dtype=torch.long))

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.training and not self.initialised:
            self._initialise(x)
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
