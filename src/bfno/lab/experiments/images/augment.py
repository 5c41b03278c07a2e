"""Random changes of training images that keep their class, drawn again each time.

Everything is drawn from torch's generator, which the loop seeds before every step: a run that
continues from a checkpoint sees the same images, bit for bit.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from bfno.lab.experiments.settings import Settings

__all__ = ["AugmentSettings", "augmented", "mixing"]


class AugmentSettings(Settings):
    """How training images are changed; by default they are not.

    Attributes:
        flip: Whether they are mirrored left to right every other time.
        shift: Largest shift in each direction, as a share of the side. The margin that comes into
            view mirrors the pixels beside it.
        zoom: Largest share of the side that is cut off; the rest is stretched to the grid.
        mix: Pairs of images are blended, and so are their labels, by shares from the Beta
            distribution with this parameter (mixup): 0 blends none, 0.2 mostly a little.
    """

    flip: bool = False
    shift: float = Field(default=0.0, ge=0, le=0.5)
    zoom: float = Field(default=0.0, ge=0, lt=1)
    mix: float = Field(default=0.0, ge=0, le=100)


def augmented(images: Tensor, settings: AugmentSettings) -> Tensor:
    """Mirror, shift and zoom each image by itself.

    Args:
        images: Bytes, `(batch, channels, height, width)`.
        settings: What to do, and how far.

    Returns:
        Bytes of the same shape; every pixel is one of the image's own.
    """
    if not (settings.flip or settings.shift or settings.zoom):
        return images
    count, channels, height, width = images.shape
    share = 1 - settings.zoom * torch.rand(count, 1)
    rows, columns = (_places(side, share, settings.shift) for side in (height, width))
    if settings.flip:
        columns = torch.where(torch.rand(count, 1) < 0.5, width - 1 - columns, columns)
    rows, columns = rows.to(images.device), columns.to(images.device)
    number = torch.arange(count, device=images.device)
    channel = torch.arange(channels, device=images.device)
    return images[
        number[:, None, None, None],
        channel[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def _places(side: int, share: Tensor, shift: float) -> Tensor:
    """For each image, the visible pixels along one axis: `(batch, side)`."""
    span = share * side
    free = side - span  # the part that is cut away, which any part of the axis can be
    first = free * torch.rand(share.shape) + shift * side * (2 * torch.rand(share.shape) - 1)
    places = (first + (torch.arange(side) + 0.5) * span / side).floor().long()
    # Beyond its edges an image is mirrored: 1 0 | 0 1 2 3 | 3 2.
    places = places.remainder(2 * side)
    return torch.minimum(places, 2 * side - 1 - places)


def mixing(count: int, settings: AugmentSettings) -> tuple[float, Tensor]:
    """How to blend a batch: the share of each image itself, and the partner of each.

    Args:
        count: Images in the batch.
        settings: What to do, and how far.

    Returns:
        A share of at least one half, so that an image keeps its own label; 1 if nothing is blended.
    """
    if not settings.mix:
        return 1.0, torch.arange(count)
    beta = torch.distributions.Beta(settings.mix, settings.mix)
    share = float(beta.sample())
    return max(share, 1 - share), torch.randperm(count)
