"""Loads the trained model of a run, and makes its exhibit."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from bfno.lab.errors import ConfigError, DataError, bfno_command
from bfno.lab.experiments.experiment import Experiment, TrainedRun
from bfno.lab.experiments.settings import CIRCUMSTANCES, TrainSettings, migrated_settings, parse
from bfno.lab.experiments.trees import differences
from bfno.lab.runs.checkpoint import Checkpoint, Progress, load_weights
from bfno.lab.runs.folder import RunFolder

__all__ = [
    "check_settings",
    "history_of",
    "is_current",
    "keep_exhibit",
    "lost_checkpoints",
    "note_picture",
    "open_run",
    "refuse_changes",
    "weights_step",
    "whole_best",
    "with_defaults",
]

_logger = logging.getLogger(__name__)

# Settings that may change between two parts of a run; others would make it another experiment.
_CHANGEABLE = ("train", "solver", "evaluation", "threads", "data.dir")
# What says nothing of the run, and may change without a word.
_SILENT = ("threads", "data.dir", "train.checkpoint_seconds")


def open_run(folder: Path, *, any_checkpoint: bool = False) -> TrainedRun:
    """Return the trained model of a run together with its settings.

    It has the weights of the best epoch on the validation samples, or of the last epoch if there
    were none.

    Args:
        folder: The run.
        any_checkpoint: Whether to use the newest intact checkpoint, with a note, if that of the
            best epoch is damaged.

    Raises:
        ConfigError: If this is not a run, or nothing is trained yet.
        DataError: If its files are damaged.
    """
    run = RunFolder(folder)
    config = run.read_config()
    checkpoint = _best_checkpoint(run, any_checkpoint)
    check_settings(run, checkpoint, config)
    model = config.build(checkpoint.state)
    load_weights(model, checkpoint)
    record = run.finished_record()
    concluded = record.facts if record and record.chosen_step == checkpoint.step else {}
    facts = {**concluded, **checkpoint.state}
    return TrainedRun(config, model.eval(), checkpoint.step, facts)


def weights_step(folder: Path) -> int | None:
    """The step whose weights `open_run` takes; None if the checkpoints do not say.

    Args:
        folder: The run.
    """
    run = RunFolder(folder)
    record = run.finished_record()
    if record is not None and record.chosen_step is not None:
        return record.chosen_step
    try:
        steps = run.checkpoints.steps()
        return run.checkpoints.load(steps[0]).progress.best.get("step", steps[0]) if steps else None
    except DataError:
        return None


def note_picture(picture: Path, folder: Path) -> None:
    """Keep which weights of a run a picture in its folder shows.

    Args:
        picture: The picture, in the folder for those of the run.
        folder: The run.
    """
    step = weights_step(folder)
    if step is not None:
        RunFolder(folder).note_picture(picture.name, step)


def is_current(picture: Path, folder: Path) -> bool:
    """Whether a picture is there, and is not known to show weights that a run had before.

    Args:
        picture: The picture, in the folder for those of the run.
        folder: The run.
    """
    run = RunFolder(folder)
    return picture.exists() and not run.is_outdated(picture.name, weights_step(folder))


def keep_exhibit(folder: Path, *, any_checkpoint: bool = False) -> bool:
    """Make the exhibit of a run's model, unless it exists already.

    Args:
        folder: The run.
        any_checkpoint: See `open_run`.

    Returns:
        Whether the folder holds an exhibit now; only some kinds of models have one.

    Raises:
        ConfigError: If this is not a run, or nothing is trained yet.
        DataError: If its files are damaged, or its data no longer exist.
        NumericalError: If the solver gives up.
    """
    run = RunFolder(folder)
    if run.read_config().shows != "exhibit":
        return False
    opened = open_run(folder, any_checkpoint=any_checkpoint)
    if run.exhibit_step() != opened.step:
        content = opened.config.exhibit(opened)
        run.write_exhibit(opened.step, {**content, "stands_for": weights_step(folder)})
    return True


def check_settings(
    run: RunFolder,
    checkpoint: Checkpoint,
    config: Experiment,
    asked: Collection[str] = (),
) -> None:
    """Compare the settings of a run with those that a checkpoint was trained with.

    Args:
        run: The run.
        checkpoint: The checkpoint.
        config: The present settings of the run.
        asked: Settings whose change the user has just requested.

    Raises:
        ConfigError: If a difference makes it another experiment.
    """
    before = with_defaults(config, checkpoint.state["config"])
    refuse_changes(before, config.as_dict(), "its checkpoints")
    newest, _ = run.checkpoints.newest()
    if run.is_config_of(checkpoint) or (newest is not None and run.is_config_of(newest)):
        return  # a newer checkpoint has the changes since
    record = run.finished_record()
    if record is not None and with_defaults(config, record.config) == config.as_dict():
        return  # or the record does, of a run that ended with fewer epochs than it had begun with
    for name, (old, new) in differences(before, config.as_dict()):
        if name not in asked and not _is_in(name, _SILENT):
            _logger.warning(
                "%s: %s is %r, but was %r when step %d was saved",
                run.config_file,
                name,
                new,
                old,
                checkpoint.step,
            )


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], of: str) -> None:
    """Refuse the first setting that differs although it must not.

    Raises:
        ConfigError: If there is one.
    """
    for name, (old, new) in differences(before, now):
        if not _is_in(name, _CHANGEABLE):
            raise ConfigError(
                name, f"is {new!r}, but {old!r} in {of}", "start a new run with `bfno train`"
            )


def _is_in(name: str, sections: Collection[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in sections)


def history_of(checkpoint: Checkpoint, config: Experiment) -> list[str]:
    """List facts that the settings lack about a run that continues with them from a checkpoint.

    Args:
        checkpoint: The checkpoint.
        config: The settings.
    """
    progress, now = checkpoint.progress, config.as_dict()
    before = with_defaults(config, checkpoint.state["config"])
    if not progress.step:
        return progress.history
    free = CIRCUMSTANCES | _only_later(before["train"], config.train, progress.epoch)
    return progress.history + [
        f"{name}={json.dumps(old)} until step {progress.step}"
        for name, (old, _) in differences(before, now)
        if name not in free
    ]


def _only_later(before: Mapping[str, Any], now: TrainSettings, done: int) -> set[str]:
    """Training settings whose change makes no difference to the epochs already done."""
    if now.restart == before["epochs"] == done and not before["restart"]:
        return {"train.patience", "train.epochs", "train.restart"}
    return {"train.patience"} | (set() if now.knows_its_end else {"train.epochs"})


def with_defaults(config: Experiment, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings that another version may have written, as this one writes them.

    Args:
        config: The present settings.
        settings: Nested settings of a checkpoint, a record or a sweep; newer ones get their
            defaults.
    """
    settings = migrated_settings(settings)
    try:
        return parse(type(config), settings, "a checkpoint").as_dict()
    except ConfigError:  # settings that no longer exist say nothing
        return _known(config.as_dict(), settings)


def _known(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Earlier settings, restricted to those that still exist."""
    found = {}
    for name, value in now.items():
        old = before.get(name, value)
        is_section = isinstance(value, Mapping) and isinstance(old, Mapping)
        found[name] = _known(value, old) if is_section and value else old
    return found


def _best_checkpoint(run: RunFolder, any_checkpoint: bool) -> Checkpoint:
    steps = run.checkpoints.steps()
    record = run.finished_record()
    if not steps and record is None:
        raise ConfigError(
            run.path, "has no checkpoint yet", f"train it with `{bfno_command('resume', run.path)}`"
        )
    if not steps and record is not None and record.chosen_step is None:
        raise lost_checkpoints(run.path)
    try:
        if record is not None and record.chosen_step is not None:
            return run.checkpoints.load(record.chosen_step)
        _say_uncounted(run, steps[0])
        newest = run.checkpoints.load(steps[0])
        best = newest.progress.best.get("step", newest.step)
        _say_failed(run, best)
        return newest if best == newest.step else run.checkpoints.load(best)
    except DataError as error:
        if not any_checkpoint:
            fix = "copy it from a backup of the run, or use another one with --any-checkpoint"
            raise DataError(error.what, error.why, fix) from error
        return _any_other(run, error)


def lost_checkpoints(folder: Path, why: str = "its checkpoints are gone") -> DataError:
    """The error for a run that was trained, but no longer has an intact checkpoint."""
    fix = "restore them from a copy, or train again in another folder with `bfno train`"
    return DataError(folder, why, fix)


def _say_failed(run: RunFolder, step: int) -> None:
    """Warn that a training failed, and how old its last weights are."""
    with contextlib.suppress(ConfigError, DataError):
        record = run.record()
        if record.has_failed:
            _logger.warning(
                "%s has failed: %s; these are its weights of step %d",
                run.path,
                record.failure,
                step,
            )


def _say_uncounted(run: RunFolder, newest: int) -> None:
    """Warn about what looks like a newer checkpoint than the newest one that counts."""
    used = run.checkpoints.place(newest).name
    for problem in run.checkpoints.uncounted():
        _logger.warning("%s: %s; %s is the newest", problem.what, problem.why, used)


def whole_best(
    run: RunFolder, progress: Progress, rank: Callable[[Mapping[str, Any]], Any], *, goes_on: bool
) -> dict[str, Any]:
    """The best epoch of a resumed run; if its checkpoint is damaged, the best intact one.

    Args:
        run: The run.
        progress: Its progress.
        rank: Key to compare the metrics of epochs.
        goes_on: Whether there is more to train; the result of a finished run stays the same.

    Returns:
        The value of `Progress.best`; empty if no epoch is intact, but more will come.
    """
    if not progress.best:
        return progress.best
    try:
        run.checkpoints.load(progress.best["step"])
        return progress.best
    except DataError as error:
        problem = error
    found = progress.best
    then = "the record keeps its metrics; bring its weights back from a copy of the run"
    if goes_on:
        others = [_as_best(run, step, progress) for step in run.checkpoints.steps()]
        found = max(filter(None, others), key=lambda one: rank(one["metrics"]), default={})
        then = f"epoch {found['metrics']['epoch']} takes its place" if found else "it is left out"
    _logger.warning("the best epoch so far, %s: %s; %s", problem.what, problem.why, then)
    return found


def _as_best(run: RunFolder, step: int, progress: Progress) -> dict[str, Any] | None:
    """A checkpoint as `Progress.best`; None if it is damaged or within an epoch."""
    try:
        known = run.checkpoints.load(step).progress
    except DataError:
        return None
    if known.best.get("step") == step:
        return known.best
    metrics = [epoch for epoch in run.epochs_so_far() if epoch.get("step") == step]
    if known.batch or not metrics or step > progress.step:
        return None
    # The confusion matrix of an epoch that was not the best was never kept.
    return {"by": progress.best["by"], "step": step, "metrics": metrics[-1], "confusion": []}


def _any_other(run: RunFolder, problem: DataError) -> Checkpoint:
    """The newest checkpoint that can be loaded in place of a damaged one."""
    for step in run.checkpoints.steps():
        try:
            found = run.checkpoints.load(step)
        except DataError:
            continue
        place = run.checkpoints.place(step)
        _logger.warning("%s: %s; %s is used instead", problem.what, problem.why, place)
        return found
    raise problem
