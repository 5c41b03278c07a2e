"""Combines a folder with a table of each series into one table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bfno.lab.data.listing import files_below
from bfno.lab.data.table_file import TABLE_SUFFIXES, RawTable, joined, read_tables
from bfno.lab.data.table_layout import TableLayout, find_column, require_column, require_names
from bfno.lab.errors import DataError

__all__ = ["LABELS_STEM", "OWNER", "read_folder", "series_name"]

LABELS_STEM = "labels"
"""The name, without its ending, of the table with the labels of all series."""
OWNER = "\0series"
"""The column with the name of each row's series: no file's column is called that."""

_logger = logging.getLogger(__name__)


def read_folder(folder: Path, layout: TableLayout) -> RawTable:
    """All tables of a folder, with the name of its series in each row."""
    import polars as pl

    files, labels = _series_in(folder)
    if not files:
        fix = "put one CSV, Excel or Parquet file for each series there"
        raise DataError(folder, "holds no tables of series beside labels", fix)
    tables = read_tables(list(files.values()), layout.file)
    _require_same_columns(tables, layout)
    whole = joined(folder, tables)
    counts = np.bincount(whole.places, minlength=len(whole.files))
    if not counts.all():
        fix = "add rows below the column names, or delete it"
        raise DataError(whole.files[int(counts.argmin())], "holds no rows", fix)
    owners = pl.Series(OWNER, list(files)).gather(whole.places)
    whole = replace(whole, frame=whole.frame.with_columns(owners))
    return whole if labels is None else _with_labels(whole, labels, files, layout)


def _series_in(folder: Path) -> tuple[dict[str, Path], Path | None]:
    """The file of each series in the order of names, and the file of labels."""
    paths, left_out = files_below(folder, TABLE_SUFFIXES, ("table", "tables"), nested=False)
    left_out.say(folder)
    files: dict[str, Path] = {}
    for path in paths:
        name = series_name(path)
        if name in files:
            why = f"and {files[name].name} both hold series {name!r}"
            raise DataError(path, why, "keep one of them")
        files[name] = path
    return files, files.pop(LABELS_STEM, None)


def series_name(file: Path) -> str:
    """The name of the series in a table of a folder: that of the file without its ending."""
    lower = file.name.lower()
    suffix = next((one for one in TABLE_SUFFIXES if lower.endswith(one)), file.suffix)
    return file.name[: len(file.name) - len(suffix)]


def _require_same_columns(tables: Sequence[RawTable], layout: TableLayout) -> None:
    first = tables[0].frame.columns
    label = find_column(tables[0].source, first, "label", layout.label, ())
    for table in tables[1:]:
        names = table.frame.columns
        if (label in names) != (label in first):
            why = f"differs from other files in the column {label!r}"
            raise DataError(table.source, why, "give all files that column, or none")
        require_names(table.source, names, first)


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
    keyed = beside.frame.drop(owner).with_columns(stems.alias(OWNER))
    once = keyed.unique(maintain_order=True)
    twice = once[OWNER].is_duplicated()
    if twice.any():
        name = once[OWNER].filter(twice)[0]
        index = int((stems == name).arg_true()[-1])
        why = f"series {name!r} has another label above"
        raise beside.wrong(index, why, "keep one of them", label)
    if odd := sorted(set(once[OWNER].drop_nulls()) - set(files)):
        _logger.warning("%s: %d labelled series have no file, first %r", path, len(odd), odd[0])
    frame = table.frame.join(once, on=OWNER, how="left", maintain_order="left")
    return replace(table, frame=frame)
