"""The training on the terminal."""

from __future__ import annotations

import os
import sys
from typing import Any

from bfno.lab.cli.terminal import say
from bfno.lab.experiments.experiment import Experiment
from bfno.lab.runs.loop import Progress, Watcher
from bfno.lab.views.metrics import MEBIBYTE, find_metric

__all__ = ["TrainingDisplay"]

# Short headings of the metrics of an epoch: a terminal has little room.
_COLUMNS = {
    "epoch": "epoch",
    "train_loss": "loss",
    "train_accuracy": "train",
    "validation_accuracy": "valid.",
    "test_accuracy": "test",
    "validation_auroc": "valid.",
    "test_auroc": "AUROC",
    "validation_bits_per_dim": "valid. bits/dim",
    "test_bits_per_dim": "test uniform",
    "test_bits_per_dim_center": "test center",
    "validation_nll": "valid. NLL",
    "test_nll": "test NLL",
    "forward_nfe": "NFE fwd",
    "backward_nfe": "bwd",
    "test_nfe": "test",
    "seconds": "seconds",
    "peak_memory": "MiB",
}


class TrainingDisplay(Watcher):
    """A bar while an epoch runs, where there is a terminal, and a line for each epoch.

    Args:
        config: The settings of the run.
    """

    def __init__(self, config: Experiment) -> None:
        self._config = config
        self._is_first = os.environ.get("RANK", "0") == "0"
        self._columns: dict[str, str] = {}
        self._bar: Any = None

    def on_step(self, progress: Progress, steps: int) -> None:
        if not self._is_first or not sys.stderr.isatty():
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import MofNCompleteColumn
            from rich.progress import Progress as Bars

            columns = (*Bars.get_default_columns(), MofNCompleteColumn(), "{task.fields[loss]}")
            self._bar = Bars(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", loss="")
        loss = progress.sums["loss"] / progress.sums["samples"]
        label = f"epoch {progress.epoch + 1} of {self._config.train.epochs}"
        self._bar.update(
            self._task,
            description=label,
            completed=progress.batch,
            total=steps,
            loss=f"loss {loss:.4f}",
        )

    def on_epoch(self, metrics: dict[str, Any]) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if not self._is_first:
            return
        if not self._columns:
            self._columns = {key: head for key, head in _COLUMNS.items() if key in metrics}
            say("  ".join(f"{head:>7}" for head in self._columns.values()))
        shown = {**metrics, "peak_memory": metrics["peak_memory"] / MEBIBYTE}
        cells = (
            f"{_text(key, shown) if key in shown else '-':>{max(7, len(head))}}"
            for key, head in self._columns.items()
        )
        say("  ".join(cells))


def _text(key: str, metrics: dict[str, Any]) -> str:
    return str(metrics[key]) if key == "epoch" else find_metric(key).text(metrics[key])
