"""Runs as methods to compare: which runs may be compared, and which differ in their seed alone."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bfno.lab.experiments.settings import CIRCUMSTANCES
from bfno.lab.views.metrics import HEADLINES, Estimate, Metric, find_metric, headline_of
from bfno.lab.views.record import RunResult

__all__ = ["TRANSDUCTIVE", "Replicates", "are_replicates", "flat_config", "is_transductive"]
__all__ += ["kind_of", "replicates", "sample_name", "task_of"]

TRANSDUCTIVE = "a prediction depends on the other series of its batch"
"""What a dagger beside a method means."""
_DENSITIES = {"test_bits_per_dim", "test_nll"}
# More settings than this say less about a variant than the name of its run.
_MOST_SETTINGS_IN_A_NAME = 3


def task_of(run: RunResult) -> tuple[str, str, str]:
    """Data, scale and protocol: what two runs must share to be compared."""
    # One's own data are all called the same; two files or folders of them are two tasks.
    names = dict(run.own_data)
    if "test_path" in names:
        names["test_path"] = f"tested on {names['test_path']}"
    own = f" ({', '.join(names.values())})" if names else ""
    return run.data + own, run.scale, str(run.section("data").get("protocol") or "")


def kind_of(run: RunResult) -> str:
    """What a run learned: images, series or densities; each kind has its own metrics."""
    if _DENSITIES & run.result.keys():
        return "densities"
    return "series" if run.section("data").get("protocol") else "images"


def is_transductive(run: RunResult) -> bool:
    """Whether a prediction of the run's model depends on the other series of its batch."""
    model = run.section("model")
    by_generator = {"ace": True, "bfno": model.get("grid") == "batch"}
    reversed_batch = model.get("reverse_axis") == "public_code"
    return reversed_batch or by_generator.get(str(model.get("generator")), False)


def sample_name(run: RunResult) -> str:
    """What a run's test counted: series, time points, or plain samples."""
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
    """Runs that differ in nothing but their seed.

    Attributes:
        label: The method, and in brackets what tells it from others of the same name; with a
            dagger if predictions for one series depend on the others.
        runs: The runs, by seed.
    """

    label: str
    runs: tuple[RunResult, ...]

    @property
    def task(self) -> tuple[str, str, str]:
        """Data, scale and protocol: what two methods must share to be compared."""
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
        """How long the training took, over the seeds."""
        return Estimate.of((run.seconds for run in self.runs), digits)

    def score(self) -> Estimate | None:
        """The headline metric over the seeds."""
        return None if self.headline is None else self.result(self.headline.key)


def replicates(runs: Iterable[RunResult]) -> list[Replicates]:
    """Gather the runs that differ in their seed alone, by task and then best first.

    The order does not depend on that of the runs. Runs of the same seed are not replicates
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


def are_replicates(one: RunResult, other: RunResult) -> bool:
    """Whether two runs differ in nothing but their seed and such circumstances."""
    return len(_by_settings([one, other])) == 1


def flat_config(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level of dotted names.

    Example:
        >>> flat_config({"seed": 7, "model": {"width": 32, "branches": 2}})
        {'seed': 7, 'model.width': 32, 'model.branches': 2}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            flat.update(flat_config(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _by_settings(
    runs: Iterable[RunResult],
) -> dict[tuple[tuple[str, ...], str], list[RunResult]]:
    methods: dict[tuple[str, ...], list[RunResult]] = defaultdict(list)
    for run in runs:
        methods[(*task_of(run), run.method)].append(run)
    found: dict[tuple[tuple[str, ...], str], list[RunResult]] = defaultdict(list)
    for method, members in methods.items():
        for run, settings in zip(members, _comparable(members), strict=True):
            text = json.dumps([settings, sorted(run.changes)], sort_keys=True)
            found[method, text].append(run)
    return found


def _comparable(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """The settings of each run, without circumstances and without what older records lack.

    Options of layers are all compared: one that is missing was not given.
    """
    flats = [flat_config(run.config) for run in runs]
    common = set.intersection(*map(set, flats)) - CIRCUMSTANCES
    return [
        {key: value for key, value in flat.items() if key in common or "_options" in key}
        for flat in flats
    ]


def _labels(method: str, groups: list[list[RunResult]]) -> list[str]:
    """The method's name for each of its groups, with the settings in which they differ."""
    marks = [" †" if is_transductive(group[0]) else "" for group in groups]
    names = _distinct(method, groups)
    return [f"{name}{mark}" for name, mark in zip(names, marks, strict=True)]


def _distinct(method: str, groups: list[list[RunResult]]) -> list[str]:
    if len(groups) == 1:
        return [method]
    flats = _comparable([group[0] for group in groups])
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
    metric, score = group.headline, group.score()
    rank = (len(HEADLINES), math.inf)
    if metric is not None:
        rank = (HEADLINES.index(metric), metric.rank(score and score.mean))
    return (*group.task, *rank, group.label, group.runs[0].seed)
