"""The table of a task as its page shows it: the result next to the method, what it cost behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bfno.lab.runs.metrics import COMPANIONS, HEADLINES
from bfno.lab.views.layout import Cell, Estimate, Table
from bfno.lab.views.tables import Replicates, comparison

__all__ = ["method_table"]

_IN_THE_HEADING = {"data", "scale", "protocol"}
_SCORES = {metric.key for metric in (*HEADLINES, *COMPANIONS)}
_THROUGH_THE_SOLVER = "the gradient goes through the solver's own steps"
_EVALUATIONS = {"forward_nfe", "backward_nfe", "test_nfe"}


def method_table(groups: Sequence[Replicates]) -> Table:
    """Compare the methods of one task.

    Args:
        groups: The methods, as from `replicates`.
    """
    table = comparison(run for group in groups for run in group.runs)
    keys = [column.key for column in table.columns]
    cells = zip(*table.rows, strict=True)
    shown = [place for place, column in enumerate(cells) if _is_shown(keys[place], column)]
    shown.sort(key=lambda place: _rank(keys[place]))
    return Table(
        tuple(table.columns[place] for place in shown),
        tuple(tuple(row[place] for place in shown) for row in table.rows),
        frozenset((row, shown.index(column)) for row, column in table.best if column in shown),
        (*table.notes, *_notes(groups, [keys[place] for place in shown])),
    )


def _is_shown(key: str, cells: Sequence[Cell]) -> bool:
    if key in _IN_THE_HEADING:
        return False
    nothing = [cell is None or (isinstance(cell, Estimate) and cell.mean == 0) for cell in cells]
    return key not in _EVALUATIONS or not all(nothing)


def _rank(key: str) -> int:
    """Columns of a lower rank come first: a phone shows two or three."""
    if key == "method":
        return 0
    if key in _SCORES:
        return 1
    return 2 if key.endswith("loss") else 3


def _notes(groups: Sequence[Replicates], keys: list[str]) -> Iterable[str]:
    if any(_goes_through_the_solver(group) for group in groups):
        if "backward_nfe" in keys:
            yield f"Where only NFE backward is 0, {_THROUGH_THE_SOLVER}."
        else:
            yield f"NFE backward is 0 and left out: {_THROUGH_THE_SOLVER}."


def _goes_through_the_solver(group: Replicates) -> bool:
    forward, backward = group.result("forward_nfe", 1), group.result("backward_nfe", 1)
    if forward is None or backward is None:
        return False
    return forward.mean > backward.mean == 0
