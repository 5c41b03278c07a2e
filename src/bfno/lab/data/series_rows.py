"""Combines the rows of tables into series."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bfno.lab.data.series import UNLABELLED, Series
from bfno.lab.data.table_file import RawTable
from bfno.lab.data.table_layout import nearest

__all__ = ["Rows", "static_features", "to_series"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rows:
    """Rows of one or more tables in the order of the files.

    Attributes:
        table: The table they come from.
        owners: The series that each row belongs to.
        times: Time of each row; seconds for dates.
        unit: How many of these units make one unit of the result.
        values: `(rows, features)` in double precision, NaN for missing values.
        labels: Number of each row's label in `label_names`, or `UNLABELLED`.
        ids: Name of each series, in the order of their first rows.
        label_names: Every label, in the order of their first rows.
        features: Name of each feature.
    """

    table: RawTable
    owners: np.ndarray
    times: np.ndarray
    unit: float
    values: np.ndarray
    labels: np.ndarray
    ids: tuple[str, ...]
    label_names: tuple[str, ...]
    features: tuple[str, ...]


def static_features(rows: Rows) -> tuple[str, ...]:
    """Names of the features that change between series, but not within any series."""
    order = np.argsort(rows.owners, kind="stable")
    places = np.flatnonzero(np.diff(rows.owners[order], prepend=-1))
    if len(places) == len(order):
        return ()
    found = []
    for name, column in zip(rows.features, rows.values.T, strict=True):
        ordered = column[order]
        least, most = np.fmin.reduceat(ordered, places), np.fmax.reduceat(ordered, places)
        seen = ~np.isnan(least)  # NaN only where nothing is observed
        often = np.count_nonzero(~np.isnan(ordered)) > np.count_nonzero(seen)
        if often and (least[seen] == most[seen]).all() and np.ptp(least[seen]) > 0:
            found.append(name)
    return tuple(found)


def to_series(
    rows: Rows, labels: str, classes: tuple[str, ...] | None
) -> tuple[Series, tuple[str, ...], Tensor]:
    """Sort the rows, merge those with the same time, and count times from each series' first row.

    Args:
        rows: The rows.
        labels: `series`, `row` or `auto`.
        classes: Name of each class; None takes the labels that occur, in order.

    Returns:
        The series, the classes, and the time of each series' first row.

    Raises:
        DataError: If labels contradict each other or are unknown.
    """
    order = np.lexsort((rows.times, rows.owners))
    owners, moments = rows.owners[order], rows.times[order]
    firsts = moments[np.searchsorted(owners, np.arange(len(rows.ids)))]
    with np.errstate(over="ignore"):
        moments = moments - firsts[owners]
    if not np.isfinite(moments).all():
        index = int(order[int((~np.isfinite(moments)).argmax())])
        raise rows.table.wrong(index, "its time is too far from the first", "use smaller times")
    begins = (np.diff(owners, prepend=-1) != 0) | (np.diff(moments, prepend=np.nan) != 0)
    _notice(rows, int((~begins).sum()))
    values, mask = _merged(rows.values[order], begins)
    classes = _classes(rows) if classes is None else classes
    codes = _codes(rows, classes)
    by_row = labels == "row" or (labels == "auto" and _first_conflict(codes, rows.owners) >= 0)
    found = (
        _row_labels(rows, codes, order, begins, classes)
        if by_row
        else _series_labels(rows, codes, classes)
    )
    starts = np.searchsorted(owners[begins], np.arange(len(rows.ids) + 1))
    series = Series(
        torch.from_numpy(moments[begins] / rows.unit),
        torch.from_numpy(values),
        torch.from_numpy(mask),
        torch.from_numpy(found),
        torch.from_numpy(starts),
        rows.ids,
        by_row,
    )
    return series, classes, torch.from_numpy(firsts)


def _notice(rows: Rows, merged: int) -> None:
    grouped = np.argsort(rows.owners, kind="stable")
    same = np.diff(rows.owners[grouped]) == 0
    back = same & (np.diff(rows.times[grouped]) < 0)
    if back.any():
        count = len(np.unique(rows.owners[grouped][1:][back]))
        _logger.warning("%s: sorted %d series by time", rows.table.source, count)
    if merged:
        _logger.warning(
            "%s: merged %d rows with others of the same time", rows.table.source, merged
        )
    for name, column in zip(rows.features, rows.values.T, strict=True):
        if np.isnan(column).all():
            _logger.warning("%s: feature %r is never observed", rows.table.source, name)


def _merged(values: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean of the observed values in each group of rows, zero if there are none."""
    mask = ~np.isnan(values)
    values = np.where(mask, values, 0.0)
    if begins.all():
        return values, mask
    places = np.flatnonzero(begins)
    counts = np.add.reduceat(mask, places, dtype=np.int64)
    sums = np.add.reduceat(values, places)
    return sums / np.maximum(counts, 1), counts > 0


def _classes(rows: Rows) -> tuple[str, ...]:
    """Labels in numerical order if all are numbers, or else in alphabetical order."""
    try:
        return tuple(sorted(rows.label_names, key=lambda name: (float(name), name)))
    except ValueError:
        return tuple(sorted(rows.label_names))


def _codes(rows: Rows, classes: tuple[str, ...]) -> np.ndarray:
    """Class of each row in the order of the files."""
    place = {name: number for number, name in enumerate(classes)}
    for number, name in enumerate(rows.label_names):
        if name not in place:
            index = int((rows.labels == number).argmax())
            shown = f"the label {name[:40]!r} is unknown"
            raise rows.table.wrong(index, shown, f"use a known class; {nearest(name, classes)}")
    # The last entry is that of rows without label, whose number is -1.
    in_order = [*(place[name] for name in rows.label_names), UNLABELLED]
    return np.array(in_order, np.int64)[rows.labels]


def _first_conflict(codes: np.ndarray, groups: np.ndarray) -> int:
    """Index of the first row whose label is not that of its group's first; -1 if all agree."""
    labelled = np.flatnonzero(codes != UNLABELLED)
    found, place = np.unique(groups[labelled], return_index=True)
    first = np.full(int(groups.max()) + 1, UNLABELLED)
    first[found] = codes[labelled[place]]
    conflicts = labelled[codes[labelled] != first[groups[labelled]]]
    return int(conflicts.min()) if len(conflicts) else -1


def _series_labels(rows: Rows, codes: np.ndarray, classes: tuple[str, ...]) -> np.ndarray:
    index = _first_conflict(codes, rows.owners)
    if index >= 0:
        why = f"series {rows.ids[rows.owners[index]]!r} has the label {classes[codes[index]]!r}"
        fix = "give each series one label, or say that every row has its own (labels=row)"
        raise rows.table.wrong(index, f"{why}, but another one above", fix)
    labels = np.full(len(rows.ids), UNLABELLED, np.int64)
    labelled = codes != UNLABELLED
    labels[rows.owners[labelled]] = codes[labelled]
    return labels


def _row_labels(
    rows: Rows,
    codes: np.ndarray,
    order: np.ndarray,
    begins: np.ndarray,
    classes: tuple[str, ...],
) -> np.ndarray:
    groups = np.empty_like(order)
    groups[order] = np.cumsum(begins) - 1
    index = _first_conflict(codes, groups)
    if index >= 0:
        why = f"has the label {classes[codes[index]]!r}, but another row of the same time differs"
        raise rows.table.wrong(index, why, "give each time of a series one label")
    labels = np.full(int(begins.sum()), UNLABELLED, np.int64)
    labelled = codes != UNLABELLED
    labels[groups[labelled]] = codes[labelled]
    return labels
