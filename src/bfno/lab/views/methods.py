"""Runs as methods to compare: which are comparable, and which differ only in their seed."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bfno.lab.runs.record import Record, comparable_settings, shared_settings, task_of
from bfno.lab.views.metrics import HEADLINES, Estimate, Metric, find_metric, headline_of

__all__ = ["TRANSDUCTIVE", "Replicates", "is_transductive", "kind_of", "replicates", "sample_name"]

TRANSDUCTIVE = "a prediction depends on the other series of its batch"
"""The meaning of a dagger beside a method."""
_DENSITIES = {"test_bits_per_dim", "test_nll"}
# More settings than this say less about a variant than the name of its run.
_MOST_SETTINGS_IN_A_NAME = 3


def kind_of(run: Record) -> str:
    """What a run learned: images, series or densities; each kind has its own metrics."""
    if _DENSITIES & run.result.keys():
        return "densities"
    return "series" if run.section("data").get("protocol") else "images"


def is_transductive(run: Record) -> bool:
    """Whether a prediction of the run's model depends on the other series of its batch."""
    model = run.section("model")
    by_generator = {"ace": True, "bfno": model.get("grid") == "batch"}
    reversed_batch = model.get("reverse_axis") == "public_code"
    return reversed_batch or by_generator.get(str(model.get("generator")), False)


def sample_name(run: Record) -> str:
    """The unit of a run's test: series, time points, or plain samples."""
    data = run.section("data")
    if not data.get("protocol"):
        return "samples"
    if run.data == "activity" or data.get("labels") == "row":
        name = "time points"
    elif run.judged_by == "test_auroc" or data.get("labels") == "series":
        name = "series"
    else:
        name = "labels"
    return name if data["protocol"] == "sound" else f"{name} × latent samples"


@dataclass(frozen=True)
class Replicates:
    """Runs that differ only in their seed.

    Attributes:
        label: The method, and in brackets what distinguishes it from others of the same name; with
            a dagger if predictions for one series depend on the others.
        runs: The runs, by seed.
    """

    label: str
    runs: tuple[Record, ...]

    @property
    def task(self) -> tuple[str, str, str]:
        """Data, scale and protocol, which two methods must share to be comparable."""
        return task_of(self.runs[0])

    @property
    def headline(self) -> Metric | None:
        """The metric that the method is judged by."""
        return headline_of(self.runs[0])

    def result(self, key: str) -> Estimate | None:
        """A metric of the result over the seeds."""
        values = (run.result.get(key) for run in self.runs)
        return Estimate.of(values, find_metric(key).digits)

    def seconds(self, digits: int = find_metric("seconds").digits) -> Estimate | None:
        """Training time over the seeds."""
        return Estimate.of((run.seconds for run in self.runs), digits)

    def score(self) -> Estimate | None:
        """The headline metric over the seeds."""
        return None if self.headline is None else self.result(self.headline.key)


def replicates(runs: Iterable[Record]) -> list[Replicates]:
    """Group the runs that differ only in their seed, by task and then best first.

    The order does not depend on that of the runs. Runs of the same seed are not replicates of each
    other: the first of each seed, by name, form one group, and so do the second ones.
    """
    methods: dict[tuple[str, ...], list[list[Record]]] = defaultdict(list)
    for (method, _), same in sorted(by_settings(runs).items()):
        methods[method] += _one_per_seed(same)
    found = []
    for (*_, method), groups in methods.items():
        labels = _labels(method, groups)
        found += [
            Replicates(label, tuple(group)) for label, group in zip(labels, groups, strict=True)
        ]
    return sorted(found, key=_order)


def _one_per_seed(runs: Iterable[Record]) -> list[list[Record]]:
    found: dict[int, list[Record]] = defaultdict(list)
    times: Counter[int] = Counter()
    for run in sorted(runs, key=lambda run: (run.seed, run.name)):
        found[times[run.seed]].append(run)
        times[run.seed] += 1
    return list(found.values())


def by_settings(
    runs: Iterable[Record],
) -> dict[tuple[tuple[str, ...], str], list[Record]]:
    """The runs of each task and method that differ only in their seed and circumstances."""
    methods: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for run in runs:
        methods[(*task_of(run), run.method)].append(run)
    found: dict[tuple[tuple[str, ...], str], list[Record]] = defaultdict(list)
    for method, members in methods.items():
        for run, settings in zip(members, comparable_settings(members), strict=True):
            found[method, settings].append(run)
    return found


def _labels(method: str, groups: list[list[Record]]) -> list[str]:
    """The method's name for each of its groups, with the settings in which they differ.

    A run that was resumed with other settings names its earlier ones, on which its score depends
    too.
    """
    marks = [f" [{'; '.join(group[0].history)}]" if group[0].history else "" for group in groups]
    marks = [
        f"{mark} †" if is_transductive(group[0]) else mark
        for mark, group in zip(marks, groups, strict=True)
    ]
    names = _distinct(method, groups)
    return [f"{name}{mark}" for name, mark in zip(names, marks, strict=True)]


def _distinct(method: str, groups: list[list[Record]]) -> list[str]:
    if len(groups) == 1:
        return [method]
    flats = shared_settings([group[0] for group in groups])
    keys = list(dict.fromkeys(key for flat in flats for key in flat))
    keys = [key for key in keys if len({repr(flat.get(key)) for flat in flats}) > 1]
    if not 0 < len(keys) <= _MOST_SETTINGS_IN_A_NAME:
        return [f"{method} ({group[0].name})" for group in groups]
    labels = [", ".join(f"{key}={flat.get(key)}" for key in keys) for flat in flats]
    # The same settings with the same seed twice: only the runs' names distinguish them.
    twice = len(set(labels)) < len(labels)
    ends = [f"; {group[0].name}" if twice else "" for group in groups]
    return [f"{method} ({label}{end})" for label, end in zip(labels, ends, strict=True)]


def _order(group: Replicates) -> tuple[Any, ...]:
    metric, score = group.headline, group.score()
    rank = (len(HEADLINES), math.inf)
    if metric is not None:
        rank = (HEADLINES.index(metric), metric.rank(score and score.mean))
    return (*group.task, *rank, group.label, group.runs[0].seed)
