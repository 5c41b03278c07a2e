"""Which tables of the paper runs exist for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bfno.lab.paper.numbers import paper_table, table_names
from bfno.lab.paper.selection import select_runs
from bfno.lab.runs.record import Record as RunResult

__all__ = ["Section", "sections_of"]


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
    runs: tuple[tuple[Path, RunResult], ...]

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
        words = ["bfno", "table", self.table, "--data", self.data, "--scale", self.scale]
        return shlex.join([*words, "--seeds", str(seeds)])

    def figure(self, name: str) -> str:
        """The file of a figure."""
        short = re.sub("^(series|density)-", "", name).removesuffix(f"-{self.data}")
        return f"{self.scale}-{self.table}-{self.data}-{short}.png"


def sections_of(runs: Sequence[tuple[Path, RunResult]]) -> Iterator[Section]:
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
                # One method alone, which another table shares, is no comparison.
                if len({run.method for _, run in found}) > 1:
                    yield Section(table, data, scale, found)
