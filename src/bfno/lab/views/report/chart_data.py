"""What the page's script draws: metrics to choose from, and the curves of every method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bfno.lab.runs.record import Record as RunResult
from bfno.lab.views.tables import Replicates

__all__ = ["Point", "charts", "curves", "mean_points"]

_SPLITS = {"test": "test", "validation": "validation", "train": "training"}
_COSTS = {
    "forward_nfe": "NFE forward",
    "backward_nfe": "NFE backward",
    "test_nfe": "NFE test",
}
Point = tuple[int, float]
"""An epoch and the value of a metric after it."""


def charts(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """The charts of a task, each with the metrics to choose from: what was learned, at what cost.

    Args:
        runs: Runs of one task.
    """
    known = {key for run in runs for epoch in run.epochs for key in epoch}
    learning = {key: name for key, name in _learning(runs).items() if key in known}
    cost = {key: name for key, name in _COSTS.items() if key in known}
    return [
        {"title": title, "metrics": metrics}
        for title, metrics in (("Learning", learning), ("Cost", cost))
        if metrics
    ]


def curves(groups: Sequence[Replicates], keys: Sequence[str]) -> list[dict[str, Any]]:
    """The curves of each method: one for each seed, and the mean where there are several.

    Args:
        groups: The methods.
        keys: The metrics.

    Returns:
        For each curve the place of its method, its name, whether it is the one to look at, and
        by metric its points, epoch and value.
    """
    found = []
    for place, group in enumerate(groups):
        seeds = [{key: _points(run, key) for key in keys} for run in group.runs]
        single = len(seeds) == 1
        for run, points in zip(group.runs, seeds, strict=True):
            found.append(_curve(place, f"seed {run.seed}", single, points))
        if not single:
            found += [
                _curve(place, name, True, {key: mean_points(group, key) for key in alike})
                for name, alike in _mean_names(group, keys).items()
            ]
    return found


def mean_points(group: Replicates, key: str) -> list[Point]:
    """A metric against epochs, its mean over the seeds; nothing where no number was recorded.

    Args:
        group: A method.
        key: The metric.
    """
    values: dict[int, list[float]] = {}
    for run in group.runs:
        for epoch, value in _points(run, key):
            values.setdefault(epoch, []).append(value)
    return [(epoch, sum(found) / len(found)) for epoch, found in sorted(values.items())]


def _learning(runs: Sequence[RunResult]) -> dict[str, str]:
    metric = runs[0].headline
    names = {} if metric is None else {metric.name: metric.title.removeprefix("test ")}
    names |= {"cross_entropy": "cross-entropy of the labels", "loss": "loss"}
    return {
        f"{split}_{name}": f"{words} {title}"
        for name, title in names.items()
        for split, words in _SPLITS.items()
    }


def _mean_names(group: Replicates, keys: Sequence[str]) -> dict[str, list[str]]:
    """Metrics by what their mean is of: not every seed need have recorded every one."""
    found: dict[str, list[str]] = {}
    for key in keys:
        seeds = [run.seed for run in group.runs if _points(run, key)]
        name = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean of {len(seeds)} seeds"
        found.setdefault(name, []).extend([key] if seeds else [])
    return {name: alike for name, alike in found.items() if alike}


def _curve(place: int, name: str, main: bool, points: dict[str, list[Point]]) -> dict[str, Any]:
    drawn = {key: values for key, values in points.items() if values}
    return {"method": place, "name": name, "main": main, "points": drawn}


def _points(run: RunResult, key: str) -> list[Point]:
    found = ((epoch["epoch"], epoch.get(key)) for epoch in run.epochs)
    return [(epoch, value) for epoch, value in found if value is not None and math.isfinite(value)]
