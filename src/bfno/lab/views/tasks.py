"""What a run was about, as its settings tell: which runs may be compared, and what they count."""

from __future__ import annotations

from bfno.lab.runs.record import Record as RunResult
from bfno.lab.runs.record import task_of

__all__ = ["is_transductive", "kind_of", "sample_name", "task_of"]

_DENSITIES = {"test_bits_per_dim", "test_nll"}


def kind_of(run: RunResult) -> str:
    """What kind of thing a run learned: images, series or densities; kinds have other metrics."""
    if _DENSITIES & run.result.keys():
        return "densities"
    return "series" if run.section("data").get("protocol") else "images"


def is_transductive(run: RunResult) -> bool:
    """Whether a prediction of the run's model depends on the other series of its batch."""
    model = run.section("model")
    by_generator = {"ace": True, "bfno": model.get("grid") == "batch"}
    reversed_batch = model.get("reverse_axis") == "public_code"
    return reversed_batch or by_generator.get(str(model.get("generator")), False)


def sample_name(run: RunResult) -> str:
    """What a run's test counted: series, time points, or plain samples."""
    data = run.section("data")
    if not data.get("protocol"):
        return "samples"
    if run.data == "activity" or data.get("labels") == "row":
        name = "time points"
    elif run.judged_by == "test_auroc" or data.get("labels") == "series":
        name = "series"
    else:
        name = "labels"
    return name if data["protocol"] == "sound" else f"{name} × latent samples"
