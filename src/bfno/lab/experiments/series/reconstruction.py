"""Series as a latent model sees them: between their observations, and after the last one."""

from __future__ import annotations

import difflib
import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from bfno.lab.data import Scaling, Series, SeriesBatch
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.evaluation import explained_failure
from bfno.lab.experiments.family import TrainedRun, read_recipes
from bfno.lab.experiments.series.evaluation import own_splits, read_table, scaling_of

__all__ = [
    "Curve",
    "Reconstruction",
    "ReconstructionRequest",
    "chosen_series",
    "expected_values",
    "reconstruct",
    "require_trajectory",
]

_logger = logging.getLogger(__name__)

# More of them do not fit a page; a user who names others gets those.
_FIRST_SERIES, _MOST_FEATURES = 3, 4


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
    require_trajectory(run)
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


def require_trajectory(run: TrainedRun) -> None:
    """Refuse a model without latent trajectories, and warn of one that has learned none.

    Raises:
        ConfigError: If the model has none.
    """
    if not hasattr(run.model, "reconstruct"):
        methods = read_recipes("series.yaml")["methods"].items()
        latent = [name for name, recipe in methods if recipe["model"]["kind"] == "latent_ode"]
        raise ConfigError(
            run.config.experiment,
            "is no latent model, so it has no trajectory between observations",
            f"name a run of {', '.join(latent)}",
        )
    if run.config.loss.reconstruction == 0:
        _logger.warning(
            "%s was trained on labels alone, its reconstruction means nothing; "
            "train with --set loss.reconstruction=1",
            run.config.experiment,
        )


def chosen_series(run: TrainedRun, request: ReconstructionRequest) -> _Chosen:
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
    paths = expected_values(run, batch, at)[:, 0]
    return _View(grid, paths[:, rows:], paths[:, :rows])


def expected_values(run: TrainedRun, batch: SeriesBatch, at: Tensor) -> Tensor:
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
