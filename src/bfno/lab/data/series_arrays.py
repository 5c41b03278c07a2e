"""Irregular series from arrays in a Python program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bfno.lab.data.series import UNLABELLED, Series
from bfno.lab.data.series_rows import Rows, to_series
from bfno.lab.data.table_file import RawTable

__all__ = ["series_from_arrays"]

_LARGEST = float(np.finfo(np.float32).max)


def series_from_arrays(times: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> Series:
    """Make series without labels from arrays, as `read_series` does from rows of tables.

    Rows are sorted by time, those with the same time are merged, and times count from each series'
    first row.

    Args:
        times: Time of each row, `(rows,)` for each series.
        values: `(rows, features)` for each series; NaN where nothing was observed.

    Raises:
        ValueError: If arrays do not match, or hold numbers that must be finite but are not.

    Example:
        >>> import numpy as np
        >>> series = series_from_arrays([np.array([3.0, 1.0])], [np.array([[5.0], [np.nan]])])
        >>> series.times.tolist(), series.mask.flatten().tolist()
        ([0.0, 2.0], [False, True])
    """
    import polars as pl

    width = values[0].shape[1]
    for number, (moments, rows) in enumerate(zip(times, values, strict=True)):
        _check(f"series {number}", moments, rows, width)
    owners = np.repeat(np.arange(len(values)), [len(rows) for rows in values])
    within = np.concatenate([np.arange(len(rows)) for rows in values])
    names = tuple(Path(f"series {number}") for number in range(len(values)))
    rows = Rows(
        RawTable(Path("X"), pl.DataFrame(), within, names, owners, True),
        owners,
        np.concatenate(times).astype(np.float64),
        1.0,
        np.concatenate(values).astype(np.float64),
        np.full(len(owners), UNLABELLED),
        tuple(str(number) for number in range(len(values))),
        (),
        tuple(f"x{number}" for number in range(width)),
    )
    series, _, _ = to_series(rows, "series", ())
    return series


def _check(name: str, times: np.ndarray, values: np.ndarray, features: int) -> None:
    if values.ndim != 2 or times.ndim != 1 or len(times) != len(values):
        raise ValueError(
            f"{name} must have times of shape (rows,) and values of shape (rows, features), got "
            f"{times.shape} and {values.shape}"
        )
    if len(values) == 0:
        raise ValueError(f"{name} must have at least one row; leave it out")
    if values.shape[1] != features:
        raise ValueError(
            f"{name} must have {features} features as the first series, got {values.shape[1]}"
        )
    if not np.isfinite(times).all():
        raise ValueError(f"the times of {name} must be finite numbers; leave such rows out")
    with np.errstate(invalid="ignore"):
        is_large = np.abs(values) > _LARGEST
    if is_large.any():
        raise ValueError(
            f"the values of {name} must be smaller than 3.4e38, or NaN where nothing was observed"
        )
