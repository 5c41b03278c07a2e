"""Series of one's own: a table of all of them, or a folder with a table of each."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from bfno.lab.data.cells import Block, words
from bfno.lab.data.csv_file import read_csv
from bfno.lab.data.parquet_file import read_parquet
from bfno.lab.data.reading import refusing_damage
from bfno.lab.data.series import Series
from bfno.lab.data.series_rows import RowsBuilder, nearest, to_series
from bfno.lab.errors import ConfigError, DataError

__all__ = ["SeriesTable", "read_series"]

_LOG = logging.getLogger(__name__)
_PARQUET = (".parquet", ".pq")
_SUFFIXES = (".csv", *_PARQUET)
_LABELS_FILE = "labels.csv"


@dataclass(frozen=True)
class SeriesTable:
    """Series as files give them.

    Attributes:
        series: The series, neither scaled nor divided; times count from each one's first row.
        features: Name of each feature.
        classes: Name of each class, by its label.
        origins: Time of each series' first row in the files.
    """

    series: Series
    features: tuple[str, ...]
    classes: tuple[str, ...]
    origins: Tensor


def read_series(
    path: Path,
    *,
    columns: tuple[str, str, str] = ("id", "time", "label"),
    labels: str = "auto",
    features: tuple[str, ...] | None = None,
    classes: tuple[str, ...] | None = None,
) -> SeriesTable:
    """Read series out of CSV or Parquet files.

    Either one table whose rows name their series, or a folder with one table for each series,
    which is named after its file. In such a folder `labels.csv` may give each series' label.
    Every column but those for series, time and label is a feature.

    Args:
        path: The file or folder.
        columns: Names of the columns with series, time and label. The last may be missing.
        labels: Whether each `series` or each `row` has a label. `auto` means rows if there is a
            series with two labels.
        features: Names that the features must have; their order is that of the result.
        classes: Names that the labels must have.

    Raises:
        ConfigError: If a setting is out of range, or pyarrow is missing for a Parquet file.
        DataError: If a file is not as described; it names file, row and column.
    """
    if labels not in ("series", "row", "auto"):
        raise ConfigError("labels", f"{labels!r} is unknown", "use series, row or auto")
    if len(set(columns)) != 3:
        raise ConfigError("columns", f"{columns} are not three names", "use id, time, label")
    path = Path(path)
    builder = _read_folder if os.path.isdir(path) else _read_file
    rows = builder(path, columns, features).rows()
    series, found, origins = to_series(rows, labels, classes)
    return SeriesTable(series, rows.features, found, origins)


def _open(path: Path, columns: Sequence[str]) -> tuple[tuple[str, ...], Iterator[Block]]:
    if path.suffix.lower() in _PARQUET:
        return read_parquet(path, (columns[0], columns[2]))
    return read_csv(path)


def _read_file(
    path: Path, columns: tuple[str, str, str], features: tuple[str, ...] | None
) -> RowsBuilder:
    names, blocks = _open(path, columns)
    name, time, label = columns
    _require(path, names, name, "with the names of the series")
    _require(path, names, time, "with times")
    found = _features(path, names, columns, features)
    builder = RowsBuilder(path, found, time, label if label in names else None)
    for block in blocks:
        ids = words(block, name)
        if "" in ids:
            raise block.wrong(ids.index(""), name, "names no series", "give each row its series")
        builder.add(block, ids)
    return builder


def _read_folder(
    folder: Path, columns: tuple[str, str, str], features: tuple[str, ...] | None
) -> RowsBuilder:
    _, time, label = columns
    files = _series_in(folder)
    given = _read_labels(folder / _LABELS_FILE, columns, files)
    builder, with_label = None, False
    for name, path in files.items():
        names, blocks = _open(path, columns)
        _require(path, names, time, "with times")
        if given is not None and label in names:
            why = f"has a column {label!r} beside {_LABELS_FILE}"
            raise DataError(path, why, "give labels in one place only")
        if builder is None:
            features, with_label = _features(path, names, columns, features), label in names
            builder = RowsBuilder(folder, features, time, label if with_label or given else None)
        _features(path, names, columns, features)
        if with_label != (label in names):
            why = f"differs from other files in the column {label!r}"
            raise DataError(path, why, "give all files that column, or none")
        _add_all(builder, blocks, name, path, None if given is None else (label, given))
    if builder is None:
        fix = "put one CSV or Parquet file for each series there"
        raise DataError(folder, "holds no tables of series", fix)
    return builder


def _add_all(
    builder: RowsBuilder,
    blocks: Iterator[Block],
    name: str,
    path: Path,
    given: tuple[str, dict[str, str]] | None,
) -> None:
    empty = True
    for block in blocks:
        if given is not None:
            label, labels = given
            block.columns[label] = [labels.get(name, "")] * len(block.rows)
        builder.add(block, [name] * len(block.rows))
        empty = False
    if empty:
        raise DataError(path, "holds no rows", "add rows below the column names, or delete it")


def _series_in(folder: Path) -> dict[str, Path]:
    """The file of each series, in the order of their names."""
    with refusing_damage(folder, "give yourself access"):
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    files: dict[str, Path] = {}
    for path in paths:
        if path.suffix.lower() not in _SUFFIXES or path.name == _LABELS_FILE:
            continue
        if path.stem in files:
            why = f"and {files[path.stem].name} both hold series {path.stem!r}"
            raise DataError(path, why, "keep one of them")
        files[path.stem] = path
    return files


def _read_labels(
    path: Path, columns: tuple[str, str, str], files: dict[str, Path]
) -> dict[str, str] | None:
    """Label of each series that the file beside the tables names; None if there is no such file."""
    if not os.path.isfile(path):
        return None
    names, blocks = read_csv(path)
    name, _, label = columns
    _require(path, names, name, "with the names of the series")
    _require(path, names, label, "with labels")
    found: dict[str, str] = {}
    for block in blocks:
        # A series is named after its file, which may well be called 1.0.csv.
        stems = [str(cell).strip() for cell in block.columns[name]]
        for index, (stem, word) in enumerate(zip(stems, words(block, label), strict=True)):
            if found.setdefault(stem, word) != word:
                why = f"series {stem!r} has another label above"
                raise block.wrong(index, label, why, "keep one of them")
    if odd := sorted(set(found) - set(files)):
        _LOG.warning("%s: %d labelled series have no file, first %r", path, len(odd), odd[0])
    return found


def _require(path: Path, names: tuple[str, ...], name: str, what: str) -> None:
    if name not in names:
        why = f"has no column {name!r} {what}"
        raise DataError(path, why, f"add or rename a column; {nearest(name, names)}")


def _features(
    path: Path,
    names: tuple[str, ...],
    columns: tuple[str, str, str],
    wanted: tuple[str, ...] | None,
) -> tuple[str, ...]:
    """Names of the features in their order, after comparing them with those that must be there."""
    found = tuple(name for name in names if name not in columns)
    if not found:
        raise DataError(path, "has no feature", "add a column with values")
    if wanted is None:
        return found
    known, there = set(wanted), set(found)
    for name in wanted:
        if name not in there:
            fix = f"add or rename a column; {nearest(name, found)}"
            raise DataError(path, f"lacks the feature {name!r}", fix)
    for name in found:
        if name not in known:
            fix = f"rename or delete it; {nearest(name, wanted)}"
            raise DataError(path, f"the feature {name!r} is unknown", fix)
    return wanted
