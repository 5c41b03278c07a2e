"""Metrics over the epochs, ready to draw in figures, pages and terminals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bfno.lab.runs.record import Record
from bfno.lab.views.layout import Cell, Column, Table
from bfno.lab.views.methods import Replicates, replicates
from bfno.lab.views.metrics import COSTS, SPLITS, Estimate, Metric, find_metric, headline_of, mean

__all__ = ["EpochPoint", "Plot", "Point", "changes", "charts", "counted_points", "curve_table"]
__all__ += ["curves", "epoch_points", "epoch_ticks", "epoch_values", "known_keys", "mean_points"]
__all__ += ["method_objects", "plots", "sparkline"]

Point = tuple[int, float]
"""An epoch and the value of a metric after it."""
_MOST_TICKS = 8
_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDEST = 24
_LARGEST = 1e100  # sums and logarithms of more go beyond what floats can hold
_NOTE = "A curve goes from its own lowest to its own highest value."


@dataclass(frozen=True)
class EpochPoint:
    """The measurements of a method's seeds in an epoch.

    Attributes:
        epoch: The epoch, from 1.
        low: The least value.
        high: The greatest.
        mean: The mean.
    """

    epoch: int
    low: float
    high: float
    mean: float


def epoch_values(runs: Iterable[Record], key: str) -> dict[int, list[float]]:
    """The measurements of runs in each epoch, finite or not.

    Args:
        runs: The runs.
        key: The metric's key in their metrics.
    """
    values: dict[int, list[float]] = {}
    for run in runs:
        for epoch in run.epochs:
            if epoch.get(key) is not None:
                values.setdefault(epoch["epoch"], []).append(epoch[key])
    return dict(sorted(values.items()))


def epoch_points(runs: Iterable[Record], key: str) -> list[EpochPoint]:
    """A metric over the epochs, its mean and its range over the runs.

    Args:
        runs: Runs that differ in their seed alone.
        key: The metric's key in their metrics; values that no axis can show are left out.
    """
    measured = epoch_values(runs, key).items()
    finite = ((epoch, list(filter(_fits_an_axis, values))) for epoch, values in measured)
    return [
        EpochPoint(epoch, min(found), max(found), mean(found)) for epoch, found in finite if found
    ]


def mean_points(runs: Iterable[Record], key: str) -> list[Point]:
    """The means of `epoch_points`."""
    return [(point.epoch, point.mean) for point in epoch_points(runs, key)]


def counted_points(runs: Iterable[Record], key: str) -> list[EpochPoint]:
    """The `epoch_points` worth drawing: evaluations of a model without an ODE are left out."""
    points = epoch_points(runs, key)
    is_drawn = find_metric(key).name != "nfe" or any(point.mean for point in points)
    return points if is_drawn else []


def epoch_ticks(first: int, last: int) -> list[int]:
    """The ticks of an epoch axis: the first epoch, and round numbers after it.

    Example:
        >>> epoch_ticks(1, 30)
        [1, 5, 10, 15, 20, 25, 30]
    """
    power, spacing = 1, 0
    while not spacing:
        factors = [factor for factor in (1, 2, 5) if last - first <= _MOST_TICKS * factor * power]
        spacing, power = (factors[0] * power if factors else 0), 10 * power
    return sorted({first, *(epoch for epoch in range(spacing, last + 1, spacing) if epoch > first)})


def known_keys(runs: Iterable[Record]) -> set[str]:
    """Keys of all metrics that runs have measured in their epochs."""
    return {key for run in runs for epoch in run.epochs for key in epoch}


@dataclass(frozen=True)
class Plot:
    """Curves in one drawing, for places where nothing can be selected.

    Attributes:
        title: The title above them.
        unit: The label of the axis.
        keys: Keys of one or two metrics, each with a name that distinguishes it.
    """

    title: str
    unit: str
    keys: dict[str, str]


def plots(runs: Sequence[Record]) -> list[Plot]:
    """The drawings of a task on a page: loss, the metric that runs are judged by, and evaluations.

    Args:
        runs: Runs of one task.
    """
    known, metric = known_keys(runs), headline_of(runs[0])
    passes = {one.key: one.split for one in COSTS[:2] if changes(runs, one.key)}
    found = [_loss_plot(known), Plot("NFE", COSTS[0].unit, passes)]
    if metric is not None and metric.name != "loss":
        title = metric.words[0].upper() + metric.words[1:]
        found.insert(1, Plot(title, metric.words, _splits(known, metric.name)))
    return [plot for plot in found if plot.keys]


def _loss_plot(known: set[str]) -> Plot:
    keys, unit = _splits(known, "loss"), "loss"
    labels = find_metric("train_cross_entropy")
    if labels.key in known:
        # These train on more than the labels; held-out samples are judged by the labels alone.
        held_out = {key: name for key, name in keys.items() if key != "train_loss"}
        keys, unit = {labels.key: SPLITS["train"]} | held_out, labels.words
    return Plot("Loss", unit, keys)


def _splits(known: set[str], name: str) -> dict[str, str]:
    """Keys to draw with their names: training, if it has this metric, and held-out data."""
    found = [split for split in ("train", "test", "validation") if f"{split}_{name}" in known]
    # A third kind of dashes could not be distinguished.
    return {f"{split}_{name}": SPLITS[split] for split in found[:2]}


def charts(runs: Sequence[Record]) -> list[dict[str, Any]]:
    """The charts of a task, each with the metrics to choose from: results and costs.

    A cost that is the same in all epochs gets no chart.

    Args:
        runs: Runs of one task.
    """
    known, headline = known_keys(runs), headline_of(runs[0])
    names = dict.fromkeys([headline.name] if headline else [])
    names |= dict.fromkeys(("cross_entropy", "loss"))
    learning = [find_metric(f"{split}_{name}") for name in names for split in SPLITS]
    costs = [metric for metric in COSTS if changes(runs, metric.key)]
    return [
        {"title": title, "metrics": {one.key: one.title for one in shown}}
        for title, metrics in (("Learning", learning), ("Cost", costs))
        if (shown := [one for one in metrics if one.key in known])
    ]


def changes(runs: Iterable[Record], key: str) -> bool:
    """Whether a metric changes over the epochs of some run; otherwise its last value is enough."""
    # Solvers count whole evaluations; what differs by less was averaged over other batches.
    digits = find_metric(key).digits
    values = ([epoch.get(key) for epoch in run.epochs] for run in runs)
    known = ({round(one, digits) for one in some if one and math.isfinite(one)} for some in values)
    return any(len(some) > 1 for some in known)


def curves(groups: Sequence[Replicates], keys: Sequence[str]) -> list[dict[str, Any]]:
    """The curves of each method: one per seed, and the mean if there are several.

    Args:
        groups: The methods.
        keys: The metrics.

    Returns:
        For each curve the place of its method, its name, whether it is the main one, and its points
        by metric, epoch and value.
    """
    found = []
    for place, group in enumerate(groups):
        drawn = [key for key in keys if counted_points(group.runs, key)]
        seeds = [{key: mean_points([run], key) for key in drawn} for run in group.runs]
        single = len(seeds) == 1
        for run, points in zip(group.runs, seeds, strict=True):
            found.append(_curve(place, f"seed {run.seed}", single, points))
        if not single:
            found += [
                _curve(place, name, True, {key: mean_points(group.runs, key) for key in alike})
                for name, alike in _mean_names(group, drawn).items()
            ]
    return found


def sparkline(values: Sequence[float], width: int = _WIDEST) -> str:
    """Values as a row of blocks, from the lowest to the highest.

    Args:
        values: The values; those that are not numbers leave a gap.
        width: Largest number of characters; more values are averaged.

    Example:
        >>> sparkline([0.1, 0.2, 0.4, 0.8])
        '▁▂▄█'
    """
    count = min(len(values), width)
    edges = [len(values) * place // count for place in range(count + 1)] if count else []
    means = [_known_mean(values[start:end]) for start, end in pairwise(edges)]
    known = [one for one in means if one is not None]
    low, span = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    last = len(_BLOCKS) - 1
    return "".join(
        " " if one is None else _BLOCKS[round(last * (one - low) / span) if span else 0]
        for one in means
    )


def curve_table(groups: Sequence[Replicates]) -> Table | None:
    """The progress of each method: headline metric, loss and evaluations over the epochs.

    Args:
        groups: The methods of one task, as from `replicates`.

    Returns:
        A row for each method; None if the runs recorded no epochs.
    """
    shown = _metrics([run for group in groups for run in group.runs])
    if not shown:
        return None
    columns = [Column("method", "method", numeric=False)]
    for one in shown:
        columns.append(Column(f"{one.key}_curve", "by epoch", numeric=False, group=one.title))
        columns.append(Column(one.key, "first → last", group=one.title))
    rows = [(group.label, *_cells(group, shown)) for group in groups]
    return Table(tuple(columns), tuple(rows), notes=(_NOTE,))


def method_objects(runs: Iterable[Record]) -> list[dict[str, Any]]:
    """Each method for programs: its task, results over the seeds, and curves.

    Args:
        runs: The runs, in any order.
    """
    return [_method_object(group) for group in replicates(runs)]


def _mean_names(group: Replicates, keys: Sequence[str]) -> dict[str, list[str]]:
    """Metrics by the name of their mean: not every seed needs to have recorded every one."""
    found: dict[str, list[str]] = {}
    for key in keys:
        seeds = [run.seed for run in group.runs if mean_points([run], key)]
        name = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean of {len(seeds)} seeds"
        found.setdefault(name, []).extend([key] if seeds else [])
    return {name: alike for name, alike in found.items() if alike}


def _curve(place: int, name: str, main: bool, points: dict[str, list[Point]]) -> dict[str, Any]:
    drawn = {key: values for key, values in points.items() if values}
    return {"method": place, "name": name, "main": main, "points": drawn}


def _known_mean(values: Sequence[float]) -> float | None:
    known = list(filter(_fits_an_axis, values))
    return mean(known) if known else None


def _fits_an_axis(value: float) -> bool:
    return abs(value) <= _LARGEST


def _metrics(runs: Sequence[Record]) -> list[Metric]:
    """The metrics to draw: the first of each kind that the runs have."""
    offered = {chart["title"]: list(chart["metrics"]) for chart in charts(runs)}
    learning, cost = offered.get("Learning", []), offered.get("Cost", [])
    losses = [key for key in ("train_cross_entropy", "train_loss") if key in learning]
    return [find_metric(key) for key in dict.fromkeys([*learning[:1], *losses[:1], *cost[:1]])]


def _cells(group: Replicates, shown: Sequence[Metric]) -> list[Cell]:
    cells: list[Cell] = []
    for metric in shown:
        # Values that are too small to print are too small to draw.
        points, digits = mean_points(group.runs, metric.key), metric.digits
        values = [round(value, digits) for _, value in points]
        ends = [str(Estimate(value, None, digits)) for value in (*values[:1], *values[-1:])]
        cells += [sparkline(values) or None, " → ".join(ends) or None]
    return cells


def _method_object(group: Replicates) -> dict[str, Any]:
    data, scale, protocol = group.task
    metric = group.headline
    keys = dict.fromkeys(key for run in group.runs for key in run.result)
    drawn = {key: None for chart in charts(group.runs) for key in chart["metrics"]}
    drawn |= {one.key: None for one in COSTS if one.key in known_keys(group.runs)}
    return {
        "method": group.label,
        "data": data,
        "scale": scale,
        "protocol": protocol or None,
        "seeds": [run.seed for run in group.runs],
        "parameters": group.runs[0].parameters,
        "judged_by": metric and metric.key,
        "result": {key: _spread(group.result(key)) for key in keys},
        "seconds": _spread(group.seconds()),
        "epochs": {key: mean_points(group.runs, key) for key in drawn},
    }


def _spread(found: Estimate | None) -> dict[str, float | None] | None:
    if found is None:
        return None
    values = {"mean": found.mean, "std": found.std}
    return {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in values.items()
    }
