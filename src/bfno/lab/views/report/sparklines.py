"""Curves of a few characters, to compare runs in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from bfno.lab.runs.record import Record as RunResult
from bfno.lab.views.layout import Cell, Column, Estimate, Table
from bfno.lab.views.report.chart_data import charts, mean_points
from bfno.lab.views.tables import Replicates, replicates

__all__ = ["curve_table", "method_objects", "sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDEST = 24
_NOTE = "A curve goes from its own lowest to its own highest value."


def sparkline(values: Sequence[float], width: int = _WIDEST) -> str:
    """Values as blocks from the lowest to the highest, in a row.

    Args:
        values: The values; what is no number leaves a gap.
        width: The most characters; more values than that are averaged.

    Example:
        >>> sparkline([0.1, 0.2, 0.4, 0.8])
        '▁▂▄█'
    """
    count = min(len(values), width)
    edges = [len(values) * place // count for place in range(count + 1)] if count else []
    means = [_mean(values[start:end]) for start, end in pairwise(edges)]
    known = [mean for mean in means if mean is not None]
    low, span = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    last = len(_BLOCKS) - 1
    return "".join(
        " " if mean is None else _BLOCKS[round(last * (mean - low) / span) if span else 0]
        for mean in means
    )


def curve_table(groups: Sequence[Replicates]) -> Table | None:
    """How each method got to its result: headline metric, loss and evaluations over the epochs.

    Args:
        groups: The methods of one task, as from `replicates`.

    Returns:
        A row a method; none if the runs recorded no epochs.
    """
    shown = _metrics([run for group in groups for run in group.runs])
    if not shown:
        return None
    columns = [Column("method", "method", numeric=False)]
    for key, (title, _) in shown.items():
        columns.append(Column(f"{key}_curve", "by epoch", numeric=False, group=title))
        columns.append(Column(key, "first → last", group=title))
    rows = [(group.label, *_cells(group, shown)) for group in groups]
    return Table(tuple(columns), tuple(rows), notes=(_NOTE,))


def method_objects(runs: Iterable[RunResult]) -> list[dict[str, Any]]:
    """Each method for programs: its task, results over the seeds, and curves.

    Args:
        runs: The runs, in any order.
    """
    return [_method_object(group) for group in replicates(runs)]


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else None


def _metrics(runs: Sequence[RunResult]) -> dict[str, tuple[str, int]]:
    """Title and decimals of the metrics to draw: of each kind the first that the runs have."""
    offered = {chart["title"]: chart["metrics"] for chart in charts(runs)}
    learning, cost = offered.get("Learning", {}), offered.get("Cost", {})
    headline = runs[0].headline
    digits = headline.digits if headline else 4
    found = {key: (title, digits) for key, title in list(learning.items())[:1]}
    losses = [key for key in ("train_cross_entropy", "train_loss") if key in learning]
    found |= {key: (learning[key], 4) for key in losses[:1] if key not in found}
    return found | {key: (title, 1) for key, title in list(cost.items())[:1]}


def _cells(group: Replicates, shown: dict[str, tuple[str, int]]) -> list[Cell]:
    cells: list[Cell] = []
    for key, (_, digits) in shown.items():
        # What is too small to print is too small to draw.
        values = [round(value, digits) for _, value in mean_points(group, key)]
        ends = [str(Estimate(value, None, digits)) for value in (*values[:1], *values[-1:])]
        cells += [sparkline(values) or None, " → ".join(ends) or None]
    return cells


def _method_object(group: Replicates) -> dict[str, Any]:
    data, scale, protocol = group.task
    metric = group.runs[0].headline
    keys = dict.fromkeys(key for run in group.runs for key in run.result)
    chosen = charts(group.runs)
    return {
        "method": group.label,
        "data": data,
        "scale": scale,
        "protocol": protocol or None,
        "seeds": [run.seed for run in group.runs],
        "parameters": group.runs[0].parameters,
        "judged_by": metric and metric.key,
        "result": {key: _spread(group.result(key, 4)) for key in keys},
        "seconds": _spread(Estimate.of((run.seconds for run in group.runs), 1)),
        "epochs": {key: mean_points(group, key) for chart in chosen for key in chart["metrics"]},
    }


def _spread(found: Estimate | None) -> dict[str, float | None] | None:
    if found is None:
        return None
    values = {"mean": found.mean, "std": found.std}
    return {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in values.items()
    }
