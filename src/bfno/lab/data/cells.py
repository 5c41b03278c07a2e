"""Cells of tables to numbers, words and codes, a column at a time."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import polars as pl

__all__ = ["MISSING", "as_words", "booleans", "codes", "has_points", "may_be_groups"]
__all__ += ["parse_numbers", "with_commas"]

MISSING = ("na", "n/a", "#n/a", "null", "none", "nan", "nat", "<na>", "-", "--", "?", ".")
"""Words for a missing value, whatever their case."""

_WHOLE = re.compile(r"([+-]?\d+)\.0+")
_BOOLEANS = (("false", "true"), ("no", "yes"), ("n", "y"), ("f", "t"))
_COMMA = r"^[+-]?\d*,\d+([eE][+-]?\d+)?$"
_GROUP = r"^[+-]?[1-9]\d{0,2},\d{3}$"
_POINT = r"^[+-]?\d*\.\d*([eE][+-]?\d+)?$"


def parse_numbers(
    cells: pl.Series, missing: Collection[str], decimal: str = "."
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of a column, NaN for what is missing, and which cells hold something else.

    Args:
        cells: A column.
        missing: Words for a missing value, in small letters.
        decimal: The decimal mark of text: `.`, `,`, or `.,` for either.
    """
    import polars as pl

    if cells.dtype != pl.String:
        found = cells.cast(pl.Float64)
        return found.fill_null(np.nan).to_numpy(), np.zeros(len(cells), bool)
    text = cells
    if "," in decimal:
        text = text.str.replace(",", ".", literal=True)
    if decimal == ",":
        text = text.set(cells.str.contains(".", literal=True).fill_null(False), None)
    found = text.cast(pl.Float64, strict=False)
    odd = (found.is_null() & cells.is_not_null()).arg_true()
    wrong = np.zeros(len(cells), bool)
    if len(odd):
        found_odd = cells.gather(odd)
        others = [word for word in found_odd.unique() if word.lower() not in missing]
        wrong[odd] = found_odd.is_in(others).to_numpy() if others else False
    values = found.fill_null(np.nan).to_numpy(writable=True)
    if any(word[-1:].isdigit() for word in missing):  # -999 and the like
        values[cells.is_in(list(missing)).fill_null(False).to_numpy()] = np.nan
    return values, wrong


def with_commas(cells: pl.Series) -> pl.Series:
    """Return the cells that are numbers with a decimal comma, or with digit groups."""
    some = cells.filter(cells.str.contains(",", literal=True).fill_null(False))
    return some.filter(some.str.contains(_COMMA)) if len(some) else some


def has_points(cells: pl.Series) -> bool:
    """Whether some cells are numbers with a decimal point."""
    some = cells.filter(cells.str.contains(".", literal=True).fill_null(False))
    return len(some) > 0 and bool(some.str.contains(_POINT).any())


def may_be_groups(commas: pl.Series) -> bool:
    """Whether the commas of all of these numbers may separate thousands: 1,234."""
    return bool(commas.str.contains(_GROUP).all())


def as_words(cells: pl.Series, missing: Collection[str]) -> pl.Series:
    """Return the cells as words, null for what is missing.

    Whole numbers lose a fraction of zeros, which some programs add.

    Example:
        >>> import polars
        >>> as_words(polars.Series(["1.0", "b", "NaN"]), MISSING).to_list()
        ['1', 'b', None]
    """
    import polars as pl

    text = cells.cast(pl.String)
    different = text.drop_nulls().unique()
    changed = {word: new for word in different if (new := _word(word, missing)) != word}
    return text.replace(changed) if changed else text


def _word(text: str, missing: Collection[str]) -> str | None:
    if text.lower() in missing:
        return None
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def codes(words: pl.Series, names: Collection[str] | None = None) -> tuple[np.ndarray, list[str]]:
    """Return the number of each word among the different ones, and these in order; -1 for none.

    Args:
        words: The words.
        names: The different ones; None takes them in the order in which they first occur.
    """
    import polars as pl

    different = list(words.drop_nulls().unique(maintain_order=True) if names is None else names)
    numbers = words.cast(pl.Enum(different)).to_physical().cast(pl.Int64)
    return numbers.fill_null(-1).to_numpy(), different


def booleans(words: pl.Series) -> np.ndarray | None:
    """Return 0 and 1 for no and yes, NaN for none; None if the words are not such."""
    small = words.str.to_lowercase()
    different = set(small.drop_nulls().unique())
    for no, yes in _BOOLEANS:
        if different and different <= {no, yes}:
            return np.where(small.is_null().to_numpy(), np.nan, (small == yes).fill_null(False))
    return None
