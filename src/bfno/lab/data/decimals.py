"""Finds the decimal mark of a table, and whether thousands are separated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bfno.lab.data.cells import NumberFormat, shown
from bfno.lab.data.table_file import RawTable
from bfno.lab.errors import DataError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["DECIMAL_NAMES", "find_number_format"]

DECIMAL_NAMES = {".": "point", ",": "comma"}
"""Names of the decimal marks in settings."""

_MARKS = {name: mark for mark, name in DECIMAL_NAMES.items()}
_OTHER = {".": ",", ",": "."}
_SAMPLE = 1000  # rows
_ASK = "say --set data.decimal=point or --set data.decimal=comma"
# By the mark: numbers that have it, those in which it may separate thousands, and those in which
# nothing else can be meant, as in 1,234.5.
_WITH = {",": r"^[+-]?\d*,\d+([eE][+-]?\d+)?$", ".": r"^[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?$"}
_MAY_GROUP = {mark: rf"^[+-]?[1-9]\d{{0,2}}(\{mark}\d{{3}})+$" for mark in _OTHER}
_GROUPS = {
    mark: rf"^[+-]?[1-9]\d{{0,2}}(\{mark}\d{{3}})+\{other}\d+$" for mark, other in _OTHER.items()
}


@dataclass
class _Mark:
    """Evidence for the meaning of a mark: the first cell of each kind, by column.

    Attributes:
        decimal: A number in which it separates decimals, because it cannot separate thousands.
        either: A number in which it may separate either.
        groups: A number in which it separates thousands, because the other mark occurs too.
    """

    decimal: tuple[str, str] | None = None
    either: tuple[str, str] | None = None
    groups: tuple[str, str] | None = None

    @property
    def example(self) -> tuple[str, str] | None:
        return self.decimal or self.either or self.groups


def find_number_format(
    table: RawTable, columns: Sequence[str], said: str | None, before: str | None
) -> NumberFormat | None:
    """The format of the numbers in a table; None if no number shows it.

    Args:
        table: A table of text.
        columns: Its columns that may hold numbers.
        said: The decimal mark given by the user, `point` or `comma`.
        before: The mark of the training's table, which decides if the cells do not.

    Raises:
        DataError: If the numbers contradict each other, or are ambiguous.
    """
    marks = {mark: _seen(table, columns, mark) for mark in _OTHER}
    if said is not None:
        mark = _MARKS[said]
        other = marks[_OTHER[mark]]
        can_group = other.decimal is None and other.example is not None
        return NumberFormat(mark, _OTHER[mark] if can_group else "")
    for mark, found in marks.items():
        other = marks[_OTHER[mark]]
        if found.groups and not (found.decimal or other.groups):
            return NumberFormat(_OTHER[mark], mark)
    comma, point = marks[","].example, marks["."].example
    if comma and point:
        raise _two_marks(table, marks)
    if comma is None and point is None:
        return None if before is None else NumberFormat(_MARKS[before])
    mark = "," if comma else "."
    is_clear = marks[mark].decimal is not None
    if is_clear or mark == _MARKS.get(before or "", "."):
        return NumberFormat(mark)
    column, cell = comma or point or ("", "")
    why = f"{shown(cell)} in column {column!r} may be thousands or have decimals"
    raise DataError(table.source, why, _ASK)


def _seen(table: RawTable, columns: Sequence[str], mark: str) -> _Mark:
    found = _Mark()
    for name in columns:
        cells = table.frame[name]
        some = cells.filter(cells.str.contains(mark, literal=True).fill_null(False))
        # Most often the first rows are enough, and clear cells need no further check.
        for part in (some.head(_SAMPLE), some.slice(_SAMPLE)):
            is_group = part.str.contains(_MAY_GROUP[mark])
            clear = part.filter(part.str.contains(_WITH[mark]) & ~is_group)
            if len(clear):
                return _Mark(decimal=(name, clear[0]))
            found.either = found.either or _first(name, part.filter(is_group))
            grouped = part.filter(part.str.contains(_GROUPS[mark]))
            found.groups = found.groups or _first(name, grouped)
    return found


def _first(name: str, cells: pl.Series) -> tuple[str, str] | None:
    return (name, cells[0]) if len(cells) else None


def _two_marks(table: RawTable, marks: dict[str, _Mark]) -> DataError:
    """Points and commas, one of which may separate thousands if it always can."""
    told = [
        f"{shown(cell)} in column {name!r}"
        for name, cell in (found.example for found in marks.values() if found.example)
    ]
    why = f"{told[0]} and {told[1]} have different decimal marks"
    for mark, found in marks.items():
        if found.decimal is None and found.either is not None:
            plain = found.either[1].replace(mark, "")
            fix = f"if {shown(found.either[1])} is {plain}, say "
            fix += f"--set data.decimal={DECIMAL_NAMES[_OTHER[mark]]}; else use one mark"
            return DataError(table.source, f"{why}, or thousands are apart", fix)
    return DataError(table.source, why, "use one of them everywhere")
