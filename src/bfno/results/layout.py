"""A table, and how it is written: as plain text, Markdown or CSV."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "Cell",
    "Column",
    "Estimate",
    "Table",
    "as_csv",
    "as_markdown",
    "as_text",
    "cell_text",
]


@dataclass(frozen=True)
class Estimate:
    """A number measured once or several times.

    Attributes:
        mean: Mean of the measurements.
        std: Their standard deviation, dividing by one less than their number; none for a single.
        digits: Decimals that are worth printing.

    Example:
        >>> str(Estimate.of([0.96, 0.98], digits=2))
        '0.97 ± 0.01'
    """

    mean: float
    std: float | None
    digits: int

    @classmethod
    def of(cls, values: Iterable[float | None], digits: int) -> Estimate | None:
        """The estimate from measurements, some of which may be missing; none without any."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        # Not the statistics module: it raises on infinities, which a diverged run may hold.
        mean = sum(known) / len(known)
        if len(known) == 1:
            return cls(mean, None, digits)
        squares = sum((value - mean) * (value - mean) for value in known)
        return cls(mean, math.sqrt(squares / (len(known) - 1)), digits)

    def __str__(self) -> str:
        mean = _number(self.mean, self.digits)
        return mean if self.std is None else f"{mean} ± {_number(self.std, self.digits)}"


# A tuple holds seeds.
Cell = str | int | Estimate | tuple[int, ...] | None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: Its name for programs: the key of the record where there is one.
        title: Its name for people.
        numeric: Whether it holds numbers.
        measured: Whether these may have a standard deviation.
    """

    key: str
    title: str
    numeric: bool = True
    measured: bool = False


@dataclass(frozen=True)
class Table:
    """Columns, rows, which cells (row, column) are the best of their kind, and footnotes."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()
    notes: tuple[str, ...] = ()


def cell_text(cell: Cell) -> str:
    """A cell as people read it; a dash where there is nothing."""
    if cell is None:
        return "–"
    if isinstance(cell, tuple):
        return str(cell[0]) if len(cell) == 1 else f"{len(cell)} seeds"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def as_text(table: Table) -> str:
    """The table as aligned plain text for a terminal."""
    lines = [[column.title for column in table.columns]]
    lines += [[cell_text(cell) for cell in row] for row in table.rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.columns))]
    lines.insert(1, ["-" * width for width in widths])
    notes = [""] * bool(table.notes) + list(table.notes)
    texts = [_aligned(line, widths, table.columns) for line in lines]
    return "".join(f"{line}\n" for line in texts + notes)


def as_markdown(table: Table) -> str:
    """The table as GitHub's Markdown, the best cells in bold."""
    lines = [[_markdown(column.title) for column in table.columns]]
    lines.append(["---:" if column.numeric else "---" for column in table.columns])
    for number, row in enumerate(table.rows):
        texts = [_markdown(cell_text(cell)) for cell in row]
        best = [(number, index) in table.best for index in range(len(row))]
        lines.append(
            [f"**{text}**" if top else text for text, top in zip(texts, best, strict=True)]
        )
    notes = "".join(f"\n{_markdown(note)}\n" for note in table.notes)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + notes


def as_csv(table: Table) -> str:
    """The table for programs: full precision, each standard deviation in its own column."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    header = []
    for column in table.columns:
        header += [column.key, f"{column.key}_std"] if column.measured else [column.key]
    writer.writerow(header)
    for row in table.rows:
        line: list[object] = []
        for column, cell in zip(table.columns, row, strict=True):
            if isinstance(cell, Estimate):
                line += [cell.mean, cell.std]
            elif isinstance(cell, tuple):
                line.append(" ".join(map(str, cell)))
            else:
                line += [cell, None] if column.measured else [cell]
        writer.writerow(line)
    return written.getvalue()


def _number(value: float, digits: int) -> str:
    return f"{value:.3g}" if abs(value) >= 1e9 else f"{value:,.{digits}f}"


def _aligned(line: list[str], widths: list[int], columns: tuple[Column, ...]) -> str:
    texts = [
        text.rjust(width) if column.numeric else text.ljust(width)
        for text, width, column in zip(line, widths, columns, strict=True)
    ]
    return "  ".join(texts).rstrip()


def _markdown(text: str) -> str:
    # Names come from files: they must neither break the row nor become markup.
    for letter in "\\`*_[]|~":
        text = text.replace(letter, "\\" + letter)
    return html.escape(text, quote=False)
