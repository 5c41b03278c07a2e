"""Training on a cluster that Slurm manages: jobs of an array, submitted by submitit.

A job is a small program that starts the training as its child and waits. Shortly before the job's
time is up, Slurm sends it a signal; it then lets the training save and end, and requeues itself.
The machine that gets it next continues from what was saved. submitit is used only for this: the
state of jobs is read from `squeue`, which needs no accounting database, and from notes in the
folders of the runs.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bfno.lab.errors import ConfigError
from bfno.lab.runs.campaign.duration import minutes_of
from bfno.lab.runs.campaign.engine import Order, QueueFull, Report
from bfno.lab.runs.campaign.ledger import read_note, write_note
from bfno.lab.runs.campaign.worker import exit_code, start_worker

__all__ = ["SlurmEngine", "SlurmJob"]

_logger = logging.getLogger(__name__)

_FOLDER = ".submitit"
# Seconds between two queries to Slurm, which has other users, and the time limit of a query.
_EVERY, _PATIENCE = 5.0, 60.0
# A job gets a signal this many seconds before its time is up; a short one, at half of its time.
_NOTICE = 120
# How often a job may meet its time limit; one that gets nowhere does not go back to the queue.
_MOST_LIMITS = 100_000
_LONGEST = 24 * 60
# Messages of sbatch if a user or the whole cluster has the largest allowed number of jobs.
_FULL = ("MaxSubmit", "Job violates accounting/QOS policy", "temporarily unable to accept")
_PROGRAMS = ("sbatch", "srun", "squeue", "scancel", "sinfo")
_ELSEWHERE = "run it on a machine of the cluster that has sbatch, or leave out --on"


@dataclass(frozen=True)
class _Listed:
    """A job in Slurm's queue."""

    number: str
    state: str
    why: str


class SlurmJob:
    """A job that submitit runs on its machine; a signal makes it save and requeue.

    Args:
        order: The run to train.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._child: subprocess.Popen[bytes] | None = None
        self._before: set[str] = set()
        self._is_told = False

    def __call__(self) -> None:
        """Train until the run ends; the exit code is the training's."""
        signal.signal(signal.SIGTERM, self._pass_on)
        self._before = self._saved()
        # Slurm signals every process of a job. The child must not die of the one that is for us.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
        try:
            self._child = start_worker(self._order)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1, signal.SIGUSR2})
        if self._is_told:
            self._child.terminate()
        code = self._child.wait()
        write_note(SlurmEngine.name, self._order, code)
        sys.exit(code if code >= 0 else 128 - code)

    def checkpoint(self) -> Any:
        """Let the training save and end; returns what to submit again, None if it got nowhere."""
        self._pass_on()
        if self._child is not None:
            # Not `Popen.wait`, which this call may have interrupted.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
        if self._child is not None and self._saved() == self._before:
            return None
        return _submitit().helpers.DelayedSubmission(SlurmJob(self._order))

    def _pass_on(self, *_: object) -> None:
        self._is_told = True
        if self._child is not None:
            self._child.terminate()

    def _saved(self) -> set[str]:
        try:
            return set(os.listdir(self._order.folder / "checkpoints"))
        except OSError:
            return set()


@dataclass
class SlurmEngine:
    """Submits orders as jobs of an array and follows them in the queue.

    Args:
        runs: Folder of the runs, which all machines of the cluster have to share.
        minutes: Time limit of a job; None for the partition's default.
        gpus: GPUs of each job.
        partition: Where jobs are queued; None for the cluster's default.
    """

    runs: Path
    minutes: int | None = None
    gpus: int | None = None
    partition: str | None = None
    _jobs: dict[tuple[str, int], _Listed] = field(default_factory=dict, init=False)
    _next: float = field(default=0.0, init=False)
    _is_known: bool = field(default=False, init=False)
    _default_minutes: int = field(default=_LONGEST, init=False)

    name, slots, pause, outlives = "slurm", None, 1.0, True

    def __post_init__(self) -> None:
        _submitit()
        for program in _PROGRAMS:
            if shutil.which(program) is None:
                why = f"there is no Slurm here (no {program})"
                raise ConfigError("--on slurm", why, _ELSEWHERE)
        if "%" in str(self.runs):
            why = "Slurm would misread the % in its name"
            raise ConfigError(self.runs, why, "choose another folder")
        self._check_partition()

    def submit(self, orders: Sequence[Order]) -> None:
        submitit = _submitit()
        executor = submitit.SlurmExecutor(self.runs / _FOLDER, max_num_timeout=_MOST_LIMITS)
        minutes = self.minutes or self._default_minutes
        wanted = {"partition": self.partition, "gpus_per_node": self.gpus}
        executor.update_parameters(
            job_name=_job_name(orders[0].batch),
            time=minutes,
            wckey=None,
            ntasks_per_node=1,
            cpus_per_task=1,
            signal_delay_s=min(_NOTICE, minutes * 30),
            array_parallelism=len(orders),
            stderr_to_stdout=True,
            # Python would take modules from the current folder for the real ones.
            setup=["export PYTHONSAFEPATH=1"],
            additional_parameters={"requeue": True},
            **{key: value for key, value in wanted.items() if value is not None},
        )
        failures = submitit.core.utils
        try:
            # submitit prints the message of sbatch, which the error below reports.
            with contextlib.redirect_stderr(io.StringIO()):
                executor.submit_array([SlurmJob(order) for order in orders])
        except (failures.FailedJobError, failures.FailedSubmissionError) as error:
            raise self._refusal(str(error), len(orders)) from error
        finally:
            self._next, self._is_known = 0.0, False

    def state(self, order: Order) -> Report:
        self._ask()
        job = self._jobs.get((_job_name(order.batch), order.number))
        if job is not None:
            is_waiting = job.state in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD")
            return Report("queued", why=job.why) if is_waiting else Report("running")
        if not self._is_known:
            return Report("queued", why="Slurm does not answer")
        note = read_note(order.folder)
        code = note.code if note is not None and note.is_about(order) else None
        return Report("over", None if code is None else exit_code(code))

    def cancel(self, orders: Sequence[Order]) -> None:
        self._next = 0.0
        self._ask()
        names = [(_job_name(order.batch), order.number) for order in orders]
        numbers = [self._jobs[name].number for name in names if name in self._jobs]
        # It sends SIGTERM to what runs; after KillWait, by default 30 seconds, comes SIGKILL. A
        # signal alone, with --signal, would be sent again and again while other jobs of the array
        # wait, as Slurm 22.05 then answers that it could not be sent, though it was.
        code, _, err = _call("scancel", *numbers) if numbers else (0, "", "")
        if code:
            _logger.warning(
                "scancel: %s; the jobs go on, and this command waits for them", _last_line(err)
            )

    def _ask(self) -> None:
        """Read the queue, unless that was just done."""
        if time.monotonic() < self._next:
            return
        layout = "--format=%i|%j|%K|%T|%r"
        code, out, err = _call("squeue", "--noheader", "--array", f"--user={os.getuid()}", layout)
        self._next = time.monotonic() + _EVERY
        if code:
            _logger.warning("squeue: %s; asking again until it answers", _last_line(err))
            return
        self._is_known, self._jobs = True, {}
        for line in out.splitlines():
            number, name, index, state, why = line.split("|", 4)
            # A single job is not an array, and has no index.
            at = int(index) if index.isdigit() else 0
            self._jobs[name, at] = _Listed(number, state, "" if why == "None" else why)

    def _check_partition(self) -> None:
        """Find the limits of the partition, or of several, separated by commas."""
        code, out, err = _call("sinfo", "--noheader", "--format=%R|%P|%L|%l")
        if code:
            fix = "wait for it, or ask who runs the cluster"
            raise ConfigError("--on slurm", f"Slurm does not answer: {_last_line(err)}", fix)
        rows = [line.split("|") for line in out.splitlines()]
        known = sorted({row[0] for row in rows})
        named = self.partition.split(",") if self.partition else []
        for name in named:
            if name not in known:
                why, fix = "is not a partition of this cluster", f"write one of {', '.join(known)}"
                raise ConfigError(f"--partition {name}", why, fix)
        # The star marks the default one.
        mine = [row for row in rows if (row[0] in named if named else row[1].endswith("*"))]
        limits = [_minutes(text) for row in mine for text in row[2:]]
        self._default_minutes = int(min([*limits, _LONGEST]))
        most = max((_minutes(row[3]) for row in mine), default=math.inf)
        if self.minutes is not None and self.minutes > most:
            why = f"is longer than the {most:.0f} minutes that the partition allows"
            raise ConfigError("--time", why, "write less: jobs continue by themselves")

    def _refusal(self, said: str, count: int) -> ConfigError:
        line = _last_line(said)
        if any(one in said for one in _FULL):
            why = f"the queue does not take {count} more jobs ({line})"
            return QueueFull("--on slurm", why, "queue fewer at a time with --jobs, or wait")
        fix = "change --gpus, --time or --partition"
        return ConfigError("--on slurm", f"sbatch refused: {line}", fix)


def _submitit() -> Any:
    try:
        return importlib.import_module("submitit")
    except ModuleNotFoundError as error:
        fix = "pip install 'bfno[slurm]'"
        raise ConfigError("--on slurm", "submitit is not installed", fix) from error


def _minutes(text: str) -> float:
    """Minutes of a time limit that Slurm printed."""
    try:
        minutes = minutes_of(text)
    except ValueError:  # it has words for unset values
        return math.inf
    return math.inf if minutes is None else minutes


def _job_name(batch: str) -> str:
    return f"bfno-{batch}"


def _call(*command: str) -> tuple[int, str, str]:
    """Exit code, output and errors of one of Slurm's programs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"{command[0]} has not answered for {_PATIENCE:.0f} seconds"
    except OSError as error:
        return 1, "", f"{command[0]}: {error.strerror}"
    return done.returncode, done.stdout, done.stderr


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = lines[-1] if lines else "nothing was said"
    return line.partition(": error: ")[2] or line
