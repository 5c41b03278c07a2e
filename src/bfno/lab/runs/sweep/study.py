"""The study of a sweep on disk, which any number of programs may use at the same time.

`sweep.yaml` holds the plan, `journal.jsonl` is Optuna's journal of the trials. A trial is a
single line there from the start: its settings are complete, or it does not exist.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optuna import Study as OptunaStudy
from optuna import create_study, importance, load_study, logging
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from bfno.lab.data import data_folder
from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.experiment import Experiment
from bfno.lab.experiments.resolve import resolve
from bfno.lab.experiments.seeds import derive_seed
from bfno.lab.experiments.settings import DATA_PLACES
from bfno.lab.experiments.tasks import without_test
from bfno.lab.experiments.trees import Tree, differences, merged, nested
from bfno.lab.files import (
    append_line,
    cut_file,
    lock_file,
    make_folder,
    open_plain,
    parse_yaml,
    read_plain,
    write_atomically,
)
from bfno.lab.runs.load import with_defaults
from bfno.lab.runs.sweep.space import Range
from bfno.lab.runs.sweep.trials import SweepResult, Trial, TrialState

__all__ = ["PRUNERS", "Study", "SweepPlan", "explained", "held"]

_FORMAT = 1
_NAME = "sweep"
_STATES: dict[OptunaState, TrialState] = {
    OptunaState.RUNNING: "running",
    OptunaState.COMPLETE: "finished",
    OptunaState.PRUNED: "pruned",
    OptunaState.FAIL: "failed",
}
_FEWEST_TO_COMPARE = 4  # finished trials: with fewer, every setting seems to explain everything


def _median(epochs: int) -> BasePruner:
    return MedianPruner(n_startup_trials=4, n_warmup_steps=max(1, epochs // 10))


def _halving(epochs: int) -> BasePruner:
    return SuccessiveHalvingPruner(min_resource=max(1, epochs // 9), reduction_factor=3)


PRUNERS = {"median": _median, "halving": _halving, "none": lambda epochs: NopPruner()}
"""Rules for stopping trials early: pruners for a number of epochs, by name."""


@dataclass(frozen=True)
class SweepPlan:
    """The plan of a sweep.

    Attributes:
        experiment: `data/method`, or a YAML file, as `resolve` takes it.
        ranges: The ranges to try.
        scale: The scale; None takes the file's, or `cpu`.
        changes: Nested settings that all trials share.
        data: The user's own data.
        prune: One of `PRUNERS`.
    """

    experiment: str
    ranges: list[Range]
    scale: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    data: Path | None = None
    prune: str = "median"

    def config(self, values: Mapping[str, Any], *, test: bool = False) -> Experiment:
        """The experiment with values for the settings tried.

        Args:
            values: Values by the full names of settings.
            test: Whether it may use its test samples, which no trial does.

        Raises:
            ConfigError: If a setting is unknown or a value is not valid.
        """
        changes = merged(merged(self.changes, nested(values)), {"train": {"test": test}})
        return resolve(self.experiment, scale=self.scale, changes=changes, data=self.data)

    def file(self, values: Mapping[str, Any], *, test: bool = False) -> bytes:
        """The experiment as a file for `bfno train` that works from any folder.

        Args:
            values: As for `config`.
            test: As for `config`.
        """
        settings = self.config(values, test=test).as_dict()
        for name, place in _places(settings).items():
            settings["data"][name] = str(place.absolute())
        return _yaml(settings).encode()

    @property
    def data_dir(self) -> Path | None:
        """Folder of the data sets, if given; points drawn at random have none."""
        return getattr(self.config({}).data, "dir", None)

    def for_other_machines(self) -> SweepPlan:
        """The same plan for machines where `BFNO_DATA` may differ or be unset."""
        if not hasattr(self.config({}).data, "dir"):
            return self
        place = str(data_folder(self.data_dir).absolute())
        return replace(self, changes=merged(self.changes, {"data": {"dir": place}}))

    def check(self) -> None:
        """Make sure that the experiment accepts every range, from its lowest to its highest value.

        Raises:
            ConfigError: If it does not.
        """
        if self.prune not in PRUNERS:
            raise ConfigError(f"--prune {self.prune}", "is not a pruner", f"write {_or(PRUNERS)}")
        for one in self.ranges:
            for value in one.samples:
                self.config({one.name: value})

    @property
    def size(self) -> float:
        """Number of different trials that are possible."""
        return math.prod(one.size for one in self.ranges)

    def described(self) -> Tree:
        """Everything that determines the trials, for comparison and for the file."""
        ranges = {one.name: str(one) for one in self.ranges}
        settings = self.described_settings(self.config({}).as_dict())
        return {"ranges": ranges, "prune": self.prune, "settings": settings}

    def described_settings(self, found: Mapping[str, Any]) -> Tree:
        """The settings that determine the trials, as this version writes them.

        Args:
            found: Nested settings, which another version may have written.
        """
        settings = dict(with_defaults(self.config({}), found))
        settings.pop("threads", None)
        settings["data"].pop("dir", None)  # the place of known data does not affect their content
        for name, place in _places(settings).items():
            settings["data"][name] = str(place.resolve())
        return settings


def _places(settings: Tree) -> dict[str, Path]:
    """The paths of an experiment's data, by the names of their settings."""
    data = settings["data"]
    return {name: Path(data[name]) for name in DATA_PLACES if data.get(name) is not None}


def _or(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


@contextlib.contextmanager
def held(file: Path) -> Iterator[None]:
    """Keep other processes out for a moment; waits for those inside.

    Raises:
        DataError: If the file cannot be locked.
    """
    with explained(file):
        descriptor = open_plain(file, os.O_RDWR | os.O_CREAT)
    try:
        while not lock_file(descriptor):
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explained(file: Path) -> Iterator[None]:
    """Turn a failure of the system to read or write into an error that says what to do.

    Args:
        file: The file that is read or written.

    Raises:
        DataError: If an OSError was raised.
    """
    try:
        yield
    except OSError as error:
        why = f"cannot be used: {(error.strerror or str(error)).lower()}"
        raise DataError(file, why, "choose another folder with --out") from error


class _Journal(BaseJournalBackend):
    """Optuna's journal in a file that survives kills and power cuts like all files of a run.

    Args:
        file: The journal, a JSON object per line.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._lock = file, file.with_name(f".{file.name}.lock")

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        lines = self._whole_lines().split(b"\n")[:-1]
        try:
            return [json.loads(line) for line in lines[log_number_from:]]
        except ValueError as error:
            why = "is not the journal of a sweep"
            fix = "copy it from a backup, or choose another folder with --out"
            raise DataError(self._file, why, fix) from error

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        with held(self._lock):
            size = len(self._whole_lines())
            if self._file.exists() and self._file.stat().st_size > size:
                cut_file(self._file, size)  # a line that a power cut left unfinished
            append_line(self._file, "\n".join(map(json.dumps, logs)))

    def _whole_lines(self) -> bytes:
        with explained(self._file):
            content = read_plain(self._file) if self._file.exists() else b""
        return content[: content.rfind(b"\n") + 1]


class Study:
    """The trials of a sweep.

    Opening it creates the study if there is none.

    Args:
        folder: Where it is, or will be.
        plan: The plan.

    Attributes:
        metric: Key of the score.
        lower_is_better: Whether the best trial has the lowest score.
        samples: Number of training samples.

    Raises:
        ConfigError: If the folder holds a different study, or the experiment has no validation
            samples.
        DataError: If a file cannot be read or written.
    """

    def __init__(self, folder: Path, plan: SweepPlan) -> None:
        logging.set_verbosity(logging.WARNING)
        self.folder, self.plan = Path(folder), plan
        with explained(self.folder):
            make_folder(self.folder)
        with held(self._lock):
            known = self._known()
            if known is None:
                known = self._described_anew()
                write_atomically(self.file, _yaml(known).encode())
            self.metric, self.lower_is_better = known["metric"], known["lower_is_better"]
            self.samples: int = known["samples"]
            self._storage = JournalStorage(_Journal(self.folder / "journal.jsonl"))
            self._study = self._opened()
        self._study_id = self._storage.get_study_id_from_name(_NAME)

    @property
    def file(self) -> Path:
        """The file of the plan, for people and for the next start."""
        return self.folder / "sweep.yaml"

    @property
    def _lock(self) -> Path:
        return self.folder / ".lock"

    # -- what it is -----------------------------------------------------------------------------

    def _known(self) -> Tree | None:
        """Read `sweep.yaml`, if it exists and belongs to this plan."""
        if not os.path.lexists(self.file):
            self._refuse_others()
            return None
        other = "choose another folder with --out"
        try:
            found = parse_yaml(read_plain(self.file))
            there = {name: found[name] for name in ("ranges", "prune", "settings")}
            there["settings"] = self.plan.described_settings(there["settings"])
            facts = {name: found[name] for name in ("metric", "lower_is_better", "samples")}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(self.file, "is not the description of a sweep", other) from error
        if found.get("format") != _FORMAT:
            raise DataError(self.file, f"has format {found.get('format')}", other)
        for name, (before, now) in differences(there, self.plan.described()):
            what = name.removeprefix("ranges.").removeprefix("settings.")
            why = f"holds a sweep with other settings: {what} is {before} there, {now} here"
            raise ConfigError(self.folder, why, other)
        # Only the user's own samples have a division, so others need not be read.
        if "division" in found and self.plan.config({}).load().division != found["division"]:
            why = "holds trials on other samples: the data have changed since the sweep began"
            raise ConfigError(self.folder, why, f"bring those samples back, or {other}")
        return facts

    def _refuse_others(self) -> None:
        # Trials without their sweep would be taken for those of this one.
        trials = sorted(one.name for one in self.folder.glob("trial-*"))
        for name in ("config.yaml", "record.json", "journal.jsonl", *trials):
            if os.path.lexists(self.folder / name):
                why = f"is not the folder of a sweep: it has {name}, and no sweep.yaml"
                raise ConfigError(self.folder, why, "choose another folder with --out")

    def _described_anew(self) -> Tree:
        config = self.plan.config({})
        data = config.load()
        task = config.task(without_test(data))
        if "validation" not in task.splits:
            why = "a sweep needs validation samples to judge its trials by"
            raise ConfigError(config.experiment, why, "keep some with --set data.validation=0.1")
        return {
            "format": _FORMAT,
            "metric": f"validation_{task.selection}",
            "lower_is_better": task.lower_is_better,
            "samples": len(task.data.train),
            **({"division": data.division} if data.division else {}),
            **self.plan.described(),
        }

    def _opened(self) -> OptunaStudy:
        pruner = PRUNERS[self.plan.prune](self.plan.config({}).train.epochs_for(self.samples))
        if _NAME in (one.study_name for one in self._storage.get_all_studies()):
            return load_study(study_name=_NAME, storage=self._storage, pruner=pruner)
        return self._empty(storage=self._storage, pruner=pruner)

    def _empty(self, **more: Any) -> OptunaStudy:
        direction = "minimize" if self.lower_is_better else "maximize"
        return create_study(study_name=_NAME, direction=direction, **more)

    # -- its trials -----------------------------------------------------------------------------

    def trials(self) -> list[Trial]:
        """All trials so far, those of other programs included."""
        return [_as_trial(one) for one in self._study.get_trials(deepcopy=False)]

    def propose(self, most: int) -> Trial | None:
        """A new trial, for the caller to train.

        Args:
            most: Total number of trials of the sweep.

        Returns:
            The trial; None if there are enough, or everything was tried. A trial with the settings
            of a finished one already has its score.
        """
        with held(self._lock):
            trials = self._study.get_trials(deepcopy=False)
            number = len(trials)
            if number >= most:
                return None
            values = self._next_values(trials, is_small=self.plan.size <= most)
            if values is None:
                return None
            kinds = {one.name: one.distribution() for one in self.plan.ranges}
            self._study.add_trial(
                create_trial(state=OptunaState.RUNNING, params=values, distributions=kinds)
            )
        same = (one for one in trials if one.state.is_finished() and one.params == values)
        twin = next((one for one in same if one.state is OptunaState.COMPLETE), None)
        if twin is not None and twin.value is not None:
            self._note(number, same_as=twin.number)
            self.finish(number, twin.value)
        return self.trials()[number]

    def _next_values(self, trials: list[FrozenTrial], is_small: bool) -> dict[str, Any] | None:
        """The settings of the next trial, a function of the seed and the earlier trials.

        None if the space is small and exhausted.
        """
        seed = derive_seed(self.plan.config({}).seed, "sweep", len(trials)) % 2**32
        kinds = {one.name: one.distribution() for one in self.plan.ranges}
        if is_small:
            tried = [one.params for one in trials]
            left = [values for values in self._everything() if values not in tried]
            return random.Random(seed).choice(left) if left else None
        # Of a copy in memory: a sampler draws one value after the other, and a kill in between
        # would leave half a trial on the disk.
        copy = self._empty(sampler=TPESampler(seed=seed, constant_liar=True))
        copy.add_trials(trials)
        return copy.ask(kinds).params

    def _everything(self) -> list[dict[str, Any]]:
        names = [one.name for one in self.plan.ranges]
        values = (
            one.values if one.kind == "choice" else range(one.values[0], one.values[1] + 1)
            for one in self.plan.ranges
        )
        return [dict(zip(names, some, strict=True)) for some in itertools.product(*values)]

    def report(self, number: int, epoch: int, score: float) -> bool:
        """Note the score of an epoch; return whether the trial is worth continuing."""
        self._storage.set_trial_intermediate_value(self._id(number), epoch, score)
        trial = self._storage.get_trial(self._id(number))
        return not self._study.pruner.prune(self._study, trial)

    def finish(self, number: int, score: float) -> None:
        """Note the score of a trial."""
        if math.isfinite(score):
            self._end(number, OptunaState.COMPLETE, [score])
        else:
            self.fail(number, "its validation score is not a finite number")

    def prune(self, number: int) -> None:
        """Note that a trial is stopped early."""
        self._end(number, OptunaState.PRUNED)

    def fail(self, number: int, error: str) -> None:
        """Note why a trial has no score."""
        self._note(number, error=error)
        self._end(number, OptunaState.FAIL)

    def _note(self, number: int, **facts: Any) -> None:
        for name, value in facts.items():
            self._storage.set_trial_user_attr(self._id(number), name, value)

    def _end(self, number: int, state: OptunaState, values: list[float] | None = None) -> None:
        self._storage.set_trial_state_values(self._id(number), state, values)

    def _id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)

    # -- its result -----------------------------------------------------------------------------

    def result(self) -> SweepResult:
        """The results so far."""
        config, trials = self.plan.config({}), self.trials()
        return SweepResult(
            config.experiment,
            config.scale,
            config.seed,
            self.metric,
            self.lower_is_better,
            {one.name: str(one) for one in self.plan.ranges},
            frozenset(one.name for one in self.plan.ranges if one.kind == "log"),
            trials,
            self._importance(trials),
        )

    def _importance(self, trials: list[Trial]) -> dict[str, float]:
        scores = {one.score for one in trials if one.score is not None}
        # Of equal scores, no setting explains anything.
        if len(scores) < 2 or sum(one.score is not None for one in trials) < _FEWEST_TO_COMPARE:
            return {}
        judge = importance.FanovaImportanceEvaluator(seed=0)
        found = importance.get_param_importances(self._study, evaluator=judge)
        return {name: float(share) for name, share in found.items() if math.isfinite(share)}

    def write_best(self) -> Path | None:
        """Write the best settings as a file for `bfno train`; None if no trial is finished."""
        best = self.result().best
        if best is None:
            return None
        file = self.folder / "best.yaml"
        head = f"# {best.name} of this sweep: {self.metric} {best.score:.6g}\n"
        write_atomically(file, head.encode() + self.plan.file(best.values, test=True))
        return file


def _yaml(tree: Tree) -> str:
    import yaml

    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def _as_trial(one: FrozenTrial) -> Trial:
    finished = one.state is OptunaState.COMPLETE
    return Trial(
        one.number,
        dict(one.params),
        _STATES[one.state],
        one.value if finished else None,
        dict(one.intermediate_values),
        str(one.user_attrs.get("error", "")),
        one.user_attrs.get("same_as"),
    )
