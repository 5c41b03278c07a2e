"""Which runs count for the paper's tables, and which tables they make."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bfno.lab.errors import bfno_command
from bfno.lab.paper.numbers import paper_table, table_names
from bfno.lab.runs.record import Record
from bfno.lab.views.methods import replicates

__all__ = ["Section", "Selection", "sections_of", "select_runs"]


@dataclass(frozen=True)
class Section:
    """One table of the paper for one data set at one scale.

    Attributes:
        table: Name of the table.
        data: Name of the data set.
        scale: Scale of the runs.
        runs: The runs that belong to it, with their folders.
    """

    table: str
    data: str
    scale: str
    runs: tuple[tuple[Path, Record], ...]

    @property
    def title(self) -> str:
        """What stands above it."""
        paper = paper_table(self.table)
        name = f"Table {self.table}" if self.table.isdigit() else f"`{self.table}`"
        return f"{name}: {paper.title}, {paper.titles[self.data]} ({self.scale} scale)"

    @property
    def command(self) -> str:
        """What trains it, or what is missing of it."""
        seeds = len({run.seed for _, run in self.runs})
        words = ["table", self.table, "--data", self.data, "--scale", self.scale]
        return bfno_command(*words, "--seeds", seeds)

    def figure(self, name: str) -> str:
        """The file of a figure."""
        short = re.sub("^(series|density)-", "", name).removesuffix(f"-{self.data}")
        return f"{self.scale}-{self.table}-{self.data}-{short}.png"


def sections_of(runs: Sequence[tuple[Path, Record]]) -> Iterator[Section]:
    """Tables that runs exist for: by table, then by scale and data set."""
    counted = {id(run) for run in select_runs(run for _, run in runs).counted}
    scales = sorted({run.scale for _, run in runs})
    for table in table_names():
        paper = paper_table(table)
        for scale in scales:
            for data in paper.titles:
                wanted = {row.experiment(data) for row in paper.rows} - {None}
                found = tuple(
                    (place, run)
                    for place, run in runs
                    if run.experiment in wanted and run.scale == scale and id(run) in counted
                )
                # One method alone, which another table shares, is not a comparison.
                if len({run.method for _, run in found}) > 1:
                    yield Section(table, data, scale, found)


class Selection(NamedTuple):
    """The runs that count, and those that do not because most of their experiment differ."""

    counted: list[Record]
    outliers: list[Record]


def select_runs(runs: Iterable[Record]) -> Selection:
    """One run for each experiment, scale and seed, all of an experiment with the same settings.

    Runs with changed settings do not count. Of two with the same seed the one does whose name comes
    first; of runs with different settings, those do that more seeds share.
    """
    known: dict[tuple[str, str], dict[int, Record]] = defaultdict(dict)
    for run in sorted(runs, key=lambda run: run.name):
        if not run.changes:
            known[run.experiment, run.scale].setdefault(run.seed, run)
    found = Selection([], [])
    for members in known.values():
        most, *others = sorted(replicates(members.values()), key=lambda group: -len(group.runs))
        found.counted.extend(most.runs)
        found.outliers.extend(run for group in others for run in group.runs)
    return found
