"""Small runs of densities."""

from typing import Any

from bfno.lab.experiments.resolve import resolve
from bfno.lab.experiments.trees import merged

_TINY = {"seed": 3, "threads": 1, "train": {"checkpoint_seconds": 1000}}
_IMAGES = {"data": {"train_limit": 60, "test_limit": 20}, "train": {"batch": 16}}


def tiny(experiment: str, changes: dict[str, Any] | None = None) -> Any:
    """Settings of a run on bundled or drawn samples that takes a second or so."""
    known = merged(_TINY, _IMAGES if "-density/" in experiment else {})
    return resolve(experiment, scale="smoke", changes=merged(known, changes or {}))
