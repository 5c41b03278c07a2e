"""A list of runs: state, progress and score of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.files import parse_yaml, read_plain
from bfno.lab.runs.folder import RunFolder, named_apart, run_folders
from bfno.lab.runs.record import Record
from bfno.lab.views.layout import Column, Table
from bfno.lab.views.metrics import HEADLINES, Metric, duration, find_metric, headline_of

__all__ = ["ORDERS", "ListedRun", "as_object", "look_at", "look_for_runs", "read_finished"]
__all__ += ["run_table"]

State = Literal["finished", "training", "stopped", "failed", "damaged"]
_STATES: tuple[State, ...] = ("training", "stopped", "failed", "damaged", "finished")
_LONGEST_SETTINGS = 1 << 20


@dataclass(frozen=True)
class ListedRun:
    """An entry of a list of runs.

    Attributes:
        run: Its folder.
        state: Its state. `failed`: it ended with an error, and has to be resumed with other
            settings; `damaged`: its files cannot be understood.
        experiment: The experiment, `data/method`; empty if its files do not say.
        scale: Its scale.
        seed: Its seed.
        epochs: Finished epochs.
        of_epochs: Number of epochs requested.
        metric: Key of the metric that it is judged by.
        score: Value of that metric: of the kept weights, or of the last epoch so far.
        seconds: Time of the training so far.
        why: Why it failed, or is damaged.
    """

    run: Path
    state: State
    experiment: str = ""
    scale: str = ""
    seed: int | None = None
    epochs: int | None = None
    of_epochs: int | None = None
    metric: str | None = None
    score: float | None = None
    seconds: float | None = None
    why: str = ""

    @property
    def progress(self) -> str:
        """Number of finished epochs, of the number requested."""
        if self.epochs is None:
            return ""
        return str(self.epochs) if self.of_epochs is None else f"{self.epochs} of {self.of_epochs}"

    @property
    def rank(self) -> float:
        """A number to sort by: the best score has the smallest; runs without a score come last."""
        metric = find_metric(self.metric or "")
        place = [one.key for one in HEADLINES].index(metric.key) if metric in HEADLINES else 99
        worst = 1e9
        return place * worst + min(max(metric.rank(self.score), -worst / 2), worst / 2)

    def told(self) -> str:
        """The state of an unfinished run, in words."""
        if self.state == "training":
            return f"unfinished, in training: {self.progress} epochs are done"
        if self.state == "failed":
            return _said(self)
        if self.state == "damaged":
            return f"unfinished, damaged: {self.why}"
        return f"unfinished, stopped after {self.progress} epochs"


ORDERS: dict[str, Callable[[ListedRun], Any]] = {
    "name": lambda one: str(one.run),
    "state": lambda one: (_STATES.index(one.state), str(one.run)),
    "score": lambda one: (one.rank, str(one.run)),
    "time": lambda one: (-(one.seconds or 0.0), str(one.run)),
}
"""Ways to sort a list of runs."""


def look_for_runs(root: Path) -> list[ListedRun]:
    """The runs below a folder, two folders deep, or the folder itself if it is a run.

    Args:
        root: Where to look.

    Raises:
        ConfigError: If there is no such folder.
    """
    root = Path(root)
    if not root.is_dir():
        fix = "name the folder that holds your runs, or train one with `bfno train`"
        raise ConfigError(root, "is not a folder", fix)
    found = [root] if RunFolder(root).is_run else run_folders(root)
    return [look_at(folder) for folder in found]


def look_at(folder: Path) -> ListedRun:
    """The entry of a run; problems with its files are part of it."""
    run = RunFolder(folder)
    try:
        record = run.record() if os.path.lexists(run.record_file) else None
        if record is not None and record.has_ended:
            return _ended(folder, run.ended())
        return _unfinished(run)
    except (ConfigError, DataError) as error:
        return ListedRun(folder, "damaged", why=f"{Path(str(error.what)).name}: {error.why}")


def read_finished(folders: Iterable[Path]) -> tuple[dict[Path, Record], list[ListedRun]]:
    """Read runs, each once: the finished ones, and the entries of the others.

    Args:
        folders: Where the runs are.

    Raises:
        ConfigError: None of them is finished, or one is not a run.
        DataError: A file of a run cannot be understood.
    """
    once = {Path(folder).resolve(): Path(folder) for folder in folders}
    if not once:
        raise ConfigError("runs", "none is named", "name one or more folders, as in runs/*")
    finished: dict[Path, Record] = {}
    others, problems = [], []
    for folder in once.values():
        try:
            finished[folder] = RunFolder(folder).finished()
        except ConfigError as error:
            if not RunFolder(folder).is_run:
                raise
            others.append(look_at(folder))
            problems.append(error)
    if not finished:
        raise problems[0]
    return named_apart(finished), others


def run_table(runs: Sequence[ListedRun]) -> Table:
    """A list of runs as a table, with the reasons why runs failed or are damaged below it."""
    columns = (
        Column("run", "run", numeric=False),
        Column("state", "state", numeric=False),
        Column("experiment", "experiment", numeric=False),
        Column("scale", "scale", numeric=False),
        Column("epochs", "epochs"),
        Column("score", "score"),
        Column("seconds", "time"),
    )
    rows = tuple(
        (
            str(one.run),
            one.state,
            one.experiment or None,
            one.scale or None,
            one.progress or None,
            _score_text(one),
            None if one.seconds is None else duration(one.seconds),
        )
        for one in runs
    )
    notes = tuple(f"{one.run} {_said(one)}" for one in runs if one.why)
    return Table(columns, rows, notes=notes)


def as_object(run: ListedRun) -> dict[str, Any]:
    """A run of a list for programs."""
    return {**asdict(run), "run": str(run.run)}


def _said(one: ListedRun) -> str:
    return f"failed: {one.why}" if one.state == "failed" else f"is damaged: {one.why}"


def _score_text(one: ListedRun) -> str | None:
    if one.metric is None:
        return None
    metric = find_metric(one.metric)
    return f"{metric.title} {metric.text(one.score)}{'' if one.state == 'finished' else ' so far'}"


def _ended(folder: Path, record: Record) -> ListedRun:
    metric = headline_of(record)
    score = metric and record.result[metric.key]
    if record.has_failed:
        metric = _headline_so_far(record.epochs)
        score = metric and record.epochs[-1][metric.key]
    return ListedRun(
        folder,
        "failed" if record.has_failed else "finished",
        record.experiment,
        record.scale,
        record.seed,
        record.epoch_count,
        _wanted_epochs(record.config),
        metric and metric.key,
        score,
        record.seconds,
        record.failure,
    )


def _unfinished(run: RunFolder) -> ListedRun:
    settings, epochs = _settings(run), run.epochs_so_far()
    metric = _headline_so_far(epochs)
    in_use = run.is_in_use
    error = "" if in_use else run.last_error()
    return ListedRun(
        run.path,
        "training" if in_use else "failed" if error else "stopped",
        str(settings["experiment"]),
        str(settings.get("scale", "")),
        settings.get("seed"),
        len(epochs),
        _wanted_epochs(settings),
        metric and metric.key,
        metric and epochs[-1][metric.key],
        sum(epoch.get("seconds", 0.0) for epoch in epochs),
        error,
    )


def _settings(run: RunFolder) -> Mapping[str, Any]:
    """The settings of a run as written, without checking each, which keeps a list fast."""
    try:
        found = parse_yaml(read_plain(run.config_file, _LONGEST_SETTINGS))
    except FileNotFoundError:
        raise DataError(run.config_file, "is missing", "copy it from a backup of the run") from None
    except (OSError, ValueError) as error:
        raise DataError(run.config_file, str(error), "copy it from a backup of the run") from None
    if not isinstance(found, dict) or "experiment" not in found:
        raise DataError(run.config_file, "names no experiment", "copy it from a backup of the run")
    return found


def _wanted_epochs(settings: Mapping[str, Any]) -> int | None:
    train = settings.get("train")
    epochs = train.get("epochs") if isinstance(train, Mapping) else None
    return epochs if isinstance(epochs, int) else None


def _headline_so_far(epochs: Sequence[Mapping[str, Any]]) -> Metric | None:
    last = epochs[-1] if epochs else {}
    return next((metric for metric in HEADLINES if metric.key in last), None)
