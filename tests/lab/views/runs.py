"""Writes the two files of a finished run, with numbers that are easy to check by hand."""

import json
from pathlib import Path
from typing import Any

from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.record import Record

EPOCHS = 3
FAILURE = "step 5: the loss is not a finite number"


def write_run(
    root: Path, data: str = "digits", method: str = "bfno-node", seed: int = 7, **changes: Any
) -> Path:
    """Write a run below `root`; `changes` replace keys of its record."""
    folder = root / f"{data}-{method}-s{seed}"
    return write_files(folder, {**record(data, method, seed), **changes})


def write_files(folder: Path, content: dict[str, Any], lines: list[str] | None = None) -> Path:
    """Write a record as this version does, and metrics that fit it or the given lines."""
    folder.mkdir(parents=True)
    lines = epoch_lines(content["result"]) if lines is None else lines
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    written = Record.from_bytes(json.dumps(content).encode(), folder.name)
    RunFolder(folder).write_record(written)
    return folder


def write_failed(root: Path, method: str = "bfno-node", seed: int = 7, data: str = "mnist") -> Path:
    """Write a run below `root` whose training failed in its first epoch."""
    content = {**record(data, method, seed), "result": {}, "status": "failed", "failure": FAILURE}
    for found in ("chosen_epoch", "chosen_by", "confusion"):
        del content[found]
    folder = root / f"{data}-{method}-s{seed}"
    folder.mkdir(parents=True)
    written = Record.from_bytes(json.dumps({**content, "epochs": 0}).encode(), folder.name)
    RunFolder(folder).write_record(written)
    return folder


def write_old_record(folder: Path, **changes: Any) -> Path:
    """Replace a run's record by one of format 1, which has no checksums."""
    (folder / "record.json").write_text(json.dumps({**record(), **changes}))
    return folder


def record(data: str = "digits", method: str = "bfno-node", seed: int = 7) -> dict[str, Any]:
    """The record of a finished run on two classes, in format 1."""
    return {
        "format": 1,
        "experiment": f"{data}/{method}",
        "data": data,
        "method": method,
        "scale": "cpu",
        "seed": seed,
        "status": "finished",
        "parameters": 20123,
        "published_parameters": None,
        "epochs": EPOCHS,
        "steps": 69,
        "chosen_epoch": 2,
        "chosen_by": "validation_accuracy",
        "result": result(),
        "seconds": 61.25,
        "peak_memory": 100 * 2**20,
        "classes": ["cat", "dog"],
        "confusion": [[8, 2], [1, 9]],
        "config": {
            "data": {"name": data, "batch_size": 64},
            "model": {"width": 32, "branches": 2},
            "solver": {"method": "dopri5", "rtol": 0.001},
            "seed": seed,
        },
        "versions": {"bfno": "0.1.0", "torch": "2.13.0", "python": "3.11.9"},
        "commit": "a7adaec3f0c54f51",
        "threads": 2,
        "processes": 1,
    }


def result(accuracy: float = 0.97, **changes: float) -> dict[str, float]:
    """The metrics of a classifier."""
    return {
        "test_accuracy": accuracy,
        "test_loss": 0.1,
        "test_nfe": 20.0,
        "validation_accuracy": 0.98,
        "train_loss": 0.05,
        "train_accuracy": 0.99,
        "forward_nfe": 20.5,
        "backward_nfe": 18.0,
        **changes,
    }


def epoch_lines(final: dict[str, float], epochs: int = EPOCHS) -> list[str]:
    """A line per epoch, with every metric on its way to the final value."""
    return [
        json.dumps(
            {"epoch": epoch, "step": 23 * epoch, "lr": 0.001, "seconds": 0.5}
            | {key: value * epoch / epochs for key, value in final.items()}
        )
        for epoch in range(1, epochs + 1)
    ]
