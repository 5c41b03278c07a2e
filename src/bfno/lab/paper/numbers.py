"""The paper's own numbers, restated from its tables."""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from bfno.lab.errors import ConfigError, nearest_names
from bfno.lab.runs.record import Record
from bfno.lab.views.metrics import Estimate

__all__ = ["PaperCell", "PaperRow", "PaperTable", "paper_table", "table_names"]


@dataclass(frozen=True)
class PaperCell:
    """The paper's numbers for a method and a data set; each part may be missing.

    Attributes:
        mean: Mean of the metric.
        std: Its standard deviation.
        parameters: Number of parameters.
    """

    mean: float | None = None
    std: float | None = None
    parameters: int | None = None


@dataclass(frozen=True)
class PaperRow:
    """A method of a table.

    Attributes:
        method: Its name in experiments.
        label: Its name in the paper.
        quoted: The earlier work that its numbers were presumably taken from; empty if none.
        cells: The paper's numbers, by data set.
        instead: Methods that replace it on single data sets.
        only: The data sets that it is for; empty for all.
        control: Whether it is shown beside the paper's rows without being one of them.
    """

    method: str
    label: str
    quoted: str
    cells: Mapping[str, PaperCell]
    instead: Mapping[str, str]
    only: tuple[str, ...]
    control: bool = False

    def runs(self, data: str, among: Iterable[Record]) -> list[Record]:
        """The runs that belong to this row."""
        return [run for run in among if run.experiment == self.experiment(data)]

    def experiment(self, data: str) -> str | None:
        """The experiment, `data/method`, of this row; None if it has no such data."""
        if self.only and data not in self.only:
            return None
        return f"{data}/{self.instead.get(data, self.method)}"

    def has_name(self, name: str) -> bool:
        """Whether a user may mean this row by that name of a method."""
        return name in (self.method, *self.instead.values())


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    Attributes:
        name: Its name in `bfno table`.
        title: Its title.
        metrics: Keys of its metrics in records; the paper prints one, which the first is judged by.
        digits: Decimals that the paper prints.
        data: Data sets of the paper by name, with their titles.
        beyond: Data sets that the paper does not have, in the same form.
        notes: Notes that readers need.
        protocols: The protocols of its experiments, each with its own notes, the usual one first;
            empty if there is only one.
        rows: The methods, in the paper's order.
    """

    name: str
    title: str
    metrics: tuple[str, ...]
    digits: int
    data: Mapping[str, str]
    beyond: Mapping[str, str]
    notes: tuple[str, ...]
    protocols: Mapping[str, tuple[str, ...]]
    rows: tuple[PaperRow, ...]

    @property
    def usual_protocol(self) -> str:
        """The protocol of its experiments as they are defined; empty if there is but one way."""
        return next(iter(self.protocols), "")

    def check_protocol(self, name: str) -> None:
        """Make sure that the table has this protocol.

        Raises:
            ConfigError: If it lacks it; the message says which tables have some.
        """
        option = f"--protocol {name}"
        if not self.protocols:
            tables = [one for one in table_names() if paper_table(one).protocols]
            why = f"table {self.name} has no protocols"
            raise ConfigError(option, why, f"leave it out; tables {', '.join(tables)} have some")
        if name not in self.protocols:
            known = " or ".join(self.protocols)
            raise ConfigError(option, f"is not a protocol of table {self.name}", f"write {known}")

    def score(self, row: PaperRow, data: str) -> Estimate | None:
        """The paper's first metric for a method and a data set; None if it has none.

        Args:
            row: The method.
            data: Name of the data set.
        """
        cell = row.cells.get(data, PaperCell())
        if cell.mean is None:
            return None
        return Estimate(cell.mean, cell.std, self.digits, "*" if row.quoted else "")

    @property
    def titles(self) -> Mapping[str, str]:
        """Titles of all data sets, those beyond the paper last."""
        return {**self.data, **self.beyond}

    def subject(self, data: str) -> str:
        """The subject of runs on a data set: images and their densities have the same title."""
        return f"{'densities of ' * data.endswith('-density')}{self.titles[data]}"

    def check_data(self, names: Sequence[str]) -> None:
        """Make sure that the table has these data sets.

        Raises:
            ConfigError: If it lacks one; the message names the nearest.
        """
        _check(names, tuple(self.titles), f"is not a data set of table {self.name}")

    def selected(self, methods: Sequence[str]) -> tuple[PaperRow, ...]:
        """The rows of these methods; all if none is named.

        Raises:
            ConfigError: If it lacks one; the message names the nearest.
        """
        names = dict.fromkeys(
            name for row in self.rows for name in (row.method, *row.instead.values())
        )
        _check(methods, tuple(names), f"is not a method of table {self.name}")
        return tuple(row for row in self.rows if not methods or any(map(row.has_name, methods)))


def table_names() -> tuple[str, ...]:
    """Names of all tables, in the paper's order.

    Example:
        >>> table_names()
        ('1', '2', '3', '4', 'ablation-operator', 'ablation-branches')
    """
    return tuple(_content()["tables"])


def paper_table(name: str) -> PaperTable:
    """Return a table of the paper.

    Args:
        name: 1, 2, 3, 4, ablation-branches or ablation-operator.

    Raises:
        ConfigError: If there is no such table; the message names the nearest.

    Example:
        >>> paper_table("1").rows[8].cells["cifar10"]
        PaperCell(mean=0.6289, std=0.0054, parameters=171333)
    """
    tables = _content()["tables"]
    _check([name], tuple(tables), "is not a table of the paper")
    tree = tables[name]
    sizes = paper_table(tree["sizes_of"]).rows if "sizes_of" in tree else ()
    return PaperTable(
        name,
        tree["title"],
        tuple(tree["metrics"]),
        tree["digits"],
        tree["data"],
        tree.get("beyond", {}),
        tuple(tree["notes"]),
        {name: tuple(notes) for name, notes in tree.get("protocols", {}).items()},
        tuple(_row(row, tree["data"], sizes) for row in tree["rows"]),
    )


def _row(tree: Mapping[str, Any], data: Mapping[str, str], sizes: Sequence[PaperRow]) -> PaperRow:
    method, instead = tree["method"], tree.get("instead", {})
    cells = {
        name: PaperCell(parameters=row.cells[name].parameters)
        for row in sizes
        for name in data
        if row.method == instead.get(name, method)
    }
    cells |= {name: PaperCell(**tree[name]) for name in data if name in tree}
    quoted = _content()["sources"].get(tree.get("quoted"), "")
    only, control = tuple(tree.get("only", ())), tree.get("control", False)
    return PaperRow(method, tree["label"], quoted, cells, instead, only, control)


@functools.cache
def _content() -> dict[str, Any]:
    file = importlib.resources.files("bfno.lab.paper").joinpath("numbers.yaml")
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def _check(names: Sequence[str], known: Sequence[str], why: str) -> None:
    for name in names:
        if name not in known:
            nearest = nearest_names(name, known)[0]
            raise ConfigError(name, why, f"write one of {', '.join(known)}; nearest: {nearest}")
