"""The role of each column of a table, and how its cells are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bfno.lab.data.cells import MISSING
from bfno.lab.data.table_file import FileFormat
from bfno.lab.errors import DataError, nearest_names

__all__ = ["UNITS", "TableLayout", "find_column", "naming", "nearest", "require_column"]
__all__ += ["require_names"]

UNITS = {"days": 86_400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
"""Seconds per unit, for times from dates."""

_OWNERS = (
    "series",
    "patient",
    "subject",
    "participant",
    "person",
    "case",
    "record",
    "stay",
    "unit",
)
_OWNERS += ("device", "sensor", "sample", "animal", "client", "customer", "machine")
_SPANS = ("hours", "hour", "days", "day", "minutes", "minute", "seconds", "second", "weeks", "week")
_SPANS += ("months", "month", "years", "year")
_UNITS = ("h", "hr", "hrs", "d", "s", "sec", "min", "ms", *_SPANS)
# Names in small letters without blanks and marks; those of a later group count where no column has
# one of an earlier group.
_KNOWN: Mapping[str, tuple[frozenset[str], ...]] = {
    "id": (
        frozenset({"id", "pid", "uid", *_OWNERS})
        | {f"{owner}{ending}" for owner in _OWNERS for ending in ("id", "no", "nr", "number")},
    ),
    "time": (
        frozenset({"time", "times", "datetime", "timestamp", "date", "datum", "zeit", "charttime"})
        | {f"time{unit}" for unit in _UNITS},
        frozenset({"t", *_SPANS}),
    ),
    "label": (
        frozenset({"label", "labels"}),
        frozenset({"class", "target", "outcome", "diagnosis"}),
    ),
}
_MEANINGS = {"id": "with the names of the series", "time": "with times", "label": "with labels"}


@dataclass(frozen=True)
class TableLayout:
    """The role of each column, and how cells are read; None is detected.

    The result of reading a table is a layout too, which reads other tables in the same way.

    Attributes:
        id: Column with the names of the series.
        time: Column with times.
        label: Column with labels; a table may have none.
        decimal: Decimal mark of numbers in text, `point` or `comma`.
        trained_decimal: The mark of the training's table; a mark belongs to its file, so this one
            only decides if the cells do not.
        quantities: Whether cells like `80 kg` are numbers, if a column has one unit.
        units: The unit of each such column; None detects it.
        dates: What times are: `numbers`, `dates`, or dates like 03/04/2024 that are `day-first`
            or `month-first`.
        points: How dates like 03.04.2024 are meant; None is as `dates` says, else `day-first`.
        unit: Unit of times from dates: a name in `UNITS`, or `auto` for days if all are midnights,
            or else hours.
        missing: Words for a missing value, besides the empty cell; None is `MISSING`, which always
            applies among numbers.
        categorical: Columns to read as words even if they hold numbers.
        ignore: Columns to leave out.
        most_categories: Largest number of different words in a column that becomes features.
        categories: The words of each such column; None takes those that occur.
        booleans: Columns of zeros and ones, or of words for these, which other columns of numbers
            must not hold; None if unknown.
        file: How cells are stored in the file.
    """

    id: str | None = None
    time: str | None = None
    label: str | None = None
    decimal: str | None = None
    trained_decimal: str | None = None
    quantities: bool = True
    units: Mapping[str, str] | None = None
    dates: str | None = None
    points: str | None = None
    unit: str = "auto"
    missing: tuple[str, ...] | None = None
    categorical: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    most_categories: int = 20
    categories: Mapping[str, tuple[str, ...]] | None = None
    booleans: tuple[str, ...] | None = None
    file: FileFormat = field(default=FileFormat())

    @property
    def missing_words(self) -> frozenset[str]:
        """The words for a missing value in small letters."""
        return frozenset(MISSING if self.missing is None else map(str.lower, self.missing))

    def facts(self) -> dict[str, Any]:
        """The settings that decide the meaning of cells, as JSON values."""
        return {
            **{name: getattr(self, name) for name in _FACTS},
            "decimal": self.decimal,
            "quantities": self.quantities,
            "units": dict(self.units or {}),
            "missing": None if self.missing is None else list(self.missing),
            "points": self.points,
            "ignore": list(self.ignore),
            "booleans": None if self.booleans is None else list(self.booleans),
            "categories": {name: list(words) for name, words in (self.categories or {}).items()},
        }

    @staticmethod
    def from_facts(facts: Mapping[str, Any], file: FileFormat) -> TableLayout:
        """The layout from `facts`, for a file of any format."""
        missing = facts["missing"]
        booleans = facts.get("booleans")  # older runs lack the facts read with `get`
        return TableLayout(
            **{name: facts[name] for name in _FACTS},
            trained_decimal=facts["decimal"],
            quantities=facts.get("quantities", False),
            units=facts.get("units", {}),
            missing=None if missing is None else tuple(missing),
            points=facts.get("points"),
            ignore=tuple(facts["ignore"]),
            booleans=None if booleans is None else tuple(booleans),
            categories={name: tuple(words) for name, words in facts["categories"].items()},
            file=file,
        )

    def for_file(self, file: FileFormat) -> TableLayout:
        """The same layout for a file of another format."""
        return replace(self, file=file, decimal=None, trained_decimal=self.decimal)


_FACTS = ("id", "time", "label", "dates", "unit")


def find_column(
    path: Path, names: Sequence[str], role: str, wanted: str | None, taken: Iterable[str]
) -> str | None:
    """Return the column for `id`, `time` or `label`, by its given name or a common one; or None.

    Raises:
        DataError: If several may be meant.
    """
    if (wanted or role) in names:
        return wanted or role
    if wanted is not None:
        return None
    free = [name for name in names if name not in set(taken)]
    for known in _KNOWN[role]:
        found = [name for name in free if re.sub(r"[\W_]+", "", name.lower()) in known]
        if len(found) == 1:
            return found[0]
        if found:
            shown = " or ".join(repr(name) for name in found[:3])
            why = f"the column {_MEANINGS[role]} may be {shown}"
            raise DataError(path, why, naming(role, found[0]))
    return None


def naming(role: str, name: str) -> str:
    """Say how to name the column of a role.

    Example:
        >>> naming("time", "days")
        "name it: --set data.columns='[id, days, label]'"
    """
    names = ", ".join(name if one == role else one for one in _MEANINGS)
    return f"name it: --set data.columns='[{names}]'"


def require_column(
    path: Path, names: Sequence[str], role: str, wanted: str | None, taken: Iterable[str] = ()
) -> str:
    """Return the column for a role.

    Raises:
        DataError: If there is none, or several may be meant.
    """
    found = find_column(path, names, role, wanted, taken)
    if found is None and len(names) == 1:
        fix = "separate cells by commas, semicolons, tabs or bars; delete lines above the names"
        raise DataError(path, f"has a single column, {names[0][:40]!r}", fix)
    if found is None:
        name = wanted or role
        why = f"has no column {name!r} {_MEANINGS[role]}"
        raise DataError(path, why, f"{naming(role, 'NAME')}; {nearest(name, names)}")
    return found


def nearest(name: str, known: Iterable[str]) -> str:
    """The advice for an unknown name.

    Example:
        >>> nearest("hart", ["heart", "lung"])
        "nearest: 'heart'"
    """
    found = nearest_names(name, known, count=1)
    return f"nearest: {found[0]!r}" if found else "there is none"


def require_names(path: Path, found: Sequence[str], wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the requested names, after refusing different ones; the order does not matter.

    Raises:
        DataError: If one is missing or unknown.
    """
    known, there = set(wanted), set(found)
    for name in wanted:
        if name not in there:
            fix = f"add or rename a column; {nearest(name, found)}"
            raise DataError(path, f"lacks the feature {name!r}", fix)
    for name in found:
        if name not in known:
            fix = f"rename or delete it; {nearest(name, wanted)}"
            raise DataError(path, f"the feature {name!r} is unknown", fix)
    return tuple(wanted)
