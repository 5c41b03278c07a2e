"""Reads tables from files with polars: CSV in its dialects, Excel and Parquet."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bfno.lab.data.reading import one_line, refusing_damage
from bfno.lab.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["SEPARATORS", "TABLE_SUFFIXES", "FileFormat", "RawTable", "frame_table", "joined"]
__all__ += ["read_tables"]

_EXCEL = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
_PARQUET = (".parquet", ".pq")
TABLE_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", *_EXCEL, *_PARQUET)
"""Endings of files that are tables of series; one with another ending is read as text."""
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
"""Possible separators of cells, by their names in settings."""

_GZIP = b"\x1f\x8b"  # how such a file begins, and no text
_LIMIT = 1 << 30  # bytes of text
_CELLS = 1 << 28
_SAMPLE = 100  # rows that decide on the separator
_NO_FILE = "is missing or not a file"
_TEXT_FIX = "write it as CSV with one line of column names"
_CODEC_FIX = "name the encoding with --set data.encoding=NAME, or write it as UTF-8"
_NAMES_FIX = "name or delete it, and delete lines above the column names"


@dataclass(frozen=True)
class FileFormat:
    """How cells are stored in a file; None is detected.

    Attributes:
        sheet: Sheet of an Excel file.
        separator: Separator of cells in text, a name in `SEPARATORS`.
        encoding: Encoding of text.
    """

    sheet: str | None = None
    separator: str | None = None
    encoding: str | None = None


@dataclass(frozen=True)
class RawTable:
    """The cells of a table, or of several tables one below the other.

    Attributes:
        source: The file or folder.
        frame: The cells; text has no blanks at its ends, an empty cell is null.
        numbers: Number of each row in its file.
        files: The files.
        places: Number of each row's file among these.
        is_typed: Whether the file itself marks which cells are numbers, as in Excel.
        remarks: What was detected about the files, for the user.
    """

    source: Path
    frame: pl.DataFrame
    numbers: np.ndarray
    files: tuple[Path, ...]
    places: np.ndarray
    is_typed: bool = False
    remarks: tuple[str, ...] = ()

    def wrong(self, index: int, why: str, fix: str, column: str | None = None) -> DataError:
        """Return the error about one row, or about its cell in a column."""
        where = f"{self.files[self.places[index]]}, row {self.numbers[index]}"
        return DataError(where if column is None else f"{where}, column {column!r}", why, fix)


def read_tables(paths: Sequence[Path], wanted: FileFormat) -> list[RawTable]:
    """Read the cells of files; text files with the same columns in sequence become one table.

    The number of a row is that of the line or of the sheet's row; Parquet counts from 1. Rows
    without any cell are skipped.

    Raises:
        ConfigError: If polars or fastexcel is missing.
        DataError: If a file is not a table, damaged, malformed or of absurd size.
    """
    opened = (_open(path, wanted) for path in paths)
    return [_compact(_one_table(list(group))) for _, group in groupby(opened, key=_kind)]


def frame_table(name: str, frame: pl.DataFrame) -> RawTable:
    """The cells of a data frame in memory, whose rows are counted from 0.

    Args:
        name: What messages call it.
        frame: The frame.
    """
    numbers, source = np.arange(len(frame)), Path(name)
    return _compact(RawTable(source, frame, numbers, (source,), np.zeros_like(numbers), True))


def joined(source: Path, tables: Sequence[RawTable]) -> RawTable:
    """Put tables with the same columns one below the other."""
    pl = _polars(source)
    names = tables[0].frame.columns
    frames = [table.frame.select(names) for table in tables]
    if len({tuple(frame.dtypes) for frame in frames}) > 1:
        frames = [frame.cast(pl.String) for frame in frames]
    before = np.cumsum([0, *(len(table.files) for table in tables)])
    return RawTable(
        source,
        pl.concat(frames),
        np.concatenate([table.numbers for table in tables]),
        tuple(file for table in tables for file in table.files),
        np.concatenate([table.places + n for table, n in zip(tables, before[:-1], strict=True)]),
        all(table.is_typed for table in tables),
        tuple(dict.fromkeys(remark for table in tables for remark in table.remarks)),
    )


def _open(path: Path, wanted: FileFormat) -> RawTable | _Text:
    if not os.path.isfile(path):  # anything but a regular file may never end
        raise DataError(path, _NO_FILE, "name a table of series")
    suffix = path.suffix.lower()
    if suffix in _PARQUET:
        return _read_parquet(path)
    if suffix in _EXCEL:
        return _read_excel(path, wanted.sheet)
    return _read_text(path, wanted)


def _one_table(opened: list[Any]) -> RawTable:
    return opened[0] if isinstance(opened[0], RawTable) else _parsed(opened)


def _kind(opened: RawTable | _Text) -> object:
    return opened.files if isinstance(opened, RawTable) else (opened.names, opened.separator)


def _polars(path: Path) -> Any:
    try:
        import polars
    except ImportError as error:
        why, fix = "needs polars, which is missing", "pip install 'bfno[train]'"
        raise ConfigError(path, why, fix) from error
    return polars


@contextmanager
def _refusing(path: Path, fix: str) -> Iterator[None]:
    """Like `refusing_damage`, but also for panics of polars, which are not Python exceptions."""
    import polars

    try:
        with refusing_damage(path, fix):
            yield
    except polars.exceptions.PanicException as error:
        raise DataError(path, f"is damaged ({one_line(error)})", fix) from error


def _compact(table: RawTable) -> RawTable:
    """The table without blanks around cells, empty rows and nameless empty columns."""
    pl = _polars(table.source)
    frame = table.frame.clone()
    for place, dtype in enumerate(frame.dtypes):  # one by one, so that memory holds one twice
        if dtype == pl.String:
            stripped = frame.to_series(place).str.strip_chars()
            if (stripped == "").any():
                stripped = stripped.replace("", None)
            frame.replace_column(place, stripped)
    filled = ~frame.select(pl.all_horizontal(pl.all().is_null())).to_series()
    if filled.all():
        return replace(table, frame=frame)
    kept = filled.to_numpy()
    return replace(
        table, frame=frame.filter(filled), numbers=table.numbers[kept], places=table.places[kept]
    )


def _named(path: Path, row: int, frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Name the columns; those without a name may only be empty, or count the rows.

    Excel leaves empty columns behind, and pandas writes the number of each row before it.

    Raises:
        DataError: If a column with cells has no name, or two have the same.
    """
    where = f"{path}, row {row}" if row else path
    for name, count in Counter(name for name in names if name).items():
        if count > 1:
            raise DataError(where, f"has the column {name!r} twice", "rename or delete one")
    kept = []
    for place, name in enumerate(names):
        column = frame.to_series(place)
        if not name and (column.null_count() == len(column) or _counts_rows(place, column)):
            continue
        if not name:
            raise DataError(where, f"column {place + 1} has no name", _NAMES_FIX)
        kept.append(column.alias(name))
    return type(frame)(kept)


def _counts_rows(place: int, column: pl.Series) -> bool:
    if place or len(column) < 2:
        return False
    head = column.head(1000).to_list()
    return head in ([str(k) for k in range(len(head))], [str(k + 1) for k in range(len(head))])


# Text.


@dataclass(frozen=True)
class _Text:
    """A text file that was checked, but not yet split into cells."""

    path: Path
    line: int
    names: tuple[str, ...]
    separator: str
    body: bytes
    numbers: np.ndarray
    remarks: tuple[str, ...]


def _read_text(path: Path, wanted: FileFormat) -> _Text:
    content, remarks = _utf8(path, _bytes(path), wanted.encoding)
    separator, guessed = _separator(path, content, wanted.separator)
    records = _records(content, separator)
    with _malformed(path, records):
        names = next((row for row in records if "".join(row).strip()), None)
    if names is None:
        raise DataError(path, "is empty", _TEXT_FIX)
    line = records.line_num
    body = content[_end_of_line(content, line) :]
    numbers = _row_numbers(path, body, separator, len(names), line)
    if guessed:
        remarks = ("tabs" if separator == "\t" else repr(separator), *remarks)
    stripped = tuple(name.strip() for name in names)
    return _Text(path, line, stripped, separator, body, numbers, remarks)


def _parsed(texts: Sequence[_Text]) -> RawTable:
    """Split the rows of text files with the same columns into cells."""
    first = texts[0]
    pl = _polars(first.path)
    numbers = np.concatenate([text.numbers for text in texts])
    places = np.repeat(np.arange(len(texts)), [len(text.numbers) for text in texts])
    schema = {str(place): pl.String for place in range(len(first.names))}
    frame = pl.DataFrame(schema=schema)
    if len(numbers):
        body = first.body if len(texts) == 1 else b"".join(_ended(text.body) for text in texts)
        frame = _cut(first.path, body, first.separator, schema, len(numbers))
    frame = _named(first.path, first.line, frame, first.names)
    remarks = tuple(dict.fromkeys(remark for text in texts for remark in text.remarks))
    files = tuple(text.path for text in texts)
    return RawTable(first.path, frame, numbers, files, places, False, remarks)


def _ended(body: bytes) -> bytes:
    return body if not body or body.endswith(b"\n") else body + b"\n"


def _bytes(path: Path) -> bytes:
    with refusing_damage(path, _TEXT_FIX):
        size = os.stat(path).st_size
        if size > _LIMIT:
            why = f"has {size / 2**30:.1f} GB, more than {_LIMIT >> 30}"
            raise DataError(path, why, "divide it, or write it as Parquet")
        with open(path, "rb") as stream:
            content = stream.read(_LIMIT)
    return _unpacked(path) if content.startswith(_GZIP) else content


def _unpacked(path: Path) -> bytes:
    """The text in a gzipped file."""
    with refusing_damage(path, "get the file again"), gzip.open(path) as stream:
        content = stream.read(_LIMIT + 1)
    if len(content) > _LIMIT:
        why = f"unpacks to more than {_LIMIT >> 30} GB"
        raise DataError(path, why, "divide it, or write it as Parquet")
    return content


def _utf8(path: Path, content: bytes, encoding: str | None) -> tuple[bytes, tuple[str, ...]]:
    """The text as UTF-8 with plain line ends, and what to say about its encoding."""
    name = encoding or _encoding(path, content)
    try:
        text = content.decode(name)
    except LookupError as error:
        raise ConfigError(
            "data.encoding", f"{name!r} is unknown", "use, for example, utf-8"
        ) from error
    except UnicodeDecodeError as error:
        row = content[: error.start].count(b"\n") + 1
        raise DataError(f"{path}, row {row}", f"is not {name} text", _CODEC_FIX) from error
    if "\0" in text:
        raise DataError(path, "holds zero bytes, so it is not text", _TEXT_FIX)
    if name not in ("utf-8", "ascii"):
        content = text.encode("utf-8", "replace")
    content = content.removeprefix(codecs.BOM_UTF8)  # of an encoding that says nothing of it
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return content, () if name.startswith("utf-8") else (_CODEC_TITLES.get(name, name),)


_CODEC_TITLES = {"cp1252": "Windows-1252", "utf-16": "UTF-16"}
_CODEC_TITLES |= {f"utf-16-{end}": "UTF-16" for end in ("le", "be")}


def _encoding(path: Path, content: bytes) -> str:
    """UTF-16 if it has its marks or zeros, or else UTF-8, or else Western European Windows text.

    Raises:
        DataError: If it is UTF-8 with some wrong bytes, or not text at all.
    """
    if content.startswith(b"\xef\xbb\xbf"):
        return "utf-8-sig"
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    head = content[:2000]
    if len(head) > 3 and (zeros := head.count(b"\0")) * 3 > len(head):
        return "utf-16-le" if head[1::2].count(b"\0") > zeros / 2 else "utf-16-be"
    try:
        content.decode("utf-8")
        return "utf-8"
    except UnicodeDecodeError as error:
        # Two bytes that are a letter of UTF-8 are next to impossible in Windows-1252: "Ã«".
        damaged = re.search(rb"[\xc3-\xf4][\x80-\xbf]", content) is not None
        control = re.search(rb"[\x81\x8d\x8f\x90\x9d\x00-\x08\x0e-\x1a]", content) is not None
        if damaged or control:
            row = content[: error.start].count(b"\n") + 1
            raise DataError(f"{path}, row {row}", "is not UTF-8 text", _CODEC_FIX) from error
    return "cp1252"


def _separator(path: Path, content: bytes, wanted: str | None) -> tuple[str, bool]:
    """Find the separator of cells; return whether it was detected and is not the comma.

    It splits the first rows into equally many cells; of several such, it gives the most cells.

    Raises:
        DataError: If two do so equally well.
    """
    if wanted is not None:
        return SEPARATORS[wanted], False
    widths = {mark: _widths(content, mark) for mark in SEPARATORS.values()}
    held = {mark: found for mark, found in widths.items() if found and found[0] > 1}
    even = {mark: found[0] for mark, found in held.items() if len(set(found)) == 1}
    ranked = sorted((even or {mark: found[0] for mark, found in held.items()}).items(), key=_width)
    if not ranked:
        return ",", False
    if even and len(ranked) > 1 and ranked[-1][1] == ranked[-2][1]:
        first, second = ranked[-2][0], ranked[-1][0]
        why = f"its cells may be separated by {first!r} or by {second!r}"
        raise DataError(path, why, f"say --set data.separator={' or '.join(SEPARATORS)}")
    return ranked[-1][0], ranked[-1][0] != ","


def _width(candidate: tuple[str, int]) -> int:
    return candidate[1]


def _widths(content: bytes, mark: str) -> list[int]:
    """Number of cells in each of the first rows, as far as these are well-formed."""
    records, found = _records(content, mark), []
    try:
        for row in records:
            if row:
                found.append(len(row))
            if len(found) > _SAMPLE:
                break
    except csv.Error:
        pass
    # A line that is cut off says nothing about the separator.
    return found[:-1] if len(found) > 2 and not content.endswith(b"\n") else found


def _records(content: bytes, separator: str) -> Any:
    text = io.TextIOWrapper(io.BytesIO(content), "utf-8", newline="")
    return csv.reader(text, delimiter=separator, strict=True)


def _end_of_line(content: bytes, number: int) -> int:
    place = -1
    for _ in range(number):
        place = content.find(b"\n", place + 1)
        if place < 0:
            return len(content)
    return place + 1


def _row_numbers(path: Path, body: bytes, separator: str, width: int, line: int) -> np.ndarray:
    """Number of each row in the file, after checking that all have as many cells as the first.

    Raises:
        DataError: If one has a different number, or misplaced quotation marks.
    """
    mark = separator.encode()
    skeleton = _ended(body).translate(None, bytes({*range(256)} - {*mark, *b'\n"'}))
    lines = skeleton.count(b"\n")
    if skeleton == (mark * (width - 1) + b"\n") * lines:
        return np.arange(line + 1, line + 1 + lines)
    records, found = _records(body, separator), []
    with _malformed(path, records, line):
        for row in records:
            found.append(line + records.line_num)
            if len(row) != width and "".join(row).strip():
                raise _misshapen(path, found[-1], len(row), width, body, records)
    return np.array(found, np.int64)


def _misshapen(
    path: Path, number: int, count: int, width: int, body: bytes, records: Any
) -> DataError:
    why = f"has {count} cells instead of {width}"
    if count < width and not body.endswith(b"\n") and next(records, None) is None:
        why += ": the last line is cut off"
        return DataError(f"{path}, row {number}", why, "get the file again")
    return DataError(f"{path}, row {number}", why, "give each row one cell for each column")


@contextmanager
def _malformed(path: Path, records: Any, line: int = 0) -> Iterator[None]:
    try:
        yield
    except csv.Error as error:
        where = f"{path}, row {line + records.line_num}"
        if "unexpected end of data" in str(error):
            why = "the file is cut off inside quotation marks"
            raise DataError(where, why, "get the file again") from error
        raise DataError(where, f"is malformed ({one_line(error)})", _TEXT_FIX) from error


def _cut(path: Path, body: bytes, separator: str, schema: Any, count: int) -> pl.DataFrame:
    pl = _polars(path)
    quote = '"' if b'"' in body else None
    options = {"has_header": False, "separator": separator, "quote_char": quote}
    try:
        frame = pl.read_csv(body, schema=schema, **options)
        if len(frame) == count:
            return frame
    except pl.exceptions.PolarsError:
        pass
    # Polars is stricter than most programs about quotation marks within a cell, as in 5'10".
    blank = [""] * len(schema)
    rows = [row if "".join(row).strip() else blank for row in _records(body, separator)]
    return pl.DataFrame(rows, schema=schema, orient="row")


# Excel and Parquet.


def _read_excel(path: Path, sheet: str | None) -> RawTable:
    pl = _polars(path)
    try:
        import fastexcel
    except ImportError as error:
        why, fix = "needs fastexcel, which is missing", "pip install 'bfno[train]'"
        raise ConfigError(path, why, fix) from error
    fix = "save it again, or as CSV"
    with _refusing(path, fix):
        _refuse_vast_sheets(path)
        book = fastexcel.read_excel(path)
        name, remarks = _sheet(path, book.sheet_names, sheet)
        cells = book.load_sheet(name, header_row=None, skip_rows=0, dtypes="string")
        frame = cells.to_polars()
    if not len(frame):
        raise DataError(path, f"the sheet {name!r} is empty", "name another with data.sheet")
    blank = pl.all_horizontal((pl.all().str.strip_chars() == "").fill_null(True))
    first = int((~frame.select(blank).to_series()).arg_max() or 0)
    names = [(cell or "").strip() for cell in frame.row(first)]
    frame = _named(path, first + 1, frame.slice(first + 1), names)
    numbers = np.arange(first + 2, first + 2 + len(frame))
    places = np.zeros(len(frame), np.int64)
    return RawTable(path, frame, numbers, (path,), places, True, remarks)


def _sheet(path: Path, names: list[str], wanted: str | None) -> tuple[str, tuple[str, ...]]:
    if not names:
        raise DataError(path, "has no sheets", "save it again")
    if wanted is None or len(names) == 1:
        more = (f"sheet {names[0]!r}, the first of {len(names)}",) if len(names) > 1 else ()
        return names[0], more
    if wanted not in names:
        raise DataError(path, f"has no sheet {wanted!r}", f"name one of {', '.join(names)}")
    return wanted, (f"sheet {wanted!r}",)


def _refuse_vast_sheets(path: Path) -> None:
    """Refuse a workbook that would not fit into memory, by its own declarations."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
        if size > 4 * _LIMIT:
            why = f"holds {size / 2**30:.1f} GB of text"
            raise DataError(path, why, "divide it, or write it as Parquet")
        for entry in archive.namelist():
            if entry.startswith("xl/worksheets/") and entry.endswith(".xml"):
                with archive.open(entry) as stream:
                    _refuse_vast_dimension(path, stream.read(4096))


def _refuse_vast_dimension(path: Path, head: bytes) -> None:
    found = re.search(rb'<dimension ref="[A-Z]+\d+:([A-Z]+)(\d+)"', head)
    if found is None:
        return
    columns = 0
    for letter in found[1]:
        columns = 26 * columns + letter - ord("A") + 1
    if columns * int(found[2]) > _CELLS:
        why = f"declares {int(found[2]):,} rows of {columns:,} columns"
        raise DataError(path, why, "delete the cells far from the table")


def _read_parquet(path: Path) -> RawTable:
    pl = _polars(path)
    with _refusing(path, "write it again"):
        lazy = pl.scan_parquet(path)
        schema = lazy.collect_schema()
        rows = int(lazy.select(pl.len()).collect().item())
        if rows * len(schema) > _CELLS:
            why = f"declares {rows:,} rows of {len(schema):,} columns"
            raise DataError(path, why, "divide it into files of fewer series")
        frame = lazy.collect()
    frame = frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
    frame = _named(path, 0, frame, [name.strip() for name in frame.columns])
    numbers = np.arange(1, rows + 1)
    return RawTable(path, frame, numbers, (path,), np.zeros(rows, np.int64), True)
