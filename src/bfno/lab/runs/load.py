"""From a run to a trained model, and to what it has to show."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.experiment import Experiment, TrainedRun
from bfno.lab.experiments.settings import migrated, parse
from bfno.lab.experiments.trees import differences
from bfno.lab.runs.checkpoint import Checkpoint, load_weights
from bfno.lab.runs.folder import RunFolder

__all__ = ["check_settings", "keep_exhibit", "open_run", "refuse_changes"]

_logger = logging.getLogger(__name__)

# What may change between two parts of a run. All else would make it a different experiment.
_CHANGEABLE = ("train", "solver", "evaluation", "threads", "data.dir")
# What says nothing of the run, and may change without a word.
_SILENT = ("threads", "data.dir", "train.checkpoint_seconds")


def open_run(folder: Path, *, any_checkpoint: bool = False) -> TrainedRun:
    """Return the trained model of a run together with its settings.

    It has the weights of the epoch that was best on the validation images, or of the last one where
    there were none.

    Args:
        folder: The run.
        any_checkpoint: Whether to take the newest checkpoint that is whole, with a note, where
            that of the best epoch is damaged.

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
    facts = {**checkpoint.state, **_reference(run, checkpoint)}
    return TrainedRun(config, model.eval(), checkpoint.step, facts)


def keep_exhibit(folder: Path, *, any_checkpoint: bool = False) -> bool:
    """Ask the model of a run what it has to show, unless the answer is there already.

    Args:
        folder: The run.
        any_checkpoint: See `open_run`.

    Returns:
        Whether the folder holds an exhibit now; only some families have one.

    Raises:
        ConfigError: If this is not a run, or nothing is trained yet.
        DataError: If its files are damaged, or its data not there any more.
        NumericalError: If the solver gives up.
    """
    run = RunFolder(folder)
    if run.read_config().shows != "exhibit":
        return False
    opened = open_run(folder, any_checkpoint=any_checkpoint)
    if run.exhibit_step() != opened.step:
        run.write_exhibit(opened.step, opened.config.exhibit(opened))
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
        config: The settings of the run by now.
        asked: Settings whose change the user has just asked for.

    Raises:
        ConfigError: If one differs that makes it another experiment.
    """
    before = _with_defaults(config, checkpoint.state["config"])
    refuse_changes(before, config.as_dict(), "its checkpoints")
    newest, _ = run.checkpoints.newest()
    if run.is_config_of(checkpoint) or (newest is not None and run.is_config_of(newest)):
        return  # what has changed since, a newer checkpoint knows
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
    """Name the first setting that differs although it may not.

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


def _with_defaults(config: Experiment, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of a checkpoint; those that are younger than it have their defaults."""
    settings = migrated(settings)
    try:
        return parse(type(config), settings, "a checkpoint").as_dict()
    except ConfigError:  # settings that no longer exist say nothing
        return _known(config.as_dict(), settings)


def _known(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of before, those and only those that there are now."""
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
            run.path, "has no checkpoint yet", f"train it with `bfno resume {run.path}`"
        )
    try:
        if record is not None and record.chosen_step is not None:
            return run.checkpoints.load(record.chosen_step)
        newest = run.checkpoints.load(steps[0])
        best = newest.progress.best.get("step", newest.step)
        return newest if best == newest.step else run.checkpoints.load(best)
    except DataError as error:
        if not any_checkpoint:
            fix = "copy it from a backup of the run, or take another one with --any-checkpoint"
            raise DataError(error.what, error.why, fix) from error
        return _any_other(run, error)


def _reference(run: RunFolder, checkpoint: Checkpoint) -> dict[str, Any]:
    """What predictions are compared with, if the record has that of these very weights."""
    record = run.finished_record()
    if record is None or record.chosen_step != checkpoint.step:
        return {}
    return {key: value for key, value in record.facts.items() if key == "reference"}


def _any_other(run: RunFolder, problem: DataError) -> Checkpoint:
    """The newest checkpoint that can be loaded in the place of a damaged one."""
    for step in run.checkpoints.steps():
        try:
            found = run.checkpoints.load(step)
        except DataError:
            continue
        place = run.checkpoints.place(step)
        _logger.warning("%s: %s; %s is used instead", problem.what, problem.why, place)
        return found
    raise problem
