"""Series as a model sees them: between observations, after the last, at hidden rows."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Module

from bfno.lab.data import Scaling, Series, SeriesBatch
from bfno.lab.errors import ConfigError, nearest_names
from bfno.lab.experiments.experiment import TrainedRun, explained_failure
from bfno.lab.experiments.series.data import own_splits, read_table, scaling_of
from bfno.lab.experiments.series.holdout import (
    PATTERNS,
    Expected,
    expect_hidden,
    hidden_rows,
    surroundings,
    take_rows,
)
from bfno.lab.experiments.series.intervals import (
    AT_ITS_TIME,
    SeriesIntervals,
    intervals_of,
    measure_coverage,
    require_level,
    without_forecast,
)
from bfno.models import SeriesModel

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


@dataclass(frozen=True)
class ReconstructionRequest:
    """The series, features and times to reconstruct.

    Attributes:
        table: A file or folder of series; None is the run's own test split.
        series: Names of series; empty means the first three.
        features: Names of features; empty means the four observed most often of those that
            change.
        until: Time, in the units of the data, up to which series continue after their last
            observation.
        points: Number of evenly spaced times from the first row on.
        data_dir: Where the files of data sets are; None is where the run found them.
        level: Share of later observations that the predictive interval should cover.
        hold_out: Share of the observed rows of each series that is hidden from the model; each
            series is then drawn twice, for each of the patterns. None hides none.
    """

    table: Path | None = None
    series: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    until: float | None = None
    points: int = 200
    data_dir: Path | None = None
    level: float = 0.9
    hold_out: float | None = None


@dataclass(frozen=True)
class Curve:
    """One feature of one series, all in the units of the data.

    Attributes:
        times: When it was observed.
        values: The observed values; in a run's own test split, the model's scaling has clipped
            values far from all training.
        hidden_times: Times of observations hidden from the model.
        hidden_values: The values observed there.
        at: Times of the reconstruction.
        mean: Mean of the latent samples at these times.
        low: Lowest of them.
        high: Highest of them.
        lower: Lower end of the predictive interval; None without one.
        upper: Upper end.
        rmse: Root mean squared error of the mean at the observed times; None without any.
    """

    times: list[float]
    values: list[float]
    hidden_times: list[float]
    hidden_values: list[float]
    at: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    lower: list[float] | None
    upper: list[float] | None
    rmse: float | None


@dataclass(frozen=True)
class Reconstruction:
    """One series, as observed and as reconstructed by the model.

    Attributes:
        series: Its name.
        end: Time of the last observation that the model was shown.
        observed: Number of observed values, over all features, that it was shown.
        rmse: Root mean squared error over all of them, in scaled units; None without any.
        curves: The requested features, by name.
        hidden: The pattern of hidden rows; None if none were hidden.
        level: Share that the predictive interval should cover; None without one.
        inside: Values of all features within their interval: hidden ones, or all if none were.
        judged: Number of values checked.
    """

    series: str
    end: float
    observed: int
    rmse: float | None
    curves: dict[str, Curve]
    hidden: str | None = None
    level: float | None = None
    inside: int = 0
    judged: int = 0


def reconstruct(run: TrainedRun, request: ReconstructionRequest) -> list[Reconstruction]:
    """Predict series over a dense time axis.

    A latent model has a trajectory; others predict each value from the rows before it. Each series
    is processed by itself, so its line does not depend on the others; a model that couples series
    also sees the first series of the data, as in an evaluation.

    Args:
        run: A trained model.
        request: Which series and times.

    Raises:
        ConfigError: If the model predicts no values, there is no such series or feature, or no
            interval of that level.
        DataError: If files are missing or wrong.
        NumericalError: If the solver gives up.
    """
    _require_values(run)
    if request.points < 2:
        raise ConfigError("points", f"{request.points} make no line", "use 2 or more")
    if request.hold_out is not None:
        _check_share(request.hold_out)
    intervals = _intervals(run, request.level)
    loaded = _load(run, request)
    count = min(_FIRST_SERIES, len(loaded.series))
    places = _places(loaded.series.ids, request.series) or list(range(count))
    chosen = loaded.take(places)
    features = _features(run.model.feature_names, chosen.series, request.features)
    _check_until(chosen, request.until, scaling_of(run).span)
    drawing = _Drawing(run, intervals, request, features)
    found = []
    for place in places:
        for pattern in PATTERNS if request.hold_out is not None else (None,):
            found.append(drawing.draw(loaded, place, pattern))
    drawing.note_limits(found)
    return found


def _intervals(run: TrainedRun, level: float) -> SeriesIntervals | None:
    """The intervals of a run; without any, a note says why."""
    intervals = None
    try:
        intervals = intervals_of(run)
    except ConfigError as error:
        if run.config.loss.reconstruction > 0:  # else it was said that nothing means anything
            _say_once(run, str(error))
    require_level(intervals, level)
    return intervals


_said: WeakKeyDictionary[Module, set[str]] = WeakKeyDictionary()


def _say_once(run: TrainedRun, line: str) -> None:
    """Warn about a model once: a table and a drawing of it have the same limits."""
    known = _said.setdefault(run.model, set())
    if line not in known:
        known.add(line)
        _logger.warning("%s", line)


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise ConfigError(
            "--hold-out", f"{share:g} is not a share of rows", "use, for example, 0.3"
        )


@dataclass(frozen=True)
class _Chosen:
    """Scaled series, the same in the units of the data, and the time of each one's first row."""

    series: Series
    plain: Series
    origins: Tensor

    def take(self, places: list[int]) -> _Chosen:
        which = torch.tensor(places)
        return _Chosen(self.series.take(which), self.plain.take(which), self.origins[which])

    def rows(self, wanted: Tensor) -> _Chosen:
        return _Chosen(take_rows(self.series, wanted), take_rows(self.plain, wanted), self.origins)


@dataclass(frozen=True)
class _View:
    """Predictions of a model at some times of a series, scaled.

    Attributes:
        at: The times, `(times,)`.
        paths: Values there, `(samples, times, features)`.
        half: Half the width of the interval there, `(times, features)`; None without one.
    """

    at: Tensor
    paths: Tensor
    half: Tensor | None

    def part(self, which: slice) -> _View:
        half = None if self.half is None else self.half[which]
        return _View(self.at[which], self.paths[:, which], half)

    def covers(self, values: Tensor, mask: Tensor) -> tuple[int, int]:
        """Number of observed values within their interval, and their total."""
        if self.half is None:
            return 0, 0
        errors = (self.paths.mean(0) - values.double()).abs()
        inside = (errors <= self.half)[mask & ~self.half.isnan()]
        return int(inside.sum()), len(inside)


@dataclass(frozen=True)
class _Drawing:
    """Draws single series of a run for a request."""

    run: TrainedRun
    intervals: SeriesIntervals | None
    request: ReconstructionRequest
    features: list[int]

    def draw(self, loaded: _Chosen, place: int, pattern: str | None) -> Reconstruction:
        share = self.request.hold_out
        hidden = torch.zeros(len(loaded.series.times), dtype=torch.bool)
        if pattern is not None and share is not None:
            hidden = hidden_rows(loaded.series, pattern, share)
        shown, rest = loaded.rows(~hidden), loaded.rows(hidden)
        whole, one, unseen = (part.take([place]) for part in (loaded, shown, rest))
        end = _last_time(whole, self.request.until, scaling_of(self.run).span)
        first = one.series.times[0].item()
        grid = torch.linspace(first, end.item(), self.request.points, dtype=torch.float64)
        if not self.run.model.looks_ahead:
            # At the first row such a model has seen nothing yet.
            grid = torch.linspace(first, end.item(), len(grid) + 1, dtype=torch.float64)[1:]
        rows, further = len(one.series.times), len(unseen.series.times)
        # At the rows too: errors are those at their times, not near them.
        view = self._look(shown.series, place, torch.cat((unseen.series.times, grid)))
        at_rows, at_hidden = view.part(slice(rows)), view.part(slice(rows, rows + further))
        scored = (at_hidden, unseen.series) if further else (at_rows, one.series)
        inside, judged = scored[0].covers(scored[1].values, scored[1].mask)
        drawn = self._restored(one, unseen, at_rows, view.part(slice(rows + further, None)))
        level = None if self.intervals is None else self.request.level
        hides = pattern if further else None
        return replace(drawn, hidden=hides, level=level, inside=inside, judged=judged)

    def _look(self, series: Series, place: int, further: Tensor) -> _View:
        """Predict a series at its rows and at further times."""
        run = self.run
        count = run.config.train.eval_batch if run.model.couples_series else 1
        others = [other for other in range(len(series)) if other != place][: count - 1]
        batch = series.batch(torch.tensor([place, *others]))
        rows = int(series.lengths[place])
        # The others do not move.
        at = batch.times[:, -1:].repeat(1, rows + len(further))
        at[0] = torch.cat((batch.times[0, :rows], further))
        paths = _expected_values(run, batch, at)[:, 0]
        mask = batch.mask[0, :rows]
        errors = paths[:, :rows].mean(0) - batch.values[0, :rows].double()
        half = None
        if self.intervals is not None:
            hard = self.intervals.difficulty(errors, mask, torch.zeros(rows, dtype=torch.long))
            observed = batch.times[0, :rows][mask.any(-1)]
            horizon, between = surroundings(at[0], observed)
            where = (horizon, between, hard.expand(len(horizon)), self.request.level)
            half = self.intervals.half_width(paths, *where)
            if not run.model.looks_ahead:  # what nothing was seen before has no interval
                half[torch.searchsorted(observed, at[0]) == 0] = math.nan
        return _View(at[0], paths, half)

    def _restored(
        self, one: _Chosen, unseen: _Chosen, at_rows: _View, on_grid: _View
    ) -> Reconstruction:
        """A single series with its reconstruction, in the units of the data."""
        scaling, names = scaling_of(self.run), self.run.model.feature_names
        series, mask, origin = one.series, one.series.mask, one.origins.item()
        errors = at_rows.paths.mean(0) - series.values.double()
        values = one.plain.values.double()
        misses = scaling.restore(at_rows.paths.mean(0)) - values
        clock = _Clock(scaling.span, origin)
        lines = _lines(scaling, on_grid)
        curves = {}
        for place in self.features:
            seen, later = mask[:, place], unseen.series.mask[:, place]
            mean, low, high, lower, upper = (
                None if line is None else line[:, place].tolist() for line in lines
            )
            curves[names[place]] = Curve(
                clock.read(series.times[seen]),
                values[seen, place].tolist(),
                clock.read(unseen.series.times[later]),
                unseen.plain.values.double()[later, place].tolist(),
                clock.read(on_grid.at),
                mean or [],
                low or [],
                high or [],
                lower,
                upper,
                _root_mean_square(misses[seen, place]),
            )
        end = float(_end(series) * scaling.span + origin)
        rmse = _root_mean_square(errors[mask])
        return Reconstruction(series.ids[0], end, int(mask.sum()), rmse, curves)

    def note_limits(self, found: list[Reconstruction]) -> None:
        """Warn if lines extend further after the last observation than intervals were fitted."""
        if self.intervals is None:
            return
        reach = self.intervals.longest * scaling_of(self.run).span
        beyond = [
            curve.at[-1] - one.end > reach * (1 + 1e-9)
            for one in found
            for curve in one.curves.values()
        ]
        if any(beyond):
            _logger.warning(
                "the interval was fitted up to %.3g after the last observation; further on it "
                "keeps its width, and may cover less",
                reach,
            )


@dataclass(frozen=True)
class _Clock:
    span: float
    origin: float

    def read(self, times: Tensor) -> list[float]:
        """Convert scaled times to those of the data."""
        return (times * self.span + self.origin).tolist()


def _lines(scaling: Scaling, view: _View) -> tuple[Tensor | None, ...]:
    """Mean, lowest and highest sample and both ends of the interval, in the units of the data."""
    paths = scaling.restore(view.paths)
    mean, low, high = paths.mean(0), paths.amin(0), paths.amax(0)
    if view.half is None:
        return mean, low, high, None, None
    middle = view.paths.mean(0)
    ends = scaling.restore(middle - view.half), scaling.restore(middle + view.half)
    return mean, low, high, *ends


def _require_values(run: TrainedRun) -> None:
    """Refuse a model that predicts no values, and warn about one that has not learned to.

    Raises:
        ConfigError: If it predicts none.
    """
    if not isinstance(run.model, SeriesModel):
        fix = "name a run of series, such as physionet/latent-ode"
        raise ConfigError(run.config.experiment, "is not about series", fix)
    if run.config.loss.reconstruction == 0:
        why = "was trained on labels alone, so its reconstruction means nothing"
        fix = "train with --set loss.reconstruction=1"
        _say_once(run, f"{run.config.experiment} {why}; {fix}")
    elif (why := without_forecast(run.config)) is not None:
        raise ConfigError(run.config.experiment, why, f"train with {AT_ITS_TIME}")


def _load(run: TrainedRun, request: ReconstructionRequest) -> _Chosen:
    if request.table is not None:
        table = read_table(run, request.table)
        return _Chosen(scaling_of(run).apply(table.series), table.series, table.origins.double())
    splits = own_splits(run, request.data_dir)
    # A split is scaled already, and its series lack their start times.
    values = splits.scaling.restore(splits.test.values.double())
    origins = torch.zeros(len(splits.test), dtype=torch.float64)
    return _Chosen(splits.test, replace(splits.test, values=values), origins)


def _places(known: tuple[str, ...], names: tuple[str, ...]) -> list[int]:
    """Places of the names; a duplicate name means the first one."""
    for name in names:
        if name not in known:
            near = nearest_names(name, known)
            raise ConfigError(name, "does not exist", f"the nearest are {', '.join(near)}")
    return [known.index(name) for name in dict.fromkeys(names)]


def _features(known: tuple[str, ...], series: Series, names: tuple[str, ...]) -> list[int]:
    """Places of the requested features.

    Without names, these are the features observed most, in their order; those that change in no
    series, such as an age, give way to others.
    """
    if names:
        return _places(known, names)
    counts, changes = series.mask.sum(0), _changes(series)
    ranks = counts + changes * (counts.amax() + 1)
    return sorted(ranks.argsort(descending=True, stable=True)[:_MOST_FEATURES].tolist())


def _changes(series: Series) -> Tensor:
    """Whether each feature has two different values in some series."""
    owner = torch.arange(len(series)).repeat_interleave(series.lengths)
    owner = owner[:, None].expand_as(series.values)
    ends = []
    for empty, reduce in ((math.inf, "amin"), (-math.inf, "amax")):
        start = series.values.new_full((len(series), series.values.shape[1]), empty)
        observed = series.values.where(series.mask, empty)
        ends.append(start.scatter_reduce(0, owner, observed, reduce))
    return (ends[0] < ends[1]).any(0)


def _last_time(one: _Chosen, until: float | None, span: float) -> Tensor:
    """Scaled time up to which a series is continued."""
    end = _end(one.series)
    return end if until is None else torch.maximum(end, (until - one.origins[0]) / span)


def _check_until(chosen: _Chosen, until: float | None, span: float) -> None:
    """Refuse a time that would extend no series.

    Raises:
        ConfigError: If it is not after the last observation of any series.
    """
    if until is None:
        return
    series = chosen.series
    ends = torch.stack([_end(series.take(torch.tensor([place]))) for place in range(len(series))])
    if not math.isfinite(until) or bool(((until - chosen.origins) / span <= ends).all()):
        latest = float((ends * span + chosen.origins).max())
        why = f"is not after the last observation, which is at {latest:g}"
        raise ConfigError(f"--until {until:g}", why, "name a later time")


def _end(one: Series) -> Tensor:
    """Time of the last observation of a single series, or of its first row without any."""
    observed = one.mask.any(-1)
    return one.times[observed][-1] if bool(observed.any()) else one.times[0]


def _expected_values(run: TrainedRun, batch: SeriesBatch, at: Tensor) -> Tensor:
    """Scaled values at times `(batch, times)`: `(samples, batch, times, features)`."""
    like = next(run.model.parameters())
    there = batch.to(like.device, like.dtype)
    with torch.inference_mode(), explained_failure():
        found = run.model.reconstruct(there.times, there.values, there.mask, at.to(like))
    return found.double().cpu()


def _root_mean_square(errors: Tensor) -> float | None:
    return errors.square().mean().sqrt().item() if len(errors) else None


@dataclass(frozen=True)
class HoldOutScore:
    """Mean squared errors in scaled units at values hidden from the model.

    Attributes:
        values: Number of hidden values whose feature was seen before in the same series.
        model: Error of the mean over the latent samples.
        series_mean: Error of the mean of the feature's visible values in the series.
        last_value: Error of the last value seen before.
        hidden: Number of all hidden values.
        coverage: Share of these within their predictive interval; None without one.
        width: Mean width of the intervals, in scaled units; None without one.
    """

    values: int
    model: float
    series_mean: float
    last_value: float
    hidden: int = 0
    coverage: float | None = None
    width: float | None = None


def evaluate_hold_out(
    run: TrainedRun, request: ReconstructionRequest, share: float
) -> dict[str, HoldOutScore]:
    """Hide rows of series and measure how well they are reconstructed.

    `interpolation` hides rows between the first and the last one, always the same; `extrapolation`
    hides the last rows.

    Args:
        run: A trained model.
        request: Which series; without names, all of them.
        share: Share of the observed rows of each series that is hidden, at least one row.

    Raises:
        ConfigError: If the model predicts no values, the share is not valid, nothing can be hidden,
            or there is no interval of the level.
        DataError: If files are missing or wrong.
        NumericalError: If the solver gives up.
    """
    _require_values(run)
    _check_share(share)
    intervals = _intervals(run, request.level)
    loaded = _load(run, request).series
    places = _places(loaded.ids, request.series) or list(range(len(loaded)))
    series = loaded.take(torch.tensor(places))
    scores = {}
    for pattern in PATTERNS:
        # For all series, so that those of a drawing do not depend on which were requested.
        among_all = hidden_rows(loaded, pattern, share).split(loaded.lengths.tolist())
        hidden = torch.cat([among_all[place] for place in places])
        if not bool(hidden.any()):
            raise _nothing_to_hide(run)
        found = expect_hidden(run.model, series, hidden, run.config.train.eval_batch)
        score = _score(run, series, hidden, found)
        if intervals is not None:
            covered = measure_coverage(intervals, found, request.level)
            score = replace(score, coverage=covered.share, width=covered.mean_width)
        scores[pattern] = score
    return scores


def _nothing_to_hide(run: TrainedRun) -> ConfigError:
    why = "has too few rows to hide any of them"
    return ConfigError(run.config.data.name, why, "name series of three rows or more")


def _score(run: TrainedRun, series: Series, hidden: Tensor, found: Expected) -> HoldOutScore:
    """Errors at hidden values of features that were seen before; the same for all rivals."""
    mean, last, known = _simple_guesses(series, hidden)
    wanted = found.mask & known
    if not bool(wanted.any()):
        raise _nothing_to_hide(run)
    guesses = torch.stack((found.prediction.mean(0), mean, last))
    errors = (guesses - found.values).square()[:, wanted].mean(1)
    return HoldOutScore(int(wanted.sum()), *errors.tolist(), hidden=int(found.mask.sum()))


def _simple_guesses(series: Series, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Guess hidden rows without a model; `(hidden rows, features)` each.

    Returns:
        The mean of the visible values of the series, the last value seen before, and whether there
        is one.
    """
    mask = series.mask & ~hidden[:, None]
    values = series.values.where(mask, 0.0).double()
    found = []
    for first, end in pairwise(series.starts.tolist()):
        there, seen, which = values[first:end], mask[first:end], hidden[first:end]
        last, known = _last_seen(there, seen)
        mean = (there.sum(0) / seen.sum(0).clamp(min=1)).expand_as(there)
        found.append((mean[which], last[which], known[which]))
    means, lasts, knowns = (torch.cat(parts) for parts in zip(*found, strict=True))
    return means, lasts, knowns


def _last_seen(values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """The last value of each feature seen up to each row, and whether there is one."""
    number = torch.arange(len(values))[:, None].expand_as(values)
    latest = number.where(seen, torch.tensor(-1)).cummax(0).values
    return values.gather(0, latest.clamp(min=0)), latest >= 0
