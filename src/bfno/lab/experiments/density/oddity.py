"""How unusual an image is, by its scores among those of images that a flow did not learn from.

A flow gives smooth images a high density whatever it was trained on: by bits per dimension alone, a
blank image is perfect. What counts is whether the bits match an image as complex as this one (Serrà
et al., Input Complexity and Out-of-distribution Detection with Likelihood-based Generative Models,
ICLR 2020), and whether both are typical (Nalisnick et al., Detecting Out-of-Distribution Inputs to
Deep Generative Models Using Typicality, 2019).
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

__all__ = ["ALARMS", "Yardstick", "plain_bits"]

ALARMS = 0.01
"""The share of ordinary images that may be called unusual."""

_LEVELS = 256
# Digits behind the point: finer differences between images mean nothing.
_DIGITS = 4
# Added to variances, so that images that are all alike have some.
_LEAST_VARIANCE = 1e-4


def plain_bits(images: Tensor) -> Tensor:
    """Bits per byte of each image when coded without a model, `(count,)` in double precision.

    Each byte is predicted from its neighbours above and to the left as in lossless JPEG, and the
    residual is compressed as in PNG. Versions of zlib may differ in the third digit.

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
        split: Name of the split that they belong to.
        bits: Bits per dimension of each.
        plain: The `plain_bits` of each.
    """

    split: str
    bits: Sequence[float]
    plain: Sequence[float]

    @classmethod
    def of(cls, split: str, images: Tensor, bits: Tensor) -> Yardstick:
        """Build a yardstick from images and their finite bits per dimension."""
        is_finite = bits.isfinite().cpu()
        columns = (bits.cpu()[is_finite], plain_bits(images[is_finite]))
        return cls(split, *([round(value, _DIGITS) for value in one.tolist()] for one in columns))

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Yardstick | None:
        """Read what `facts` returned; None if it is missing or something else."""
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
        """The place of an image among these.

        Returns:
            `percentile`, that of its bits per dimension, and `anomaly`: 100 less the chance, in per
            cent, that an ordinary image is at least as odd. Oddity is the distance of both numbers
            from their means, measured by their covariance.
        """
        if not math.isfinite(bits):
            return {"percentile": 100.0, "anomaly": 100.0}
        # The image itself is one of those that mean and covariance are taken of: else the others
        # would be nearer to a mean that is theirs than an equal image that has no part in it. Then
        # each of the count + 1 ranks is as likely for an ordinary image (conformal prediction).
        columns = ([*self.bits, bits], [*self.plain, plain])
        distances = _distances(torch.tensor(columns, dtype=torch.float64).T)
        as_odd = int((_gaps(distances[-1].item(), distances[:-1]) >= 0).sum())
        return {
            "percentile": _percentile(bits, torch.tensor(self.bits, dtype=torch.float64)),
            "anomaly": 100 * (1 - (1 + as_odd) / (len(self.bits) + 1)),
        }

    @property
    def _called_unusual(self) -> int:
        """The number of oddest ranks that are called unusual."""
        # A hair more than the share, for 100 * 0.01 may be below 1.
        return max(1, math.floor((len(self.bits) + 1) * (ALARMS + 1e-9)))

    @property
    def unusual_from(self) -> float:
        """The smallest anomaly of an image that is called unusual, safe against rounding."""
        return 100 * (1 - self._called_unusual / (len(self.bits) + 1)) - 1e-6

    def false_alarms(self) -> tuple[float, float]:
        """The share of ordinary images that are called unusual: expected, and at most.

        The second number holds for 19 of 20 draws of this number of held-out images.
        """
        from scipy.stats import beta  # scipy takes long to import

        count, called = len(self.bits), self._called_unusual
        return called / (count + 1), float(beta.ppf(0.95, called, count + 1 - called))

    def note(self) -> str:
        """Explain in one line how to read the percentiles."""
        count, (expected, most) = len(self.bits), self.false_alarms()
        if expected > ALARMS:
            least = round(1 / ALARMS) - 1
            rule = (
                f"unusual is what is odder than all of them, for {100 * ALARMS:.0f} % of false "
                f"alarms takes {least} held-out images"
            )
        else:
            rule = f"unusual from {self.unusual_from:.1f} on"
        return (
            f"percentiles among {count} {self.split} images; sort by anomaly: {rule}; of images "
            f"like the training images, about {100 * expected:.1f} % are called unusual, at most "
            f"{100 * most:.1f} % (19 times in 20)"
        )


def _distances(points: Tensor) -> Tensor:
    """Squared distance of each row from the mean of all, in units of their spread."""
    away = points - points.mean(0)
    spread = points.T.cov(correction=0) + _LEAST_VARIANCE * torch.eye(2, dtype=points.dtype)
    return (away @ torch.linalg.inv(spread) * away).sum(1)


def _gaps(score: float, known: Tensor) -> Tensor:
    """How much larger the known scores are, in units of the smallest difference that counts."""
    return (known - score).mul(10**_DIGITS).round()


def _percentile(score: float, known: Tensor) -> float:
    """The share of smaller numbers, in per cent; equal ones count half."""
    gap = _gaps(score, known)
    return 100 * ((gap < 0).double() + 0.5 * (gap == 0).double()).mean().item()
