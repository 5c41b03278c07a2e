"""From a run to a trained model."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.experiment import TrainedRun
from bfno.lab.runs.checkpoint import Checkpoint
from bfno.lab.runs.run import RunFolder
from bfno.lab.runs.state import load_weights

__all__ = ["open_run"]

_logger = logging.getLogger(__name__)


def open_run(folder: Path) -> TrainedRun:
    """Return the trained model of a run together with its settings.

    It has the weights of the epoch that was best on the validation images, or of the last one where
    there were none.

    Raises:
        ConfigError: If this is no run, or nothing is trained yet.
        DataError: If its files are damaged.
    """
    run = RunFolder(folder)
    config = run.read_config()
    checkpoint = _best_checkpoint(run)
    model = config.build(checkpoint.state)
    load_weights(model, checkpoint)
    return TrainedRun(config, model.eval(), checkpoint.step, checkpoint.state)


def _best_checkpoint(run: RunFolder) -> Checkpoint:
    newest, problems = run.checkpoints.newest()
    for problem in problems:
        _logger.warning("%s: %s; an earlier checkpoint is used", problem.what, problem.why)
    if newest is None:
        if problems:
            raise problems[0]
        raise ConfigError(
            run.path, "has no checkpoint yet", f"train it with `bfno resume {run.path}`"
        )
    best = _chosen_step(run) or newest.state["progress"]["best"].get("step", newest.step)
    if best == newest.step:
        return newest
    try:
        return run.checkpoints.load(best)
    except DataError as error:
        _logger.warning("%s: %s; the newest checkpoint is used", error.what, error.why)
        return newest


def _chosen_step(run: RunFolder) -> int | None:
    """The step that the record of a finished run names."""
    try:
        return int(json.loads(run.record_file.read_bytes())["chosen_step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
