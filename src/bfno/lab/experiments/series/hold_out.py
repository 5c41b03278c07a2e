"""How well a latent model reconstructs rows of series that were hidden from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from bfno.lab.data import Series
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.family import TrainedRun
from bfno.lab.experiments.series.reconstruction import (
    ReconstructionRequest,
    chosen_series,
    expected_values,
    require_trajectory,
)

__all__ = ["HoldOutScore", "evaluate_hold_out"]

_HIDING_SEED = 0


@dataclass(frozen=True)
class HoldOutScore:
    """Mean squared errors in scaled units at values that were hidden from the model.

    Attributes:
        values: Number of hidden values whose feature had been seen before in the same series.
        model: Error of the mean over the latent samples.
        series_mean: Error of the mean of what was left of the feature in the series.
        last_value: Error of the value seen last before.
    """

    values: int
    model: float
    series_mean: float
    last_value: float


def evaluate_hold_out(
    run: TrainedRun, request: ReconstructionRequest, share: float
) -> dict[str, HoldOutScore]:
    """Hide rows of series and see how well they are reconstructed.

    `interpolation` hides rows between the first and the last one, always the same; `extrapolation`
    hides the last rows.

    Args:
        run: A trained latent model.
        request: Which series; without names, all of them.
        share: Share of the observed rows of each series that is hidden, at least one row.

    Raises:
        ConfigError: If the model has no latent trajectory, the share is no share, or nothing can
            be hidden.
        DataError: If files are missing or wrong.
        NumericalError: If the solver gives up.
    """
    require_trajectory(run)
    if not 0 < share < 1:
        raise ConfigError("--hold-out", f"{share:g} is no share of rows", "use 0.3, say")
    series = chosen_series(run, request).series
    generator = torch.Generator().manual_seed(_HIDING_SEED)
    order = torch.rand(len(series.times), generator=generator, dtype=torch.float64)
    rules: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "interpolation": lambda rows, luck: _some_between(rows, luck, share),
        "extrapolation": lambda rows, _: rows[len(rows) - _count(share, len(rows)) :],
    }
    return {name: _score(run, series, _hidden(series, order, rule)) for name, rule in rules.items()}


def _count(share: float, rows: int) -> int:
    """How many of the rows to hide: at least one, but never all."""
    return min(max(1, round(share * rows)), rows - 1)


def _some_between(rows: Tensor, luck: Tensor, share: float) -> Tensor:
    """Some of the rows but neither the first nor the last, those of the least luck."""
    inner = rows[1:-1]
    return inner[luck[inner].argsort()[: _count(share, len(rows))]]


def _hidden(series: Series, order: Tensor, rule: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Whether each row is hidden, `(rows,)`; series of a single observed row keep it."""
    hidden = torch.zeros(len(series.times), dtype=torch.bool)
    observed, starts = series.mask.any(-1), series.starts.tolist()
    for first, end in pairwise(starts):
        rows = first + observed[first:end].nonzero().squeeze(1)
        if len(rows) > 1:
            hidden[rule(rows, order)] = True
    return hidden


def _score(run: TrainedRun, series: Series, hidden: Tensor) -> HoldOutScore:
    """Errors at hidden values of features that were seen before; the same for all rivals."""
    mask = series.mask & ~hidden[:, None]
    kept = replace(series, mask=mask, values=series.values.where(mask, 0.0))
    errors = torch.zeros(3, dtype=torch.float64)
    count = 0
    for samples in torch.arange(len(series)).split(run.config.train.eval_batch):
        batch = kept.batch(samples)
        means = expected_values(run, batch, batch.times).mean(0)
        for place, index in enumerate(samples.tolist()):
            rows = slice(*series.starts[index : index + 2].tolist())
            seen, values = mask[rows], kept.values[rows].double()
            last, known = _last_seen(values, seen)
            wanted = series.mask[rows] & hidden[rows, None] & known
            mean = (values.sum(0) / seen.sum(0).clamp(min=1)).expand_as(values)
            guesses = torch.stack((means[place, : len(values)], mean, last))
            wrong = (guesses - series.values[rows].double()).square()[:, wanted]
            errors, count = errors + wrong.sum(1), count + wrong.shape[1]
    if count == 0:
        why = "has too few rows to hide any of them"
        raise ConfigError(run.config.data.name, why, "name series of three rows or more")
    return HoldOutScore(count, *(errors / count).tolist())


def _last_seen(values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """The value of each feature that was seen last up to each row, and whether there is one."""
    number = torch.arange(len(values))[:, None].expand_as(values)
    latest = number.where(seen, torch.tensor(-1)).cummax(0).values
    return values.gather(0, latest.clamp(min=0)), latest >= 0
