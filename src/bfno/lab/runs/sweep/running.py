"""Training the trials of a sweep side by side, each an ordinary run in its own process."""

from __future__ import annotations

import os
from pathlib import Path

from bfno.lab.errors import ConfigError, NumericalError
from bfno.lab.files import lock_file, make_folder, open_plain, write_atomically
from bfno.lab.runs.campaign.engine import Engine, Report
from bfno.lab.runs.campaign.plan import Job
from bfno.lab.runs.campaign.running import Campaign, Standing
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.sweep.study import Study, explained
from bfno.lab.runs.sweep.trials import Trial

__all__ = ["Sweep"]

_SETTINGS = "trial.yaml"
# Training again with the same settings would fail again.
_SETTINGS_AT_FAULT = (ConfigError.exit_code, NumericalError.exit_code)


class Sweep(Campaign):
    """Trains the trials of a study until there are enough.

    A trial belongs to the program that holds the lock of its claim; the kernel releases the lock
    when that program ends, however it ends. The next program to find the trial continues its run.
    Scores go to the study in the order of epochs, and the study decides which trials are stopped
    early.

    Args:
        study: The study.
        trials: Total number of trials, including existing ones.
        slots: How many run at a time; None for as many as can run without disturbing each other.
        data_dir: Where the files of data sets are; None leaves it to the runs.
        engine: Trains them; None for processes of this machine.
    """

    def __init__(
        self,
        study: Study,
        trials: int,
        slots: int | None = None,
        data_dir: Path | None = None,
        engine: Engine | None = None,
    ) -> None:
        super().__init__([], slots, data_dir, engine)
        self.study, self._most = study, trials
        self._claims: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._told: dict[str, int] = {}  # the last epoch that was reported to the study
        self._has_all = False
        self._learn()

    def _is_open(self) -> bool:
        return not self._has_all or super()._is_open()

    def _launch(self) -> None:
        self._learn()
        self._propose()
        super()._launch()
        self._tell()

    def _collect(self, stopping: bool) -> None:
        super()._collect(stopping)
        self._tell()

    def _judge(self, standing: Standing, report: Report, stopping: bool) -> None:
        super()._judge(standing, report, stopping)
        if self._state_in_study(standing) == "pruned":
            standing.state = "pruned"

    def _is_ours(self, job: Job) -> bool:
        return self._claim(job)

    # -- the study ------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Read what other programs have added to the study, and which trials they have ended."""
        ours = {one.job.name: one for one in self.standings}
        for trial in self.study.trials():
            standing = ours.get(trial.name) or self._added(trial)
            if trial.state == "running" or standing.is_over:
                continue
            if standing.state not in ("queued", "running", "stopped"):
                self._settle(standing, trial)

    def _settle(self, standing: Standing, trial: Trial) -> None:
        standing.state, standing.error = trial.state, trial.error
        standing.code = NumericalError.exit_code if trial.state == "failed" else 0
        if trial.score is not None:
            standing.result = {self.study.metric: trial.score}
        self._release(standing.job)

    def _added(self, trial: Trial) -> Standing:
        config = self.study.plan.config(trial.values)
        folder = self.study.folder / trial.name
        epochs = config.train.epochs_for(self.study.samples)
        # A file of settings is an experiment like any other.
        file = str(folder / _SETTINGS)
        job = Job(file, config.scale, config.seed, folder, "missing", epochs, title=trial.name)
        standing = Standing(job, "waiting")
        self.standings.append(standing)
        self._numbers[trial.name] = trial.number
        self._told[trial.name] = max(trial.scores, default=0)
        if trial.state != "running":
            self._settle(standing, trial)
            if trial.state == "finished":
                standing.state = "there"
        return standing

    def _propose(self) -> None:
        """Take one trial from the study for each free slot."""
        while not self._has_all:
            waiting = sum(one.state == "waiting" for one in self.standings)
            if len(self._given) + waiting >= self.slots:
                return
            trial = self.study.propose(self._most)
            if trial is None:
                self._has_all = True
                return
            self._added(trial)

    def _state_in_study(self, standing: Standing) -> str:
        return self.study.trials()[self._numbers[standing.job.name]].state

    def _tell(self) -> None:
        """Report the scores of our trials to the study, epoch by epoch."""
        for standing in self.standings:
            if standing.job.name in self._claims:
                self._tell_of(standing)

    def _tell_of(self, standing: Standing) -> None:
        job, number = standing.job, self._numbers[standing.job.name]
        if self._state_in_study(standing) == "running" and not self._tell_epochs(standing):
            # First of all: a trial that is not to go on must not, should this program be killed.
            self.study.prune(number)
            self._cancel([standing])
            if standing.is_done:
                standing.state = "pruned"
        elif standing.is_done and self._state_in_study(standing) == "running":
            record = RunFolder(job.folder).finished_record()
            if record is not None:
                self.study.finish(number, float(record.result[self.study.metric]))
        elif standing.state == "failed" and standing.code in _SETTINGS_AT_FAULT:
            self.study.fail(number, standing.error)
        if standing.is_over:
            self._release(job)

    def _tell_epochs(self, standing: Standing) -> bool:
        """Report the new epochs; return whether the trial is worth continuing."""
        job, metric = standing.job, self.study.metric
        for epoch in standing.epochs:
            number = epoch["epoch"]
            if number <= self._told[job.name] or metric not in epoch:
                continue
            self._told[job.name] = number
            is_worth_it = self.study.report(self._numbers[job.name], number, epoch[metric])
            if not is_worth_it and number < job.epochs:  # the last one costs nothing more
                return False
        return True

    # -- claims ---------------------------------------------------------------------------------

    def _claim(self, job: Job) -> bool:
        """Try to claim a trial; if it becomes ours, write its settings to its folder."""
        if job.name in self._claims:
            return True
        with explained(job.folder):
            make_folder(job.folder)
            descriptor = open_plain(job.folder / ".claim", os.O_RDWR | os.O_CREAT)
        if not lock_file(descriptor):
            os.close(descriptor)
            return False
        trial = self.study.trials()[self._numbers[job.name]]
        if trial.state != "running":  # its owner ended it between our two looks
            os.close(descriptor)
            return False
        self._claims[job.name] = descriptor
        self._told[job.name] = max(trial.scores, default=0)
        write_atomically(job.folder / _SETTINGS, self.study.plan.file(trial.values))
        return True

    def _release(self, job: Job) -> None:
        descriptor = self._claims.pop(job.name, None)
        if descriptor is not None:
            os.close(descriptor)
