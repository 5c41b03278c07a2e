"""Running many trainings side by side, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bfno.lab.errors import ConfigError, DataError, NumericalError
from bfno.lab.files import make_folder, open_plain, read_plain
from bfno.lab.runs.campaign.child import Places, child_command
from bfno.lab.runs.campaign.plan import Job, RunState, state_of
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.signals import Stopped, StopSignals

__all__ = ["Campaign", "Standing", "failure_code", "remaining_seconds"]

_PAUSE = 0.25
_LOG = "output.log"
_TOLD_BY_ERRORS = {kind.exit_code for kind in (ConfigError, DataError, NumericalError)}


@dataclass
class Standing:
    """How far a run has come.

    Attributes:
        job: The run.
        state: What happens to it. `elsewhere`: another program trains it, and is waited for.
            `pruned`: it was stopped for good, because others do better.
        epochs: Metrics of its finished epochs.
        result: Metrics of the weights that it kept, once it is done.
        since: When its last epoch was finished, or it was started; by the clock.
        error: Why it failed, in one line.
        code: Exit code of its process.
    """

    job: Job
    state: Literal[
        "there", "waiting", "elsewhere", "running", "stopped", "finished", "failed", "pruned"
    ]
    epochs: list[dict[str, Any]] = field(default_factory=list)
    result: Mapping[str, Any] = field(default_factory=dict)
    since: float = 0.0
    error: str = ""
    code: int = 0

    @property
    def is_done(self) -> bool:
        """Whether there is a result."""
        return self.state in ("there", "finished")

    @property
    def is_over(self) -> bool:
        """Whether nothing more is done for it."""
        return self.is_done or self.state in ("failed", "pruned")

    @property
    def metrics(self) -> Mapping[str, Any]:
        """What it has reached so far."""
        return self.result or (self.epochs[-1] if self.epochs else {})

    def look(self) -> None:
        """Read from its folder how far it has come."""
        run = RunFolder(self.job.folder)
        epochs, record = run.epochs_so_far(), run.finished_record()
        if len(epochs) > len(self.epochs):
            self.since = time.time()
        self.epochs = epochs
        if record is not None:
            self.result = record.result

    def remaining(self) -> float | None:
        """Seconds that it will still take; None if nothing tells."""
        if self.is_over:
            return 0.0
        times = [epoch.get("seconds", 0.0) for epoch in self.epochs]
        each = sum(times) / len(times) if times else None
        if each is None and self.job.seconds is not None:
            each = self.job.seconds / self.job.epochs
        if each is None:
            return None
        passed = time.time() - self.since if self.state == "running" else 0.0
        return max(0.0, each * (self.job.epochs - len(times)) - passed)


def remaining_seconds(standings: Sequence[Standing], slots: int) -> float | None:
    """Seconds until all are done, as far as it can be told from those that tell."""
    left = [one.remaining() for one in standings if not one.is_over]
    known = [seconds for seconds in left if seconds is not None]
    if not known:
        return None if left else 0.0
    mean = sum(known) / len(known)
    every = [mean if seconds is None else seconds for seconds in left]
    return max(max(every), sum(every) / slots)


class Campaign:
    """Trains what is missing of a plan.

    What each run prints goes to `output.log` in its folder. A run that fails stops no other. One
    that another program trains at the moment is waited for; it is never trained twice.

    Args:
        jobs: The plan.
        slots: How many run at a time; None for as many as do not disturb each other.
        data_dir: Where the files of data sets are; None leaves it to the runs.
    """

    def __init__(
        self, jobs: Sequence[Job], slots: int | None = None, data_dir: Path | None = None
    ) -> None:
        self._places, self._data_dir = Places(), data_dir
        self.slots = slots or self._places.count
        self.standings = [Standing(job, "waiting") for job in jobs]
        for standing in self.standings:
            standing.look()
            if standing.job.state == "there":
                standing.state = "there"
        self._children: dict[int, tuple[subprocess.Popen[bytes], Standing]] = {}

    def run(self) -> Generator[list[Standing], None, None]:
        """Train until nothing is left to do, and tell the standings several times a second.

        Raises:
            Stopped: If a signal asked for it; every run has saved its state.
            DataError: If a folder cannot be written.
        """
        with StopSignals() as stop:
            try:
                while self._children or (self._is_open() and not stop.received):
                    self._collect(stopping=bool(stop.received))
                    if stop.received:
                        self._send_stop()
                    else:
                        self._launch()
                    yield self.standings
                    time.sleep(_PAUSE)
            finally:
                self._send_stop()
                for child, _ in self._children.values():
                    child.wait()
            yield self.standings
            if stop.received:
                raise Stopped(stop.received)

    def _is_open(self) -> bool:
        return any(one.state in ("waiting", "elsewhere") for one in self.standings)

    def _launch(self) -> None:
        """Fill the free places; before each start, look what others have done meanwhile."""
        for standing in self.standings:
            if standing.state not in ("waiting", "elsewhere"):
                continue
            free = [slot for slot in range(self.slots) if slot not in self._children]
            if not free and standing.state == "waiting":
                continue
            now = self._state_of(standing.job)
            if now == "there":
                standing.state = "finished"
            elif now == "in use":
                standing.state = "elsewhere"
            elif free:
                self._children[free[0]] = self._start(standing, now == "begun", free[0]), standing
            if standing.state in ("finished", "elsewhere"):
                standing.look()

    def _state_of(self, job: Job) -> RunState:
        """What has become of a run by now, as far as this program may know."""
        return state_of(job.folder)

    def _start(self, standing: Standing, has_begun: bool, slot: int) -> subprocess.Popen[bytes]:
        job = standing.job
        words = ["resume", str(job.folder)]
        if not has_begun:
            words = ["train", job.experiment, "--scale", job.scale, "--seed", str(job.seed)]
            words += ["--out", str(job.folder)]
        words += ["--set", "threads=1"]
        if self._data_dir is not None:
            words += ["--data-dir", str(self._data_dir)]
        output = _open_log(job.folder)
        try:
            # In a session of its own: a Ctrl-C at the terminal is ours to pass on.
            child = subprocess.Popen(
                child_command(words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._places.environment(slot),
                start_new_session=True,
            )
        finally:
            os.close(output)
        self._places.pin(child.pid, slot)
        standing.state, standing.since = "running", time.time()
        return child

    def _collect(self, stopping: bool) -> None:
        """See how far the running ones have come, and which have ended."""
        for slot, (child, standing) in list(self._children.items()):
            code = child.poll()
            standing.look()
            if code is not None:
                del self._children[slot]
                self._judge(standing, code, stopping)

    def _judge(self, standing: Standing, code: int, stopping: bool) -> None:
        now = state_of(standing.job.folder)
        if now == "there":
            standing.state = "finished"
        elif now == "in use":  # another program was faster
            standing.state = "elsewhere"
        elif stopping:
            standing.state = "stopped"
        else:
            standing.state, standing.code = "failed", code
            standing.error = _last_error(standing.job.folder, code)

    def _send_stop(self) -> None:
        for _, standing in self._children.values():
            self._cancel(standing)

    def _cancel(self, standing: Standing) -> None:
        """Ask a running one to save its state and end."""
        for child, other in self._children.values():
            # A second signal would end it before it has saved.
            if other is standing and standing.state == "running":
                child.terminate()
                standing.state = "stopped"


def failure_code(standings: Sequence[Standing]) -> int:
    """The exit code that tells of failed runs: their own if they agree; 0 if none failed."""
    codes = {one.code for one in standings if one.state == "failed"}
    if not codes:
        return 0
    own = codes.pop() if len(codes) == 1 else NumericalError.exit_code
    return own if own in _TOLD_BY_ERRORS else NumericalError.exit_code


def _open_log(folder: Path) -> int:
    try:
        make_folder(folder)
        return open_plain(folder / _LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        why = f"cannot be written: {(error.strerror or str(error)).lower()}"
        raise DataError(folder, why, "choose another folder with --runs") from error


def _last_error(folder: Path, code: int) -> str:
    """The line in which a program said why it failed."""
    try:
        lines = read_plain(folder / _LOG).decode(errors="replace").splitlines()
    except (OSError, DataError):
        lines = []
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if code > 0 and errors:
        # It may name files, and files may have any name; control characters steer a terminal.
        return "".join(letter for letter in errors[-1] if letter.isprintable())
    how = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"{how}; see {folder / _LOG}"
