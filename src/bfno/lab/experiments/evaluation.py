"""What the evaluations of all families share."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import torch

from bfno.lab.errors import NumericalError
from bfno.lab.experiments.family import TestRequest
from bfno.lab.experiments.tasks import FAILURES, Share
from bfno.ode import SolverError

__all__ = ["class_scores", "counted", "explained_failure"]


def counted(request: TestRequest, batch: int, total: int) -> Share:
    """The whole of an evaluation, which tells how far it has come if it was asked to."""
    progress, batches = request.progress, itertools.count()
    if progress is None:
        return Share()
    return Share(pause=lambda: progress(min(next(batches) * batch, total), total))


def class_scores(confusion: list[list[int]]) -> Iterator[dict[str, float]]:
    """Precision, recall, F1 and number of samples of each class; rows are true classes."""
    matrix = torch.tensor(confusion, dtype=torch.float64)
    hits, true, predicted = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    # A class that nobody predicted has a precision of 0, as is the custom.
    precision, recall = hits / predicted.clamp(min=1), hits / true.clamp(min=1)
    f1 = 2 * hits / (true + predicted).clamp(min=1)
    for row in zip(precision.tolist(), recall.tolist(), f1.tolist(), true.tolist(), strict=True):
        yield dict(zip(("precision", "recall", "f1", "samples"), row, strict=True))


@contextlib.contextmanager
def explained_failure(section: str = "solver") -> Iterator[None]:
    """Turn the failure of a solver or a flow into an error that says what to do.

    Args:
        section: The settings of the solver that is in use.
    """
    try:
        yield
    except FAILURES as error:
        if isinstance(error, SolverError):
            fix = f"raise {section}.rtol and {section}.atol in the run's config.yaml"
            raise NumericalError("the solver", str(error), fix) from error
        raise NumericalError("the flow", str(error), "use another run, or train it on") from error
