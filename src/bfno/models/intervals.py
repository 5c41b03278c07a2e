"""Intervals around predicted values that cover the wanted share of later observations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["LEVELS", "PredictiveIntervals", "drawn_mean"]

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Shares of later observations that intervals are fitted to cover."""

# Quantiles of fewer errors are too rough: such features share that of all of them.
_FEW = 100
# What was rarely observed is taken to be as if so many average observations were added.
_PRIOR = 5.0
# Errors behind each knot of their growth, and the most knots.
_PER_KNOT, _MOST_KNOTS = 150, 6
# The growth is that of errors which nine in ten do not exceed; of normal samples, that is as many
# deviations.
_SHAPE_LEVEL, _REACH = 0.9, 1.645
_SMALLEST = 1e-12


@dataclass(frozen=True)
class PredictiveIntervals:
    """Split-conformal intervals: as wide as the errors on data that the model was not trained on.

    An interval extends to both sides of its prediction by

        quantile · difficulty · √((noise · growth(horizon))² + (1.645 · spread)²).

    The noise is the mean absolute error of each feature, the growth is how errors change with the
    time since the last observation, and the spread is the deviation of the model's samples. The
    quantile makes the wanted share of the errors fit; a feature with enough errors has its own.

    Errors of one series are alike, so the number of series counts: with `n` of them, the quantile
    is that of level `level · (n + 1) / n`, and there is none if that exceeds one. If later series
    come from the same source, the interval covers about the requested share, on average over draws
    of the `n` series.

    Attributes:
        noise: `(features,)`.
        horizons: Times at which the growth is known, ascending; it is linear between them and
            constant outside.
        growth: Factor of the noise at these times.
        levels: Shares that intervals can cover.
        quantiles: `(levels, features)`; infinite where there was too little to fit.

    References:
        Lei et al., Distribution-Free Predictive Inference for Regression, 2018.
        Dunn et al., Distribution-Free Prediction Sets for Two-Layer Hierarchical Models, 2023.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> values = torch.randn(1000, 1)  # and a model that predicts 0
        >>> fitted = PredictiveIntervals.fit(torch.zeros(1, 1000, 1), values, values == values)
        >>> low, high = fitted.bounds(torch.zeros(1, 2, 1), level=0.9)
        >>> bool((1.5 < high).all()), bool((high < 1.8).all())  # that of a normal is 1.64
        (True, True)
    """

    noise: Tensor
    horizons: Tensor
    growth: Tensor
    levels: tuple[float, ...]
    quantiles: Tensor

    @classmethod
    def fit(
        cls,
        prediction: Tensor,
        values: Tensor,
        mask: Tensor,
        *,
        horizon: Tensor | None = None,
        difficulty: Tensor | None = None,
        series: Tensor | None = None,
        levels: Sequence[float] = LEVELS,
    ) -> PredictiveIntervals:
        """Fit intervals to the errors at values that the model has not seen.

        Args:
            prediction: `(samples, ..., features)`.
            values: `(..., features)`.
            mask: `(..., features)`; whether the value was observed.
            horizon: `(...)`: time since something was last seen; None for no growth.
            difficulty: `(...)`: a positive factor of the errors to be expected; None is one.
            series: `(...)`: number of the series; None takes each row as independent.
            levels: Shares to cover, above 0 and at most 1.

        Raises:
            ValueError: If shapes do not fit, nothing was observed, a prediction of it is not
                finite, or a level is no such share.
        """
        if prediction.shape[1:] != values.shape or mask.shape != values.shape:
            shape = ", ".join(map(str, values.shape))
            raise ValueError(
                f"prediction must have shape (samples, {shape}) and mask ({shape}), got "
                f"{tuple(prediction.shape)} and {tuple(mask.shape)}"
            )
        for level in levels:
            if not 0 < level <= 1:
                raise ValueError(f"levels must lie above 0 and be 1 at most, got {level:g}")
        features = values.shape[-1]
        mask = mask.bool().reshape(-1, features)
        if not mask.any():
            raise ValueError("intervals need at least one observed value")
        found = _Errors.of(prediction, values, mask, horizon, difficulty, series)
        noise = found.mean_by_feature(features)
        horizons, growth = _growth(found, noise)
        fitted = cls(noise, horizons, growth, tuple(levels), noise.new_empty(len(levels), features))
        scale = fitted._scale(found.feature, found.horizon, found.spread, found.difficulty)
        scores = found.size / scale
        for number, level in enumerate(levels):
            fitted.quantiles[number] = _quantiles(scores, found, features, level)
        return fitted

    def half_width(
        self,
        prediction: Tensor,
        *,
        horizon: Tensor | None = None,
        difficulty: Tensor | None = None,
        level: float = 0.9,
    ) -> Tensor:
        """Half the width of the intervals, `(..., features)`; infinite where too little was fitted.

        Args:
            prediction: `(samples, ..., features)`.
            horizon: As in `fit`.
            difficulty: As in `fit`.
            level: Share to cover, one of `levels`.

        Raises:
            ValueError: If the level is none of `levels`.
        """
        if level not in self.levels:
            known = ", ".join(f"{one:g}" for one in self.levels)
            raise ValueError(f"level must be one of {known}, got {level:g}")
        feature = torch.arange(len(self.noise))
        rest = prediction.shape[1:-1]
        at = _rows(horizon, rest, 0.0).unsqueeze(-1)
        factor = _rows(difficulty, rest, 1.0).unsqueeze(-1)
        spread = _spread(prediction.double().cpu())
        scale = self._scale(feature, at, spread, factor)
        return (self.quantiles[self.levels.index(level)] * scale).to(prediction)

    def bounds(self, prediction: Tensor, **where: Any) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the intervals around the mean of the samples.

        Args:
            prediction: `(samples, ..., features)`.
            **where: As for `half_width`.
        """
        mean, half = prediction.mean(0), self.half_width(prediction, **where)
        return mean - half, mean + half

    def as_dict(self) -> dict[str, Any]:
        """The intervals as plain numbers, ready for JSON; infinite ones become None."""
        quantiles = [
            [value if math.isfinite(value) else None for value in row]
            for row in self.quantiles.tolist()
        ]
        return {
            "noise": self.noise.tolist(),
            "horizons": self.horizons.tolist(),
            "growth": self.growth.tolist(),
            "levels": list(self.levels),
            "quantiles": quantiles,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PredictiveIntervals:
        """Restore what `as_dict` returned."""
        quantiles = [
            [math.inf if value is None else value for value in row] for row in values["quantiles"]
        ]
        noise, horizons, growth, table = (
            torch.tensor(numbers, dtype=torch.float64)
            for numbers in (values["noise"], values["horizons"], values["growth"], quantiles)
        )
        return cls(noise, horizons, growth, tuple(values["levels"]), table)

    def _scale(self, feature: Tensor, horizon: Tensor, spread: Tensor, factor: Tensor) -> Tensor:
        noise = self.noise[feature] * _interpolated(horizon, self.horizons, self.growth)
        return (factor * torch.hypot(noise, _REACH * spread)).clamp(min=_SMALLEST)


@dataclass(frozen=True)
class _Errors:
    """Errors at observed values, one number each: size, feature, and what makes it large."""

    size: Tensor
    feature: Tensor
    horizon: Tensor
    spread: Tensor
    difficulty: Tensor
    series: Tensor

    @classmethod
    def of(
        cls,
        prediction: Tensor,
        values: Tensor,
        mask: Tensor,
        horizon: Tensor | None,
        difficulty: Tensor | None,
        series: Tensor | None,
    ) -> _Errors:
        rest, features = values.shape[:-1], values.shape[-1]
        row, feature = mask.cpu().nonzero(as_tuple=True)
        samples = prediction.double().cpu().reshape(len(prediction), -1, features)
        size = (samples.mean(0) - values.double().cpu().reshape(-1, features)).abs()[row, feature]
        if not bool(size.isfinite().all()):
            raise ValueError("a prediction of an observed value is not finite")
        owner = torch.arange(len(mask)) if series is None else series.cpu().reshape(-1)
        return cls(
            size,
            feature,
            _rows(horizon, rest, 0.0).reshape(-1)[row],
            _spread(samples)[row, feature],
            _rows(difficulty, rest, 1.0).reshape(-1)[row],
            owner[row],
        )

    def mean_by_feature(self, features: int) -> Tensor:
        """Mean error of each feature, shrunk a little towards that of all."""
        total = self.feature.bincount(self.size, features)
        count = self.feature.bincount(minlength=features)
        return drawn_mean(total, count, self.size.mean())


def drawn_mean(total: Tensor, count: Tensor, average: Tensor | float) -> Tensor:
    """Means of a few observations each, shrunk a little towards the average of all."""
    return (total + _PRIOR * average) / (count + _PRIOR)


def _rows(given: Tensor | None, shape: torch.Size, otherwise: float) -> Tensor:
    if given is None:
        return torch.full(shape, otherwise, dtype=torch.float64)
    return given.double().cpu().expand(shape)


def _spread(prediction: Tensor) -> Tensor:
    return prediction.std(0) if len(prediction) > 1 else torch.zeros_like(prediction[0])


def _growth(errors: _Errors, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Midpoints of parts of the horizon, and the size of the errors there relative to the noise."""
    relative = errors.size / (noise[errors.feature] * errors.difficulty).clamp(min=_SMALLEST)
    knots = max(1, min(_MOST_KNOTS, len(relative) // _PER_KNOT))
    stretches = errors.horizon.argsort(stable=True).tensor_split(knots)
    places = torch.stack([errors.horizon[part].median() for part in stretches])
    heights = torch.stack([relative[part].quantile(_SHAPE_LEVEL) for part in stretches])
    # Equal places would leave the line between them undefined.
    distinct, number = places.unique(return_inverse=True)
    merged = number.bincount(heights, len(distinct)) / number.bincount(minlength=len(distinct))
    return distinct, merged


def _interpolated(x: Tensor, places: Tensor, heights: Tensor) -> Tensor:
    if len(places) == 1:
        return heights.expand_as(x) if x.dim() else heights[0]
    right = torch.searchsorted(places, x.contiguous()).clamp(1, len(places) - 1)
    start, end = places[right - 1], places[right]
    share = ((x - start) / (end - start)).clamp(0, 1)
    return heights[right - 1].lerp(heights[right], share)


def _quantiles(scores: Tensor, errors: _Errors, features: int, level: float) -> Tensor:
    """The quantile of each feature, or of all where it has too few scores of its own."""
    shared = _conformal(scores, errors.series, level)
    found = torch.full((features,), shared, dtype=scores.dtype)
    for place in (errors.feature.bincount(minlength=features) >= _FEW).nonzero().flatten().tolist():
        mine = errors.feature == place
        own = _conformal(scores[mine], errors.series[mine], level)
        found[place] = own if math.isfinite(own) else shared
    return found


def _conformal(scores: Tensor, series: Tensor, level: float) -> float:
    """The score that a given share does not exceed, with room for one unseen series."""
    count = len(series.unique())
    # Rounding must not turn the ninth of nine into a tenth.
    rank = math.ceil(len(scores) * level * (count + 1) / count - 1e-9)
    return scores.sort().values[rank - 1].item() if rank <= len(scores) else math.inf
