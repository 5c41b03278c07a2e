"""Running many trainings side by side, each in its own process, here or on a cluster."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bfno.lab.errors import ConfigError, DataError, NumericalError
from bfno.lab.runs.campaign.engine import Engine, Order, QueueFull, Report
from bfno.lab.runs.campaign.ledger import forget, read_note, write_note
from bfno.lab.runs.campaign.local import LocalEngine
from bfno.lab.runs.campaign.plan import Job, state_of
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.record import printable
from bfno.lab.runs.signals import Stopped, StopSignals

__all__ = ["Campaign", "Standing", "failure_code", "remaining_seconds"]

# A run that its engine loses so often without an epoch in between is not lost by chance.
_MOST_LOSSES = 3
# Seconds until a full queue is tried again.
_FULL_PAUSE = 60.0
_TOLD_BY_ERRORS = {kind.exit_code for kind in (ConfigError, DataError, NumericalError)}


@dataclass
class Standing:
    """The state of a run.

    Attributes:
        job: The run.
        state: What happens to it. `elsewhere`: another program trains it, and the campaign waits.
            `pruned`: it was stopped for good, because others do better. `queued`: its engine has no
            machine for it yet.
        epochs: Metrics of its finished epochs.
        result: Metrics of the weights kept, once it is done.
        why: Why it is queued, in the words of its engine.
        since: Clock time at which its last epoch finished, or it started.
        error: Why it failed, in one line.
        code: Exit code of its process.
    """

    job: Job
    state: Literal[
        "there",
        "waiting",
        "elsewhere",
        "queued",
        "running",
        "stopped",
        "finished",
        "failed",
        "pruned",
    ]
    epochs: list[dict[str, Any]] = field(default_factory=list)
    result: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    since: float = 0.0
    error: str = ""
    code: int = 0

    @property
    def is_done(self) -> bool:
        """Whether there is a result."""
        return self.state in ("there", "finished")

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be done for it."""
        return self.is_done or self.state in ("failed", "pruned")

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Its metrics so far."""
        return self.result or (self.epochs[-1] if self.epochs else {})

    def look(self) -> None:
        """Read its progress from its folder."""
        run = RunFolder(self.job.folder)
        epochs, record = run.epochs_so_far(), run.finished_record()
        if len(epochs) > len(self.epochs):
            self.since = time.time()
        self.epochs = epochs
        if record is not None:
            self.result = record.result

    def remaining(self) -> float | None:
        """Estimated seconds left; None if unknown."""
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
    """Estimated seconds until all are done, from the runs whose time is known."""
    left = [one.remaining() for one in standings if not one.is_over]
    known = [seconds for seconds in left if seconds is not None]
    if not known:
        return None if left else 0.0
    mean = sum(known) / len(known)
    every = [mean if seconds is None else seconds for seconds in left]
    return max(max(every), sum(every) / slots)


class Campaign:
    """Trains the missing runs of a plan.

    The output of each run goes to `output.log` in its folder. A failed run stops no other. The
    campaign waits for a run that another program is training, and never trains it twice. A run that
    its engine has lost, for example with its machine, is submitted again.

    Args:
        jobs: The plan.
        slots: How many run at a time; None for as many as can run without disturbing each other.
        data_dir: Where the files of data sets are; None leaves it to the runs.
        engine: Trains them; None for processes of this machine.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        slots: int | None = None,
        data_dir: Path | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._engine, self._data_dir = engine or LocalEngine(), data_dir
        self.slots = slots or self._engine.slots or max(1, len(jobs))
        self.standings = [Standing(job, "waiting") for job in jobs]
        for standing in self.standings:
            standing.look()
            if standing.job.state == "there":
                standing.state = "there"
            elif failed := RunFolder(standing.job.folder).failed_for_good():
                standing.state, standing.error = "failed", failed.failure
        self._given: list[tuple[Order, Standing]] = []
        self._losses: Counter[tuple[Path, int]] = Counter()
        self._full_until = 0.0

    def run(self) -> Generator[list[Standing], None, None]:
        """Train until nothing is left to do; yield the standings at every check.

        Raises:
            Stopped: If a signal requested it; every run has saved its state.
            DataError: If a folder cannot be written.
            UserError: If the engine refuses the runs.
        """
        with StopSignals() as stop:
            try:
                self._take_up()
                while self._given or (self._is_open() and not stop.received):
                    self._collect(stopping=bool(stop.received))
                    if stop.received:
                        self._send_stop()
                    else:
                        self._launch()
                    yield self.standings
                    time.sleep(self._engine.pause)
            finally:
                self._send_stop()
                while any(self._engine.state(order).state != "over" for order, _ in self._given):
                    time.sleep(self._engine.pause)
            yield self.standings
            if stop.received:
                raise Stopped(stop.received)

    def _is_open(self) -> bool:
        return any(one.state in ("waiting", "elsewhere") for one in self.standings)

    def _take_up(self) -> None:
        """Follow the orders of a program that was killed."""
        for standing in self.standings if self._engine.outlives else ():
            note = read_note(standing.job.folder)
            if note is None or note.engine != self._engine.name:
                continue
            if not standing.is_over and not self._is_ours(standing.job):
                continue
            order = self._order(standing.job, note.batch, note.number)
            if self._engine.state(order).state == "over":
                forget(standing.job.folder)
            elif standing.is_over:  # it was about to be stopped, or others were faster
                self._engine.cancel([order])
            else:
                self._follow(order, standing)

    def _launch(self) -> None:
        """Fill the free slots; before each start, check what others have done meanwhile."""
        free, chosen = self.slots - len(self._given), []
        for standing in self.standings:
            if standing.state not in ("waiting", "elsewhere"):
                continue
            if len(chosen) >= free and standing.state == "waiting":
                continue
            now = state_of(standing.job.folder) if self._is_ours(standing.job) else "in use"
            if now == "there":
                standing.state = "finished"
            elif now == "in use":
                standing.state = "elsewhere"
            elif len(chosen) < free:
                chosen.append(standing)
            if standing.state in ("finished", "elsewhere"):
                standing.look()
        if chosen and time.monotonic() >= self._full_until:
            self._submit(chosen)

    def _is_ours(self, job: Job) -> bool:
        """Whether no other program is working on this run."""
        return True

    def _submit(self, standings: Sequence[Standing]) -> None:
        batch = secrets.token_hex(4)
        orders = [self._order(one.job, batch, number) for number, one in enumerate(standings)]
        for order in orders if self._engine.outlives else ():
            write_note(self._engine.name, order)
        others = list(self._given)
        # Before they are given: if only some can be, these have to be stopped.
        self._given += zip(orders, standings, strict=True)
        try:
            self._engine.submit(orders)
        except QueueFull:
            self._given = others
            if not others:  # whose end would make room
                raise
            self._full_until = time.monotonic() + _FULL_PAUSE
            return
        for order, standing in self._given[len(others) :]:
            self._show(standing, self._engine.state(order))

    def _order(self, job: Job, batch: str, number: int) -> Order:
        folder = str(job.folder)
        words = ["train", job.experiment, "--scale", job.scale, "--seed", str(job.seed)]
        words += [word for change in job.changes for word in ("--set", change)]
        common = ["--set", "threads=1"]
        if self._data_dir is not None:
            common += ["--data-dir", str(self._data_dir)]
        begin, go_on = (*words, "--out", folder, *common), ("resume", folder, *common)
        return Order(job.folder, begin, go_on, batch, number)

    def _follow(self, order: Order, standing: Standing) -> None:
        self._given.append((order, standing))
        self._show(standing, self._engine.state(order))

    def _show(self, standing: Standing, report: Report) -> None:
        before = standing.state
        standing.state = "queued" if report.state == "queued" else "running"
        standing.why = report.why
        if before != standing.state:
            standing.since = time.time()

    def _collect(self, stopping: bool) -> None:
        """Read the progress of the running ones, and find those that have ended."""
        for order, standing in list(self._given):
            report = self._engine.state(order)
            standing.look()
            if report.state == "over":
                self._given.remove((order, standing))
                self._judge(standing, report, stopping)
            elif standing.state in ("queued", "running"):
                self._show(standing, report)

    def _judge(self, standing: Standing, report: Report, stopping: bool) -> None:
        folder, code = standing.job.folder, report.code
        now = state_of(folder)
        if self._engine.outlives:
            forget(folder)
        if now == "there":
            standing.state = "finished"
        elif now == "in use":  # another program was faster
            standing.state = "elsewhere"
        elif stopping:
            standing.state = "stopped"
        elif code is None and self._may_be_given_again(standing):
            standing.state = "waiting"
        else:
            standing.state, standing.code = "failed", code or 0
            standing.error = _lost(folder, report.why) if code is None else _failure(folder, code)

    def _may_be_given_again(self, standing: Standing) -> bool:
        """Whether a lost run has progressed since it was lost too often at the same place."""
        place = standing.job.folder, len(standing.epochs)
        self._losses[place] += 1
        return self._losses[place] < _MOST_LOSSES

    def _send_stop(self) -> None:
        self._cancel([standing for _, standing in self._given])

    def _cancel(self, standings: Sequence[Standing]) -> None:
        """Ask running trainings to save their state and end."""
        # Only once: a second signal would end a training before it has saved.
        open_ones = [
            (order, standing)
            for order, standing in self._given
            if standing.state in ("queued", "running") and any(one is standing for one in standings)
        ]
        if open_ones:
            self._engine.cancel([order for order, _ in open_ones])
        for _, standing in open_ones:
            standing.state = "stopped"


def failure_code(standings: Sequence[Standing]) -> int:
    """The exit code for failed runs: their own if they agree; 0 if none failed."""
    codes = {one.code for one in standings if one.state == "failed"}
    if not codes:
        return 0
    own = codes.pop() if len(codes) == 1 else NumericalError.exit_code
    return own if own in _TOLD_BY_ERRORS else NumericalError.exit_code


def _lost(folder: Path, why: str) -> str:
    reason = f" ({printable(why)})" if why else ""
    return f"its job ended {_MOST_LOSSES} times before an epoch did{reason}; see {_log(folder)}"


def _failure(folder: Path, code: int) -> str:
    """Why a program failed: the error that it printed, or its exit code."""
    error = RunFolder(folder).last_error() if code > 0 else ""
    how = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return error or f"{how}; see {_log(folder)}"


def _log(folder: Path) -> Path:
    return RunFolder(folder).log_file
