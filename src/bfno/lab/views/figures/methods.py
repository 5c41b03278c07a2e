"""The methods that figures compare: their runs, and the look that each keeps in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from bfno.lab.runs.record import Record as RunResult
from bfno.lab.views.figures.style import Look, is_ablation, looks
from bfno.lab.views.tables import Replicates, replicates

__all__ = ["Methods"]


@dataclass(frozen=True)
class Methods:
    """Methods of a drawing, or those of them that a figure shows.

    Names and looks come from all runs of the drawing. A figure that made its own from the runs
    that it shows would give a method another colour than the figure beside it.

    Attributes:
        groups: Runs that differ in their seed alone, by task and then best first.
        looks: The look of each method of the drawing, by label.
    """

    groups: tuple[Replicates, ...]
    looks: Mapping[str, Look]

    @classmethod
    def of(cls, runs: Iterable[RunResult]) -> Methods:
        """The methods of a drawing.

        Args:
            runs: All of its runs.
        """
        groups = tuple(replicates(runs))
        return cls(groups, looks(group.label for group in groups))

    def part(self, keep: Callable[[RunResult], bool]) -> Methods:
        """Some of the runs, under the names and looks that they have among all."""
        kept = [
            Replicates(group.label, tuple(run for run in group.runs if keep(run)))
            for group in self.groups
        ]
        return replace(self, groups=tuple(group for group in kept if group.runs))

    def main(self) -> Methods:
        """Without ablations, which have figures of their own; all of a task with nothing else."""
        found = []
        for _, groups in self.tasks():
            others = [group for group in groups if not is_ablation(group.runs[0].method)]
            found += others if len({group.runs[0].method for group in others}) > 1 else groups
        return replace(self, groups=tuple(found))

    def tasks(self) -> list[tuple[tuple[str, str, str], list[Replicates]]]:
        """The methods of each task."""
        by_task = groupby(self.groups, key=lambda group: group.task)
        return [(task, list(groups)) for task, groups in by_task]

    def looks_of(self, groups: Iterable[Replicates]) -> dict[str, Look]:
        """The looks of these alone, in the order of all."""
        shown = {group.label for group in groups}
        return {label: look for label, look in self.looks.items() if label in shown}
