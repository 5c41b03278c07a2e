"""Tables of runs: means over seeds, best first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from bfno.lab.runs.record import Record
from bfno.lab.views.layout import Cell, Column, Table
from bfno.lab.views.methods import (
    TRANSDUCTIVE,
    Replicates,
    is_transductive,
    kind_of,
    replicates,
    sample_name,
)
from bfno.lab.views.metrics import (
    COMPANIONS,
    COSTS,
    HEADLINES,
    MEBIBYTE,
    Estimate,
    Metric,
    find_metric,
    headline_of,
)

__all__ = ["comparison", "comparisons", "method_table", "per_class"]

_TRANSDUCTIVE = f"† transductive: {TRANSDUCTIVE}."
_OTHER_PROTOCOL = "Protocols divide and judge the data in their own ways: compare within one only."
# Of the columns of a page about one task.
_IN_THE_HEADING = {"data", "scale", "protocol"}
_SCORES = {metric.key for metric in (*HEADLINES, *COMPANIONS)}
_EVALUATIONS = {metric.key for metric in COSTS}
_THROUGH_THE_SOLVER = "the gradient goes through the solver's own steps"


def comparisons(runs: Iterable[Record]) -> list[Table]:
    """Compare any runs: one table per kind of task and metric that runs are judged by.

    Args:
        runs: The runs, in any order.
    """
    alike: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for run in runs:
        metric = headline_of(run)
        place = len(HEADLINES) if metric is None else HEADLINES.index(metric)
        alike[kind_of(run), place].append(run)
    return [comparison(members) for _, members in sorted(alike.items())]


def comparison(runs: Iterable[Record]) -> Table:
    """Compare runs: one row for those that differ only in their seed, the best first.

    Args:
        runs: Runs of one kind of task; each headline metric that one of them has is a column.
    """
    groups = replicates(runs)
    columns = [
        (column, read)
        for column, read in _columns(groups)
        if column.key not in _EVALUATIONS or any(map(_is_counted, map(read, groups)))
    ]
    rows = tuple(tuple(read(group) for _, read in columns) for group in groups)
    keys = [column.key for column, _ in columns]
    heads, best = tuple(column for column, _ in columns), frozenset(_best(groups, keys))
    return Table(heads, rows, best, tuple(_notes(groups)))


def method_table(groups: Sequence[Replicates]) -> Table:
    """Compare the methods of one task.

    Args:
        groups: The methods, as from `replicates`.
    """
    table = comparison(run for group in groups for run in group.runs)
    keys = [column.key for column in table.columns]
    shown = [place for place, key in enumerate(keys) if key not in _IN_THE_HEADING]
    shown.sort(key=lambda place: _rank(keys[place]))
    return Table(
        tuple(table.columns[place] for place in shown),
        tuple(tuple(row[place] for place in shown) for row in table.rows),
        frozenset((row, shown.index(column)) for row, column in table.best if column in shown),
        (*table.notes, *_solver_notes(groups, [keys[place] for place in shown])),
    )


def per_class(run: Record) -> Table:
    """Precision and recall of each class, from the confusion matrix of a run."""
    columns = (
        Column("class", "class", numeric=False),
        Column("precision", "precision"),
        Column("recall", "recall"),
        Column("samples", f"test {sample_name(run)}"),
    )
    rows = []
    for index, row in enumerate(run.confusion):
        predicted = sum(other[index] for other in run.confusion)
        name = run.classes[index] if index < len(run.classes) else str(index)
        rows.append((name, _share(row[index], predicted), _share(row[index], sum(row)), sum(row)))
    return Table(columns, tuple(rows))


def _notes(groups: list[Replicates]) -> Iterable[str]:
    if any(is_transductive(group.runs[0]) for group in groups):
        yield _TRANSDUCTIVE
    if len({group.task[2] for group in groups} - {""}) > 1:
        yield _OTHER_PROTOCOL


def _columns(groups: list[Replicates]) -> list[tuple[Column, Callable[[Replicates], Cell]]]:
    """Each column with the function that reads its cell."""
    columns: list[tuple[Column, Callable[[Replicates], Cell]]] = [
        (Column("method", "method", numeric=False), lambda group: group.label),
        (Column("data", "data", numeric=False), lambda group: group.task[0]),
    ]
    if len({group.runs[0].scale for group in groups}) > 1:
        columns.append((Column("scale", "scale", numeric=False), lambda group: group.task[1]))
    if any(group.task[2] for group in groups):
        protocol = Column("protocol", "protocol", numeric=False)
        columns.append((protocol, lambda group: group.task[2] or None))
    columns.append((Column("parameters", "parameters"), lambda group: group.runs[0].parameters))
    used = {group.headline for group in groups}
    known = {key for group in groups for run in group.runs for key in run.result}
    shown = [metric for metric in HEADLINES if metric in used]
    shown += [metric for metric in COMPANIONS if metric.key in known]
    columns += [_measured(metric) for metric in (*shown, find_metric("train_loss"), *COSTS)]
    peak = find_metric("peak_memory").words
    columns += [
        (Column("seconds", "seconds", measured=True), Replicates.seconds),
        (Column("peak_memory_mib", peak, measured=True), _mebibytes),
        (Column("seed", "seed"), lambda group: tuple(run.seed for run in group.runs)),
    ]
    return columns


def _measured(metric: Metric) -> tuple[Column, Callable[[Replicates], Estimate | None]]:
    column = Column(metric.key, metric.title, measured=True)
    if metric not in COSTS:
        return column, lambda group: group.result(metric.key)
    return column, lambda group: group.result(metric.key) if _solves(group) else None


def _solves(group: Replicates) -> bool:
    """Whether a method has an ODE: without one, evaluations are never counted."""
    return any(_is_counted(group.result(metric.key)) for metric in COSTS)


def _mebibytes(group: Replicates) -> Estimate | None:
    peaks = (run.peak_memory for run in group.runs)
    digits = find_metric("peak_memory").digits
    return Estimate.of((peak and peak / MEBIBYTE for peak in peaks), digits)


def _best(groups: list[Replicates], keys: list[str]) -> Iterable[tuple[int, int]]:
    """The cells of the headline metric that no other method of the same task beats."""
    for number, group in enumerate(groups):
        metric, score = group.headline, group.score()
        rivals = [
            other.score()
            for other in groups
            if other.task == group.task and other.headline == metric
        ]
        if metric is None or score is None or len(rivals) < 2:
            continue
        ranks = [metric.rank(rival and rival.mean) for rival in rivals]
        if metric.rank(score.mean) == min(ranks) < max(ranks):
            yield number, keys.index(metric.key)


def _share(part: int, whole: int) -> Estimate | None:
    return Estimate(part / whole, None, 3) if whole else None


def _is_counted(cell: Cell) -> bool:
    return isinstance(cell, Estimate) and cell.mean != 0


def _rank(key: str) -> int:
    """Columns of a lower rank come first: a phone shows two or three."""
    if key == "method":
        return 0
    if key in _SCORES:
        return 1
    return 2 if key.endswith("loss") else 3


def _solver_notes(groups: Sequence[Replicates], keys: list[str]) -> Iterable[str]:
    if any(_goes_through_the_solver(group) for group in groups):
        if "backward_nfe" in keys:
            yield f"Where only NFE backward is 0, {_THROUGH_THE_SOLVER}."
        else:
            yield f"NFE backward is 0 and left out: {_THROUGH_THE_SOLVER}."


def _goes_through_the_solver(group: Replicates) -> bool:
    forward, backward = group.result("forward_nfe"), group.result("backward_nfe")
    if forward is None or backward is None:
        return False
    return forward.mean > backward.mean == 0
