"""Rows hidden from a model, and its predictions there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from bfno.lab.data import Series
from bfno.lab.experiments.experiment import explained_failure
from bfno.models import SeriesModel

__all__ = ["PATTERNS", "SHARE", "Expected", "expect_hidden", "hidden_rows", "surroundings"]
__all__ += ["take_rows"]

PATTERNS = ("interpolation", "extrapolation")
"""The patterns of hidden rows: some between the first and the last, or the last ones."""
SHARE = 0.3
"""Share of the observed rows of a series that is hidden unless a user says otherwise."""
_SEED = 0  # which rows are hidden is always the same


@dataclass(frozen=True)
class Expected:
    """Predictions at hidden rows, and errors at shown rows; scaled, in double precision.

    Attributes:
        prediction: At the hidden rows, `(samples, rows, features)`.
        values: The observed values there, `(rows, features)`.
        mask: Whether each value was observed.
        owner: Number of the series of each hidden row, `(rows,)`.
        horizon: Time between the last row shown before and the hidden one, `(rows,)`.
        between: Whether a row was also shown after it, `(rows,)`.
        shown_errors: Errors at the rows shown, `(rows shown, features)`.
        shown_mask: Whether a value was observed there.
        shown_owner: Number of the series of each row shown.
    """

    prediction: Tensor
    values: Tensor
    mask: Tensor
    owner: Tensor
    horizon: Tensor
    between: Tensor
    shown_errors: Tensor
    shown_mask: Tensor
    shown_owner: Tensor


def hidden_rows(series: Series, pattern: str, share: float) -> Tensor:
    """Whether each row is hidden, `(rows,)`; series with a single observed row keep it.

    Args:
        series: The series.
        pattern: One of `PATTERNS`.
        share: Share of the observed rows of each series, at least one row.
    """
    generator = torch.Generator().manual_seed(_SEED)
    order = torch.rand(len(series.times), generator=generator, dtype=torch.float64)
    rules: dict[str, Callable[[Tensor], Tensor]] = {
        "interpolation": lambda rows: _some_between(rows, order, share),
        "extrapolation": lambda rows: rows[len(rows) - _count(share, len(rows)) :],
    }
    hidden = torch.zeros(len(series.times), dtype=torch.bool)
    observed, starts = series.mask.any(-1), series.starts.tolist()
    for first, end in pairwise(starts):
        rows = first + observed[first:end].nonzero().squeeze(1)
        if len(rows) > 1:
            hidden[rules[pattern](rows)] = True
    return hidden


def _count(share: float, rows: int) -> int:
    """Number of rows to hide: at least one, but never all."""
    return min(max(1, round(share * rows)), rows - 1)


def _some_between(rows: Tensor, luck: Tensor, share: float) -> Tensor:
    """Some of the rows, drawn at random, but never the first or the last."""
    inner = rows[1:-1]
    return inner[luck[inner].argsort()[: _count(share, len(rows))]]


def take_rows(series: Series, wanted: Tensor) -> Series:
    """The same series with only those rows that are true in `(rows,)`."""
    counts = _owners(series)[wanted].bincount(minlength=len(series))
    return replace(
        series,
        times=series.times[wanted],
        values=series.values[wanted],
        mask=series.mask[wanted],
        labels=series.labels[wanted] if series.by_row else series.labels,
        starts=torch.cat((counts.new_zeros(1), counts.cumsum(0))),
    )


def _owners(series: Series) -> Tensor:
    """Number of the series of each row."""
    return torch.arange(len(series)).repeat_interleave(series.lengths)


def expect_hidden(model: SeriesModel, series: Series, hidden: Tensor, batch: int) -> Expected:
    """Run a model over series without their hidden rows.

    Args:
        model: A `SeriesModel` in evaluation mode.
        series: Scaled as in training; those without a hidden row are left out.
        hidden: Whether each row is hidden, `(rows,)`.
        batch: Series at a time; those of similar length go together.

    Raises:
        NumericalError: If the solver gives up.
    """
    which = _owners(series)[hidden].unique()
    hidden, series = hidden[torch.isin(_owners(series), which)], series.take(which)
    shown, rest = take_rows(series, ~hidden), take_rows(series, hidden)
    like = next(model.parameters())
    features = series.values.shape[1]
    expected = torch.zeros(model.samples, len(rest.times), features, dtype=torch.float64)
    at_shown = torch.zeros(len(shown.times), features, dtype=torch.float64)
    # Without any series, splitting gives one empty part.
    for samples in filter(len, shown.lengths.argsort(stable=True).split(batch)):
        seen, wanted = shown.batch(samples), rest.batch(samples)
        there = seen.to(like.device, like.dtype)
        at = torch.cat((wanted.times, seen.times), dim=1).to(like)
        with torch.inference_mode(), explained_failure():
            found = model.reconstruct(there.times, there.values, there.mask, at).double().cpu()
        asked, known = found.split((wanted.times.shape[1], seen.times.shape[1]), dim=2)
        is_row, is_shown = wanted.rows >= 0, seen.rows >= 0
        expected[:, wanted.rows[is_row]] = asked[:, is_row]
        at_shown[seen.rows[is_shown]] = known.mean(0)[is_shown]
    since, between = _neighbours(series, hidden)
    return Expected(
        expected,
        rest.values.double(),
        rest.mask,
        _owners(rest),
        since,
        between,
        at_shown - shown.values.double(),
        shown.mask,
        _owners(shown),
    )


def _neighbours(series: Series, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """For each hidden row: time since the last shown observation, and whether one follows."""
    shown, found = series.mask.any(-1) & ~hidden, []
    for first, end in pairwise(series.starts.tolist()):
        times = series.times[first:end]
        found.append(surroundings(times[hidden[first:end]], times[shown[first:end]]))
    if not found:
        return series.times[hidden], hidden[hidden]
    since, between = (torch.cat(parts) for parts in zip(*found, strict=True))
    return since, between


def surroundings(at: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Time since the last observation before each time, and whether one follows or coincides."""
    if len(observed) == 0:
        return at - at[:1], torch.zeros_like(at, dtype=torch.bool)
    before = (torch.searchsorted(observed, at) - 1).clamp(min=0)
    return (at - observed[before]).clamp(min=0), at <= observed[-1]
