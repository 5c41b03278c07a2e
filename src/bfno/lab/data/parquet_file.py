"""Tables in the Parquet format."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bfno.lab.data.cells import Block
from bfno.lab.data.reading import one_line, refusing_damage
from bfno.lab.errors import ConfigError, DataError

__all__ = ["read_parquet"]

_BLOCK = 1 << 16  # rows
_CELLS = 1 << 28
_FIX = "write it again"


def read_parquet(path: Path, texts: Sequence[str]) -> tuple[tuple[str, ...], Iterator[Block]]:
    """Return the column names of a table, and its rows, the first of which is row 1.

    Args:
        path: The file.
        texts: Columns that hold names, even where these are numbers.

    Raises:
        ConfigError: If pyarrow is missing.
        DataError: If the file is damaged or of absurd size; while iterating, if a column holds
            anything but numbers, times or text.
    """
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ConfigError(
            path, "needs pyarrow, which is missing", "pip install 'bfno[parquet]'"
        ) from error
    with refusing_damage(path, _FIX):
        if not os.path.isfile(path):
            raise DataError(path, "is not there or no file", "name a table of series")
        table = parquet.ParquetFile(path)
        names = tuple(table.schema_arrow.names)
        if table.metadata.num_rows * len(names) > _CELLS:
            why = f"declares {table.metadata.num_rows:,} rows of {len(names):,} columns"
            raise DataError(path, why, "divide it into files of fewer series")
    for name, count in Counter(names).items():
        if count > 1:
            raise DataError(path, f"has the column {name!r} twice", "rename or delete one")
    return names, _blocks(path, table, texts)


def _blocks(path: Path, table: Any, texts: Sequence[str]) -> Iterator[Block]:
    first = 1
    with refusing_damage(path, _FIX), table:
        for batch in table.iter_batches(batch_size=_BLOCK):
            columns, dates = {}, set()
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                columns[name], dated = _cells(path, name, column, name in texts)
                if dated:
                    dates.add(name)
            yield Block(path, range(first, first + len(batch)), columns, frozenset(dates))
            first += len(batch)


def _cells(path: Path, name: str, column: Any, text: bool) -> tuple[list[str] | np.ndarray, bool]:
    """The cells of a column, and whether they are date-times."""
    import pyarrow as arrow

    kind = column.type
    if arrow.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    try:
        if arrow.types.is_timestamp(kind) or arrow.types.is_date(kind):
            exact = column.cast(arrow.timestamp("us")).cast(arrow.int64())
            return exact.to_numpy(zero_copy_only=False).astype(np.float64) / 1e6, True
        if text or arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
            texts = column.cast("string").to_pylist()
            return ["" if cell is None else cell for cell in texts], False
        cells = column.cast(arrow.float64(), safe=False).to_numpy(zero_copy_only=False)
        return np.asarray(cells, np.float64), False
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError) as error:
        why = f"holds {kind}, no numbers ({one_line(error)[:60]})"
        raise DataError(f"{path}, column {name!r}", why, "use numbers or text") from error
