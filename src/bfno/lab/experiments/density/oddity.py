"""How unusual an image is: its scores among those of images that a flow did not learn from.

A flow gives smooth images a high density whatever it was trained on, so bits per dimension alone
take a blank image for a perfect one. What counts is whether they suit an image as busy as this one
(Serrà et al., Input Complexity and Out-of-distribution Detection with Likelihood-based Generative
Models, ICLR 2020), and that both are typical (Nalisnick et al., Detecting Out-of-Distribution
Inputs to Deep Generative Models Using Typicality, 2019).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["UNUSUAL", "Yardstick", "plain_bits"]

UNUSUAL = 99.0
"""The anomaly percentile from which an image is called unusual."""

_LEVELS = 256
# Digits behind the point: finer differences between images mean nothing.
_DIGITS = 4
# Added to variances, so that images that are all alike have some.
_LEAST_VARIANCE = 1e-4


def plain_bits(images: Tensor) -> Tensor:
    """What a byte of each image costs in bits without a model, `(count,)` in double precision.

    Each byte is predicted from its neighbours above and to the left as in lossless JPEG, and what
    is left is compressed as in PNG. Versions of zlib may differ in the third digit.

    Args:
        images: Bytes, `(count, channels, height, width)`.

    Example:
        >>> plain_bits(torch.full((1, 3, 32, 32), 200, dtype=torch.uint8)).item() < 0.2
        True
    """
    x = images.int()
    padded = F.pad(x, (1, 0, 1, 0))
    left, above, corner = padded[..., 1:, :-1], padded[..., :-1, 1:], padded[..., :-1, :-1]
    low, high = torch.minimum(left, above), torch.maximum(left, above)
    expected = (left + above - corner).clamp(low, high)
    rest = (x - expected).remainder(_LEVELS).to(torch.uint8).flatten(1).cpu().numpy()
    costs = [8 * len(zlib.compress(one.tobytes(), 9)) / one.size for one in rest]
    return torch.tensor(costs, dtype=torch.float64)


@dataclass(frozen=True)
class Yardstick:
    """Scores of images that a flow did not learn from.

    Attributes:
        split: Name of the part of the data that they are.
        bits: Bits per dimension of each.
        plain: The `plain_bits` of each.
    """

    split: str
    bits: Sequence[float]
    plain: Sequence[float]

    @classmethod
    def of(cls, split: str, images: Tensor, bits: Tensor) -> Yardstick:
        """That of some images and their bits per dimension; without those that are not finite."""
        is_finite = bits.isfinite().cpu()
        columns = (bits.cpu()[is_finite], plain_bits(images[is_finite]))
        return cls(split, *([round(value, _DIGITS) for value in one.tolist()] for one in columns))

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Yardstick | None:
        """What `facts` gave; None where there is nothing, or something else."""
        try:
            bits, plain = ([float(one) for one in facts[name]] for name in ("bits", "plain"))
            is_whole = len(bits) == len(plain) > 0
            return cls(str(facts["split"]), bits, plain) if is_whole else None
        except (KeyError, TypeError, ValueError):
            return None

    def facts(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"split": self.split, "bits": list(self.bits), "plain": list(self.plain)}

    def scores(self, bits: float, plain: float) -> dict[str, float]:
        """The place of an image among these: of how many in 100 its scores are larger.

        Returns:
            `percentile`, that of its bits per dimension, and `anomaly`, that of the distance of
            both numbers from their means, as the covariance of both measures it.
        """
        if not math.isfinite(bits):
            return {"percentile": 100.0, "anomaly": 100.0}
        # The image itself is one of those that mean and covariance are taken of: else the others
        # would be nearer to a mean that is theirs than an equal image that has no part in it.
        columns = ([*self.bits, bits], [*self.plain, plain])
        distances = _distances(torch.tensor(columns, dtype=torch.float64).T)
        return {
            "percentile": _percentile(bits, torch.tensor(self.bits, dtype=torch.float64)),
            "anomaly": _percentile(distances[-1].item(), distances[:-1]),
        }

    def note(self) -> str:
        """What has to be known to read the percentiles, in one line."""
        count = len(self.bits)
        # The rank of a further such image is any of count + 1, each as likely.
        beyond = math.floor(count * (1 - UNUSUAL / 100)) + 1
        return (
            f"percentiles among {count} {self.split} images; sort by anomaly, which is unusual "
            f"from {UNUSUAL:g} on: of images like the training images, about "
            f"{100 * beyond / (count + 1):.0f} % are"
        )


def _distances(points: Tensor) -> Tensor:
    """Squared distance of each row from the mean of all, in units of their spread."""
    away = points - points.mean(0)
    spread = points.T.cov(correction=0) + _LEAST_VARIANCE * torch.eye(2, dtype=points.dtype)
    return (away @ torch.linalg.inv(spread) * away).sum(1)


def _percentile(score: float, known: Tensor) -> float:
    """The share of smaller numbers, in per cent; equal ones count half."""
    gap = (known - score).mul(10**_DIGITS).round()
    return 100 * ((gap < 0).double() + 0.5 * (gap == 0).double()).mean().item()
