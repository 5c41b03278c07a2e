"""Small runs of series."""

from typing import Any

from bfno.lab.experiments.resolve import resolve
from bfno.lab.experiments.trees import merged

_TINY = {
    "seed": 3,
    "threads": 1,
    "data": {"train_limit": 50, "test_limit": 20, "validation": 0.2},
    "train": {"epochs": 2, "batch": 16, "checkpoint_seconds": 1000},
}


def tiny(method: str, changes: dict[str, Any] | None = None) -> Any:
    """Settings of a run on bundled series that takes a second or so."""
    return resolve(f"series/{method}", scale="smoke", changes=merged(_TINY, changes or {}))
