"""Starting and resuming a run."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bfno.lab.errors import ConfigError, DataError, NumericalError
from bfno.lab.experiments.experiment import (
    Experiment,
    refuse_other_division,
    refuse_other_names,
)
from bfno.lab.experiments.processes import is_one_of_several
from bfno.lab.experiments.resolve import changed_settings, resolve
from bfno.lab.experiments.seeds import derive_seed
from bfno.lab.experiments.settings import parse
from bfno.lab.experiments.tasks import without_test
from bfno.lab.experiments.trees import merged
from bfno.lab.runs.checkpoint import settings_digest
from bfno.lab.runs.cores import free_cores, own_cores
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.load import (
    check_settings,
    history_of,
    lost_checkpoints,
    open_run,
    refuse_changes,
)
from bfno.lab.runs.loop import Trainer, Watcher
from bfno.lab.runs.record import Record, flat_config, make_record, source_commit

__all__ = ["default_folder", "resume", "start"]

_logger = logging.getLogger(__name__)

# From this size a second thread pays off. Below it, a training step of the digits' BFNO-NODE gains
# 4 % on an idle machine, and takes twice as long if another program keeps one of two cores busy.
_WORTH_SHARING = 1 << 17


def default_folder(config: Experiment) -> Path:
    """The default folder of a run."""
    name = config.experiment.replace("/", "-")
    return Path("runs") / f"{name}-s{config.seed}"


@contextlib.contextmanager
def _threads_restored() -> Iterator[None]:
    """Leave torch's number of threads as it was, for other runs of the same program."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@_threads_restored()
def start(
    config: Experiment, folder: Path, watchers: Sequence[Watcher] = (), *, data: Any = None
) -> Record:
    """Train a model from the beginning and return the record of the run.

    Args:
        config: Complete settings.
        folder: Folder of the run; must not hold another run.
        watchers: Told of steps and epochs.
        data: Samples in memory, divided as `config.load` would; None loads those of the settings.

    Raises:
        ConfigError: If the folder holds a run, or settings do not fit.
        DataError: If files cannot be read or written.
        NumericalError: If the training reaches numbers that are not finite.
        Stopped: If a signal ended it; `resume` continues it.
    """
    run = RunFolder(folder)
    run.check_unused()  # before the data are loaded, which may take long
    trainer = _prepare(_pinned(config), run, watchers, data)
    if trainer.processes.is_first:
        run.create()
    with _held(trainer):
        if trainer.processes.is_first:
            run.write_config(trainer.config)
        _note_commit(trainer)
        return _fit(trainer)


@_threads_restored()
def resume(
    folder: Path,
    changes: Mapping[str, Any] | None = None,
    watchers: Sequence[Watcher] = (),
    *,
    data: Any = None,
) -> Record:
    """Continue a run from its newest intact checkpoint, bit for bit.

    Args:
        folder: The run.
        changes: Nested settings to change, of training or solver, such as more epochs.
        watchers: Told of steps and epochs.
        data: Samples in memory, the same as in the beginning; None loads those of the settings.

    Raises:
        ConfigError: If this is not a run, or the settings no longer match its checkpoints.
        DataError: If files cannot be read or written, or differ from what its checkpoints say.
        NumericalError: If the training reaches numbers that are not finite.
        Stopped: If a signal ended it again.
    """
    run = RunFolder(folder)
    before = run.read_config()
    config = parse(type(before), merged(before.as_dict(), changes or {}), "the changes")
    refuse_changes(before.as_dict(), config.as_dict(), "a run that has begun")
    config.refuse_idle(changes or {})
    if config.threads is None:  # its own number keeps a run's last digits the same
        threads = before.threads or torch.get_num_threads()
        config = config.model_copy(update={"threads": threads})
    # Checked now, because preparation takes seconds; the first process locks it afterwards.
    run.check_free()
    trainer = _prepare(config, run, watchers, data)
    with _held(trainer):
        checkpoint, problems = run.checkpoints.newest()
        if checkpoint is None and not problems and os.path.lexists(run.record_file):
            raise lost_checkpoints(folder)
        if checkpoint is None and problems:
            why = f"all its checkpoints are damaged ({problems[0].what} {problems[0].why})"
            raise lost_checkpoints(folder, why)
        for problem in problems:
            _logger.warning("%s: %s; an earlier checkpoint is used", problem.what, problem.why)
        if checkpoint is not None:
            check_settings(run, checkpoint, config, flat_config(changes or {}).keys())
            run.check_metrics(checkpoint)
            division = trainer.facts.get("division", "")
            refuse_other_division(f"the data of {folder}", checkpoint.state, division)
            refuse_other_names(f"the data of {folder}", checkpoint.state, trainer.facts)
            trainer.restore(checkpoint)
            if not trainer.is_done:
                trainer.progress.history = history_of(checkpoint, trainer.config)
        _note_commit(trainer)
        is_other = settings_digest(config.as_dict()) != settings_digest(before.as_dict())
        if trainer.is_done and is_other and not _ends_here(trainer, before):
            raise _nothing_to_do(trainer)
        if trainer.processes.is_first:
            _say_how_the_rate_goes_on(trainer, before.train.epochs)
            run.write_config(trainer.config)
            if not trainer.is_done:
                run.mark_unfinished()  # first: to the metrics that follow, the old record is blind
            run.cut_metrics(trainer.progress.metrics_size)
        return _fit(trainer)


def _note_commit(trainer: Trainer) -> None:
    """Add the commit of the sources to those the run was trained with, if it will train."""
    commit, commits = source_commit(), trainer.progress.commits
    if trainer.progress.step and not commits:  # of a release that did not keep them
        record = trainer.run.finished_record()
        commits.append((record and record.commit) or "unknown")
    if commit is not None and commit not in commits and not trainer.is_done:
        commits.append(commit)


def _say_how_the_rate_goes_on(trainer: Trainer, before: int | str) -> None:
    """Say which rate a finished training with a cosine schedule gets for more epochs."""
    settings, done = trainer.config.train, trainer.progress.epoch
    if settings.schedule != "cosine" or done != before or settings.restart or trainer.is_done:
        return
    rate = trainer.learning_rate(trainer.progress.step)
    _logger.warning(
        "the cosine schedule of %d epochs is stretched to %d: the learning rate continues at %.2g, "
        "%.2g %% of train.lr, and falls to 0. To restart the schedule: --set train.restart=%d",
        *(done, trainer.epochs, rate, 100 * rate / settings.lr, done),
    )


def _ends_here(trainer: Trainer, before: Experiment) -> bool:
    """Whether it merely ends with the epochs it has, as if it had begun with that number."""
    progress = trainer.progress
    if trainer.config.train.knows_its_end:
        return False
    others = merged(trainer.config.as_dict(), {"train": {"epochs": before.train.epochs}})
    is_same = settings_digest(others) == settings_digest(before.as_dict())
    return is_same and progress.epoch == trainer.epochs and not progress.batch


def _nothing_to_do(trainer: Trainer) -> ConfigError:
    """The error for changed settings of a run that has nothing left to train."""
    folder, epoch = trainer.run.path, trainer.progress.epoch
    if epoch == trainer.epochs and trainer.progress.batch:
        why = f"is {trainer.progress.batch} steps into epoch {epoch + 1}"
        return ConfigError(folder, why, f"let it finish that epoch with --epochs {epoch + 1}")
    if epoch >= trainer.epochs:
        why = f"has finished its {epoch} epochs, but settings have changed"
        return ConfigError(folder, why, "ask for more epochs with --set train.epochs=N")
    patience = trainer.config.train.patience
    why = f"has stopped early: its last {patience} epochs were no better than one before"
    return ConfigError(folder, why, "let it continue with --set train.patience=null")


def _pinned(config: Experiment) -> Experiment:
    """Fix what would otherwise depend on where the run is resumed."""
    paths = {name: value.resolve() for name, value in config.data if isinstance(value, Path)}
    return config.model_copy(update={"data": config.data.model_copy(update=paths)})


def _threads(config: Experiment, *, looks: bool) -> int:
    """How many threads a new run gets, and keeps: another number changes the last digits.

    The number depends on the size of the model, and is at most the number of cores that other
    programs leave free: all threads would wait for one that has to share its core.

    Args:
        config: The settings.
        looks: Whether to check what other programs do.
    """
    most = min(torch.get_num_threads(), len(own_cores()))
    if config.numbers_per_layer < _WORTH_SHARING:
        return 1
    if most == 1 or not looks or is_one_of_several():
        return most
    threads = min(most, free_cores())
    if threads < most:
        _logger.warning(
            "other programs keep cores busy: this run uses %d of %d threads, and stays with that; "
            "the setting threads=%d uses all",
            *(threads, most, most),
        )
    return threads


def _prepare(config: Experiment, run: RunFolder, watchers: Sequence[Watcher], data: Any) -> Trainer:
    source_commit()  # now, while the checkout still matches the imported sources
    # With samples in memory, a fit must not depend on other programs of the machine.
    looks = data is None
    data = config.load() if data is None else data
    threads = config.threads or _threads(config, looks=looks)
    config = config.model_copy(update={"threads": threads})
    torch.set_num_threads(threads)
    data = data if config.train.test else without_test(data)
    torch.manual_seed(derive_seed(config.seed, "weights"))
    known = config.facts(data)
    model = config.build(known)
    sizes = {"parameters": config.count(model), "published_parameters": config.published}
    task = config.task(data)
    # The settings of the run then hold a number of epochs, for resuming and for estimates.
    epochs = config.train.epochs_for(len(task.data.train))
    train = config.train.model_copy(update={"epochs": epochs})
    config = config.model_copy(update={"train": train})
    return Trainer(config, task, model, run, {**known, **sizes}, [*watchers])


@contextlib.contextmanager
def _held(trainer: Trainer) -> Any:
    """Lock the run's folder against others; the first process does so for all."""
    if trainer.processes.is_first:
        with trainer.run:
            yield
    else:
        yield


def _fit(trainer: Trainer) -> Record:
    try:
        return _trained(trainer)
    finally:
        for watcher in trainer.watchers:
            watcher.on_end()


def _trained(trainer: Trainer) -> Record:
    """Train to the end, and write the record."""
    try:
        trainer.fit()
    except NumericalError:
        if trainer.processes.is_first and trainer.failure:
            trainer.run.write_record(_record(trainer))  # so that others see the failure
        raise
    record = _record(trainer)
    if trainer.processes.is_first:
        trainer.run.write_record(record)  # first: the next steps may fail unexpectedly
        concluded = _concluded(trainer, record)
        if concluded is not record:
            trainer.run.write_record(concluded)
        record = concluded
    for watcher in trainer.watchers:
        watcher.on_finish(record.result)
    return record


def _record(trainer: Trainer) -> Record:
    task = trainer.task
    facts = {
        **trainer.facts,
        "samples": {name: len(getattr(task.data, name)) for name in ("train", *task.splits)},
        "judged_by": f"{task.splits[-1] if task.splits else 'train'}_{task.selection}",
        "threads": torch.get_num_threads(),
        "processes": trainer.processes.count,
        "changes": changed_settings(_as_asked(trainer)),
    }
    name, settings = trainer.run.path.resolve().name, trainer.config.as_dict()
    failure = trainer.failure
    progress = failure.progress if failure else trainer.progress
    why = failure.why if failure else ""
    return make_record(settings, progress.model_dump(), facts, name, why)


def _as_asked(trainer: Trainer) -> Experiment:
    """The settings, with `auto` instead of a number of epochs that was found automatically."""
    config = trainer.config
    preset = resolve(config.experiment, scale=config.scale).train
    if preset.epochs_for(len(trainer.task.data.train)) != trainer.epochs:
        return config
    train = config.train.model_copy(update={"epochs": preset.epochs})
    return config.model_copy(update={"train": train})


def _concluded(trainer: Trainer, record: Record) -> Record:
    """Add to the record what `conclude` computes with the chosen weights."""
    if type(trainer.config).conclude is Experiment.conclude:
        return record  # nothing is, so the weights need not be read
    try:
        opened = open_run(trainer.run.path)
        opened.model.to(trainer.processes.device)
        found = trainer.config.conclude(opened, trainer.task.data)
    except (DataError, NumericalError) as error:  # the training is done, and keeps its record
        _logger.warning(
            "%s; the run is kept without the scores that need its chosen weights", error
        )
        return record
    return replace(
        record,
        result={**record.result, **found.metrics},
        facts={**record.facts, **found.facts},
    )
