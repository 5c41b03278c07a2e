"""Series as a latent model sees them: between observations, after the last, at hidden rows."""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from bfno.lab.data import Scaling, Series, SeriesBatch
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.experiment import TrainedRun, explained_failure
from bfno.lab.experiments.presets import read_presets
from bfno.lab.experiments.series.data import own_splits, read_table, scaling_of

__all__ = [
    "Curve",
    "HoldOutScore",
    "Reconstruction",
    "ReconstructionRequest",
    "evaluate_hold_out",
    "reconstruct",
]

_logger = logging.getLogger(__name__)

# More of them do not fit a page; a user who names others gets those.
_FIRST_SERIES, _MOST_FEATURES = 3, 4
_HIDING_SEED = 0  # which rows are hidden is always the same


@dataclass(frozen=True)
class ReconstructionRequest:
    """Which series and features are wanted, and at which times.

    Attributes:
        table: A file or folder of series; None is the run's own test split.
        series: Names of series; none is the first three.
        features: Names of features; none is the four that were observed most often.
        until: Time, in the units of the data, to which series go on after their last observation.
        points: Number of times from the first row on, all the same distance apart.
        data_dir: Where the files of data sets are; None is where the run found them.
    """

    table: Path | None = None
    series: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    until: float | None = None
    points: int = 200
    data_dir: Path | None = None


@dataclass(frozen=True)
class Curve:
    """One feature of one series, all in the units of the data.

    Attributes:
        times: When it was observed.
        values: What was observed; in a run's own test split, the model's scaling has cut off what
            lies far from all training.
        at: Times of the reconstruction.
        mean: Mean of the latent samples at these times.
        low: Lowest of them.
        high: Highest of them.
        rmse: Root mean squared error of the mean at the observed times; None without any.
    """

    times: list[float]
    values: list[float]
    at: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    rmse: float | None


@dataclass(frozen=True)
class Reconstruction:
    """One series as observed and as the model sees it.

    Attributes:
        series: Its name.
        end: Time of its last observation.
        observed: Number of observed values of all features.
        rmse: Root mean squared error over all of them, in scaled units; None without any.
        curves: The wanted features, by name.
    """

    series: str
    end: float
    observed: int
    rmse: float | None
    curves: dict[str, Curve]


def reconstruct(run: TrainedRun, request: ReconstructionRequest) -> list[Reconstruction]:
    """Follow the latent trajectories of series over a dense time axis.

    Each series is taken by itself, so that its line does not depend on the others; a model that
    couples series sees the first ones of the data beside it, as in an evaluation.

    Args:
        run: A trained latent model.
        request: Which series and times.

    Raises:
        ConfigError: If the model has no latent trajectory, or there is no such series or feature.
        DataError: If files are missing or wrong.
        NumericalError: If the solver gives up.
    """
    _require_trajectory(run)
    if request.points < 2:
        raise ConfigError("points", f"{request.points} make no line", "use 2 or more")
    loaded = _load(run, request)
    count = min(_FIRST_SERIES, len(loaded.series))
    places = _places(loaded.series.ids, request.series) or list(range(count))
    chosen = loaded.take(places)
    names = run.model.feature_names
    features = _features(names, chosen.series.mask.sum(0), request.features)
    last = _last_times(chosen, request.until, scaling_of(run).span)
    found = []
    for place, end in zip(places, last.tolist(), strict=True):
        one = loaded.take([place])
        first = one.series.times[0].item()
        grid = torch.linspace(first, end, request.points, dtype=torch.float64)
        view = _look(run, loaded.series, place, grid)
        found.append(_restored(scaling_of(run), one, view, features, names))
    return found


@dataclass(frozen=True)
class _Chosen:
    """Scaled series, the same in the units of the data, and the time of each one's first row."""

    series: Series
    plain: Series
    origins: Tensor

    def take(self, places: list[int]) -> _Chosen:
        which = torch.tensor(places)
        return _Chosen(self.series.take(which), self.plain.take(which), self.origins[which])


@dataclass(frozen=True)
class _View:
    """A series as the model sees it, scaled.

    Attributes:
        grid: Times, `(points,)`.
        paths: Values there, `(samples, points, features)`.
        at_rows: Values at the times of the rows, `(samples, rows, features)`.
    """

    grid: Tensor
    paths: Tensor
    at_rows: Tensor


def _require_trajectory(run: TrainedRun) -> None:
    """Refuse a model without latent trajectories, and warn of one that has learned none.

    Raises:
        ConfigError: If the model has none.
    """
    if not hasattr(run.model, "reconstruct"):
        methods = read_presets("series")["methods"].items()
        latent = [name for name, recipe in methods if recipe["model"]["kind"] == "latent_ode"]
        raise ConfigError(
            run.config.experiment,
            "is not a latent model, so it has no trajectory between observations",
            f"name a run of {', '.join(latent)}",
        )
    if run.config.loss.reconstruction == 0:
        _logger.warning(
            "%s was trained on labels alone, its reconstruction means nothing; "
            "train with --set loss.reconstruction=1",
            run.config.experiment,
        )


def _chosen_series(run: TrainedRun, request: ReconstructionRequest) -> _Chosen:
    """The series that are asked for by name, or all there are."""
    loaded = _load(run, request)
    return loaded.take(_places(loaded.series.ids, request.series)) if request.series else loaded


def _load(run: TrainedRun, request: ReconstructionRequest) -> _Chosen:
    if request.table is not None:
        table = read_table(run, request.table)
        return _Chosen(scaling_of(run).apply(table.series), table.series, table.origins.double())
    splits = own_splits(run, request.data_dir)
    # A split is scaled already, and its series do not know when they began.
    values = splits.scaling.restore(splits.test.values.double())
    origins = torch.zeros(len(splits.test), dtype=torch.float64)
    return _Chosen(splits.test, replace(splits.test, values=values), origins)


def _places(known: tuple[str, ...], names: tuple[str, ...]) -> list[int]:
    """Where the names are; a name that is there twice means the first."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.0)
            raise ConfigError(name, "is not there", f"the nearest are {', '.join(near)}")
    return [known.index(name) for name in dict.fromkeys(names)]


def _features(known: tuple[str, ...], counts: Tensor, names: tuple[str, ...]) -> list[int]:
    """Places of the wanted features; without names, of those observed most, in their order."""
    if names:
        return _places(known, names)
    return sorted(counts.argsort(descending=True, stable=True)[:_MOST_FEATURES].tolist())


def _last_times(chosen: _Chosen, until: float | None, span: float) -> Tensor:
    """Scaled time to which each series is followed."""
    series = chosen.series
    ends = torch.stack([_end(series.take(torch.tensor([place]))) for place in range(len(series))])
    if until is None:
        return ends
    beyond = (until - chosen.origins) / span
    if not math.isfinite(until) or bool((beyond <= ends).all()):
        latest = float((ends * span + chosen.origins).max())
        why = f"is not after the last observation, which is at {latest:g}"
        raise ConfigError(f"--until {until:g}", why, "name a later time")
    return torch.maximum(ends, beyond)


def _end(one: Series) -> Tensor:
    """Time of the last observation of a single series; of its first row without any."""
    observed = one.mask.any(-1)
    return one.times[observed][-1] if bool(observed.any()) else one.times[0]


def _look(run: TrainedRun, series: Series, place: int, grid: Tensor) -> _View:
    count = run.config.train.eval_batch if run.model.couples_series else 1
    others = [other for other in range(len(series)) if other != place][: count - 1]
    batch = series.batch(torch.tensor([place, *others]))
    rows = int(series.lengths[place])
    # At the rows too: the error is that at their times, not near them. The others stand still.
    at = batch.times[:, -1:].repeat(1, rows + len(grid))
    at[0] = torch.cat((batch.times[0, :rows], grid))
    paths = _expected_values(run, batch, at)[:, 0]
    return _View(grid, paths[:, rows:], paths[:, :rows])


def _expected_values(run: TrainedRun, batch: SeriesBatch, at: Tensor) -> Tensor:
    """Scaled values at times `(batch, times)`: `(samples, batch, times, features)`."""
    like = next(run.model.parameters())
    there = batch.to(like.device, like.dtype)
    with torch.inference_mode(), explained_failure():
        found = run.model.reconstruct(there.times, there.values, there.mask, at.to(like))
    return found.double().cpu()


def _restored(
    scaling: Scaling, one: _Chosen, view: _View, features: list[int], names: tuple[str, ...]
) -> Reconstruction:
    """A single series with its reconstruction, in the units of the data."""
    series, mask, origin = one.series, one.series.mask, one.origins.item()
    errors = view.at_rows.mean(0) - series.values.double()
    times = (series.times * scaling.span + origin).tolist()
    grid = (view.grid * scaling.span + origin).tolist()
    values, paths = one.plain.values.double(), scaling.restore(view.paths)
    misses = scaling.restore(view.at_rows.mean(0)) - values
    curves = {}
    for place in features:
        seen, path = mask[:, place], paths[..., place]
        curves[names[place]] = Curve(
            [time for time, there in zip(times, seen.tolist(), strict=True) if there],
            values[seen, place].tolist(),
            grid,
            path.mean(0).tolist(),
            path.amin(0).tolist(),
            path.amax(0).tolist(),
            _root_mean_square(misses[seen, place]),
        )
    end = float(_end(series) * scaling.span + origin)
    rmse = _root_mean_square(errors[mask])
    return Reconstruction(series.ids[0], end, int(mask.sum()), rmse, curves)


def _root_mean_square(errors: Tensor) -> float | None:
    return errors.square().mean().sqrt().item() if len(errors) else None


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
    _require_trajectory(run)
    if not 0 < share < 1:
        raise ConfigError("--hold-out", f"{share:g} is no share of rows", "use 0.3, say")
    series = _chosen_series(run, request).series
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
        means = _expected_values(run, batch, batch.times).mean(0)
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
