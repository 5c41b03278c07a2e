"""Metrics in TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bfno.lab.errors import ConfigError
from bfno.lab.runs.loop import Watcher

__all__ = ["TensorBoardLog"]


class TensorBoardLog(Watcher):
    """Writes every metric of an epoch as a scalar.

    Args:
        folder: Where the event files go.

    Raises:
        ConfigError: If TensorBoard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "--log tensorboard", "TensorBoard is missing", "pip install 'bfno[log]'"
            ) from None
        self._writer = SummaryWriter(str(folder))

    def on_epoch(self, metrics: dict[str, Any]) -> None:
        for name, value in metrics.items():
            if name not in {"epoch", "step"}:
                self._writer.add_scalar(name, value, metrics["epoch"])
        self._writer.flush()
