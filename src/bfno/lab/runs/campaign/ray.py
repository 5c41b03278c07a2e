"""Training on a cluster of Ray, or on one that Ray makes of this machine.

A Ray task starts the training as its child and waits. Tasks end with the program that submitted
them, and a training whose task has ended saves its state.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from bfno.lab.errors import ConfigError
from bfno.lab.runs.campaign.engine import Order, Report
from bfno.lab.runs.campaign.worker import exit_code, is_at_work, start_worker

__all__ = ["RayEngine", "train"]

# Seconds until an address has to answer, and between two looks at a training.
_PATIENCE, _EVERY = 10.0, 0.2
_START = "start a cluster with `ray start --head` and name its address"


def train(order: Order) -> int:
    """Train on the machine that Ray has chosen; returns the exit code."""
    child = start_worker(order)
    try:
        # Not `wait`: that a task is cancelled is heard between two instructions of Python only.
        while child.poll() is None:
            time.sleep(_EVERY)
        return child.returncode
    finally:  # the task may have been cancelled
        if child.poll() is None:
            child.terminate()
            child.wait()


class RayEngine:
    """Gives each order to Ray as a task with one core.

    Args:
        address: Of a cluster's client server, `ray://HOST:PORT`; None for the cluster that
            RAY_ADDRESS names or that this machine belongs to, else for one of this machine alone.
        gpus: GPUs of each task.
    """

    name, slots, pause, outlives = "ray", None, 0.5, False

    def __init__(self, address: str | None = None, gpus: int | None = None) -> None:
        try:
            self._ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError as error:
            fix = "pip install 'bfno[ray]'"
            raise ConfigError("--on ray", "ray is not installed", fix) from error
        self._tasks: dict[Order, Any] = {}
        self._connect(address)
        self._check_gpus(gpus)
        # The campaign submits a lost task again, because it knows whether the run made progress.
        options = {"num_cpus": 1, "max_retries": 0, **({"num_gpus": gpus} if gpus else {})}
        self._train = self._ray.remote(**options)(train)

    def submit(self, orders: Sequence[Order]) -> None:
        with self._connected():
            for order in orders:
                self._tasks[order] = self._train.remote(order)

    def state(self, order: Order) -> Report:
        task = self._tasks.get(order)
        if task is None:
            return Report("over")
        with self._connected():
            if not self._ray.wait([task], timeout=0)[0]:
                return Report("running" if is_at_work(order.folder) else "queued")
            try:
                return Report("over", exit_code(self._ray.get(task)))
            except self._ray.exceptions.LocalRayletDiedError as error:
                # Ray's process on this machine has died, and the way to the cluster with it.
                raise ConnectionError(error) from error
            except self._ray.exceptions.RayError as error:
                return Report("over", why=_last_line(str(error)))

    def cancel(self, orders: Sequence[Order]) -> None:
        # Tasks that are gone, perhaps with the cluster, need not be stopped.
        gone = (self._ray.exceptions.RayError, ConnectionError, RuntimeError)
        for order in orders:
            if order in self._tasks and self._ray.is_initialized():
                with contextlib.suppress(*gone):
                    self._ray.cancel(self._tasks[order], force=False)

    def _connect(self, address: str | None) -> None:
        named = address or os.environ.get("RAY_ADDRESS") or ""
        what = f"--on {address}" if address else "--on ray"
        _check_answer(what, named)
        try:
            with warnings.catch_warnings():  # the error says what does not work
                warnings.simplefilter("ignore")
                self._ray.init(address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # of many kinds, depending on version and cause
            why = f"Ray refused: {_last_line(str(error)) or type(error).__name__}"
            raise ConfigError(what, why, _START) from error

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """Raise an error if the cluster is gone."""
        try:
            # Without a connection, any call would make Ray start a cluster on this machine.
            if not self._ray.is_initialized():
                raise ConnectionError("the connection is closed")
            yield
        except (ConnectionError, RuntimeError) as error:
            why = f"the cluster no longer answers ({_last_line(str(error))})"
            fix = "start it again, then repeat the command: trainings continue from what they saved"
            raise ConfigError("--on ray", why, fix) from error

    def _check_gpus(self, gpus: int | None) -> None:
        """Refuse more GPUs than any machine has, for which tasks would wait forever."""
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        most = int(max((one.get("GPU", 0) for one in alive), default=0))
        if gpus and gpus > most:
            why = f"the machine of the Ray cluster with most GPUs has {most}"
            raise ConfigError(
                f"--gpus {gpus}", why, f"write {most} or fewer" if most else "leave it out"
            )


def _check_answer(what: str, address: str) -> None:
    """Check whether an address answers: Ray itself would try for minutes."""
    if address in ("", "auto", "local"):
        return
    try:
        place = urlsplit(address if "//" in address else f"//{address}")
        host, port = place.hostname, place.port
    except ValueError:
        host = port = None
    if host is None or port is None:
        raise ConfigError(
            what, f"{address} is not an address", "write HOST:PORT, as in ray://head:10001"
        )
    try:
        socket.create_connection((host, port), timeout=_PATIENCE).close()
    except OSError as error:
        why = f"{host}:{port} does not answer ({(error.strerror or str(error)).lower()})"
        raise ConfigError(what, why, _START) from error


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
