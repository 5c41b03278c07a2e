"""Series of one's own: a table of all of them, or a folder with a table of each."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bfno.lab.data.cells import (
    MISSING,
    as_words,
    booleans,
    codes,
    has_numbers,
    has_points,
    may_be_groups,
    parse_numbers,
    with_commas,
)
from bfno.lab.data.dates import ORDERS, Dates, looks_like_dates, parse_dates
from bfno.lab.data.reading import refusing_damage
from bfno.lab.data.series import Series
from bfno.lab.data.series_rows import Rows, static_features, to_series
from bfno.lab.data.table_file import TABLE_SUFFIXES, RawTable, joined, read_tables
from bfno.lab.data.table_layout import (
    UNITS,
    TableLayout,
    find_column,
    naming,
    nearest,
    require_column,
)
from bfno.lab.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["SeriesTable", "read_series"]

_LOG = logging.getLogger(__name__)
_LABELS_STEM = "labels"
_OWNER = "\0series"  # of a row of a folder: no file's column is called that
_LARGEST = float(np.finfo(np.float32).max)
_MOST_CLASSES = 1000
_SHOWN = 40  # letters of a wrong cell
_MARKS = {"point": ".", "comma": ","}
_CLOCK = r"^(?:1899-12-31 |1899-12-30 |1900-01-00 )?(\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)$"


@dataclass(frozen=True)
class SeriesTable:
    """Series as files give them.

    Attributes:
        series: The series, neither scaled nor divided; times count from each one's first row.
        features: Name of each feature; `sex=f` is 1 where a column of words holds this one.
        classes: Name of each class, by its label.
        origins: Time of each series' first row in the files; 0 for dates.
        layout: What the table was found to be.
        begins: Where times are dates, that of each series' first row, in microseconds of UTC.
    """

    series: Series
    features: tuple[str, ...]
    classes: tuple[str, ...]
    origins: Tensor
    layout: TableLayout
    begins: Tensor | None = None

    def time_in_file(self, row: int, owner: int) -> float | str:
        """Time of a row of a series, as the files give it: a number or an ISO date."""
        time = float(self.series.times[row])
        if self.begins is None:
            # Without the last digits that taking the origin away has changed.
            return round(time + float(self.origins[owner]), 9)
        passed = int(self.begins[owner]) + round(time * UNITS[self.layout.unit] * 1e6)
        moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=passed)
        return moment.replace(tzinfo=None).isoformat()


def read_series(
    path: Path,
    layout: TableLayout | None = None,
    *,
    labels: str = "auto",
    features: tuple[str, ...] | None = None,
    classes: tuple[str, ...] | None = None,
) -> SeriesTable:
    """Read series out of CSV, Excel or Parquet files.

    Either one table whose rows name their series, or a folder with one table for each series,
    which is named after its file. In such a folder a table called `labels` may give each series'
    label and further columns that do not change over time. Every column but those for series,
    time and label is a feature, or several if it holds words.

    Args:
        path: The file or folder.
        layout: What is known about the tables. A note says what was found out.
        labels: Whether each `series` or each `row` has a label. `auto` means rows if there is a
            series with two labels.
        features: Names that the features must have; their order is that of the result.
        classes: Names that the labels must have.

    Raises:
        ConfigError: If a setting is out of range, or a package is missing.
        DataError: If a file is not as described; it names file, row and column.
    """
    if labels not in ("series", "row", "auto"):
        raise ConfigError("labels", f"{labels!r} is unknown", "use series, row or auto")
    layout = layout or TableLayout()
    named = [name for name in (layout.id, layout.time, layout.label) if name is not None]
    if len(set(named)) != len(named):
        raise ConfigError("columns", f"{named} name one column twice", "use id, time, label")
    path = Path(path)
    is_folder = os.path.isdir(path)
    table = _read_folder(path, layout) if is_folder else read_tables([path], layout.file)[0]
    if not len(table.frame):
        raise DataError(path, "holds no rows", "add rows below the column names")
    found = _Understood(table, layout, features, is_folder)
    rows = found.rows()
    series, names, firsts = to_series(rows, labels, classes)
    begins = None
    if found.dates is not None:
        begins, firsts = (firsts * 1e6).long() + found.epoch, torch.zeros_like(firsts)
    _LOG.warning("%s", found.line(rows))
    return SeriesTable(series, rows.features, names, firsts, found.layout, begins)


class _Understood:
    """A table column by column, and what was found out about it.

    Args:
        table: The table.
        layout: What is known about it.
        wanted: Names that the features must have.
        is_folder: Whether the series are named after their files.
    """

    def __init__(
        self,
        table: RawTable,
        layout: TableLayout,
        wanted: tuple[str, ...] | None,
        is_folder: bool,
    ) -> None:
        table = _with_joined_clock(table, layout)
        self.table, self.wanted, self.missing = table, wanted, layout.missing_words
        # Among numbers, None can be nothing else; among words, it may be one.
        self.no_numbers = self.missing | set(MISSING)
        self.dates: Dates | None = None
        self.epoch = 0
        self.left_out: list[str] = []
        left_out = set(layout.ignore) - {layout.id, layout.time, layout.label}
        names = [name for name in table.frame.columns if name not in left_out]
        path = table.source
        owner = _OWNER if is_folder else require_column(path, names, "id", layout.id)
        time = require_column(path, names, "time", layout.time, [owner])
        label = find_column(path, names, "label", layout.label, [owner, time])
        self.owner, self.time, self.label = owner, time, label
        self.columns = [
            name for name in names if name not in {owner, time, label, layout.label, *layout.ignore}
        ]
        self.layout = replace(
            layout,
            id=layout.id if is_folder else owner,
            time=time,
            label=label or layout.label,
            decimal=self._decimal(layout),
            categories=dict(layout.categories or {}),
        )
        self.is_fixed = layout.categories is not None
        self.truths: list[str] = []
        self.decimal = _MARKS[self.layout.decimal or "point"] if not table.is_typed else ".,"

    def rows(self) -> Rows:
        """Return everything as numbers.

        Raises:
            DataError: At the first cell that cannot be understood.
        """
        if self.is_fixed and self.wanted is not None:
            self._require_columns()
        owners, ids = self._owners()
        times = self._times()
        values, features = self._values()
        if not self.is_fixed:
            self.layout = replace(self.layout, booleans=tuple(self.truths))
        labels, label_names = self._labels()
        unit = 1.0 if self.dates is None else UNITS[self.layout.unit]
        gathered = (owners, times, unit, values, labels)
        return Rows(self.table, *gathered, tuple(ids), tuple(label_names), features)

    def _owners(self) -> tuple[np.ndarray, list[str]]:
        cells = self.table.frame[self.owner]
        words = cells if self.owner == _OWNER else as_words(cells, self.missing)
        if words.null_count():
            index = int(words.is_null().arg_max() or 0)
            fix = "give each row its series"
            raise self.table.wrong(index, "names no series", fix, self.owner)
        numbers, ids = codes(words)
        if self.owner == "id" and len(ids) == len(numbers) > 1:
            self._refuse_row_numbers()
        return numbers, ids

    def _refuse_row_numbers(self) -> None:
        """Refuse an `id` that differs in every row beside another column that names series."""
        names = [name for name in self.table.frame.columns if name != "id"]
        other = find_column(self.table.source, names, "id", None, ())
        if other and self.table.frame[other].is_duplicated().any():
            why = f"'id' differs in every row, so the series may be named by {other!r}"
            raise DataError(self.table.source, why, naming("id", other))

    def _labels(self) -> tuple[np.ndarray, list[str]]:
        if self.label is None:
            return np.full(len(self.table.frame), -1), []
        numbers, names = codes(as_words(self.table.frame[self.label], self.missing))
        if len(names) > _MOST_CLASSES:
            why = f"holds more than {_MOST_CLASSES:,} different labels"
            fix = (
                f"use labels that name classes; if it is another column, {naming('label', 'NAME')}"
            )
            raise DataError(self.table.source, why, fix)
        return numbers, names

    # Times.

    def _times(self) -> np.ndarray:
        cells, kind = self.table.frame[self.time], self.layout.dates
        if cells.dtype.is_temporal() and kind != "numbers":
            return self._from_dates(parse_dates(cells), cells)
        numbers, wrong = parse_numbers(cells, self.no_numbers, self.decimal)
        words = as_words(cells, self.missing)
        if kind is None and (wrong.sum() > len(cells) / 2 or _are_digits(words, numbers, wrong)):
            kind = "dates"
        if kind not in (None, "numbers"):
            order = kind if kind in ORDERS else None
            # An order that was found is that of slashes; one that was given holds for points too.
            points = self.layout.points or order or "day-first"
            self.layout = replace(self.layout, points=points)
            return self._from_dates(parse_dates(words, order, points), words)
        if wrong.any():
            index = int(wrong.argmax())
            why = f"{_shown(cells[index])} is no number, but other times are"
            raise self.table.wrong(index, why, "use numbers or dates everywhere", self.time)
        self._require_times(np.isfinite(numbers))
        self.layout = replace(self.layout, dates="numbers")
        return numbers

    def _require_times(self, there: np.ndarray) -> None:
        if not there.all():
            index = int((~there).argmax())
            raise self.table.wrong(
                index, "holds no time", "give every row a finite time", self.time
            )

    def _from_dates(self, dates: Dates, cells: pl.Series) -> np.ndarray:
        if dates.wrong.any():
            index = int(dates.wrong.argmax())
            how = f" with the {dates.order.replace('-', ' ')}" if dates.order else ""
            why = f"{_shown(cells[index])} is no date{how}"
            fix = "write all dates alike" if how else "use numbers, or dates like 2024-12-31 14:30"
            raise self.table.wrong(index, why, fix, self.time)
        self._require_times(cells.is_not_null().to_numpy())
        if dates.unclear >= 0:
            why = f"{_shown(cells[dates.unclear])} may begin with the day or with the month"
            fix = "say --set data.dates=day-first or month-first"
            raise self.table.wrong(dates.unclear, why, fix, self.time)
        unit = self.layout.unit
        if unit == "auto":
            unit = "hours" if dates.has_clock else "days"
        self.dates, self.epoch = dates, int(dates.moments.min())
        self.layout = replace(self.layout, unit=unit, dates=dates.order or "dates")
        return (dates.moments - self.epoch) / 1e6

    # Features.

    def _decimal(self, layout: TableLayout) -> str | None:
        """Which decimal mark the table has; the layout decides what the cells leave open.

        Raises:
            DataError: If they contradict each other or may have digit groups.
        """
        import polars as pl

        table = self.table
        if table.is_typed:
            return layout.decimal
        texts = {name for name, dtype in table.frame.schema.items() if dtype == pl.String}
        texts -= set(layout.categorical)
        columns = [name for name in (self.time, *self.columns) if name in texts]
        commas = {name: with_commas(table.frame[name]) for name in columns}
        commas = {name: cells for name, cells in commas.items() if len(cells)}
        if not commas:
            return layout.decimal
        point = next((name for name in columns if has_points(table.frame[name])), None)
        comma, cells = next(iter(commas.items()))
        if point is not None and layout.decimal is None:
            why = f"columns {comma!r} and {point!r} have different decimal marks"
            raise DataError(table.source, why, "use one, or say --set data.decimal=comma")
        if point is not None:
            return layout.decimal
        if any(not may_be_groups(cells) for cells in commas.values()):
            return "comma"
        if layout.decimal is None:
            why = f"{_shown(cells[0])} in column {comma!r} may be a thousand or have decimals"
            raise DataError(table.source, why, "say --set data.decimal=comma, or omit digit groups")
        return layout.decimal

    def _values(self) -> tuple[np.ndarray, tuple[str, ...]]:
        parts: list[tuple[str, np.ndarray]] = []
        for name in self.columns:
            parts += self._feature(name)
        if not parts:
            more = f"; {self.left_out[0]} was left out" if self.left_out else ""
            raise DataError(self.table.source, f"has no feature{more}", "add a column with values")
        by_name = dict(parts)
        features = self._in_order(tuple(by_name)) if self.wanted else tuple(by_name)
        values = np.empty((len(self.table.frame), len(features)), np.float32)
        for place, name in enumerate(features):
            values[:, place] = by_name.pop(name)
        return values, features

    def _feature(self, name: str) -> list[tuple[str, np.ndarray]]:
        """The features that a column is: one of numbers, one of each word, or none."""
        import polars as pl

        cells = self.table.frame[name]
        if cells.dtype.is_nested() or cells.dtype in (pl.Binary, pl.Object):
            why = f"holds {cells.dtype}, neither numbers nor words"
            raise DataError(f"{self.table.source}, column {name!r}", why, "use numbers or text")
        known = (self.layout.categories or {}).get(name)
        if known is not None or name in self.layout.categorical:
            return self._one_hot(name, as_words(cells, self.missing), known)
        if cells.dtype.is_temporal():
            return self._leave_out(name, "holds dates")
        numbers, wrong = parse_numbers(cells, self.no_numbers, self.decimal)
        if not wrong.any():
            if (np.isnan(numbers) | (numbers == 0) | (numbers == 1)).all():
                self.truths.append(name)
            return [(name, self._finite(name, numbers))]
        words, known_truths = as_words(cells, self.missing), self.layout.booleans
        may_be_truths = known_truths is None or name in known_truths
        if may_be_truths and (truths := booleans(words)) is not None:
            self.truths.append(name)
            return [(name, truths)]
        if self.is_fixed or not np.isnan(numbers).all():
            index = int(wrong.argmax())
            shown = _shown(cells[index])
            fix = f'correct or empty the cell; if it means missing, --set "data.missing=[{shown}]"'
            raise self.table.wrong(index, f"{shown} is no number", fix, name)
        return self._one_hot(name, words, None)

    def _finite(self, name: str, numbers: np.ndarray) -> np.ndarray:
        too_large = np.abs(numbers) > _LARGEST
        if too_large.any():
            index = int(too_large.argmax())
            why = f"{numbers[index]} is infinite or too large"
            fix = "leave the cell empty if the value is missing"
            raise self.table.wrong(index, why, fix, name)
        return numbers

    def _one_hot(
        self, name: str, words: pl.Series, known: tuple[str, ...] | None
    ) -> list[tuple[str, np.ndarray]]:
        different = sorted(words.drop_nulls().unique())
        if known is None:
            if looks_like_dates(words) and name not in self.layout.categorical:
                return self._leave_out(name, "holds dates")
            if len(different) > self.layout.most_categories:
                most = self.layout.most_categories
                return self._leave_out(name, f"{len(different):,} different words, over {most}")
            known = tuple(different)
            self.layout = replace(self.layout, categories={**_found(self.layout), name: known})
        for word in different:
            if word not in known:
                index = int((words == word).arg_max() or 0)
                why = f"{_shown(word)} was not there in training"
                fix = f"use a known word, or empty the cell; {nearest(word, known)}"
                raise self.table.wrong(index, why, fix, name)
        numbers, _ = codes(words, known)
        blank = numbers < 0
        return [
            (f"{name}={word}", np.where(blank, np.nan, numbers == place))
            for place, word in enumerate(known)
        ]

    def _leave_out(self, name: str, why: str) -> list[tuple[str, np.ndarray]]:
        if self.is_fixed:
            fix = "use the columns of the training"
            raise DataError(f"{self.table.source}, column {name!r}", why, fix)
        self.left_out.append(f"{name!r} ({why})")
        self.layout = replace(self.layout, ignore=(*self.layout.ignore, name))
        return []

    def _require_columns(self) -> None:
        """Compare columns with those that the features came from, before any cell is read."""
        words = _found(self.layout)
        origin = {f"{name}={word}": name for name, known in words.items() for word in known}
        wanted = tuple(dict.fromkeys(origin.get(name, name) for name in self.wanted or ()))
        _compare(self.table.source, tuple(self.columns), wanted)

    def _in_order(self, found: tuple[str, ...]) -> tuple[str, ...]:
        """The features in the order that they must have."""
        return _compare(self.table.source, found, self.wanted or ())

    # What to tell.

    def line(self, rows: Rows) -> str:
        """What was understood, on one line."""
        layout, count = self.layout, len(rows.features)
        owner = "a file for each series" if self.owner == _OWNER else f"id {self.owner!r}"
        label = f"label {self.label!r}" if self.label else "no labels"
        details = [f"{name} one-hot" for name in _found(layout) if name in self.columns]
        fixed = {name.partition("=")[0] if name not in self.columns else name: None
                 for name in static_features(rows)}  # fmt: skip
        details += [f"static: {', '.join(fixed)}"] if fixed else []
        features = f"{count} feature{'s' * (count != 1)}"
        parts = [owner, f"time {self.time!r}{self._clock()}", label]
        parts.append(f"{features} ({'; '.join(details)})" if details else features)
        parts += self.table.remarks
        if not self.table.is_typed and layout.decimal == "comma":
            parts.append("decimal comma")
        parts += self._missing_words()
        parts += [f"left out {one}" for one in self.left_out]
        amount = f"{len(rows.ids):,} series, {len(rows.owners):,} row{'s' * (len(rows.owners) > 1)}"
        return f"{self.table.source.name}: {amount}; {', '.join(parts)}"

    def _clock(self) -> str:
        if self.dates is None:
            return ""
        order = f"{self.dates.order.replace('-', ' ')}, " if self.dates.order else ""
        return f" (dates, {order}in {self.layout.unit} from each series' first)"

    def _missing_words(self) -> Iterable[str]:
        """The words that were taken for missing values, of which a user may think otherwise."""
        import polars as pl

        counts: dict[str, int] = {}
        worded = {self.label, *_found(self.layout)}
        for name in {*self.columns, self.label} - {None, *self.layout.ignore}:
            cells, words = (
                self.table.frame[name],
                self.missing if name in worded else self.no_numbers,
            )
            if cells.dtype != pl.String and not (cells.dtype.is_numeric() and has_numbers(words)):
                continue
            different = cells.drop_nulls().unique()
            if name in worded:
                gone = as_words(different, words).is_null()
            else:
                numbers, wrong = parse_numbers(different, words, self.decimal)
                gone = pl.Series(np.isnan(numbers) & ~wrong)
            for cell in different.filter(gone):
                counts[str(cell)] = counts.get(str(cell), 0) + int((cells == cell).sum())
        told = ", ".join(f"{word!r} ({count:,})" for word, count in sorted(counts.items()))
        return [f"missing: {told}"] if told else []


def _are_digits(words: pl.Series, numbers: np.ndarray, wrong: np.ndarray) -> bool:
    """Whether every time is a date like 20241231."""
    if wrong.any() or not np.isfinite(numbers).all():
        return False
    inside = (numbers >= 1900_01_01) & (numbers <= 2099_12_31) & (numbers % 1 == 0)
    return bool(inside.all()) and not parse_dates(words).wrong.any()


def _found(layout: TableLayout) -> Mapping[str, tuple[str, ...]]:
    return layout.categories or {}


def _shown(cell: object) -> str:
    text = str(cell)
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _compare(path: Path, found: Sequence[str], wanted: Sequence[str]) -> tuple[str, ...]:
    """Refuse names that differ, whatever their order."""
    known, there = set(wanted), set(found)
    for name in wanted:
        if name not in there:
            fix = f"add or rename a column; {nearest(name, found)}"
            raise DataError(path, f"lacks the feature {name!r}", fix)
    for name in found:
        if name not in known:
            fix = f"rename or delete it; {nearest(name, wanted)}"
            raise DataError(path, f"the feature {name!r} is unknown", fix)
    return tuple(wanted)


def _with_joined_clock(table: RawTable, layout: TableLayout) -> RawTable:
    """Put a date and a time of day in two columns together into `date time`.

    They stay apart where the layout takes one of them as the time by itself, or leaves one out.
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


# A folder.


def _read_folder(folder: Path, layout: TableLayout) -> RawTable:
    """All tables of a folder, with the name of its series in each row."""
    import polars as pl

    files, labels = _series_in(folder)
    if not files:
        fix = "put one CSV, Excel or Parquet file for each series there"
        raise DataError(folder, "holds no tables of series", fix)
    tables = read_tables(list(files.values()), layout.file)
    _require_same_columns(tables, layout)
    whole = joined(folder, tables)
    counts = np.bincount(whole.places, minlength=len(whole.files))
    if not counts.all():
        fix = "add rows below the column names, or delete it"
        raise DataError(whole.files[int(counts.argmin())], "holds no rows", fix)
    owners = pl.Series(_OWNER, list(files)).gather(whole.places)
    whole = replace(whole, frame=whole.frame.with_columns(owners))
    return whole if labels is None else _with_labels(whole, labels, files, layout)


def _series_in(folder: Path) -> tuple[dict[str, Path], Path | None]:
    """The file of each series in the order of their names, and that of the labels."""
    with refusing_damage(folder, "give yourself access"):
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    files: dict[str, Path] = {}
    for path in paths:
        if path.suffix.lower() not in TABLE_SUFFIXES:
            continue
        if path.stem in files:
            why = f"and {files[path.stem].name} both hold series {path.stem!r}"
            raise DataError(path, why, "keep one of them")
        files[path.stem] = path
    return files, files.pop(_LABELS_STEM, None)


def _require_same_columns(tables: Sequence[RawTable], layout: TableLayout) -> None:
    first = tables[0].frame.columns
    label = find_column(tables[0].source, first, "label", layout.label, ())
    for table in tables[1:]:
        names = table.frame.columns
        if (label in names) != (label in first):
            why = f"differs from other files in the column {label!r}"
            raise DataError(table.source, why, "give all files that column, or none")
        _compare(table.source, names, first)


def _with_labels(
    table: RawTable, path: Path, files: Mapping[str, Path], layout: TableLayout
) -> RawTable:
    """Add the columns of the table of labels to the rows of each series."""
    import polars as pl

    beside = read_tables([path], layout.file)[0]
    names = beside.frame.columns
    owner = require_column(path, names, "id", layout.id)
    label = require_column(path, names, "label", layout.label, [owner])
    for name in names:
        if name != owner and name in table.frame.columns:
            file = table.files[0]
            why = f"has a column {name!r} beside {path.name}"
            raise DataError(file, why, "give labels in one place only")
    # A series is named after its file, which may well be called 1.0.csv.
    stems = beside.frame[owner].cast(pl.String)
    keyed = beside.frame.drop(owner).with_columns(stems.alias(_OWNER))
    once = keyed.unique(maintain_order=True)
    twice = once[_OWNER].is_duplicated()
    if twice.any():
        name = once[_OWNER].filter(twice)[0]
        index = int((stems == name).arg_true()[-1])
        why = f"series {name!r} has another label above"
        raise beside.wrong(index, why, "keep one of them", label)
    if odd := sorted(set(once[_OWNER].drop_nulls()) - set(files)):
        _LOG.warning("%s: %d labelled series have no file, first %r", path, len(odd), odd[0])
    frame = table.frame.join(once, on=_OWNER, how="left", maintain_order="left")
    return replace(table, frame=frame)
