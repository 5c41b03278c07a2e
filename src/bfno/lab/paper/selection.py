"""Which of many runs speak for the experiments of the paper as they are defined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from bfno.lab.runs.record import Record as RunResult
from bfno.lab.views.tables import replicates

__all__ = ["Selection", "select_runs"]


class Selection(NamedTuple):
    """The runs that count, and those that do not because most of their experiment differ."""

    counted: list[RunResult]
    outliers: list[RunResult]


def select_runs(runs: Iterable[RunResult]) -> Selection:
    """One run for each experiment, scale and seed, all of an experiment with the same settings.

    Runs with changed settings do not count. Of two with the same seed the one does whose name comes
    first; of runs with different settings, those do that more seeds share.
    """
    known: dict[tuple[str, str], dict[int, RunResult]] = defaultdict(dict)
    for run in sorted(runs, key=lambda run: run.name):
        if not run.changes:
            known[run.experiment, run.scale].setdefault(run.seed, run)
    found = Selection([], [])
    for members in known.values():
        most, *others = sorted(replicates(members.values()), key=lambda group: -len(group.runs))
        found.counted.extend(most.runs)
        found.outliers.extend(run for group in others for run in group.runs)
    return found
