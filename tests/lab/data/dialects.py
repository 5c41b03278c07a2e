"""One table of 60 patients, written in every dialect that people have."""

import csv
import random
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import torch
import xlsxwriter

from bfno.lab.data import Series, SeriesTable

NAMES = ("patient_id", "date", "pulse", "temp", "age", "sex", "smoker", "outcome")
FEATURES = ("pulse", "temp", "age", "sex=f", "sex=m", "smoker")
PATIENTS = 60


@dataclass(frozen=True)
class Dialect:
    """How a table is written.

    Attributes:
        names: Names of the columns.
        separator: Between cells.
        decimal: In numbers.
        encoding: Of the text.
        missing: Of a value that is not there.
        date: Format of dates; None writes days as numbers.
        booleans: For no and yes.
        ending: Of a line.
        quoted: Whether text stands in quotation marks.
        clock: Whether dates have a time of day.
    """

    names: tuple[str, ...] = NAMES
    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    missing: str = ""
    date: str | None = "%Y-%m-%d"
    booleans: tuple[str, str] = ("0", "1")
    ending: str = "\n"
    quoted: bool = False
    clock: bool = False


@cache
def patients(clock: bool = False) -> list[list[Any]]:
    """The rows: id, moment, pulse, temperature, age, sex, smoker, outcome; None is missing."""
    generator, rows = random.Random(16), []
    for number in range(PATIENTS):
        moment = datetime(2024, 1, 1) + timedelta(days=generator.randrange(300))
        fixed = [generator.randrange(20, 90), generator.choice("fm"), number % 3 == 0]
        for _ in range(generator.randrange(2, 7)):
            moment += timedelta(days=generator.randrange(1, 40))
            if clock:
                moment += timedelta(minutes=generator.randrange(600))
            pulse = generator.randrange(50, 120) if generator.random() < 0.8 else None
            temp = round(generator.uniform(35, 41), 2) if generator.random() < 0.8 else None
            outcome = "gesünder" if number % 2 else "kränker"
            rows.append([f"Zoë {number}", moment, pulse, temp, *fixed, outcome])
    return rows


def expected(clock: bool = False) -> Series:
    """The same rows as series, by plain Python."""
    rows = patients(clock)
    ids = list(dict.fromkeys(row[0] for row in rows))
    firsts = {name: next(row[1] for row in rows if row[0] == name) for name in ids}
    unit = timedelta(hours=1) if clock else timedelta(days=1)
    lengths = [sum(row[0] == name for row in rows) for name in ids]
    cells = [[r[2], r[3], r[4], float(r[5] == "f"), float(r[5] == "m"), float(r[6])] for r in rows]
    return Series(
        torch.tensor([(row[1] - firsts[row[0]]) / unit for row in rows], dtype=torch.float64),
        torch.tensor([[float(cell or 0) for cell in row] for row in cells], dtype=torch.float64),
        torch.tensor([[cell is not None for cell in row] for row in cells]),
        torch.tensor([int(name.endswith(tuple("02468"))) for name in ids]),
        torch.tensor([0, *lengths]).cumsum(0),
        tuple(ids),
        False,
    )


def assert_equal(table: SeriesTable, clock: bool = False) -> None:
    """Check that a table was read to the series that were written."""
    wanted, found = expected(clock), table.series
    assert table.classes == ("gesünder", "kränker")
    assert found.ids == wanted.ids and found.by_row == wanted.by_row
    for name in ("starts", "labels", "mask"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
    assert torch.equal(found.values, wanted.values)
    assert torch.allclose(found.times, wanted.times, rtol=0, atol=1e-9)


def cells_of(dialect: Dialect) -> list[list[str]]:
    """Rows as text."""
    return [[_cell(cell, dialect) for cell in row] for row in patients(dialect.clock)]


def _cell(cell: Any, dialect: Dialect) -> str:
    if cell is None:
        return dialect.missing
    if isinstance(cell, datetime):
        days = (cell - datetime(2024, 1, 1)).total_seconds() / 86_400
        return str(days) if dialect.date is None else cell.strftime(dialect.date)
    if isinstance(cell, bool):
        return dialect.booleans[cell]
    return str(cell).replace(".", dialect.decimal) if isinstance(cell, float) else str(cell)


def write_text(path: Path, dialect: Dialect) -> Path:
    """Write the table as text."""
    with open(path, "w", encoding=dialect.encoding, newline="") as stream:
        style = csv.QUOTE_NONNUMERIC if dialect.quoted else csv.QUOTE_MINIMAL
        writer = csv.writer(
            stream, delimiter=dialect.separator, lineterminator=dialect.ending, quoting=style
        )
        writer.writerows([dialect.names, *cells_of(dialect)])
    return path


def write_excel(path: Path, clock: bool = False, *, above: int = 0, as_text: bool = False) -> Path:
    """Write the table as the second sheet of two, or as the only one; dates as Excel's own.

    Args:
        path: The file.
        clock: See `patients`.
        above: Empty rows and columns before the table; a sheet of notes follows if there are any.
        as_text: Whether numbers are text with a decimal comma.
    """
    with xlsxwriter.Workbook(path) as book:
        sheet = book.add_worksheet("Patienten")
        if above:
            book.add_worksheet("Notes").write(0, 0, "not a table")
        dates = book.add_format({"num_format": "dd.mm.yyyy hh:mm"})
        sheet.write_row(above, above, NAMES)
        for place, row in enumerate(patients(clock)):
            for column, cell in enumerate(row):
                where = (above + 1 + place, above + column)
                if isinstance(cell, datetime):
                    sheet.write_datetime(*where, cell, dates)
                elif isinstance(cell, float) and as_text:
                    sheet.write_string(*where, str(cell).replace(".", ","))
                elif cell is not None:
                    sheet.write(*where, cell)
    return path


def write_parquet(path: Path) -> Path:
    """Write the table with the types of its columns."""
    pl.DataFrame(patients(), schema=list(NAMES), orient="row").write_parquet(path)
    return path


def write_folder(path: Path, dialect: Dialect, *, statics_beside: bool = False) -> Path:
    """Write one table per patient; ages, sexes, smokers and outcomes beside them if asked."""
    path.mkdir()
    names, own = NAMES[1:4] if statics_beside else NAMES[1:], slice(1, 4 if statics_beside else 8)
    plain = replace(dialect, quoted=False)
    tables: dict[str, list[list[str]]] = {}
    for row in cells_of(plain):
        tables.setdefault(row[0], []).append(row)
    for name, rows in tables.items():
        _write_rows(path / f"{name}.csv", [list(names), *(row[own] for row in rows)], plain)
    if statics_beside:
        rows = [[row[0], *row[4:]] for row in (rows[0] for rows in tables.values())]
        _write_rows(path / "labels.csv", [["patient_id", *NAMES[4:]], *rows], plain)
    return path


def _write_rows(path: Path, rows: list[list[str]], dialect: Dialect) -> None:
    with open(path, "w", encoding=dialect.encoding, newline="") as stream:
        csv.writer(stream, delimiter=dialect.separator).writerows(rows)
