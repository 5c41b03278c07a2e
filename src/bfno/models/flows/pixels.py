"""Images of bytes under a continuous density: noise, bounds and bits."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bfno.layers.pointwise import is_stand_in
from bfno.models.flows.interface import Encoding, Flow

__all__ = ["SMALLEST_ALPHA", "Dequantisation", "PixelFlow", "bits_per_dim", "dequantise"]

Dequantisation = Literal["uniform", "center"]
LEVELS = 256
SMALLEST_ALPHA = torch.finfo(torch.float32).eps
"""The smallest share of 1 that single precision resolves."""


def dequantise(
    pixels: Tensor,
    how: Dequantisation,
    dtype: torch.dtype,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Turn bytes into real numbers between 0 and 1, each inside the interval of its byte.

    Args:
        pixels: Bytes of any shape.
        how: `"uniform"` draws from the interval: the mean of bits/dim is then an upper bound on the
            cost of coding the bytes. `"center"` takes its middle: no bound, usually lower.
        dtype: Precision of the result, `float32` or `float64`: narrower numbers leave the interval.
        generator: Source of the noise; None is torch's default.

    Example:
        >>> dequantise(torch.tensor([0, 255], dtype=torch.uint8), "center", torch.float64)
        tensor([0.0020, 0.9980]...)
    """
    if pixels.dtype != torch.uint8:
        raise ValueError(f"pixels must be bytes (torch.uint8), got {pixels.dtype}")
    if not dtype.is_floating_point or dtype.itemsize < 4:
        raise ValueError(f"dtype must be a floating one of 32 bits or more, got {dtype}")
    if how == "center":
        return pixels.to(dtype).add_(0.5).div_(LEVELS)
    if how != "uniform":
        raise ValueError(f"dequantisation must be uniform or center, got {how!r}")
    noise = torch.rand(pixels.shape, generator=generator, dtype=dtype, device=pixels.device)
    # The largest number below 1, added to 255, would be rounded up to 256.
    return noise.add_(pixels).div_(LEVELS).clamp_(max=1 - torch.finfo(dtype).eps / 2)


def bits_per_dim(log_prob: Tensor, dimensions: int) -> Tensor:
    """Bits per byte for coding an image under a density of images between 0 and 1.

    Args:
        log_prob: Natural logarithm of the density at dequantised images.
        dimensions: Bytes in one image.

    Example:
        >>> bits_per_dim(torch.zeros(1), 784)  # uniform on the unit cube
        tensor([8.])
    """
    return math.log2(LEVELS) - log_prob / (dimensions * math.log(2))


def _require_unit_range(images: Tensor) -> None:
    """Refuse anything but images between 0 and 1, so that errors do not seem to be the flow's.

    On devices other than the processor, only the type is checked.
    """
    if not images.is_floating_point():
        raise ValueError(
            f"images must be floating numbers between 0 and 1, got {images.dtype}; dequantise "
            "turns bytes into such"
        )
    if is_stand_in(images) or images.device.type != "cpu" or not images.numel():
        return  # numbers are not known yet, would have to be waited for, or do not exist
    low, high = torch.stack(images.detach().aminmax()).tolist()
    if not (low >= 0 and high <= 1):  # NaN satisfies neither
        raise ValueError(
            f"images must be floating numbers between 0 and 1, got numbers from {low:g} to "
            f"{high:g}; divide bytes by 255, or leave it to dequantise"
        )


class PixelFlow(Flow):
    """A flow of images between 0 and 1: moves them off their bounds, then applies another flow.

    Args:
        flow: The flow of real-valued images.
        alpha: Images are squeezed into [alpha, 1 - alpha] and mapped to the real line by the
            logit; at least 1.2e-7, so that single precision keeps them off 0 and 1. None subtracts
            one half instead, as Glow and i-ResNet do.

    Example:
        >>> from bfno.fields import FlowConvField
        >>> from bfno.models.flows import ContinuousFlow
        >>> flow = PixelFlow(ContinuousFlow(FlowConvField(1, 4), (1, 4, 4)), alpha=0.05)
        >>> flow.log_prob(torch.rand(3, 1, 4, 4)).shape
        torch.Size([3])
    """

    def __init__(self, flow: Flow, alpha: float | None) -> None:
        super().__init__(flow.event_shape)
        if alpha is not None and not SMALLEST_ALPHA <= alpha < 0.5:
            raise ValueError(
                f"alpha must lie between {SMALLEST_ALPHA:.2g}, the least that single precision "
                f"tells from 0 beside 1, and 0.5, got {alpha}"
            )
        self.flow, self.alpha = flow, alpha

    def encode(self, x: Tensor) -> Encoding:
        self.check(x)
        _require_unit_range(x)
        y, log_det = self._unbounded(x)
        found = self.flow.encode(y)
        return found._replace(log_det=found.log_det + log_det)

    def decode(self, latent: Tensor) -> Tensor:
        y = self.flow.decode(latent)
        if self.alpha is None:
            return (y + 0.5).clamp(0, 1)
        return ((torch.sigmoid(y) - self.alpha) / (1 - 2 * self.alpha)).clamp(0, 1)

    def _unbounded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The image on the real line, and the volume that the map gains."""
        if self.alpha is None:
            return x - 0.5, x.new_zeros(len(x))
        s = self.alpha + (1 - 2 * self.alpha) * x
        y = torch.logit(s)
        # d logit(s)/ds = 1/(s (1 - s)), whose logarithm is softplus(y) + softplus(-y).
        gained = F.softplus(y) + F.softplus(-y)
        change = self.dimensions * math.log(1 - 2 * self.alpha)
        return y, gained.flatten(1).sum(1) + change

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"
