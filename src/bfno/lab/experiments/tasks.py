"""The interface of a task for the training loop: a loss for samples, and metrics of a split."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from bfno.lab.experiments.processes import Processes
from bfno.models.flows import FlowError
from bfno.ode import SolverError, Stats
from bfno.ode.state import clock_dtype

__all__ = [
    "FAILURES",
    "Evaluation",
    "Found",
    "Place",
    "ScoresError",
    "Share",
    "Sums",
    "Task",
    "evaluation_mode",
    "failure_line",
    "read_together",
    "require_sound",
    "solver_stats",
    "without_test",
]

Sums = dict[str, float]
"""Totals over samples and batches; averages are taken once, at the end."""

Found = dict[str, Tensor | float]
"""Totals that may still be on a device, as tensors without axes; see `read_together`."""


class ScoresError(ArithmeticError):
    """A model was evaluated, but its scores are not numbers."""


FAILURES = (SolverError, FlowError, ScoresError)
"""Errors that say that a model cannot be evaluated at its present weights."""


@dataclass(frozen=True)
class Evaluation:
    """The result of a pass over a split.

    Attributes:
        metrics: Averages by name.
        confusion: Samples by true class (rows) and predicted class; empty if the task has none.
    """

    metrics: dict[str, float]
    confusion: list[list[int]]


@dataclass(frozen=True)
class Share:
    """This process's part of an evaluation.

    Attributes:
        processes: Those that take part.
        pause: Called between two batches; may raise to end the evaluation.
    """

    processes: Processes = field(default_factory=Processes)
    pause: Callable[[], object] = bool


@dataclass(frozen=True)
class Place:
    """The context in which a loss is computed.

    Attributes:
        device: The device.
        epoch: Number of finished epochs, for losses that change in the course of training.
    """

    device: torch.device
    epoch: int = 0


class Task(ABC):
    """Everything the loop knows about a task."""

    data: Any
    """The split samples: `train`, `validation` and `test`, each with a length.

    `validation` is None if nothing is held out. `test` is empty if it must not be seen.
    """

    selection: str
    """Metric of the validation split that decides which epoch is best."""

    lower_is_better: bool = False
    """Whether the best epoch is the one where that metric is smallest, not largest."""

    remedy_for_growth: str = "Loosen solver.rtol and solver.atol, or lower train.lr."
    """Advice if solves take more and more evaluations."""

    remedy_for_overfitting: str = (
        "More samples help, or a new training of a smaller model; --set train.patience=10 ends "
        "such a training early."
    )
    """Advice if a model overfits."""

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits evaluated after an epoch: those that have samples."""
        held_out = {name: getattr(self.data, name) for name in ("validation", "test")}
        return tuple(name for name, part in held_out.items() if part is not None and len(part))

    def prepare(self, model: nn.Module, device: torch.device) -> None:  # noqa: B027 (optional)
        """Set the parts of a new model that depend on its data before the first step, if any.

        Called once in training mode, in every process with the same samples and the same state of
        torch's generator; not for a run that continues from a checkpoint.

        Args:
            model: The bare model.
            device: Where it is.
        """

    @abstractmethod
    def batches(self, size: int, generator: torch.Generator) -> list[Tensor]:
        """Training samples, by number, of each step of an epoch; every sample once."""

    @abstractmethod
    def loss(self, model: nn.Module, samples: Tensor, place: Place) -> tuple[Tensor, Found]:
        """Mean loss over training samples, given by number, and further sums over them.

        Leave the sums on the device: the loop reads all of them at once.
        """

    @abstractmethod
    def train_metrics(self, sums: Sums) -> dict[str, float]:
        """Averages of the sums of an epoch."""

    @abstractmethod
    def evaluate(self, model: nn.Module, split: str, batch: int, share: Share) -> Evaluation:
        """Evaluate a split without gradients."""


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model temporarily into evaluation mode; restores its mode even after an error."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def without_test(data: Any) -> Any:
    """The split samples with an empty test part, for a training that must not see it."""
    none = torch.arange(0)
    part = data.test
    return replace(data, test=part[none] if isinstance(part, Tensor) else part.take(none))


def read_together(values: Mapping[str, Tensor | float]) -> Sums:
    """Numbers from tensors without axes; the host waits only once for all."""
    there = {name: value.detach() for name, value in values.items() if isinstance(value, Tensor)}
    read: Sums = {}
    if there:
        device = next(iter(there.values())).device
        wide = [value.to(device, clock_dtype(device)) for value in there.values()]
        read = dict(zip(there, torch.stack(wide).tolist(), strict=True))
    return {name: read[name] if name in read else float(values[name]) for name in values}


def require_sound(is_sound: Tensor) -> None:
    """Refuse the scores of a model, in all processes together, unless all are sound.

    Among scores that are not numbers, the first one counts as the largest, so without this check
    they would look like answers.

    Args:
        is_sound: Whether each score is sound.

    Raises:
        ScoresError: If any is not.
    """
    if not is_sound.all():
        raise ScoresError("the model's scores are not finite numbers")


def solver_stats(model: Any) -> Stats:
    """Return the cost of the last solve of a model that has `stats` itself or in its `block`."""
    bare = getattr(model, "module", model)  # distributed training wraps the model
    return getattr(bare, "block", bare).stats


def failure_line(error: Exception) -> str:
    """Describe one of `FAILURES` to a user."""
    return f"the solver gave up: {error}" if isinstance(error, SolverError) else str(error)
