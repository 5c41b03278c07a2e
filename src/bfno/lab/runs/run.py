"""The folder of a run: settings, metrics, record, checkpoints, and a lock."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.experiment import Experiment
from bfno.lab.experiments.resolve import resolve
from bfno.lab.files import append_line, remove_leftovers, write_atomically
from bfno.lab.runs.checkpoint import CheckpointStore

__all__ = ["RunFolder"]


class RunFolder:
    """One run on disk.

    As a context manager it keeps every other process from training in the folder.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = CheckpointStore(path / "checkpoints")
        self._lock: int | None = None

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def record_file(self) -> Path:
        return self.path / "record.json"

    @property
    def exhibit_file(self) -> Path:
        return self.path / "exhibit.json"

    def check_unused(self) -> None:
        """Make sure that there is no run in the folder yet.

        Raises:
            ConfigError: If there is.
        """
        if self.config_file.exists():
            raise ConfigError(
                self.path,
                "there is a run in this folder already",
                f"go on with `bfno resume {self.path}`, or choose another folder with --out",
            )

    def create(self) -> None:
        """Make the folder.

        Raises:
            ConfigError: If there is a run in it already.
            DataError: If it cannot be made.
        """
        self.check_unused()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = f"cannot be made: {(error.strerror or str(error)).lower()}"
            raise DataError(self.path, why, "choose another folder with --out") from error

    def write_config(self, config: Experiment) -> None:
        write_atomically(self.config_file, config.as_yaml().encode())

    def read_config(self) -> Experiment:
        """The settings of the run.

        Raises:
            ConfigError: If this is no run, or its settings have been spoilt.
        """
        if not self.config_file.is_file():
            raise ConfigError(
                self.path, "is no run: it has no config.yaml", "name a folder that bfno train made"
            )
        return resolve(str(self.config_file))

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        append_line(self.metrics_file, json.dumps(metrics))

    def metrics_size(self) -> int:
        return self.metrics_file.stat().st_size if self.metrics_file.exists() else 0

    def cut_metrics(self, size: int) -> None:
        """Forget the epochs after a checkpoint, which will be trained again."""
        if self.metrics_size() > size:
            os.truncate(self.metrics_file, size)

    def write_record(self, record: Mapping[str, Any]) -> None:
        write_atomically(self.record_file, (json.dumps(record, indent=1) + "\n").encode())

    def check_free(self) -> None:
        """Make sure that nobody trains in the folder at this moment.

        Raises:
            ConfigError: If somebody does.
        """
        # Shared: the processes of one run all ask, and must not take each other for strangers.
        os.close(self._locked(fcntl.LOCK_SH))

    def __enter__(self) -> RunFolder:
        self._lock = self._locked(fcntl.LOCK_EX)
        os.ftruncate(self._lock, 0)
        os.write(self._lock, f"process {os.getpid()} on {socket.gethostname()}".encode())
        remove_leftovers(self.path)
        return self

    def _locked(self, kind: int) -> int:
        path = self.path / ".lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            why = f"cannot be written: {(error.strerror or str(error)).lower()}"
            raise DataError(self.path, why, "check the folder's rights") from error
        try:
            # The kernel drops the lock when the process ends, however it ends: no lock goes stale.
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
            os.close(descriptor)
            raise ConfigError(
                self.path, f"is in use by {holder}", "wait for it, or stop it first"
            ) from None
        return descriptor

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
