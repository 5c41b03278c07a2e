"""Converts dates as people write them to moments on one clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bfno.lab.data.cells import codes

if TYPE_CHECKING:
    import polars as pl

__all__ = ["ORDERS", "Dates", "looks_like_dates", "parse_dates"]

ORDERS = ("day-first", "month-first")
"""How 03/04/2024 may be meant."""

_CLOCK = (
    r"(?:(?:\s*T|,?\s)\s*(?<hour>\d{1,2}):(?<minute>\d{2})"
    r"(?::(?<second>\d{2})(?:[.,](?<part>\d{1,9}))?)?"
    r"\s*(?<half>(?i:[ap]\.?m\.?))?\s*(?<zone>[Zz]|UTC|[+-]\d{2}:?\d{2})?)?$"
)
# Whether the day or the month comes first in `numbers` is for the whole column to say.
_FORMS = {
    "iso": r"^(?<year>\d{4})[-/.](?<month>\d{1,2})[-/.](?<day>\d{1,2})",
    "numbers": r"^(?<day>\d{1,2})(?<mark>[-/.])(?<month>\d{1,2})[-/.](?<year>\d{4}|\d{2})",
    "day and word": r"^(?<day>\d{1,2})[-. ]*(?<word>\pL{3,9})\.?[-., ]*(?<year>\d{4}|\d{2})",
    "word and day": r"^(?<word>\pL{3,9})\.? +(?<day>\d{1,2})(?:st|nd|rd|th)?,? +(?<year>\d{4})",
    "digits": r"^(?<year>(?:19|20)\d{2})(?<month>\d{2})(?<day>\d{2})",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = {name: number + 1 for number, name in enumerate(_MONTHS)}
_MONTH |= {"mär": 3, "mrz": 3, "mai": 5, "okt": 10, "dez": 12}
_FIRST_CENTURY = 70  # 69 is 2069, 70 is 1970
_DAY = 86_400_000_000  # microseconds


@dataclass(frozen=True)
class Dates:
    """The dates of a column.

    Attributes:
        moments: Microseconds since 1970 in UTC; 0 if there is none.
        wrong: Whether a cell holds something other than a date.
        order: The order from `ORDERS` that was needed and found, if any.
        unclear: The first row whose day and month cannot be distinguished; -1 for none.
        has_clock: Whether some moment is not midnight.
    """

    moments: np.ndarray
    wrong: np.ndarray
    order: str | None = None
    unclear: int = -1
    has_clock: bool = False


@dataclass
class _Found:
    """The dates found by the formats so far."""

    moments: np.ndarray
    open: np.ndarray
    points: str
    order: str | None = None
    unclear: int = -1


def parse_dates(cells: pl.Series, order: str | None = None, points: str | None = None) -> Dates:
    """Read dates with or without a time of day.

    Args:
        cells: Text, null for none; or dates in a file's own type.
        order: How 03/04/2024 is meant; None looks for a day after the 12th. Years of two digits are
            accepted with points, and with slashes if an order is given or the month must come
            first.
        points: How 03.04.2024 is meant; None means as `order`, or day-first without one.
    """
    if cells.dtype.is_temporal():
        moments = cells.dt.epoch("us").fill_null(0).to_numpy()
        return Dates(moments, np.zeros(len(cells), bool), has_clock=_has_clock(moments))
    if cells.n_unique() * 2 < len(cells):
        return _from_different(cells, order, points)
    there = cells.is_not_null().to_numpy().copy()
    points = points or order or "day-first"
    found = _Found(np.zeros(len(cells), np.int64), there, points, order)
    for form, pattern in _FORMS.items():
        if not found.open.any():
            break
        groups = cells.str.extract_groups(pattern + _CLOCK).struct.unnest()
        matched = groups["day"].is_not_null().to_numpy() & found.open
        if matched.any():
            _take(found, form, groups.filter(matched), np.flatnonzero(matched))
    return Dates(found.moments, found.open, found.order, found.unclear, _has_clock(found.moments))


def _from_different(cells: pl.Series, order: str | None, points: str | None) -> Dates:
    """Read each different date once, if most occur often."""
    import polars as pl

    numbers, names = codes(cells)
    found = parse_dates(pl.Series(names, dtype=pl.String), order, points)
    blank = numbers < 0
    if not names:
        return Dates(np.zeros(len(cells), np.int64), np.zeros(len(cells), bool))
    unclear = int((numbers == found.unclear).argmax()) if found.unclear >= 0 else -1
    moments = np.where(blank, 0, found.moments[numbers])
    return Dates(moments, found.wrong[numbers] & ~blank, found.order, unclear, found.has_clock)


def looks_like_dates(cells: pl.Series) -> bool:
    """Whether the first different cells are all dates, in any order of day and month."""
    some = cells.drop_nulls().head(1000).unique().head(50)
    return len(some) > 0 and any(not parse_dates(some, order).wrong.any() for order in ORDERS)


def _has_clock(moments: np.ndarray) -> bool:
    return bool((moments % _DAY != 0).any())


def _take(found: _Found, form: str, groups: pl.DataFrame, rows: np.ndarray) -> None:
    """Compute the moments of rows in a format, and mark them as done if they exist."""
    day, year = _whole(groups["day"]), _whole(groups["year"])
    short = (groups["year"].str.len_chars() == 2).to_numpy()
    year = np.where(short, year + np.where(year < _FIRST_CENTURY, 2000, 1900), year)
    fits = np.ones(len(rows), bool)
    if form == "numbers":
        day, month, fits = _ordered(found, groups, short, rows)
    elif "word" in groups.columns:
        names = groups["word"].str.to_lowercase().str.slice(0, 3).to_list()
        month = np.array([_MONTH.get(name, 0) for name in names])
    else:
        month = _whole(groups["month"])
    moments, exists = _moments(year, month, day, groups)
    fits &= exists
    found.moments[rows[fits]] = moments[fits]
    found.open[rows[fits]] = False


def _ordered(
    found: _Found, groups: pl.DataFrame, short: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Day and month of dates like 03/04/2024, and which rows have a date of that order."""
    first, second = _whole(groups["day"]), _whole(groups["month"])
    dotted = (groups["mark"] == ".").to_numpy()
    order, undotted = found.order, ~dotted
    if order is None and undotted.any():
        if (second[undotted] > 12).any() and not (first[undotted] > 12).any():
            order = "month-first"
        elif (first[undotted] > 12).any() and not _may_begin_with_year(groups, undotted & short):
            order = "day-first"
        else:
            # Preferably one whose first number cannot be the month: it is the better example.
            late = undotted & (first > 12)
            found.unclear = int(rows[int((late if late.any() else undotted).argmax())])
            order = "day-first"
        found.order = order
    day_first = np.where(dotted, found.points == "day-first", order == "day-first")
    day, month = np.where(day_first, first, second), np.where(day_first, second, first)
    # 24-12-31 may well begin with the year.
    return day, month, ~(short & (groups["mark"] == "-").to_numpy())


def _may_begin_with_year(groups: pl.DataFrame, short: np.ndarray) -> bool:
    """Whether 13/04/24 may be 2013-04-24, because every last number may be a day."""
    last = _whole(groups["year"])[short]
    return len(last) > 0 and bool(((1 <= last) & (last <= 31)).all())


def _moments(
    year: np.ndarray, month: np.ndarray, day: np.ndarray, groups: pl.DataFrame
) -> tuple[np.ndarray, np.ndarray]:
    """Microseconds since 1970, and whether there is such a date and time."""
    hour, minute, second = (_whole(groups[name]) for name in ("hour", "minute", "second"))
    half = groups["half"].str.slice(0, 1).str.to_lowercase()
    has_half = half.is_not_null().to_numpy()
    exists = (1 <= month) & (month <= 12) & (1 <= day) & (hour < 24) & (minute < 60) & (second < 60)
    exists &= ~has_half | ((1 <= hour) & (hour <= 12))
    hour = np.where(has_half, hour % 12 + 12 * (half == "p").fill_null(False).to_numpy(), hour)
    months = (year - 1970) * 12 + np.clip(month, 1, 12) - 1
    firsts = months.astype("datetime64[M]")
    days = firsts.astype("datetime64[D]") + (day - 1)
    exists &= days.astype("datetime64[M]") == firsts
    part = groups["part"].fill_null("").str.pad_end(6, "0").str.slice(0, 6)
    clock = ((hour * 60 + minute) * 60 + second) * 1_000_000 + _whole(part)
    return days.astype(np.int64) * _DAY + clock - _offset(groups["zone"]), exists


def _offset(zones: pl.Series) -> np.ndarray:
    """Microseconds by which the clocks of these time zones are ahead."""
    pieces = zones.str.extract_groups(r"^([+-])(\d{2}):?(\d{2})$").struct.unnest()
    sign, hours, minutes = (pieces.to_series(place) for place in range(3))
    ahead = (_whole(hours) * 60 + _whole(minutes)) * 60_000_000
    return np.where((sign == "-").fill_null(False).to_numpy(), -ahead, ahead)


def _whole(digits: pl.Series) -> np.ndarray:
    import polars as pl

    return digits.cast(pl.Int64).fill_null(0).to_numpy()
