"""FFJORD's architecture for images: continuous flows on increasingly coarse grids."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bfno.models.flows.continuous import ContinuousFlow
from bfno.models.flows.factoring import squeeze, unsqueeze
from bfno.models.flows.interface import Encoding, Flow

__all__ = ["MultiscaleFlow", "flow_shapes"]

Shape = tuple[int, int, int]

SMALLEST_SIDE = 4
"""Images are halved as long as the result is not smaller than this."""


def flow_shapes(event_shape: Shape) -> list[list[Shape]]:
    """Shapes of the states of each scale: before its squeeze and, except for the last, after it.

    Example:
        >>> flow_shapes((1, 28, 28))
        [[(1, 28, 28), (4, 14, 14)], [(2, 14, 14), (8, 7, 7)], [(4, 7, 7)]]
    """
    channels, height, width = event_shape
    scales: list[list[Shape]] = []
    while min(height, width) >= 2 * SMALLEST_SIDE and height % 2 == 0 and width % 2 == 0:
        before = (channels, height, width)
        channels, height, width = 4 * channels, height // 2, width // 2
        scales.append([before, (channels, height, width)])
        channels //= 2
    return [*scales, [(channels, height, width)]]


class MultiscaleFlow(Flow):
    """Continuous flows between squeezes; half of the channels leave after each scale.

    A scale applies some flows, turns blocks of 2×2 pixels into channels, applies as many flows
    again, and keeps the first half of the channels for the next scale; the other half is part of
    the latent variable. The last scale has only flows. Images are halved as long as their sides are
    even and at least 8.

    Args:
        event_shape: Channels, height and width of an image.
        make_field: Makes the field of a flow, given its number of channels.
        blocks: Flows on each grid of a scale.
        **options: Further arguments of `ContinuousFlow`.

    Example:
        >>> from bfno.fields.flow import FlowConvField
        >>> flow = MultiscaleFlow((1, 8, 8), lambda channels: FlowConvField(channels, 4))
        >>> flow.encode(torch.zeros(2, 1, 8, 8)).latent.shape
        torch.Size([2, 64])
    """

    def __init__(
        self,
        event_shape: Shape,
        make_field: Callable[[int], nn.Module],
        *,
        blocks: int = 2,
        **options: Any,
    ) -> None:
        super().__init__(event_shape)
        if blocks < 1:
            raise ValueError(f"blocks must be at least 1, got {blocks}")

        def chain(shape: Shape) -> nn.ModuleList:
            flows = (ContinuousFlow(make_field(shape[0]), shape, **options) for _ in range(blocks))
            return nn.ModuleList(flows)

        shapes = flow_shapes(event_shape)
        self.scales: Any = nn.ModuleList(nn.ModuleList(map(chain, scale)) for scale in shapes)
        self._left = [(channels // 2, *grid) for _, (channels, *grid) in shapes[:-1]]
        self._last = shapes[-1][0]

    def encode(self, x: Tensor) -> Encoding:
        self.check(x)
        total, latents = Encoding(x, x.new_zeros(len(x))), []
        for fine, coarse in self.scales[:-1]:
            total = _through(fine, total)
            total = _through(coarse, total._replace(latent=squeeze(total.latent)))
            kept, left = total.latent.chunk(2, dim=1)
            latents.append(left.flatten(1))
            total = total._replace(latent=kept)
        total = _through(self.scales[-1][0], total)
        return total._replace(latent=torch.cat((*latents, total.latent.flatten(1)), dim=1))

    def decode(self, latent: Tensor) -> Tensor:
        shapes = (*self._left, self._last)
        parts = latent.split([math.prod(shape) for shape in shapes], dim=1)
        *left, x = (part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True))
        x = _back(self.scales[-1][0], x)
        for (fine, coarse), part in zip(reversed(self.scales[:-1]), reversed(left), strict=True):
            x = _back(coarse, torch.cat((x, part), dim=1))
            x = _back(fine, unsqueeze(x))
        return x


def _through(flows: Any, so_far: Encoding) -> Encoding:
    """Move images through flows, and add up their log-volumes; the latent stays an image."""
    x, log_det, penalties = so_far
    for flow in flows:
        found = flow.encode(x)
        x, log_det = found.latent.view(x.shape), log_det + found.log_det
        penalties = {
            name: value + penalties.get(name, 0.0) for name, value in found.penalties.items()
        }
    return Encoding(x, log_det, penalties)


def _back(flows: Any, x: Tensor) -> Tensor:
    for flow in reversed(flows):
        x = flow.decode(x.flatten(1))
    return x
