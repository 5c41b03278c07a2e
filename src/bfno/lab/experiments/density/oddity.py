"""How unusual an image is: its scores among those of images that a flow did not learn from.

A flow gives smooth images a high density whatever it was trained on, so bits per dimension alone
take a blank image for a perfect one. What counts is how much more the flow needs than a code that
knows no images: Serrà et al., Input Complexity and Out-of-distribution Detection with
Likelihood-based Generative Models, ICLR 2020.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["UNUSUAL", "Yardstick", "excess_bits", "plain_bits"]

UNUSUAL = 99.0
"""The anomaly percentile from which an image is called unusual."""

_LEVELS = 256
# Digits behind the point: finer differences between images mean nothing.
_DIGITS = 4


def plain_bits(images: Tensor) -> Tensor:
    """What a byte of each image costs in bits without a model, `(count,)` in double precision.

    The entropy of what is left of the bytes when each is predicted from its neighbours above and to
    the left as in lossless JPEG. It depends on no compression library and is the same everywhere.

    Args:
        images: Bytes, `(count, channels, height, width)`.

    Example:
        >>> plain_bits(torch.full((1, 3, 8, 8), 200, dtype=torch.uint8)).item() < 0.2
        True
    """
    x = images.int()
    padded = F.pad(x, (1, 0, 1, 0))
    left, above, corner = padded[..., 1:, :-1], padded[..., :-1, 1:], padded[..., :-1, :-1]
    low, high = torch.minimum(left, above), torch.maximum(left, above)
    expected = (left + above - corner).clamp(low, high)
    rest = (x - expected).remainder(_LEVELS).flatten(1).long()
    counts = torch.zeros(len(x), _LEVELS, dtype=torch.float64)
    counts.scatter_add_(1, rest.cpu(), torch.ones(rest.shape, dtype=torch.float64))
    shares = counts / rest.shape[1]
    return torch.special.entr(shares).sum(1) / math.log(2)


def excess_bits(images: Tensor, bits: Tensor) -> Tensor:
    """How many bits per byte a flow needs more than `plain_bits`.

    Args:
        images: Bytes, `(count, channels, height, width)`.
        bits: Bits per dimension of each under the flow, `(count,)`.
    """
    return bits.double().cpu() - plain_bits(images)


@dataclass(frozen=True)
class Yardstick:
    """Scores of images that a flow did not learn from, in rising order.

    Attributes:
        split: Name of the part of the data that they are.
        bits: Bits per dimension.
        excess: The same above `plain_bits`.
    """

    split: str
    bits: Sequence[float]
    excess: Sequence[float]

    @classmethod
    def of(cls, split: str, images: Tensor, bits: Tensor) -> Yardstick:
        """That of some images and their bits per dimension; without those that are not finite."""
        is_finite = bits.isfinite()
        excess = excess_bits(images[is_finite.cpu()], bits[is_finite])
        columns = (bits[is_finite].double(), excess)
        rising = [[round(value, _DIGITS) for value in sorted(one.tolist())] for one in columns]
        return cls(split, *rising)

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Yardstick | None:
        """What `facts` gave; None where there is nothing, or something else."""
        try:
            bits, excess = ([float(one) for one in facts[name]] for name in ("bits", "excess"))
            return cls(str(facts["split"]), sorted(bits), sorted(excess)) if bits else None
        except (KeyError, TypeError, ValueError):
            return None

    def facts(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"split": self.split, "bits": list(self.bits), "excess": list(self.excess)}

    def scores(self, bits: float, excess: float) -> dict[str, float]:
        """Percentiles of an image's scores: how many of 100 images have smaller ones."""
        return {
            "percentile": _percentile(bits, self.bits),
            "anomaly": _percentile(excess, self.excess),
        }

    def note(self) -> str:
        """What has to be known to read the percentiles, in one line."""
        count = len(self.bits)
        # The rank of a further such image is any of count + 1, each as likely.
        beyond = math.floor(count * (1 - UNUSUAL / 100)) + 1
        return (
            f"percentiles among {count} {self.split} images; sort by anomaly, which is unusual "
            f"from {UNUSUAL:g} on: of images like the training images, "
            f"{100 * beyond / (count + 1):.1f} % are"
        )


def _percentile(score: float, rising: Sequence[float]) -> float:
    """The share of smaller numbers, in per cent; equal ones count half, NaN is beyond all."""
    if math.isnan(score):
        return 100.0
    score = round(score, _DIGITS)
    below, up_to = bisect.bisect_left(rising, score), bisect.bisect_right(rising, score)
    return 50 * (below + up_to) / len(rising)
