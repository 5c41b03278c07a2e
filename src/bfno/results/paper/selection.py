"""Which of many runs speak for the experiments of the paper as they are defined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from bfno.results.record import RunResult
from bfno.results.tables import replicates

__all__ = ["counted_runs", "outliers"]


def counted_runs(runs: Iterable[RunResult]) -> list[RunResult]:
    """One run for each experiment, scale and seed, all of an experiment with the same settings.

    Runs with changed settings do not count. Of two with the same seed the one does whose name comes
    first; of runs with different settings, those do that more seeds share.
    """
    return [run for most, _ in _by_experiment(runs) for run in most]


def outliers(runs: Iterable[RunResult]) -> list[RunResult]:
    """Runs that do not count because most of their experiment have other settings."""
    return [run for _, others in _by_experiment(runs) for run in others]


def _by_experiment(runs: Iterable[RunResult]) -> list[tuple[list[RunResult], list[RunResult]]]:
    """The runs of each experiment and scale that count, and the others."""
    known: dict[tuple[str, str], dict[int, RunResult]] = defaultdict(dict)
    for run in sorted(runs, key=lambda run: run.name):
        if not run.changes:
            known[run.experiment, run.scale].setdefault(run.seed, run)
    found = []
    for members in known.values():
        groups = sorted(replicates(members.values()), key=lambda group: -len(group.runs))
        most, *others = ([*group.runs] for group in groups)
        found.append((most, [run for group in others for run in group]))
    return found
