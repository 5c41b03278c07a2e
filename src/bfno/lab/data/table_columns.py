"""Reads a table column by column: the role of each column, and its cells as numbers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bfno.lab.data.cells import (
    MISSING,
    NumberFormat,
    as_words,
    booleans,
    codes,
    has_numbers,
    parse_numbers,
    shown,
)
from bfno.lab.data.dates import looks_like_dates
from bfno.lab.data.decimals import DECIMAL_NAMES, find_number_format
from bfno.lab.data.quantities import Quantities, without_units
from bfno.lab.data.series_folder import OWNER
from bfno.lab.data.series_rows import Rows, static_features
from bfno.lab.data.table_file import RawTable
from bfno.lab.data.table_layout import (
    UNITS,
    TableLayout,
    find_column,
    naming,
    nearest,
    require_column,
    require_names,
)
from bfno.lab.data.table_times import read_times, temporal_kind, with_joined_clock
from bfno.lab.errors import DataError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Understood"]

_logger = logging.getLogger(__name__)
_LARGEST = float(np.finfo(np.float32).max)
_MOST_CLASSES = 1000
# More classes than that, and than half of the series, are hardly classes.
_MANY_CLASSES = 20


class Understood:
    """A table column by column, and what was detected about it.

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
        table = with_joined_clock(table, layout)
        self.wanted, self.missing = wanted, layout.missing_words
        # Among numbers, None can be nothing else; among words, it may be one.
        self.no_numbers = self.missing | set(MISSING)
        self.left_out: list[str] = []
        if layout.categories is None:
            _say_unknown(table, layout)
        left_out = set(layout.ignore) - {layout.id, layout.time, layout.label}
        names = [name for name in table.frame.columns if name not in left_out]
        path = table.source
        owner = OWNER if is_folder else require_column(path, names, "id", layout.id)
        time = require_column(path, names, "time", layout.time, [owner])
        label = find_column(path, names, "label", layout.label, [owner, time])
        self.owner, self.time, self.label = owner, time, label
        self.columns = [
            name for name in names if name not in {owner, time, label, layout.label, *layout.ignore}
        ]
        self.is_fixed = layout.categories is not None
        if self.is_fixed and wanted is not None:
            self._require_columns(path, _found(layout))
        self.truths: list[str] = []
        self.quantities = self._without_units(table, layout)
        self.table = self.quantities.table
        self.form, decimal = self._number_format(layout)
        layout = replace(
            layout,
            id=layout.id if is_folder else owner,
            time=time,
            label=label or layout.label,
            decimal=decimal,
            units={**(layout.units or {}), **self.quantities.units},
            categories=dict(layout.categories or {}),
        )
        self.times = read_times(self.table, time, layout, self.no_numbers, self.form)
        self.layout = self.times.layout

    def _without_units(self, table: RawTable, layout: TableLayout) -> Quantities:
        if not layout.quantities:
            return Quantities(table, {}, {})
        words = {*layout.categorical, *_found(layout)}
        columns = [name for name in (self.time, *self.columns) if name not in words]
        return without_units(table, columns, self.no_numbers, layout.units or {})

    def _number_format(self, layout: TableLayout) -> tuple[NumberFormat, str | None]:
        """The format of numbers, and the name of their decimal mark if known."""
        import polars as pl

        table = self.table
        if table.is_typed:
            return NumberFormat(".,"), layout.decimal or layout.trained_decimal
        texts = {name for name, dtype in table.frame.schema.items() if dtype == pl.String}
        texts -= set(layout.categorical)
        columns = [name for name in (self.time, *self.columns) if name in texts]
        found = find_number_format(table, columns, layout.decimal, layout.trained_decimal)
        if found is None:
            return NumberFormat(), None
        # A plain point is what tables have that say nothing else.
        is_plain = layout.decimal is None and found == NumberFormat()
        return found, None if is_plain else DECIMAL_NAMES[found.decimal]

    def rows(self) -> Rows:
        """Return everything as numbers.

        Raises:
            DataError: At the first cell that cannot be understood.
        """
        owners, ids = self._owners()
        values, features = self._values()
        if not self.is_fixed:
            self.layout = replace(self.layout, booleans=tuple(self.truths))
        labels, label_names = self._labels()
        unit = 1.0 if self.times.dates is None else UNITS[self.layout.unit]
        gathered = (owners, self.times.values, unit, values, labels)
        return Rows(self.table, *gathered, tuple(ids), tuple(label_names), features)

    def _owners(self) -> tuple[np.ndarray, list[str]]:
        cells = self.table.frame[self.owner]
        words = cells if self.owner == OWNER else as_words(cells, self.missing)
        if words.null_count():
            index = int(words.is_null().arg_max() or 0)
            fix = "give each row its series"
            raise self.table.wrong(index, "names no series", fix, self.owner)
        numbers, ids = codes(words)
        if self.owner == "id" and len(ids) == len(numbers) > 1:
            self._refuse_row_numbers()
        return numbers, ids

    def _refuse_row_numbers(self) -> None:
        """Refuse an `id` that differs in every row if another column names series."""
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

    # Features.

    def _values(self) -> tuple[np.ndarray, tuple[str, ...]]:
        parts: list[tuple[str, np.ndarray]] = []
        for name in self.columns:
            parts += self._feature(name)
        if not parts:
            more = f"; {self.left_out[0]} was left out" if self.left_out else ""
            raise DataError(self.table.source, f"has no feature{more}", "add a column with values")
        by_name = dict(parts)
        features = self._in_order(tuple(by_name)) if self.wanted else tuple(by_name)
        values = np.empty((len(self.table.frame), len(features)))
        for place, name in enumerate(features):
            values[:, place] = by_name.pop(name)
        return values, features

    def _feature(self, name: str) -> list[tuple[str, np.ndarray]]:
        """The features from a column: one of numbers, one per word, or none."""
        import polars as pl

        cells = self.table.frame[name]
        if cells.dtype.is_nested() or cells.dtype in (pl.Binary, pl.Object):
            why = f"holds {cells.dtype}, neither numbers nor words"
            raise DataError(f"{self.table.source}, column {name!r}", why, "use numbers or text")
        known = (self.layout.categories or {}).get(name)
        if known is not None or name in self.layout.categorical:
            return self._one_hot(name, as_words(cells, self.missing), known)
        if cells.dtype.is_temporal():
            return self._leave_out(name, f"holds {temporal_kind(cells)}")
        numbers, wrong = parse_numbers(cells, self.no_numbers, self.form)
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
            cell = shown(cells[index])
            fix = f'correct or empty the cell; if it means missing, --set "data.missing=[{cell}]"'
            raise self.table.wrong(index, f"{cell} is not a number", fix, name)
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
                why = f"{shown(word)} was not there in training"
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

    def _require_columns(self, path: Path, words: Mapping[str, tuple[str, ...]]) -> None:
        """Compare columns with those of the training's features, before any cell is read."""
        origin = {f"{name}={word}": name for name, known in words.items() for word in known}
        wanted = tuple(dict.fromkeys(origin.get(name, name) for name in self.wanted or ()))
        require_names(path, tuple(self.columns), wanted)

    def _in_order(self, found: tuple[str, ...]) -> tuple[str, ...]:
        """The features in the order that they must have."""
        return require_names(self.table.source, found, self.wanted or ())

    # What to report.

    def line(self, rows: Rows, by_row: bool) -> str:
        """Describe in one line how the table was understood.

        Args:
            rows: What `rows` returned.
            by_row: Whether every row has its own label.
        """
        layout, count = self.layout, len(rows.features)
        owner = "a file for each series" if self.owner == OWNER else f"id {self.owner!r}"
        unit = self.quantities.note(self.time)
        time = f"time {self.time!r}{f' ({unit})' if unit else self.times.note}"
        details = [f"{name} one-hot" for name in _found(layout) if name in self.columns]
        noted = ((name, self.quantities.note(name)) for name in self.columns)
        details += [f"{name} {note}" for name, note in noted if note]
        fixed = {name.partition("=")[0] if name not in self.columns else name: None
                 for name in static_features(rows)}  # fmt: skip
        details += [f"static: {', '.join(fixed)}"] if fixed else []
        features = f"{count} feature{'s' * (count != 1)}"
        parts = [owner, time, self._about_labels(rows, by_row)]
        parts.append(f"{features} ({'; '.join(details)})" if details else features)
        parts += self.table.remarks
        if not self.table.is_typed and layout.decimal == "comma":
            parts.append("decimal comma")
        if self.form.groups:
            parts.append(f"{self.form.groups!r} between thousands")
        parts += self._missing_words()
        parts += [f"left out {one}" for one in self.left_out]
        amount = f"{len(rows.ids):,} series, {len(rows.owners):,} row{'s' * (len(rows.owners) > 1)}"
        return f"{self.table.source.name}: {amount}; {', '.join(parts)}"

    def _about_labels(self, rows: Rows, by_row: bool) -> str:
        count, of = len(rows.label_names), "row" if by_row else "series"
        if self.label is None or not count:
            return f"label {self.label!r} (empty)" if self.label else "no labels"
        kind = "number" if _are_numbers(rows.label_names) else "class"
        kinds = kind if count == 1 else {"number": "numbers", "class": "classes"}[kind]
        meant = ", each a class" if kind == "number" else ""
        return f"label {self.label!r} ({count:,} {kinds}{meant}, one per {of})"

    def doubt(self, rows: Rows) -> str | None:
        """Warn if the labels look like measurements rather than classes."""
        count, series = len(rows.label_names), len(rows.ids)
        if self.label is None or self.is_fixed or count <= _MANY_CLASSES or 2 * count <= series:
            return None
        return (
            f"{self.table.source.name}: {count:,} different labels in {series:,} series: each one "
            f"becomes a class, and most have too few series to be learned. Group the values of "
            f"{self.label!r} into a few classes, or {naming('label', 'NAME')}"
        )

    def _missing_words(self) -> Iterable[str]:
        """The words that were taken for missing values, for the user to check."""
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
                numbers, wrong = parse_numbers(different, words, self.form)
                gone = pl.Series(np.isnan(numbers) & ~wrong)
            for cell in different.filter(gone):
                counts[str(cell)] = counts.get(str(cell), 0) + int((cells == cell).sum())
        told = ", ".join(f"{word!r} ({count:,})" for word, count in sorted(counts.items()))
        return [f"missing: {told}"] if told else []


def _say_unknown(table: RawTable, layout: TableLayout) -> None:
    """Report columns that a setting names but that do not exist: it has no effect."""
    names = table.frame.columns
    for columns, purpose in ((layout.ignore, "leave out"), (layout.categorical, "take as words")):
        for name in sorted(set(columns) - set(names)):
            told = (table.source.name, name, purpose, nearest(name, names))
            _logger.warning("%s: there is no column %r to %s; %s", *told)


def _found(layout: TableLayout) -> Mapping[str, tuple[str, ...]]:
    return layout.categories or {}


def _are_numbers(names: Iterable[str]) -> bool:
    try:
        return all(np.isfinite(float(name)) for name in names)
    except ValueError:
        return False
