"""Small runs to train, stop and compare."""

import json
import signal
from pathlib import Path
from typing import Any

from bfno.lab.experiments.resolve import resolve
from bfno.lab.experiments.trees import merged
from bfno.lab.runs.checkpoint import Progress
from bfno.lab.runs.loop import Watcher

# What a metrics line says of the machine and not of the model.
# A commit beside a running test is none of the model's business either.
OF_THE_MACHINE = ("seconds", "peak_memory", "commit", "sha256", "metrics_sha256")

_TINY = {
    "seed": 3,
    "threads": 1,
    "data": {"size": 4, "train_limit": 60, "test_limit": 30, "validation": 0.2},
    "model": {"width": 3, "depth": 1},
    "solver": {"method": "midpoint"},
    "train": {"epochs": 2, "batch": 8, "lr": 0.01, "decay_every": 5, "checkpoint_seconds": 1000},
}


def tiny(changes: dict | None = None, experiment: str = "digits/bfno-node") -> Any:
    """Settings of a run that takes a fraction of a second; every mechanism takes part in it."""
    return resolve(experiment, scale="smoke", changes=merged(_TINY, changes or {}))


class StopAfter(Watcher):
    """Sends this process a real signal after given steps."""

    def __init__(self, *steps: int, number: int = signal.SIGTERM) -> None:
        self.steps, self.number = steps, number

    def on_step(self, progress: Progress, steps: int) -> None:
        if progress.step in self.steps:
            signal.raise_signal(self.number)


def metrics(run: Path) -> list[str]:
    """The metrics lines, byte for byte but for what they say of the machine."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        json.dumps({k: v for k, v in line.items() if k not in OF_THE_MACHINE}) for line in lines
    ]


def weights(run: Path) -> dict[str, bytes]:
    """The tensors of the newest checkpoint, as bytes."""
    newest = max((run / "checkpoints").iterdir())
    names = ("model.safetensors", "training.safetensors")
    return {name: (newest / name).read_bytes() for name in names}


def result(run: Path) -> dict:
    """What the record says but for time and memory."""
    record = json.loads((run / "record.json").read_text())
    return _without_machine(record)


def _without_machine(values: dict) -> dict:
    return {name: value for name, value in values.items() if name not in OF_THE_MACHINE}
