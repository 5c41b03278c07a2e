"""Predictive intervals of a run: fitted on validation series, measured on others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bfno.lab.data import Series
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.experiment import TrainedRun
from bfno.lab.experiments.series.holdout import (
    PATTERNS,
    SHARE,
    Expected,
    expect_hidden,
    hidden_rows,
)
from bfno.models import SeriesModel
from bfno.models.intervals import LEVELS, PredictiveIntervals, drawn_mean

__all__ = [
    "AT_ITS_TIME",
    "FACT",
    "Coverage",
    "SeriesIntervals",
    "fit_intervals",
    "hidden_coverage",
    "intervals_of",
    "measure_coverage",
    "require_level",
    "without_forecast",
]

FACT = "predictive_intervals"
"""Name of the intervals among the facts of a run."""

AT_ITS_TIME = "model.gaps=own and model.reconstruction=own"
"""Settings of an ODE-RNN that predicts a row from the state at the time of that row."""


@dataclass(frozen=True)
class SeriesIntervals:
    """Intervals around a model's predictions for a series, in scaled units.

    A model's fit at the rows it was shown says much about the others, so the square root of the
    relative error there is the series' difficulty. A model that looks ahead sees the rows after a
    gap: between two rows it has different intervals than after the last one.

    Attributes:
        series: Number of validation series used for fitting.
        shown: Mean absolute error of each feature at rows that were shown, `(features,)`.
        after: Intervals after the last row shown.
        between: Those between two rows; None for a model that does not look ahead.
        longest: Longest time after the last shown row that was fitted.
    """

    series: int
    shown: Tensor
    after: PredictiveIntervals
    between: PredictiveIntervals | None
    longest: float

    def half_width(
        self,
        prediction: Tensor,
        horizon: Tensor,
        between: Tensor,
        difficulty: Tensor,
        level: float,
    ) -> Tensor:
        """Half the width of intervals, `(rows, features)`.

        Args:
            prediction: `(samples, rows, features)`.
            horizon: Time since the last row shown before, `(rows,)`.
            between: Whether a row was shown after it as well, `(rows,)`.
            difficulty: Difficulty of the series, see `difficulty`, `(rows,)`.
            level: Share to cover, one of `LEVELS`.
        """
        where: dict[str, Any] = {"horizon": horizon, "difficulty": difficulty, "level": level}
        after = self.after.half_width(prediction, **where)
        if self.between is None:
            return after
        inner = self.between.half_width(prediction, **where)
        return inner.where(between.unsqueeze(-1), after)

    def difficulty(self, errors: Tensor, mask: Tensor, owner: Tensor) -> Tensor:
        """Difficulty of each series for the model, `(series,)`; one on average.

        Args:
            errors: Errors at rows that were shown, `(rows, features)`.
            mask: Whether a value was observed there.
            owner: Number of the series of each row.
        """
        return _difficulty(errors, mask, owner, self.shown)

    def as_facts(self) -> dict[str, Any]:
        """The intervals as plain values, ready for JSON."""
        return {
            "series": self.series,
            "longest": self.longest,
            "shown": self.shown.tolist(),
            "after": self.after.as_dict(),
            "between": None if self.between is None else self.between.as_dict(),
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> SeriesIntervals:
        """Read what `as_facts` returned."""
        between = facts["between"]
        return cls(
            facts["series"],
            torch.tensor(facts["shown"], dtype=torch.float64),
            PredictiveIntervals.from_dict(facts["after"]),
            None if between is None else PredictiveIntervals.from_dict(between),
            facts["longest"],
        )


def _difficulty(errors: Tensor, mask: Tensor, owner: Tensor, typical: Tensor) -> Tensor:
    relative = (errors.abs() / typical).where(mask, 0.0).sum(1)
    total, count = owner.bincount(relative), owner.bincount(mask.sum(1).double())
    return drawn_mean(total, count, 1.0).sqrt()


def fit_intervals(model: SeriesModel, series: Series, batch: int) -> SeriesIntervals:
    """Fit intervals at hidden rows of series that the model was not trained on.

    Args:
        model: A `SeriesModel` in evaluation mode.
        series: Validation series, scaled as in training.
        batch: Series at a time.

    Raises:
        ConfigError: If there are too few series for a 90 % interval, or predictions are not finite.
        NumericalError: If the solver gives up.
    """
    needed = _needed(0.9)
    found = [_expect(model, series, pattern, SHARE, batch) for pattern in PATTERNS]
    count = min(len(one.owner.unique()) for one in found)
    if count < needed:
        raise ConfigError(
            "intervals",
            f"{count} validation series with rows to hide are too few for an interval of 90 %, "
            f"which takes {needed}",
            "add series, or raise data.validation",
        )
    errors = torch.cat([one.shown_errors.abs() for one in found])
    mask = torch.cat([one.shown_mask for one in found])
    pooled = errors[mask].mean()
    totals, counts = errors.where(mask, 0.0).sum(0), mask.sum(0)
    shown = drawn_mean(totals, counts, pooled).clamp(min=1e-12)
    between, after = found
    longest = float(after.horizon.max())
    try:
        if not model.looks_ahead:
            return SeriesIntervals(count, shown, _fit(found, shown), None, longest)
        # A model that sees the rows after a gap errs no more in long gaps than in short ones.
        parts = _fit([after], shown), _fit([between], shown, growing=False)
        return SeriesIntervals(count, shown, *parts, longest)
    except ValueError as error:
        raise ConfigError("intervals", str(error), "use another run, or train it on") from error


def _needed(level: float) -> int:
    """The smallest number of series for an interval: enough that one more may be outside."""
    return math.ceil(level / (1 - level) - 1e-9)


def require_level(intervals: SeriesIntervals | None, level: float) -> None:
    """Refuse a level that intervals do not have.

    Args:
        intervals: The intervals of a run; None if it has none.
        level: Share to cover.

    Raises:
        ConfigError: If it is not in `LEVELS`, or needs more validation series than there were.
    """
    if level not in LEVELS:
        known = ", ".join(f"{one:g}" for one in LEVELS)
        raise ConfigError(f"--level {level:g}", "is not kept with a run", f"use one of {known}")
    if intervals is not None and intervals.series < _needed(level):
        why = f"takes {_needed(level)} validation series, and the run had {intervals.series}"
        largest = max(one for one in LEVELS if intervals.series >= _needed(one))
        raise ConfigError(f"--level {level:g}", why, f"use {largest:g} or less")


def _expect(model: SeriesModel, series: Series, pattern: str, share: float, batch: int) -> Expected:
    return expect_hidden(model, series, hidden_rows(series, pattern, share), batch)


def _fit(parts: list[Expected], shown: Tensor, *, growing: bool = True) -> PredictiveIntervals:
    hard = [_difficulty(one.shown_errors, one.shown_mask, one.shown_owner, shown) for one in parts]
    return PredictiveIntervals.fit(
        torch.cat([one.prediction for one in parts], dim=1),
        torch.cat([one.values for one in parts]),
        torch.cat([one.mask for one in parts]),
        horizon=torch.cat([one.horizon for one in parts]) if growing else None,
        difficulty=torch.cat([h[one.owner] for h, one in zip(hard, parts, strict=True)]),
        series=torch.cat([one.owner for one in parts]),
    )


@dataclass(frozen=True)
class Coverage:
    """Coverage of hidden values by intervals.

    Attributes:
        values: Number of hidden values.
        covered: How many of them lay within their interval.
        width: Sum of the intervals' widths, in scaled units.
    """

    values: int = 0
    covered: int = 0
    width: float = 0.0

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(
            self.values + other.values, self.covered + other.covered, self.width + other.width
        )

    @property
    def share(self) -> float:
        """Share of the values covered."""
        return self.covered / self.values

    @property
    def mean_width(self) -> float:
        """Mean width of the intervals, in scaled units."""
        return self.width / self.values

    def metrics(self, level: float = 0.9) -> dict[str, float]:
        """Share covered and mean width, by the names of metrics; none without any value."""
        if not self.values:
            return {}
        name = f"{level * 100:g}"
        return {
            f"coverage_{name}": self.share,
            f"width_{name}": self.mean_width,
        }


def measure_coverage(intervals: SeriesIntervals, found: Expected, level: float = 0.9) -> Coverage:
    """Measure how often intervals cover the values observed at hidden rows."""
    hard = intervals.difficulty(found.shown_errors, found.shown_mask, found.shown_owner)
    half = intervals.half_width(
        found.prediction, found.horizon, found.between, hard[found.owner], level
    )
    errors = (found.prediction.mean(0) - found.values).abs()
    covered = (errors <= half)[found.mask]
    return Coverage(len(covered), int(covered.sum()), float(2 * half[found.mask].sum()))


def hidden_coverage(
    intervals: SeriesIntervals, model: SeriesModel, series: Series, batch: int
) -> Coverage:
    """The coverage of 90 % intervals at rows hidden in both ways: some in between, and the last."""
    found = (_expect(model, series, pattern, SHARE, batch) for pattern in PATTERNS)
    return sum((measure_coverage(intervals, one) for one in found), Coverage())


def without_forecast(config: Any) -> str | None:
    """Why a model's predicted values are meaningless; None if they are not."""
    if config.loss.reconstruction == 0:
        return "the model was trained on labels alone"
    if config.model.kind == "ode_rnn":
        for name in ("gaps", "reconstruction"):
            if getattr(config.model, name) == "public_code":
                return f"with model.{name}=public_code the state is not at the time of its row"
    return None


def intervals_of(run: TrainedRun) -> SeriesIntervals:
    """The predictive intervals that a run keeps.

    Raises:
        ConfigError: If it has none.
    """
    kept = run.facts.get(FACT)
    if kept and "missing" not in kept:
        return SeriesIntervals.from_facts(kept)
    why, fix = "the run does not have them yet", "fit them with `bfno resume RUN`"
    if kept:
        why, fix = kept["missing"], "train with more validation series"
    elif (meaningless := without_forecast(run.config)) is not None:
        why, fix = meaningless, f"train with loss.reconstruction=1, {AT_ITS_TIME}"
    elif run.config.data.validation == 0:
        why, fix = (
            "there were no validation series to fit them on",
            "train with data.validation=0.1",
        )
    raise ConfigError("predictive intervals", why, fix)
