"""What stands below a table that shows runs beside the paper."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from bfno.lab.paper.numbers import PaperTable
from bfno.lab.runs.metrics import HEADLINES
from bfno.lab.runs.record import Record as RunResult
from bfno.lab.views.tables import comparison, flat_config

__all__ = ["commit_words", "hardware_words", "notes", "tally"]

_SCALES = {
    "smoke": "a few steps of tiny models, which show that everything runs and nothing else",
    "cpu": (
        "the same methods at a size that trains in minutes; compare rows, not columns: neither "
        "scores nor sizes are those that the paper's columns are about, and methods that the paper "
        "has matched in size are not"
    ),
    "paper": "the published settings",
}
_COMMIT_LETTERS = 8
_UNKNOWN = "not recorded"
# Of the official file every protocol makes more windows than this.
_LEAST_WINDOWS = 4_000


def notes(
    paper: PaperTable, scale: str, seeds: Sequence[int], runs: Sequence[RunResult]
) -> Iterator[str]:
    """Say how the runs of a table came about and what to know before reading it.

    Args:
        paper: The table of the paper.
        scale: Scale of the runs.
        seeds: The seeds that were asked for.
        runs: The runs that the table shows.
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


def _circumstances(seeds: Sequence[int], runs: Sequence[RunResult]) -> Iterator[str]:
    if not runs:
        yield "No run is finished."
        return
    spread = "; ± is the standard deviation over seeds" if len(seeds) > 1 else ""
    named = f"{'Seeds' if len(seeds) > 1 else 'Seed'} {', '.join(map(str, seeds))}{spread}"
    yield f"{named}. Score of {tally(map(_epoch, runs))}."
    yield from _recipes(runs)
    hardware, commits = tally(map(hardware_words, runs)), tally(map(commit_words, runs))
    yield f"Hardware: {hardware}. Commit: {commits}."


def _recipes(runs: Sequence[RunResult]) -> Iterator[str]:
    """What was trained on, for how long and at which rate: all methods alike, or which not."""
    for data in dict.fromkeys(run.data for run in runs):
        members = [run for run in runs if run.data == data]
        parts = [
            *_sizes(flat_config(members[0].config)),
            _varied(members, "train.epochs", "{} epochs"),
            _varied(members, "train.lr", "learning rate {}"),
        ]
        if any(parts):
            yield f"Training on {data}: {', '.join(filter(None, parts))}."


def _sizes(settings: dict[str, object]) -> Iterator[str]:
    if size := settings.get("data.size"):
        yield f"images of {size} × {size} pixels"
    for key, words in (("data.train_limit", "training"), ("data.test_limit", "testing")):
        if limit := settings.get(key):
            yield f"{limit:,} of the samples for {words}"


def _varied(runs: Sequence[RunResult], key: str, words: str) -> str:
    """A setting, and the methods that differ in it from most others."""
    methods: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        settings = flat_config(run.config)
        if settings.get(key) is not None:
            methods[str(settings[key])].add(run.method)
    most, *others = sorted(methods, key=lambda value: -len(methods[value])) or [""]
    differ = "; ".join(f"{', '.join(sorted(methods[value]))}: {value}" for value in others)
    return most and words.format(most) + (f" ({differ})" if differ else "")


def tally(values: Iterable[str]) -> str:
    """Different values, the most frequent first, each with its number of runs if not the only."""
    counted = Counter(values)
    if len(counted) < 2:
        return "".join(counted)
    ordered = sorted(counted.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{value} ({count} run{'s' * (count > 1)})" for value, count in ordered)


def _epoch(run: RunResult) -> str:
    if run.chosen_by is None:
        return "an epoch whose choice is not recorded"
    if run.chosen_by.startswith("validation_"):
        return f"the epoch that was best by {_validation_title(run.chosen_by)}"
    return f"the {run.chosen_by}, without validation data"


def _validation_title(key: str) -> str:
    """The name of a metric, which on test data has one in the tables."""
    for metric in HEADLINES:
        if metric.key == key.replace("validation_", "test_"):
            return metric.title.replace("test ", "validation ")
    return key.replace("_", " ")


def hardware_words(run: RunResult) -> str:
    """What a run was computed on."""
    known = run.hardware
    if not known.get("processor"):
        return _UNKNOWN
    parts = [f"{known['processor']} with {known.get('cores', '?')} cores"]
    gpus = known.get("gpus")
    parts += map(str, gpus) if isinstance(gpus, list) else []
    if run.threads:
        parts.append("one thread a run" if run.threads == 1 else f"{run.threads} threads a run")
    return ", ".join(parts)


def commit_words(run: RunResult) -> str:
    """The commit of the sources, and whether they had changed since."""
    if not run.commit:
        return _UNKNOWN
    commit, plus, changed = run.commit.partition("+")
    return commit[:_COMMIT_LETTERS] + plus + changed


def _tested_activity(runs: Sequence[RunResult]) -> Iterator[str]:
    """HumanActivity also works with a slice of its file, which changes every number."""
    tested = [run for run in runs if run.data == "activity"]
    if tested:
        yield f"HumanActivity: {tally(map(_windows, tested))}."
    if any(0 < sum(run.samples.values()) < _LEAST_WINDOWS for run in tested):
        yield (
            "This is a slice of HumanActivity, not the official file of 164,860 readings, with "
            "which the same command gives other numbers: scores are about the slice alone."
        )


def _windows(run: RunResult) -> str:
    rows = f"{sum(map(sum, run.confusion)):,} test rows"
    known = [f"{count:,.0f} {name} windows of 50 rows" for name, count in run.samples.items()]
    return ", ".join([*known, rows])
