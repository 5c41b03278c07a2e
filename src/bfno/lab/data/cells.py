"""Converts cells of tables to numbers, words and codes, one column at a time."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import polars as pl

__all__ = ["MISSING", "NumberFormat", "as_words", "booleans", "codes", "has_numbers"]
__all__ += ["parse_numbers", "shown"]

MISSING = ("na", "n/a", "#n/a", "null", "none", "nan", "nat", "<na>", "-", "--", "?", ".")
"""Words for a missing value, in any case."""

_WHOLE = re.compile(r"([+-]?\d+)\.0+")
_BOOLEANS = (("false", "true"), ("no", "yes"), ("n", "y"), ("f", "t"))
_SHOWN = 40  # letters of a cell in a message
# Numbers with digit groups, by the mark between these.
_GROUPED = {
    ",": r"^[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?$",
    ".": r"^[+-]?[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?$",
}


@dataclass(frozen=True)
class NumberFormat:
    """How numbers are written in text.

    Attributes:
        decimal: The decimal mark: `.`, `,`, or `.,` for either.
        groups: The separator of thousands, `,` or `.`; empty if there is none.
    """

    decimal: str = "."
    groups: str = ""


def parse_numbers(
    cells: pl.Series, missing: Collection[str], form: NumberFormat
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of a column, NaN for missing ones, and which cells hold something else.

    Args:
        cells: A column.
        missing: Words for a missing value, in small letters; -999 stands for every number equal to
            it.
        form: How text writes numbers.
    """
    import polars as pl

    if cells.dtype != pl.String:
        values = cells.cast(pl.Float64).fill_null(np.nan).to_numpy()
        if cells.dtype != pl.Boolean:
            values = _without(values, missing, form, single=cells.dtype == pl.Float32)
        return values, np.zeros(len(cells), bool)
    found = _numbers(cells, form)
    odd = (found.is_null() & cells.is_not_null()).arg_true()
    wrong = np.zeros(len(cells), bool)
    if len(odd):
        found_odd = cells.gather(odd)
        others = [word for word in found_odd.unique() if word.lower() not in missing]
        wrong[odd] = found_odd.is_in(others).to_numpy() if others else False
    return _without(found.fill_null(np.nan).to_numpy(), missing, form), wrong


def _numbers(text: pl.Series, form: NumberFormat) -> pl.Series:
    import polars as pl

    if form.groups:
        grouped = text.str.contains(_GROUPED[form.groups]).fill_null(False)
        text = text.zip_with(~grouped, text.str.replace_all(form.groups, "", literal=True))
    plain = text.str.replace(",", ".", literal=True) if "," in form.decimal else text
    if form.decimal == ",":
        plain = plain.set(text.str.contains(".", literal=True).fill_null(False), None)
    return plain.cast(pl.Float64, strict=False)


def has_numbers(missing: Collection[str]) -> bool:
    """Whether some words for a missing value are numbers, such as -999."""
    return any(word[-1:].isdigit() for word in missing)


def _without(
    values: np.ndarray, missing: Collection[str], form: NumberFormat, *, single: bool = False
) -> np.ndarray:
    """The numbers, NaN for those that mean missing; rounded as a `single` one where they are."""
    import polars as pl

    if not has_numbers(missing):
        return values
    words = pl.Series(list(missing), dtype=pl.String)
    # A user may write -99.9 although the file has -99,9.
    marks = (
        pl.concat([_numbers(words, NumberFormat()), _numbers(words, form)]).drop_nulls().to_numpy()
    )
    marks = marks.astype(np.float32).astype(np.float64) if single else marks
    return np.where(np.isin(values, marks), np.nan, values)


def as_words(cells: pl.Series, missing: Collection[str]) -> pl.Series:
    """Return the cells as words, null for missing ones.

    Whole numbers lose a zero fraction, which some programs add.

    Example:
        >>> import polars
        >>> as_words(polars.Series(["1.0", "b", "NaN"]), MISSING).to_list()
        ['1', 'b', None]
    """
    import polars as pl

    text = cells.cast(pl.String)
    different, gone = text.drop_nulls().unique(), {_whole(word) for word in missing}
    changed = {word: new for word in different if (new := _word(word, gone)) != word}
    return text.replace(changed) if changed else text


def _word(text: str, missing: Collection[str]) -> str | None:
    whole = _whole(text)
    return None if whole.lower() in missing else whole


def _whole(text: str) -> str:
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def codes(words: pl.Series, names: Collection[str] | None = None) -> tuple[np.ndarray, list[str]]:
    """Return the number of each word among the different ones, and these in order; -1 for none.

    Args:
        words: The words.
        names: The different words; None takes them in the order of their first occurrence.
    """
    import polars as pl

    different = list(words.drop_nulls().unique(maintain_order=True) if names is None else names)
    numbers = words.cast(pl.Enum(different)).to_physical().cast(pl.Int64)
    return numbers.fill_null(-1).to_numpy(), different


def booleans(words: pl.Series) -> np.ndarray | None:
    """Return 0 and 1 for no and yes, NaN for none; None if the words mean something else."""
    small = words.str.to_lowercase()
    different = set(small.drop_nulls().unique())
    for no, yes in _BOOLEANS:
        if different and different <= {no, yes}:
            return np.where(small.is_null().to_numpy(), np.nan, (small == yes).fill_null(False))
    return None


def shown(cell: object) -> str:
    """A cell as messages quote it: in quotation marks, and not too long."""
    text = str(cell)
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
