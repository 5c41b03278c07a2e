"""What a run was about, as its settings tell: which runs may be compared, and what they count."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from bfno.results.record import RunResult

__all__ = ["is_transductive", "kind_of", "sample_name", "task_of"]

_DENSITIES = {"test_bits_per_dim", "test_nll"}


def _section(run: RunResult, name: str) -> dict[str, Any]:
    found = run.config.get(name)
    return found if isinstance(found, dict) else {}


def task_of(run: RunResult) -> tuple[str, str, str]:
    """Data, scale and protocol: what two runs must share to be compared."""
    data = _section(run, "data")
    # One's own series are all called the same; two files of them are two tasks.
    own = f" ({PurePath(str(data['path'])).name})" if data.get("path") else ""
    return run.data + own, run.scale, str(data.get("protocol") or "")


def kind_of(run: RunResult) -> str:
    """What kind of thing a run learned: images, series or densities; kinds have other metrics."""
    if _DENSITIES & run.result.keys():
        return "densities"
    return "series" if _section(run, "data").get("protocol") else "images"


def is_transductive(run: RunResult) -> bool:
    """Whether a prediction of the run's model depends on the other series of its batch."""
    model = _section(run, "model")
    by_generator = {"ace": True, "bfno": model.get("grid") == "batch"}
    reversed_batch = model.get("reverse_axis") == "public_code"
    return reversed_batch or by_generator.get(str(model.get("generator")), False)


def sample_name(run: RunResult) -> str:
    """What a run's test counted: series, time points, or plain samples."""
    data = _section(run, "data")
    if not data.get("protocol"):
        return "samples"
    if run.data == "activity" or data.get("labels") == "row":
        name = "time points"
    elif run.judged_by == "test_auroc" or data.get("labels") == "series":
        name = "series"
    else:
        name = "labels"
    return name if data["protocol"] == "sound" else f"{name} × latent samples"
