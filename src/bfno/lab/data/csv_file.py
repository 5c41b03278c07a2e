"""Tables as text with commas, read strictly and in bounded memory."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bfno.lab.data.cells import Block
from bfno.lab.data.reading import one_line, refusing_damage
from bfno.lab.errors import DataError

__all__ = ["read_csv"]

_LIMIT = 1 << 30  # bytes
_BLOCK = 1 << 14  # rows
_FIX = "write it as UTF-8 text with commas and one line of column names"


def read_csv(path: Path) -> tuple[tuple[str, ...], Iterator[Block]]:
    """Return the column names of a table, and its rows.

    Row numbers are those of the file's lines; the names are in row 1. Empty lines are passed over.

    Raises:
        DataError: If the file is no such table; while iterating, if a row is malformed.
    """
    text = _text(path)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = _Rows(path, reader, text)
    names = rows.header()
    return names, rows.blocks(names)


def _text(path: Path) -> str:
    with refusing_damage(path, _FIX):
        # Anything but a regular file may never end.
        if not os.path.isfile(path):
            raise DataError(path, "is not there or no file", "name a table of series")
        size = os.stat(path).st_size
        if size > _LIMIT:
            why = f"has {size / 2**30:.1f} GB, more than {_LIMIT >> 30}"
            raise DataError(path, why, "divide it, or write it as Parquet")
        with open(path, "rb") as stream:
            content = stream.read(_LIMIT)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = content[: error.start].count(b"\n") + 1
        raise DataError(f"{path}, row {row}", "is not UTF-8 text", _FIX) from error
    if "\0" in text:
        raise DataError(path, "holds zero bytes, so it is no text", _FIX)
    return text


class _Rows:
    """The rows of a table, each of which must have as many cells as there are names."""

    def __init__(self, path: Path, reader: Iterator[list[str]], text: str) -> None:
        self._path, self._reader = path, reader
        self._whole = text.endswith(("\n", "\r"))

    def header(self) -> tuple[str, ...]:
        row = self._next()
        if row is None:
            raise DataError(self._path, "is empty", _FIX)
        names = tuple(cell.strip() for cell in row)
        where = f"{self._path}, row 1"
        for name, count in Counter(names).items():
            if not name:
                number = names.index(name) + 1
                raise DataError(where, f"column {number} has no name", "name or delete it")
            if count > 1:
                raise DataError(where, f"has the column {name!r} twice", "rename or delete one")
        if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
            raise DataError(where, "the cells are not separated by commas", _FIX)
        return names

    def blocks(self, names: tuple[str, ...]) -> Iterator[Block]:
        rows: list[list[str]] = []
        numbers: list[int] = []
        while (row := self._next()) is not None:
            if len(row) != len(names):
                raise self._misshapen(row, len(names))
            rows.append(row)
            numbers.append(self._number)
            if len(rows) == _BLOCK:
                yield self._block(names, rows, numbers)
                rows, numbers = [], []
        if rows:
            yield self._block(names, rows, numbers)

    @property
    def _number(self) -> int:
        return getattr(self._reader, "line_num", 0)

    def _block(self, names: tuple[str, ...], rows: list[list[str]], numbers: list[int]) -> Block:
        return Block(self._path, numbers, dict(zip(names, zip(*rows, strict=True), strict=True)))

    def _next(self) -> list[str] | None:
        try:
            while (row := next(self._reader, None)) == []:
                pass
        except csv.Error as error:
            where = f"{self._path}, row {self._number}"
            if "unexpected end of data" in str(error):
                why = "the file is cut off inside quotation marks"
                raise DataError(where, why, "get the file again") from error
            raise DataError(where, f"is malformed ({one_line(error)})", _FIX) from error
        return row

    def _misshapen(self, row: list[str], count: int) -> DataError:
        where = f"{self._path}, row {self._number}"
        why = f"has {len(row)} cells instead of {count}"
        if len(row) < count and not self._whole and next(self._reader, None) is None:
            return DataError(where, f"{why}: the last line is cut off", "get the file again")
        return DataError(where, why, "give each row one cell for each column")
