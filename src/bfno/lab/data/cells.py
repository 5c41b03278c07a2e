"""Cells of tables: numbers, times and words out of what files hold."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from bfno.lab.errors import DataError

__all__ = ["Block", "Times", "numbers", "times", "words"]

_LARGEST = float(np.finfo(np.float32).max)
_WHOLE = re.compile(r"([+-]?\d+)\.0+")


@dataclass(frozen=True)
class Block:
    """Some rows of a table.

    Attributes:
        path: The file.
        rows: Number of each row in the file.
        columns: Cells by the column's name: text, or numbers with NaN for none.
        dates: Names of the columns whose numbers are seconds of date-times.
    """

    path: Path
    rows: Sequence[int]
    columns: dict[str, Sequence[str] | np.ndarray]
    dates: frozenset[str] = frozenset()

    def wrong(self, index: int, name: str, why: str, fix: str) -> DataError:
        """Return the error about one cell, by the place of its row in this block."""
        return DataError(f"{self.path}, row {self.rows[index]}, column {name!r}", why, fix)


@dataclass(frozen=True)
class Times:
    """Times of some rows.

    Attributes:
        seconds: The times, in the unit of the table or in seconds for date-times.
        dates: Whether the table gives date-times.
    """

    seconds: np.ndarray
    dates: bool


def numbers(block: Block, name: str) -> np.ndarray:
    """Return the numbers of a column in double precision, NaN for what is missing.

    Raises:
        DataError: If a cell holds text, an infinite number or one beyond single precision.
    """
    column = block.columns[name]
    if not isinstance(column, np.ndarray):
        column = _converted(block, name, column, _number, "is no number")
    too_large = np.abs(column) > _LARGEST
    if too_large.any():
        index = int(too_large.argmax())
        why = f"{column[index]} is infinite or too large"
        raise block.wrong(index, name, why, "leave the cell empty if the value is missing")
    return column


def times(block: Block, name: str, dates: bool | None) -> Times:
    """Return the times of a column: numbers, or ISO 8601 date-times as seconds.

    Args:
        block: Some rows.
        name: The column.
        dates: Whether earlier rows gave date-times; None if there are none.

    Raises:
        DataError: If a cell is neither, of another kind than the earlier ones, or empty.
    """
    column = block.columns[name]
    if isinstance(column, np.ndarray):
        found = Times(column, name in block.dates)
    else:
        kind = _looks_like_a_date(column[0]) if dates is None and len(column) else bool(dates)
        convert = _seconds if kind else _number
        why = "is no ISO 8601 date-time" if kind else "is no number"
        found = Times(_converted(block, name, column, convert, why), kind)
    if dates not in (None, found.dates):
        raise block.wrong(0, name, "mixes numbers and date-times", "use one of them everywhere")
    wrong = ~np.isfinite(found.seconds)
    if wrong.any():
        index = int(wrong.argmax())
        raise block.wrong(index, name, "holds no time", "give every row a finite time")
    return found


def words(block: Block, name: str) -> list[str]:
    """Return the cells of a column as words, empty for what is missing.

    Whole numbers lose a fraction of zeros, which some programs add.

    Example:
        >>> words(Block(Path("x.csv"), [2, 3, 4], {"label": ["1.0", " b ", "NaN"]}), "label")
        ['1', 'b', '']
    """
    stripped = [str(cell).strip() for cell in block.columns[name]]
    known = {word: _word(word) for word in set(stripped)}
    return [known[word] for word in stripped]


def _word(text: str) -> str:
    if text.lower() in ("nan", "none", "<na>"):
        return ""
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def _converted(
    block: Block, name: str, column: Sequence[str], convert: Callable[[str], float], why: str
) -> np.ndarray:
    try:
        # Several times as fast as a function for each cell, and good for almost every file.
        if convert is _number and "_" not in "".join(column):
            return np.array([float(cell) if cell else math.nan for cell in column], np.float64)
        return np.array([convert(cell) for cell in column], np.float64)
    except (ValueError, OverflowError):
        pass
    found = np.empty(len(column))
    for index, cell in enumerate(column):
        try:
            found[index] = convert(cell)
        except (ValueError, OverflowError) as error:
            shown = repr(cell if len(cell) <= 40 else f"{cell[:40]}…")
            raise block.wrong(index, name, f"{shown} {why}", "correct the cell") from error
    return found


def _number(cell: str) -> float:
    if not cell or cell.isspace():
        return math.nan
    if "_" in cell:  # Python takes 1_0 for 10, no other program does
        raise ValueError(cell)
    return float(cell)


def _seconds(cell: str) -> float:
    text = cell.strip()
    if not text:
        return math.nan
    # Python before 3.11 does not know the letter that stands for Greenwich.
    moment = datetime.fromisoformat(f"{text[:-1]}+00:00" if text[-1] in "Zz" else text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _looks_like_a_date(cell: str) -> bool:
    try:
        _number(cell)
    except ValueError:
        try:
            _seconds(cell)
        except (ValueError, OverflowError):
            return False
        return True
    return False
