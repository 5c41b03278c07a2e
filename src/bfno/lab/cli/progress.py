"""Shows a training on the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from bfno.lab.cli.terminal import say
from bfno.lab.runs.loop import Progress, Watcher
from bfno.lab.views.metrics import MEBIBYTE, duration, find_metric

__all__ = ["TrainingDisplay", "columns_of"]

# Short headings of the metrics of an epoch: a terminal has little room.
_COLUMNS = {
    "epoch": "epoch",
    "train_loss": "loss",
    "train_accuracy": "train",
    "validation_accuracy": "valid.",
    "test_accuracy": "test",
    "validation_auroc": "valid. AUROC",
    "test_auroc": "test AUROC",
    "validation_bits_per_dim": "valid. bits/dim",
    "test_bits_per_dim": "test uniform",
    "test_bits_per_dim_center": "test center",
    "validation_nll": "valid. NLL",
    "test_nll": "test NLL",
    "forward_nfe": "NFE fwd",
    "backward_nfe": "NFE bwd",
    "test_nfe": "NFE test",
    "seconds": "seconds",
    "peak_memory": "MiB",
    "left": "left",
}


class TrainingDisplay(Watcher):
    """Shows a bar during an epoch, if there is a terminal, and a line after each epoch."""

    def __init__(self) -> None:
        self._epochs = 0
        self._is_first = os.environ.get("RANK", "0") == "0"
        self._columns: dict[str, str] = {}
        self._bar: Any = None
        self._epoch_seconds: float | None = None  # of the last epoch, which is most like the next

    def on_start(self, epochs: int) -> None:
        self._epochs = epochs

    def on_step(self, progress: Progress, steps: int) -> None:
        if not self._is_first or not sys.stderr.isatty():
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bars

            fields = (TextColumn(f"{{task.fields[{name}]}}") for name in ("loss", "left"))
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *fields)
            self._bar = Bars(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", loss="", left="")
        loss = progress.sums["loss"] / progress.sums["samples"]
        label = f"epoch {progress.epoch + 1} of {self._epochs}"
        self._bar.update(
            self._task,
            description=label,
            completed=progress.batch,
            total=steps,
            loss=f"loss {loss:.4f}",
            left=f"about {duration(self._left(progress, steps))} left in all",
        )

    def _left(self, progress: Progress, steps: int) -> float:
        """Seconds until the last epoch ends, if all take as long as the last one."""
        epochs = self._epochs - progress.epoch
        if self._epoch_seconds is None and progress.epoch:  # a run that was resumed
            self._epoch_seconds = progress.total_seconds / progress.epoch
        # In the first epoch, only the time of steps is known, not yet that of an evaluation.
        each = self._epoch_seconds or progress.seconds / max(progress.batch, 1) * steps
        return max(each - progress.seconds, 0.0) + each * (epochs - 1)

    def on_end(self) -> None:
        self._hide_bar()

    def _hide_bar(self) -> None:
        """Remove the bar, which gives the terminal its cursor back."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def on_epoch(self, metrics: dict[str, Any]) -> None:
        self._hide_bar()
        if not self._is_first:
            return
        if not self._columns:
            self._columns = columns_of(metrics)
            say("  ".join(f"{head:>7}" for head in self._columns.values()))
        self._epoch_seconds = metrics["seconds"]
        left = self._epoch_seconds * (self._epochs - metrics["epoch"])
        shown = {**metrics, "peak_memory": metrics["peak_memory"] / MEBIBYTE, "left": left}
        cells = (
            f"{_text(key, shown) if key in shown else '-':>{max(7, len(head))}}"
            for key, head in self._columns.items()
        )
        say("  ".join(cells))


def columns_of(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Headings of the columns shown for epochs, by key: those that the first epoch measured.

    A model without an ODE has no evaluations, and a gradient through the solver's own steps has no
    backward ones: columns of zeros are left out.
    """
    counted = (key for key, value in metrics.items() if value or find_metric(key).name != "nfe")
    known = {*counted, "left"}
    return {key: head for key, head in _COLUMNS.items() if key in known}


def _text(key: str, metrics: dict[str, Any]) -> str:
    if key == "left":
        return duration(metrics[key]) if metrics[key] > 0 else "-"
    return str(metrics[key]) if key == "epoch" else find_metric(key).text(metrics[key])
