"""Tables of runs: means over seeds, best first."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from bfno.lab.runs.metrics import COMPANIONS, HEADLINES
from bfno.lab.runs.record import Record as RunResult
from bfno.lab.runs.record import comparable_settings, flat_config, shared_settings, task_of
from bfno.lab.views.layout import Cell, Column, Estimate, Table
from bfno.lab.views.tasks import is_transductive, kind_of, sample_name

__all__ = [
    "Replicates",
    "comparison",
    "comparisons",
    "flat_config",
    "per_class",
    "replicates",
]

MEBIBYTE = 2**20
# More settings than this say less about a variant than the name of its run.
_MOST_SETTINGS_IN_A_NAME = 3
_TRANSDUCTIVE = (
    "† transductive: a prediction depends on the other series of its batch; that of a label for a "
    "whole series only where the encoder turns round the batch."
)
_OTHER_PROTOCOL = "Protocols divide and judge the data in their own ways: compare within one only."


@dataclass(frozen=True)
class Replicates:
    """Runs that differ in nothing but their seed.

    Attributes:
        label: The method, and in brackets what tells it from others of the same name; with a
            dagger if its predictions depend on each other.
        runs: The runs, by seed.
    """

    label: str
    runs: tuple[RunResult, ...]

    @property
    def task(self) -> tuple[str, str, str]:
        """Data, scale and protocol: what two methods must share to be compared."""
        return task_of(self.runs[0])

    def result(self, key: str, digits: int) -> Estimate | None:
        """A metric of the result over the seeds."""
        return Estimate.of((run.result.get(key) for run in self.runs), digits)

    def score(self) -> Estimate | None:
        """The headline metric over the seeds."""
        metric = self.runs[0].headline
        return None if metric is None else self.result(metric.key, metric.digits)


def replicates(runs: Iterable[RunResult]) -> list[Replicates]:
    """Gather the runs that differ in their seed alone, by task and then best first.

    The order does not depend on that of the runs. Runs with one seed but twice are no replicates
    of each other, and stay apart.
    """
    methods: dict[tuple[str, ...], list[list[RunResult]]] = defaultdict(list)
    for (method, _), same in sorted(_by_settings(runs).items()):
        same = sorted(same, key=lambda run: (run.seed, run.name))
        distinct = len({run.seed for run in same}) == len(same)
        methods[method] += [same] if distinct else [[run] for run in same]
    found = []
    for (*_, method), groups in methods.items():
        labels = _labels(method, groups)
        found += [
            Replicates(label, tuple(group)) for label, group in zip(labels, groups, strict=True)
        ]
    return sorted(found, key=_order)


def comparisons(runs: Iterable[RunResult]) -> list[Table]:
    """Compare any runs: a table for each kind of task and metric that runs are judged by.

    Args:
        runs: The runs, in any order.
    """
    alike: dict[tuple[str, int], list[RunResult]] = defaultdict(list)
    for run in runs:
        metric = run.headline
        place = len(HEADLINES) if metric is None else HEADLINES.index(metric)
        alike[kind_of(run), place].append(run)
    return [comparison(members) for _, members in sorted(alike.items())]


def comparison(runs: Iterable[RunResult]) -> Table:
    """Compare runs: one row for those that differ in their seed alone, the best first.

    Args:
        runs: Runs of one kind of task; each headline metric that one of them has is a column.
    """
    groups = replicates(runs)
    columns = _columns(groups)
    rows = tuple(tuple(read(group) for _, read in columns) for group in groups)
    keys = [column.key for column, _ in columns]
    heads, best = tuple(column for column, _ in columns), frozenset(_best(groups, keys))
    return Table(heads, rows, best, tuple(_notes(groups)))


def per_class(run: RunResult) -> Table:
    """Precision and recall of each class, from the confusion matrix of a run."""
    columns = (
        Column("class", "class", numeric=False),
        Column("precision", "precision"),
        Column("recall", "recall"),
        Column("samples", f"test {sample_name(run)}"),
    )
    rows = []
    for index, row in enumerate(run.confusion):
        predicted = sum(other[index] for other in run.confusion)
        name = run.classes[index] if index < len(run.classes) else str(index)
        rows.append((name, _share(row[index], predicted), _share(row[index], sum(row)), sum(row)))
    return Table(columns, tuple(rows))


def _notes(groups: list[Replicates]) -> Iterable[str]:
    if any(is_transductive(group.runs[0]) for group in groups):
        yield _TRANSDUCTIVE
    if len({group.task[2] for group in groups} - {""}) > 1:
        yield _OTHER_PROTOCOL


def _by_settings(
    runs: Iterable[RunResult],
) -> dict[tuple[tuple[str, ...], str], list[RunResult]]:
    methods: dict[tuple[str, ...], list[RunResult]] = defaultdict(list)
    for run in runs:
        methods[(*task_of(run), run.method)].append(run)
    found: dict[tuple[tuple[str, ...], str], list[RunResult]] = defaultdict(list)
    for method, members in methods.items():
        for run, settings in zip(members, comparable_settings(members), strict=True):
            found[method, settings].append(run)
    return found


def _labels(method: str, groups: list[list[RunResult]]) -> list[str]:
    """The method's name for each of its groups, with the settings in which they differ."""
    marks = [" †" if is_transductive(group[0]) else "" for group in groups]
    names = _distinct(method, groups)
    return [f"{name}{mark}" for name, mark in zip(names, marks, strict=True)]


def _distinct(method: str, groups: list[list[RunResult]]) -> list[str]:
    if len(groups) == 1:
        return [method]
    flats = shared_settings([group[0] for group in groups])
    keys = list(dict.fromkeys(key for flat in flats for key in flat))
    keys = [key for key in keys if len({repr(flat.get(key)) for flat in flats}) > 1]
    if not 0 < len(keys) <= _MOST_SETTINGS_IN_A_NAME:
        return [f"{method} ({group[0].name})" for group in groups]
    labels = [", ".join(f"{key}={flat.get(key)}" for key in keys) for flat in flats]
    # The same settings with the same seed twice: only the runs' names tell them apart.
    twice = len(set(labels)) < len(labels)
    ends = [f"; {group[0].name}" if twice else "" for group in groups]
    return [f"{method} ({label}{end})" for label, end in zip(labels, ends, strict=True)]


def _order(group: Replicates) -> tuple[Any, ...]:
    metric, score = group.runs[0].headline, group.score()
    rank = (len(HEADLINES), math.inf)
    if metric is not None:
        rank = (HEADLINES.index(metric), metric.rank(score and score.mean))
    return (*group.task, *rank, group.label, group.runs[0].seed)


def _columns(groups: list[Replicates]) -> list[tuple[Column, Callable[[Replicates], Cell]]]:
    """Each column with the function that reads its cell."""
    columns: list[tuple[Column, Callable[[Replicates], Cell]]] = [
        (Column("method", "method", numeric=False), lambda group: group.label),
        (Column("data", "data", numeric=False), lambda group: group.task[0]),
    ]
    if len({group.runs[0].scale for group in groups}) > 1:
        columns.append((Column("scale", "scale", numeric=False), lambda group: group.task[1]))
    if any(group.task[2] for group in groups):
        protocol = Column("protocol", "protocol", numeric=False)
        columns.append((protocol, lambda group: group.task[2] or None))
    columns.append((Column("parameters", "parameters"), lambda group: group.runs[0].parameters))
    used = {group.runs[0].headline for group in groups}
    known = {key for group in groups for run in group.runs for key in run.result}
    shown = [metric for metric in HEADLINES if metric in used]
    shown += [metric for metric in COMPANIONS if metric.key in known]
    columns += [_measured(metric.key, metric.title, metric.digits) for metric in shown]
    columns += [
        _measured("train_loss", "train loss", 4),
        _measured("forward_nfe", "NFE forward", 1),
        _measured("backward_nfe", "NFE backward", 1),
        _measured("test_nfe", "NFE test", 1),
        (Column("seconds", "seconds", measured=True), _seconds),
        (Column("peak_memory_mib", "peak MiB", measured=True), _mebibytes),
        (Column("seed", "seed"), lambda group: tuple(run.seed for run in group.runs)),
    ]
    return columns


def _measured(
    key: str, title: str, digits: int
) -> tuple[Column, Callable[[Replicates], Estimate | None]]:
    return Column(key, title, measured=True), lambda group: group.result(key, digits)


def _seconds(group: Replicates) -> Estimate | None:
    return Estimate.of((run.seconds for run in group.runs), digits=1)


def _mebibytes(group: Replicates) -> Estimate | None:
    peaks = (run.peak_memory for run in group.runs)
    return Estimate.of((peak and peak / MEBIBYTE for peak in peaks), digits=0)


def _best(groups: list[Replicates], keys: list[str]) -> Iterable[tuple[int, int]]:
    """The cells of the headline metric that no other method of the same task beats."""
    for number, group in enumerate(groups):
        metric, score = group.runs[0].headline, group.score()
        rivals = [
            other.score()
            for other in groups
            if other.task == group.task and other.runs[0].headline == metric
        ]
        if metric is None or score is None or len(rivals) < 2:
            continue
        ranks = [metric.rank(rival and rival.mean) for rival in rivals]
        if metric.rank(score.mean) == min(ranks) < max(ranks):
            yield number, keys.index(metric.key)


def _share(part: int, whole: int) -> Estimate | None:
    return Estimate(part / whole, None, 3) if whole else None
