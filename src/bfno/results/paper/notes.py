"""What stands below a table that shows runs beside the paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bfno.results.paper.numbers import PaperTable
from bfno.results.record import RunResult
from bfno.results.tables import comparison

__all__ = ["notes"]

_SCALES = {
    "smoke": "a few steps of tiny models, which show that everything runs and nothing else",
    "cpu": (
        "the same methods at a size that trains in minutes; compare rows, not columns: neither "
        "scores nor sizes are those that the paper's columns are about"
    ),
    "paper": "the published settings",
}
_COMMIT_LETTERS = 8
_UNKNOWN = "not recorded"


def notes(
    paper: PaperTable,
    scale: str,
    seeds: Sequence[int],
    runs: Sequence[RunResult],
    failures: Mapping[tuple[str, int], str],
) -> Iterator[str]:
    """Say how the runs of a table came about and what to know before reading it.

    Args:
        paper: The table of the paper.
        scale: Scale of the runs.
        seeds: The seeds that were asked for.
        runs: The runs that the table shows.
        failures: Why runs failed, by experiment and seed.
    """
    yield f"{paper.title}. Here: {scale} scale, {_SCALES.get(scale, 'as the runs were made')}."
    yield from _circumstances(seeds, runs)
    sources = dict.fromkeys(row.quoted for row in paper.rows if row.quoted)
    if sources:
        yield f"* The paper presumably quotes this value from earlier work: {'; '.join(sources)}."
    yield from paper.notes
    if runs:
        yield from comparison(runs).notes
    yield from _tested_activity(runs)
    beyond = {run.data for run in runs} & set(paper.beyond)
    if beyond:
        yield f"The paper has no results on {', '.join(sorted(beyond))}."
    for (experiment, seed), why in failures.items():
        yield f"{experiment} with seed {seed} failed: {why}"


def _circumstances(seeds: Sequence[int], runs: Sequence[RunResult]) -> Iterator[str]:
    if not runs:
        yield "No run is finished."
        return
    spread = "; ± is the standard deviation over seeds" if len(seeds) > 1 else ""
    named = f"{'Seeds' if len(seeds) > 1 else 'Seed'} {', '.join(map(str, seeds))}{spread}"
    yield f"{named}. Score of {_tally(map(_epoch, runs))}."
    yield f"Hardware: {_tally(map(_hardware, runs))}. Commit: {_tally(map(_commit, runs))}."


def _tally(values: Iterable[str]) -> str:
    """Different values, the most frequent first, each with its number of runs if not the only."""
    counted = Counter(values)
    if len(counted) == 1:
        return next(iter(counted))
    ordered = sorted(counted.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{value} ({count} run{'s' * (count > 1)})" for value, count in ordered)


def _epoch(run: RunResult) -> str:
    if run.chosen_by is None:
        return "an epoch whose choice is not recorded"
    if run.chosen_by.startswith("validation_"):
        return f"the epoch that was best by {run.chosen_by.replace('_', ' ')}"
    return f"the {run.chosen_by}, without validation data"


def _hardware(run: RunResult) -> str:
    known = run.hardware
    if not known.get("processor"):
        return _UNKNOWN
    parts = [f"{known['processor']} with {known.get('cores', '?')} cores"]
    gpus = known.get("gpus")
    parts += map(str, gpus) if isinstance(gpus, list) else []
    if run.threads:
        parts.append("one thread a run" if run.threads == 1 else f"{run.threads} threads a run")
    return ", ".join(parts)


def _commit(run: RunResult) -> str:
    return run.commit[:_COMMIT_LETTERS] if run.commit else _UNKNOWN


def _tested_activity(runs: Sequence[RunResult]) -> Iterator[str]:
    """HumanActivity also works with a slice of its file, which changes every number."""
    tested = [_windows(run) for run in runs if run.data == "activity"]
    if tested:
        yield (
            f"HumanActivity: {_tally(tested)}. The official file has 164,860 readings; "
            "with a slice of it, which works too, scores are about that slice alone."
        )


def _windows(run: RunResult) -> str:
    rows = f"{sum(map(sum, run.confusion)):,} test rows"
    known = [f"{count:,.0f} {name} windows of 50 rows" for name, count in run.samples.items()]
    return ", ".join([*known, rows])
