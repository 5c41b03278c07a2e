"""The user's own series: one table of all, or a folder with a table of each."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bfno.lab.data.series import Series
from bfno.lab.data.series_folder import read_folder
from bfno.lab.data.series_rows import to_series
from bfno.lab.data.table_columns import Understood
from bfno.lab.data.table_file import RawTable, frame_table, read_tables
from bfno.lab.data.table_layout import UNITS, TableLayout
from bfno.lab.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["SeriesTable", "read_frame", "read_series"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SeriesTable:
    """Series from files.

    Attributes:
        series: The series, neither scaled nor split; times count from each one's first row.
        features: Name of each feature; `sex=f` is 1 where a column of words holds this one.
        classes: Name of each class, by its label.
        origins: Time of each series' first row in the files; 0 for dates.
        layout: The layout found in the table.
        begins: If times are dates, the date of each series' first row, in microseconds of UTC.
    """

    series: Series
    features: tuple[str, ...]
    classes: tuple[str, ...]
    origins: Tensor
    layout: TableLayout
    begins: Tensor | None = None

    def time_in_file(self, row: int, owner: int) -> float | str:
        """Time of a row of a series, as in the files: a number or an ISO date."""
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
    """Read series from CSV, Excel or Parquet files.

    Either one table whose rows name their series, or a folder with one table for each series,
    which is named after its file. In such a folder a table called `labels` may give each series'
    label and further columns that do not change over time. Every column but those for series,
    time and label is a feature, or several if it holds words.

    Args:
        path: The file or folder.
        layout: What is known about the tables. A note says what was detected.
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
    table = read_folder(path, layout) if is_folder else read_tables([path], layout.file)[0]
    found = _understood(table, layout, features, is_folder)
    return _series_of(found, labels, classes)


def read_frame(
    frame: pl.DataFrame, layout: TableLayout, features: tuple[str, ...] | None = None
) -> SeriesTable:
    """The series of a data frame in memory, each with at most one label; see `read_series`.

    Args:
        frame: One table, whose rows name their series.
        layout: What is known about it.
        features: Names that the features must have.

    Raises:
        DataError: If it is not as described; it names row and column.
    """
    found = _understood(frame_table("the data frame", frame), layout, features, False)
    return _series_of(found, "series", None)


def _understood(
    table: RawTable, layout: TableLayout, features: tuple[str, ...] | None, is_folder: bool
) -> Understood:
    if not len(table.frame):
        raise DataError(table.source, "holds no rows", "add rows below the column names")
    return Understood(table, layout, features, is_folder)


def _series_of(found: Understood, labels: str, classes: tuple[str, ...] | None) -> SeriesTable:
    rows = found.rows()
    series, names, firsts = to_series(rows, labels, classes)
    begins = None
    if found.times.dates is not None:
        begins, firsts = (firsts * 1e6).long() + found.times.epoch, torch.zeros_like(firsts)
    _logger.warning("%s", found.line(rows, series.by_row))
    if doubt := found.doubt(rows):
        _logger.warning("%s", doubt)
    return SeriesTable(series, rows.features, names, firsts, found.layout, begins)
