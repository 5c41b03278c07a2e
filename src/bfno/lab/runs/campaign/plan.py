"""Planning many runs: which are done, which have begun, which are missing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from bfno.lab.data import DATA_SETS, data_folder, locate
from bfno.lab.data.activity import find_activity
from bfno.lab.data.physionet import find_physionet
from bfno.lab.errors import ConfigError, DataError, UserError
from bfno.lab.experiments.density.experiment import DENSITY_DATA
from bfno.lab.experiments.experiment import Experiment
from bfno.lab.experiments.resolve import changed_settings, read_experiment, resolve
from bfno.lab.experiments.series.data import SeriesDataSettings
from bfno.lab.files import parse_yaml, read_plain
from bfno.lab.runs.folder import RunFolder, run_folders
from bfno.lab.runs.load import history_of
from bfno.lab.runs.record import Record
from bfno.lab.runs.variants import Variant

__all__ = ["Job", "RunState", "missing_files", "plan", "state_of"]

RunState = Literal["there", "in use", "begun", "failed", "missing"]
_ORDER: tuple[RunState, ...] = get_args(RunState)
# Errors from files that may come from anywhere.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, UserError)


@dataclass(frozen=True)
class Job:
    """A requested run.

    Attributes:
        experiment: What to train, `data/method`.
        scale: Its scale.
        seed: Its seed.
        folder: Where the run is, or will be.
        state: Whether it is done, in use by another process, begun, known only from a record that
            says it failed, or missing.
        epochs: Its number of epochs.
        seconds: Expected time from beginning to end, from the records of others; None if unknown.
        title: Its name in lists; empty means its experiment and seed.
        changes: Settings in which it differs from its experiment, as `--set` takes them.
    """

    experiment: str
    scale: str
    seed: int
    folder: Path
    state: RunState
    epochs: int
    seconds: float | None = None
    title: str = ""
    changes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in a list."""
        return self.title or f"{self.experiment} seed {self.seed}"


@dataclass(frozen=True)
class _Known:
    """An existing run with exactly the requested settings."""

    folder: Path
    config: Experiment
    state: RunState
    seconds: float | None

    @property
    def key(self) -> tuple[str, int]:
        return self.config.experiment, self.config.seed


def plan(
    experiments: Sequence[str],
    scale: str,
    seeds: Sequence[int],
    runs: Path,
    changes: Mapping[str, Any] | None = None,
) -> list[Job]:
    """Look for runs of experiments, and decide where the missing ones will go.

    A run counts if its settings are those of the experiment, and always were, except for
    circumstances such as the number of threads; a setting that is newer than the run has its
    default.

    Args:
        experiments: The experiments, `data/method`.
        scale: Their scale.
        seeds: The seeds of each.
        runs: The folder to look in, two folders deep; new runs go to `SCALE/DATA-METHOD-sSEED`,
            those with changed settings to a folder beside that of the scale.
        changes: Nested settings in which all of them differ from their experiments.

    Raises:
        ConfigError: If there is no such experiment, scale or setting.
    """
    configs = {name: resolve(name, scale=scale, changes=changes) for name in experiments}
    changed = {name: tuple(changed_settings(config)) for name, config in configs.items()}
    known = sorted(
        _known_runs(runs, changed, scale),
        key=lambda run: (_ORDER.index(run.state), str(run.folder)),
    )
    chosen: dict[tuple[str, int], _Known] = {}
    for run in known:
        chosen.setdefault(run.key, run)
    jobs = []
    for seed, (name, config) in itertools.product(seeds, configs.items()):
        run = chosen.get((name, seed))
        place = runs / Variant.of(changed[name]).folder(scale)
        folder = run.folder if run else _free_folder(place, name, seed)
        state: RunState = run.state if run else "missing"
        seconds = _expected_seconds(known, name)
        epochs = config.train.epochs_for(0)
        job = Job(name, scale, seed, folder, state, epochs, seconds, changes=changed[name])
        jobs.append(job)
    return jobs


def state_of(folder: Path) -> RunState:
    """Find out the present state of a run.

    Raises:
        DataError: If it has begun where we cannot write.
    """
    run = RunFolder(folder)
    if run.finished_record() is not None:
        return "there"
    if run.failed_for_good() is not None:
        return "failed"
    has_begun = run.config_file.is_file()
    try:
        # Who trains holds the lock before there are settings.
        if has_begun or run.lock_file.exists():
            run.check_free()
    except ConfigError:
        return "in use"
    # The program that held the lock may have written all of this meanwhile.
    if run.finished_record() is not None:
        return "there"
    return "begun" if has_begun or run.config_file.is_file() else "missing"


def missing_files(
    data: str, data_dir: Path | None = None, changes: Mapping[str, Any] | None = None
) -> DataError | None:
    """The error that keeps experiments on these data from starting; None if nothing is missing.

    Args:
        data: The part of an experiment's name before the slash.
        data_dir: Where the files of data sets are; see `bfno.lab.data.data_folder`.
        changes: Nested settings that differ from the experiments', for example more parts of a set.
    """
    root, images = data_folder(data_dir), DENSITY_DATA.get(data, data)
    try:
        if data == "activity":
            find_activity(root)
        elif data == "physionet":
            changed = (changes or {}).get("data", {})
            find_physionet(root, SeriesDataSettings(name="physionet", **changed).sets)
        elif images in DATA_SETS:
            locate(images, data_dir)
    except DataError as error:
        return error
    return None


def _known_runs(root: Path, changed: Mapping[str, tuple[str, ...]], scale: str) -> Iterator[_Known]:
    """Runs of experiments at a scale with exactly these changed settings."""
    for folder in run_folders(root):
        try:
            run = RunFolder(folder)
            record = run.finished_record() or run.failed_for_good()
            settings = record.config if record else _written_settings(folder)
            if settings["experiment"] not in changed or settings["scale"] != scale:
                continue
            config = read_experiment(settings, str(folder))
            if tuple(changed_settings(config)) != changed[config.experiment]:
                continue
            state = state_of(folder)
            if record.history if record else _history(folder, config):
                continue
        except _UNREADABLE:
            continue
        # One that failed ended early.
        seconds = _seconds(record) if record and record.is_finished else None
        yield _Known(folder, config, state, seconds)


def _history(folder: Path, config: Experiment) -> list[str]:
    """The history of a run that has begun; if it has one, it is not the requested run."""
    try:
        newest, _ = RunFolder(folder).checkpoints.newest()
    except UserError:  # reported when the run is continued
        return []
    return [] if newest is None else history_of(newest, config)


def _seconds(record: Record) -> float | None:
    found = record.seconds
    return found if found is not None and math.isfinite(found) else None


def _written_settings(folder: Path) -> Mapping[str, Any]:
    return parse_yaml(read_plain(RunFolder(folder).config_file))


def _free_folder(parent: Path, experiment: str, seed: int) -> Path:
    """The run's own folder, or one beside it if a run with other settings has taken it."""
    name = f"{experiment.replace('/', '-')}-s{seed}"
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    folders = (RunFolder(parent / one) for one in names)
    return next(
        run.path for run in folders if not run.config_file.exists() and not run.record_file.exists()
    )


def _expected_seconds(known: Sequence[_Known], experiment: str) -> float | None:
    """Mean time of the finished runs of an experiment, or else of those on the same data."""
    data = experiment.partition("/")[0]
    times = [(run.config.experiment, run.seconds) for run in known if run.seconds is not None]
    same = [seconds for name, seconds in times if name == experiment]
    like = [seconds for name, seconds in times if name.partition("/")[0] == data]
    found = same or like
    return sum(found) / len(found) if found else None
