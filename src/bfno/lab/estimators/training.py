"""The base of all estimators: their parameters, and training with the program's loop.

An estimator describes its samples, builds the settings of an experiment and lets
`bfno.lab.runs.session` train it in a run folder, which is a temporary one unless the user wants to
keep it.
"""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import yaml
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from bfno.lab.errors import ConfigError, DataError, NumericalError, bfno_command
from bfno.lab.experiments.experiment import Experiment, TrainedRun
from bfno.lab.experiments.resolve import resolve
from bfno.lab.experiments.seeds import derive_seed
from bfno.lab.experiments.trees import Tree, differences, merged, nested
from bfno.lab.runs import session
from bfno.lab.runs.folder import RunFolder, read_run
from bfno.lab.runs.load import open_run
from bfno.lab.runs.loop import Watcher
from bfno.lab.runs.record import flat_config
from bfno.lab.runs.signals import Stopped

__all__ = ["TrainedEstimator", "mended", "quiet", "undisturbed"]

_SEEDS = 2**31 - 1
# What parameters of an estimator decide, by the name of the setting.
_OWN_PARAMETER = {
    "train.epochs": "epochs",
    "train.batch": "batch_size",
    "train.lr": "lr",
    "train.patience": "patience",
    "data.validation": "validation",
    "seed": "random_state",
    "experiment": "method",
}
# How the program writes a setting: --set NAME=VALUE, with quotes where a shell needs them.
_SETTING = re.compile(r"""--set (?:"([\w.]+)=([^"]*)"|([\w.]+)=(?:'([^']*)'|([^\s,;]+)))""")
# Further advice of the program, and the same advice for estimators.
_HERE = {
    "in the run's config.yaml": "in settings= and fit again",
    "use another run, or train it on": "fit again with a smaller lr=",
}
_SAVED = re.compile(r"; the state after step [^;]* is saved")
# Torch has one generator and one number of threads for all threads of a process.
_one_at_a_time = threading.RLock()


class TrainedEstimator(BaseEstimator):
    """An estimator whose model is trained in a run folder; see the classes that derive from it.

    Attributes:
        model_: The trained torch module.
        history_: Metrics of each epoch, as a run's `metrics.jsonl` has them.
        n_iter_: Number of epochs trained.
    """

    _experiment: ClassVar[type[Experiment]]

    # Each estimator names all of these again, with its defaults: scikit-learn reads parameters from
    # the signature of the class itself, for `get_params`, `clone` and searches, and cannot see
    # parameters behind `**kwargs`.
    def __init__(
        self,
        method: str,
        *,
        epochs: int,
        batch_size: int | None,
        lr: float | None,
        validation: float,
        patience: int | None,
        settings: Mapping[str, Any] | None,
        checkpoints: str | Path | None,
        random_state: int | np.random.RandomState | None,
        verbose: int,
    ) -> None:
        self.method, self.epochs, self.batch_size, self.lr = method, epochs, batch_size, lr
        self.validation, self.patience, self.settings = validation, patience, settings
        self.checkpoints, self.random_state, self.verbose = checkpoints, random_state, verbose

    def _config(self, about: Tree, applying: Collection[str] = ()) -> Any:
        """The settings of the experiment.

        Args:
            about: What settings say about the samples.
            applying: Settings of `data` that have an effect on such samples, which are no files.

        Raises:
            ValueError: If a parameter or a setting is unknown or not valid.
        """
        given = nested(self.settings or {})
        for name in flat_config(given):
            if name in _OWN_PARAMETER:
                raise ValueError(
                    f"settings must not hold {name!r}; use the parameter {_OWN_PARAMETER[name]}"
                )
        train: Tree = {"epochs": self.epochs}
        usual: Tree = {}
        if self.patience is not None:  # which makes sense only where the best epoch is kept
            train["patience"], usual = self.patience, {"train": {"select": "best"}}
        train |= {} if self.batch_size is None else {"batch": self.batch_size}
        train |= {} if self.lr is None else {"lr": self.lr}
        own = {"seed": self._seed(), "data": {"validation": self.validation}, "train": train}
        changes = merged(merged(merged(usual, given), own), {"data": about})
        place = f"{self._experiment.in_memory}/"
        try:
            config = resolve(f"{place}{self.method}", changes=changes)
        except ConfigError as error:  # methods have no place here
            raise ValueError(_in_own_words(str(error)).replace(place, "")) from error
        for name in flat_config(given):
            section, _, key = name.partition(".")
            if section == "data" and key not in applying:
                why = "it has no effect on such samples; leave it out"
                raise ValueError(f"settings must not hold {name!r}: {why}")
        return config

    def _seed(self) -> int:
        """A seed from `random_state`; without one, a kept run keeps its own seed."""
        if isinstance(self.random_state, (int, np.integer)):
            return int(self.random_state) % _SEEDS
        if self.random_state is None and (before := self._before()) is not None:
            return before.seed
        return int(check_random_state(self.random_state).randint(_SEEDS))

    def _before(self) -> Any:
        """The settings of the run that `checkpoints` already holds, if any."""
        if self.checkpoints is None or not RunFolder(Path(self.checkpoints)).is_run:
            return None
        with mended():
            return RunFolder(Path(self.checkpoints)).read_config()

    def _train(self, config: Any, data: Any) -> TrainedRun:
        """Train, or continue a kept run.

        Args:
            config: What `_config` returned.
            data: The divided samples, as the experiment's `load` would return them.

        Raises:
            ValueError: If settings do not fit the samples or each other, or the run that is kept.
            NumericalError: If the training reaches numbers that are not finite.
            KeyboardInterrupt: After Ctrl-C; a kept run is saved first.
        """
        watchers = [_Printed()] if self.verbose else []
        with (
            undisturbed(),
            quiet(not self.verbose),
            _interruptible(self.checkpoints),
            mended(),
            self._folder() as folder,
            _advised(folder, is_kept=self.checkpoints is not None),
        ):
            before = self._before()
            if before is None:
                session.start(config, folder, watchers, data=data)
            else:
                changes = _changes(before, config, folder)
                session.resume(folder, changes, watchers, data=data)
            self.history_ = list(read_run(folder).epochs)
            opened = open_run(folder)
        self.model_, self.n_iter_ = opened.model, len(self.history_)
        return opened

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        if self.checkpoints is not None:
            yield Path(self.checkpoints)
            return
        with tempfile.TemporaryDirectory(prefix="bfno-") as folder:
            yield Path(folder) / "run"


class _Printed(Watcher):
    """One line for each epoch."""

    def on_start(self, epochs: int) -> None:
        self._epochs = epochs

    def on_epoch(self, metrics: dict[str, Any]) -> None:
        wanted = ("loss", "accuracy", "auroc", "nll")
        shown = [
            f"{split}_{name} {metrics[key]:.4g}"
            for split in ("train", "validation")
            for name in wanted
            if (key := f"{split}_{name}") in metrics
        ]
        print(f"epoch {metrics['epoch']}/{self._epochs}  {'  '.join(shown)}", flush=True)


def _changes(before: Any, config: Any, folder: Path) -> Tree:
    """Compare a kept run with the present request.

    Raises:
        ConfigError: If the run is on other samples.
    """
    samples = getattr(before.data, "samples", None)
    if samples != config.data.samples:
        why = "holds a run on other samples"
        raise ConfigError(folder, why, "name another folder with checkpoints=, or none")
    found = differences(before.as_dict(), config.as_dict())
    return nested({name: new for name, (_, new) in found if name != "threads"})


@contextlib.contextmanager
def undisturbed(seed: int | None = None, purpose: str = "") -> Iterator[None]:
    """Leave torch's generator and its number of threads as they were.

    Threads of one process wait for each other here, because they share both.

    Args:
        seed: Seed of an estimator to start the generator from, if any.
        purpose: What the random numbers are for.
    """
    with _one_at_a_time, torch.random.fork_rng():
        threads = torch.get_num_threads()
        if seed is not None:
            torch.manual_seed(derive_seed(seed, purpose))
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@contextlib.contextmanager
def mended() -> Iterator[None]:
    """Raise errors about parameters and samples as scikit-learn expects them.

    Raises:
        ValueError: Where the program raises a ConfigError or a DataError.
        NumericalError: Where the program raises one, with advice that suits an estimator.
    """
    try:
        yield
    except (ConfigError, DataError) as error:
        raise ValueError(_in_own_words(str(error))) from error
    except NumericalError as error:
        raise NumericalError(error.what, error.why, _in_own_words(error.fix)) from error


def _in_own_words(advice: str) -> str:
    """The program's advice, with parameters and settings as an estimator takes them."""
    for there, here in _HERE.items():
        advice = advice.replace(there, here)
    return _SETTING.sub(_as_parameter, advice)


def _as_parameter(found: re.Match[str]) -> str:
    name, value = (part for part in found.groups() if part is not None)
    if name in _OWN_PARAMETER:
        return f"{_OWN_PARAMETER[name]}={_as_python(value)}"
    return f"settings={{{name!r}: {_as_python(value)}}}"


def _as_python(value: str) -> str:
    """Write a value of a command line, which is YAML, as Python does."""
    if value.isupper():  # not one, but the word for any
        return value
    with contextlib.suppress(ValueError):
        float(value)  # YAML takes 1e-05 for a word
        return value
    try:
        return repr(yaml.safe_load(value))
    except yaml.YAMLError:  # a cell of a table may hold anything
        return repr(value)


@contextlib.contextmanager
def _advised(folder: Path, *, is_kept: bool) -> Iterator[None]:
    """Say how to continue from Python after a training reached numbers that are not finite.

    Raises:
        NumericalError: Where the training raises one; for a run that is not kept, it does not
            mention the folder, which is about to be removed.
    """
    try:
        yield
    except NumericalError as error:
        begin = "fit again with" if is_kept else "pass"
        fix = error.fix.replace(bfno_command("resume", folder), begin)
        why = error.why if is_kept else _SAVED.sub("", error.why)
        raise NumericalError(error.what, why, fix) from error


@contextlib.contextmanager
def quiet(is_quiet: bool) -> Iterator[None]:
    """Without the notes of the training, such as that its classes are unequal."""
    logger = logging.getLogger("bfno.lab")
    before = logger.level
    if is_quiet:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def _interruptible(checkpoints: str | Path | None) -> Iterator[None]:
    """Let a signal that the loop has received end the program in Python's own way."""
    try:
        yield
    except Stopped as stopped:
        kept = "" if checkpoints is None else f"; fit continues from {checkpoints}"
        if stopped.exit_code == 128 + signal.SIGINT:
            raise KeyboardInterrupt(f"{stopped}{kept}") from stopped
        raise SystemExit(stopped.exit_code) from stopped
