"""The training on the terminal."""

from __future__ import annotations

import os
import sys
from typing import Any

from bfno.lab.experiments.experiment import Experiment
from bfno.lab.runs.loop import Progress, Watcher

__all__ = ["TrainingDisplay"]

_COLUMNS = (
    ("epoch", "epoch", "d"),
    ("loss", "train_loss", ".4f"),
    ("train", "train_accuracy", ".2%"),
    ("valid.", "validation_accuracy", ".2%"),
    ("test", "test_accuracy", ".2%"),
    ("valid.", "validation_auroc", ".4f"),
    ("AUROC", "test_auroc", ".4f"),
    ("valid. bits/dim", "validation_bits_per_dim", ".4f"),
    ("test uniform", "test_bits_per_dim", ".4f"),
    ("test center", "test_bits_per_dim_center", ".4f"),
    ("valid. NLL", "validation_nll", ".4f"),
    ("test NLL", "test_nll", ".4f"),
    ("NFE fwd", "forward_nfe", ".1f"),
    ("bwd", "backward_nfe", ".1f"),
    ("test", "test_nfe", ".1f"),
    ("seconds", "seconds", ".1f"),
    ("MiB", "peak_memory", ".0f"),
)


class TrainingDisplay(Watcher):
    """A bar while an epoch runs, where there is a terminal, and a line for each epoch.

    Args:
        config: The settings of the run.
    """

    def __init__(self, config: Experiment) -> None:
        self._config = config
        self._is_first = os.environ.get("RANK", "0") == "0"
        self._columns: list[tuple[str, str, str]] = []
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
            self._columns = [column for column in _COLUMNS if column[1] in metrics]
            print("  ".join(f"{title:>7}" for title, _, _ in self._columns))
        shown = {**metrics, "peak_memory": metrics["peak_memory"] / 2**20}
        cells = (
            f"{format(shown[name], form) if name in shown else '-':>{max(7, len(title))}}"
            for title, name, form in self._columns
        )
        print("  ".join(cells), flush=True)
