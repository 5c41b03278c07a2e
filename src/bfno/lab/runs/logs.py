"""Copies of the metrics outside the run's folder: TensorBoard, MLflow, Weights & Biases.

A log is a copy for viewing. One that fails, because a server is unreachable or a disk is full,
warns once and then stays silent; the training continues.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from bfno.lab.errors import ConfigError
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.loop import Watcher
from bfno.lab.runs.record import flat_config
from bfno.lab.runs.signals import Stopped

__all__ = ["LOGS", "MLflowLog", "MetricsLog", "TensorBoardLog", "WandbLog", "make_logs"]

_logger = logging.getLogger(__name__)

Ending = Literal["FAILED", "KILLED"]
"""MLflow's names for the end of a training without a result: by an error, or by a signal."""

_COUNTERS = {"epoch", "step"}
_PROJECT = "bfno"
_MOST_AT_ONCE = 100  # settings that MLflow takes in one request
_LONGEST_SETTING = 500


class MetricsLog(Watcher, ABC):
    """A copy of the settings, of the metrics of every epoch, and of the result.

    With several processes, only the first one writes.

    Args:
        folder: The run.

    Raises:
        ConfigError: If a package is missing.
    """

    name: ClassVar[str]
    """The name that `--log` takes."""
    needs: ClassVar[tuple[str, ...]]
    """Packages that it needs."""
    extra: ClassVar[str]
    """The extra that installs them."""

    def __init__(self, folder: Path) -> None:
        for package in self.needs:
            if importlib.util.find_spec(package) is None:
                why, fix = f"{package} is not installed", f"pip install 'bfno[{self.extra}]'"
                raise ConfigError(f"--log {self.name}", why, fix)
        self.folder = Path(folder)
        self._is_silent = os.environ.get("RANK", "0") != "0"
        self._is_open = False

    def on_start(self, epochs: int) -> None:
        self._try(self._open)
        self._is_open = not self._is_silent

    def on_epoch(self, metrics: dict[str, Any]) -> None:
        self._try(self._write, metrics)

    def on_finish(self, result: Mapping[str, Any]) -> None:
        self._is_open = False
        self._try(self._close, result)

    def on_end(self) -> None:
        if not self._is_open:
            return
        # This is called while the exception that ended the training propagates.
        was_stopped = isinstance(sys.exc_info()[1], Stopped | KeyboardInterrupt)
        self._is_open = False
        self._try(self._break_off, "KILLED" if was_stopped else "FAILED")

    @abstractmethod
    def _open(self) -> None:
        """Begin, or continue what an earlier part of the same run has written."""

    @abstractmethod
    def _write(self, metrics: dict[str, Any]) -> None:
        """Add an epoch."""

    @abstractmethod
    def _close(self, result: Mapping[str, Any]) -> None:
        """Add the test results, and end."""

    @abstractmethod
    def _break_off(self, status: Ending) -> None:
        """End without a result; the run may continue later."""

    def _try(self, action: Callable[..., None], *words: Any) -> None:
        if self._is_silent:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # theirs, which no user of this program can mend
                action(*words)
        except Exception as error:  # any error of a server, a disk or a library
            self._is_silent = True
            # Not its text: that may hold an address with a password.
            _logger.warning(
                "--log %s: failed (%s); the training goes on without this log",
                *(self.name, type(error).__name__),
            )

    def _settings(self) -> dict[str, Any]:
        return flat_config(RunFolder(self.folder).read_config().as_dict())

    def _identity(self) -> str:
        """A name shared by all parts of one run, and by no other run."""
        return RunFolder(self.folder).identity() or self.folder.resolve().name


class TensorBoardLog(MetricsLog):
    """Event files in `tensorboard/`, a scalar for each metric."""

    name, needs, extra = "tensorboard", ("tensorboard",), "log"

    def _open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self.folder / "tensorboard"))
        settings = "\n".join(f"    {name}: {value}" for name, value in self._settings().items())
        self._writer.add_text("settings", settings)

    def _write(self, metrics: dict[str, Any]) -> None:
        for name, value in _measured(metrics):
            self._writer.add_scalar(name, value, metrics["epoch"])
        self._writer.flush()

    def _close(self, result: Mapping[str, Any]) -> None:
        for name, value in _measured(result):
            self._writer.add_scalar(f"result/{name}", value)
        self._writer.close()

    def _break_off(self, status: Ending) -> None:
        self._writer.close()


class MLflowLog(MetricsLog):
    """A run of MLflow: at `MLFLOW_TRACKING_URI`, else in `mlflow.db` beside the run's folder."""

    name, needs, extra = "mlflow", ("mlflow", "sqlalchemy", "alembic"), "mlflow"

    def _open(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # A training is not to wait many minutes for a server that is away.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        mlflow = importlib.import_module("mlflow.tracking")
        for library in ("mlflow", "alembic"):
            logging.getLogger(library).setLevel(logging.WARNING)
        beside = self.folder.resolve().parent / "mlflow.db"
        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{beside}"
        self._client = mlflow.MlflowClient(tracking_uri=place)
        known = self._client.get_experiment_by_name(_PROJECT)
        experiment = known.experiment_id if known else self._client.create_experiment(_PROJECT)
        tag = f"tags.bfno_run = '{self._identity()}'"
        found = self._client.search_runs([experiment], tag)
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            self._log_settings(found[0].data.params)
            return
        made = self._client.create_run(
            experiment,
            run_name=self.folder.resolve().name,
            tags={"bfno_run": self._identity()},
        )
        self._run = made.info.run_id
        self._log_settings({})

    def _log_settings(self, known: Mapping[str, str]) -> None:
        entities = importlib.import_module("mlflow.entities")
        settings = {name: str(one)[:_LONGEST_SETTING] for name, one in self._settings().items()}
        new = [entities.Param(name, value) for name, value in settings.items() if name not in known]
        for first in range(0, len(new), _MOST_AT_ONCE):
            self._client.log_batch(self._run, params=new[first : first + _MOST_AT_ONCE])
        # What MLflow calls a parameter never changes; a run that is resumed may train on otherwise.
        changed = [
            entities.RunTag(f"resumed.{name}", value)
            for name, value in settings.items()
            if known.get(name, value) != value
        ]
        self._client.log_batch(self._run, tags=changed)

    def _write(self, metrics: dict[str, Any]) -> None:
        self._log(metrics, metrics["epoch"])

    def _close(self, result: Mapping[str, Any]) -> None:
        self._log({f"result_{name}": value for name, value in result.items()}, 0)
        self._client.set_terminated(self._run)

    def _break_off(self, status: Ending) -> None:
        self._client.set_terminated(self._run, status)

    def _log(self, metrics: Mapping[str, Any], step: int) -> None:
        entities = importlib.import_module("mlflow.entities")
        now = int(1000 * time.time())
        values = [entities.Metric(name, value, now, step) for name, value in _measured(metrics)]
        self._client.log_batch(self._run, metrics=values)


class WandbLog(MetricsLog):
    """A run of Weights & Biases: in `wandb/` of the run, to be sent with `wandb sync`.

    It is sent at once if `WANDB_MODE` is `online`.
    """

    name, needs, extra = "wandb", ("wandb",), "wandb"

    def _open(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        wandb = importlib.import_module("wandb")
        # Nothing of the machine, the console or the code: the run's own folder has what matters.
        quiet = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            init_timeout=30,
        )
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=self._identity(),
            name=self.folder.resolve().name,
            dir=self.folder,
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=self._settings(),
            resume="allow",
            settings=quiet,
        )

    def _write(self, metrics: dict[str, Any]) -> None:
        self._run.log(dict(_measured(metrics)), step=metrics["epoch"])

    def _close(self, result: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(_measured(result)))
        self._run.finish()

    def _break_off(self, status: Ending) -> None:
        self._run.finish(exit_code=1)


LOGS: dict[str, type[MetricsLog]] = {one.name: one for one in (TensorBoardLog, MLflowLog, WandbLog)}
"""Every log by the name that `--log` takes."""


def make_logs(names: Iterable[str], folder: Path) -> list[MetricsLog]:
    """The logs of a run.

    Args:
        names: Their names in `LOGS`; duplicates count once.
        folder: The run.

    Raises:
        ConfigError: If there is no such log, or a package is missing.
    """
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in LOGS:
            *others, last = LOGS
            fix = f"write --log {', '.join(others)} or {last}"
            raise ConfigError(f"--log {name}", "is not a log", fix)
    return [LOGS[name](folder) for name in chosen]


def _measured(metrics: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    """The numbers of an epoch, except for the number of the epoch."""
    for name, value in metrics.items():
        if name not in _COUNTERS and isinstance(value, int | float):
            yield name, value
