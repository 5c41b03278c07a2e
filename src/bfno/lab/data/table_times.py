"""The times of a table: numbers, or dates that become numbers."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bfno.lab.data.cells import NumberFormat, as_words, parse_numbers, shown
from bfno.lab.data.dates import ORDERS, Dates, parse_dates
from bfno.lab.data.table_file import RawTable
from bfno.lab.data.table_layout import TableLayout
from bfno.lab.errors import DataError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Times", "read_times", "temporal_kind", "with_joined_clock"]

_CLOCK = r"^(?:1899-12-31 |1899-12-30 |1900-01-00 )?(\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)$"


@dataclass(frozen=True)
class Times:
    """The time of each row.

    Attributes:
        values: Numbers as they are in the table; for dates, seconds since `epoch`.
        layout: What was known about the table, and what was detected about its times.
        dates: The dates, if the times are dates.
        epoch: The first date, in microseconds of UTC.
    """

    values: np.ndarray
    layout: TableLayout
    dates: Dates | None = None
    epoch: int = 0

    @property
    def note(self) -> str:
        """How the times were read, as a note after the name of their column."""
        if self.dates is None:
            return ""
        order = f"{self.dates.order.replace('-', ' ')}, " if self.dates.order else ""
        return f" (dates, {order}in {self.layout.unit} from each series' first)"


def read_times(
    table: RawTable,
    column: str,
    layout: TableLayout,
    no_numbers: Collection[str],
    form: NumberFormat,
) -> Times:
    """Read the column with times.

    Args:
        table: The table.
        column: Its column with times.
        layout: What is known about it.
        no_numbers: Words for a missing number.
        form: How numbers are written.

    Raises:
        DataError: If a row has no time, or an ambiguous one.
    """
    cells, kind = table.frame[column], layout.dates
    if cells.dtype.is_temporal():
        _require_dates(table, column, temporal_kind(cells), kind)
        return _from_dates(table, column, layout, parse_dates(cells), cells)
    numbers, wrong = parse_numbers(cells, no_numbers, form)
    words = as_words(cells, layout.missing_words)
    if kind is None and (wrong.sum() > len(cells) / 2 or _are_digits(words, numbers, wrong)):
        kind = "dates"
    if kind not in (None, "numbers"):
        order = kind if kind in ORDERS else None
        # An order that was found is that of slashes; one that was given holds for points too.
        points = layout.points or order or "day-first"
        dates = parse_dates(words, order, points)
        if dates.wrong.any() and order is not None:
            raise _other_order(table, column, words, dates, order)
        return _from_dates(table, column, replace(layout, points=points), dates, words)
    if wrong.any():
        index = int(wrong.argmax())
        why = f"{shown(cells[index])} is not a number, but other times are"
        raise table.wrong(index, why, "use numbers or dates everywhere", column)
    _require_times(table, column, np.isfinite(numbers))
    return Times(numbers, replace(layout, dates="numbers"))


def temporal_kind(cells: pl.Series) -> str:
    """The content of a column whose type in the file is a type of time."""
    import polars as pl

    kinds = {pl.Duration: "durations", pl.Time: "times of day"}
    return kinds.get(cells.dtype.base_type(), "dates")


def _require_dates(table: RawTable, column: str, found: str, kind: str | None) -> None:
    """Refuse a type of time that is not on a calendar, and dates where times are numbers."""
    where = f"{table.source}, column {column!r}"
    if found != "dates":
        fix = "write numbers, for example hours, or dates"
        raise DataError(where, f"holds {found}, neither numbers nor dates", fix)
    if kind == "numbers":
        raise DataError(where, "holds dates, but times are numbers", "write numbers")


def _require_times(table: RawTable, column: str, there: np.ndarray) -> None:
    if not there.all():
        index = int((~there).argmax())
        raise table.wrong(index, "holds no time", "give every row a finite time", column)


def _from_dates(
    table: RawTable, column: str, layout: TableLayout, dates: Dates, cells: pl.Series
) -> Times:
    if dates.wrong.any():
        index = int(dates.wrong.argmax())
        how = f" with the {dates.order.replace('-', ' ')}" if dates.order else ""
        why = f"{shown(cells[index])} is not a date{how}"
        fix = "write all dates alike" if how else "use numbers, or dates like 2024-12-31 14:30"
        raise table.wrong(index, why, fix, column)
    _require_times(table, column, cells.is_not_null().to_numpy())
    if dates.unclear >= 0:
        raise _unclear(table, column, dates.unclear, cells[dates.unclear])
    unit = layout.unit
    if unit == "auto":
        unit = "hours" if dates.has_clock else "days"
    epoch = int(dates.moments.min())
    found = replace(layout, unit=unit, dates=dates.order or "dates")
    return Times((dates.moments - epoch) / 1e6, found, dates, epoch)


def _other_order(
    table: RawTable, column: str, words: pl.Series, dates: Dates, order: str
) -> DataError:
    """The error for a date that does not exist in the order given, or found in training."""
    index = int(dates.wrong.argmax())
    (other,) = (one for one in ORDERS if one != order)
    why = f"{shown(words[index])} is not a date with the {order.replace('-', ' ')}"
    fits = not parse_dates(words, other).wrong.any()
    fix = f"say --set data.dates={other}" if fits else "write all dates alike"
    return table.wrong(index, why, fix, column)


def _unclear(table: RawTable, column: str, index: int, cell: str) -> DataError:
    """The error for an ambiguous date."""
    # Dates of two digits of the year may begin with it, and the month is never beyond 12.
    is_month = int(re.split(r"\D", cell, maxsplit=1)[0]) <= 12
    fix = "say --set data.dates=day-first"
    if is_month:
        why, fix = "with the month", f"{fix} or --set data.dates=month-first"
    else:
        why, fix = "with the year", f"{fix}, or write all four digits of the year"
    return table.wrong(index, f"{shown(cell)} may begin with the day or {why}", fix, column)


def _are_digits(words: pl.Series, numbers: np.ndarray, wrong: np.ndarray) -> bool:
    """Whether every time is a date like 20241231."""
    if wrong.any() or not np.isfinite(numbers).all():
        return False
    inside = (numbers >= 1900_01_01) & (numbers <= 2099_12_31) & (numbers % 1 == 0)
    return bool(inside.all()) and not parse_dates(words).wrong.any()


def with_joined_clock(table: RawTable, layout: TableLayout) -> RawTable:
    """Combine a date and a time of day in two columns into `date time`.

    They stay separate if the layout uses one of them as the time by itself, or leaves one out.
    """
    import polars as pl

    frame = table.frame
    small = {name.lower(): name for name in frame.columns}
    if not {"date", "time"} <= set(small):
        return table
    if {small["date"], small["time"]} & {layout.time, *layout.ignore}:
        return table
    date, clock = frame[small["date"]].cast(pl.String), frame[small["time"]].cast(pl.String)
    if not clock.drop_nulls().str.contains(_CLOCK).all() or clock.null_count() == len(clock):
        return table
    days = date.str.replace(r"[ T]00:00:00(\.0+)?$", "")
    moments = days + " " + clock.str.extract(_CLOCK)
    frame = frame.drop(small["date"], small["time"]).with_columns(moments.alias("date time"))
    return replace(table, frame=frame)
