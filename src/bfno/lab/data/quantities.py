"""Converts columns of numbers with a unit in every cell, such as `37.2 °C`, to numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bfno.lab.data.cells import shown
from bfno.lab.data.table_file import RawTable
from bfno.lab.errors import DataError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Quantities", "without_units"]

_NUMBER = r"[+-]?(?:\d[\d.,]*|[.,]\d+)(?:[eE][+-]?\d+)?"
_QUANTITY = rf"^({_NUMBER})\s*([%‰°\pL/€$£][\pL%‰°/·²³.^*()₂-]{{0,15}})$"
_BARE = rf"^{_NUMBER}$"
_SAMPLE = 1000  # cells that decide whether a column is looked at
# Of other words behind numbers (1a, 2b, 3rd), only those that are all the same make a quantity.
_KNOWN = frozenset(
    (
        *("%", "‰", "°", "°C", "°F", "kg", "g", "mg", "µg", "ug", "ng", "lb", "lbs", "oz"),
        *("l", "L", "dl", "dL", "ml", "mL", "µl", "µL"),
        *("km", "m", "cm", "mm", "µm", "nm", "in", "ft"),
        *("h", "hr", "hrs", "min", "s", "sec", "ms", "hours", "minutes", "seconds"),
        *("days", "day", "weeks", "months", "years", "year", "yrs"),
        *("bpm", "/min", "rpm", "Hz", "kHz", "MHz", "mmHg", "Pa", "hPa", "kPa", "bar", "mbar"),
        *("V", "mV", "kV", "mA", "W", "kW", "J", "kJ", "cal", "kcal", "km/h", "m/s"),
        *("mmol", "mmol/l", "mmol/L", "µmol/l", "µmol/L", "mol/l", "g/l", "g/L", "g/dl", "g/dL"),
        *("mg/l", "mg/L", "mg/dl", "mg/dL", "µg/l", "µg/L", "ng/ml", "ng/mL", "U/l", "U/L"),
        *("€", "$", "£", "EUR", "USD", "GBP"),
    )
)


@dataclass(frozen=True)
class Quantities:
    """A table with the units removed from its columns of numbers.

    Attributes:
        table: The table.
        units: The unit of each such column.
        assumed: Columns without units that had one in training, with that unit.
    """

    table: RawTable
    units: Mapping[str, str]
    assumed: Mapping[str, str]

    def note(self, column: str) -> str:
        """Describe the unit of a column; empty if it has none."""
        if column in self.units:
            return f"in {self.units[column]}"
        return f"taken to be in {self.assumed[column]}" if column in self.assumed else ""


def without_units(
    table: RawTable, columns: Sequence[str], missing: Collection[str], known: Mapping[str, str]
) -> Quantities:
    """Remove units from columns of numbers with the same unit everywhere.

    A column counts as quantities if more than half of its cells are numbers with a unit.

    Args:
        table: The table.
        columns: The columns to check, of numbers, times or words.
        missing: Words for a missing number, in small letters.
        known: Unit that each column had in training.

    Raises:
        DataError: If the cells of a column differ in their units, or from the training's.
    """
    import polars as pl

    frame, units = table.frame, dict[str, str]()
    for name in columns:
        cells = frame[name]
        if cells.dtype != pl.String or not _looks_like_quantities(cells, missing):
            continue
        found = _Column(table, name, cells, missing)
        unit = found.unit(known.get(name))
        if unit is not None:
            units[name] = unit
            frame = frame.with_columns(found.numbers.alias(name))
    assumed = {name: unit for name, unit in known.items() if name in columns and name not in units}
    return Quantities(replace(table, frame=frame), units, assumed)


def _looks_like_quantities(cells: pl.Series, missing: Collection[str]) -> bool:
    some = cells.drop_nulls().head(_SAMPLE)
    some = some.filter(~some.str.to_lowercase().is_in(list(missing)))
    return len(some) > 0 and 2 * int(some.str.contains(_QUANTITY).sum()) > len(some)


class _Column:
    def __init__(
        self, table: RawTable, name: str, cells: pl.Series, missing: Collection[str]
    ) -> None:
        import polars as pl

        self.table, self.name, self.cells = table, name, cells
        parts = cells.str.extract_groups(_QUANTITY).struct.unnest()
        number, unit = parts.to_series(0), parts.to_series(1)
        self.units = unit.str.replace_all("μ", "µ", literal=True)
        is_missing = cells.str.to_lowercase().is_in(list(missing))
        self.filled = (cells.is_not_null() & ~is_missing.fill_null(False)).to_numpy()
        # Everything else stays unchanged.
        self.numbers = number.zip_with(number.is_not_null(), cells).cast(pl.String)

    def unit(self, trained: str | None) -> str | None:
        """The unit of all cells; None if the column may also be one of words."""
        most = self.units.drop_nulls().value_counts(sort=True)
        unit = str(most.to_series(0)[0])
        other = ((self.units != unit).fill_null(True)).to_numpy() & self.filled
        if trained is not None and unit != trained:
            index = int((self.units == unit).arg_max() or 0)
            why = f"{shown(self.cells[index])} is in {unit!r}, but training had {trained!r}"
            raise self.table.wrong(index, why, f"convert the column to {trained!r}", self.name)
        if not other.any():
            return unit
        index = int(other.argmax())
        cell, found = self.cells[index], self.units[index]
        is_bare = self.cells.str.contains(_BARE)[index]
        if trained is None and not is_bare and not {unit, found} & _KNOWN:
            return None
        raise self._refuse(index, shown(cell), unit, found, is_bare)

    def _refuse(
        self, index: int, cell: str, unit: str, found: str | None, is_bare: bool
    ) -> DataError:
        why = f"{cell} is not a number in {unit!r}, which other cells are"
        if is_bare:
            why = f"{cell} has no unit, but other cells have {unit!r}"
        elif found is not None:
            why = f"{cell} is in {found!r}, but other cells in {unit!r}"
        words = f"--set data.categorical='[{self.name}]'"
        fix = f"use one unit, or none, in all cells; if these are words, {words}"
        if found is None and not is_bare:
            fix = f'correct or empty the cell; if it means missing, --set "data.missing=[{cell}]"'
        return self.table.wrong(index, why, fix, self.name)
