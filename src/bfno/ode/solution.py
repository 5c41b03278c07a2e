"""What a solve returns: trajectory, counts and status."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch import Tensor

__all__ = ["Solution", "SolverError", "Stats", "Status"]


class Status(enum.Enum):
    """How a solve ended; the value says what to do about it."""

    SUCCESS = "the solution reached every requested time"
    STEP_LIMIT = (
        "the step limit was reached; the problem may be stiff or the tolerance too small: loosen "
        "rtol and atol, or raise max_steps"
    )
    STEP_UNDERFLOW = (
        "the step size fell below the resolution of time; the field may be discontinuous, too "
        "steep or growing without bound: loosen rtol and atol, or check the field near this time"
    )
    NON_FINITE = (
        "the field or the state became infinite or not a number; the solution may blow up in "
        "finite time, or the weights may have diverged: check the field's inputs and weights, or "
        "lower the learning rate"
    )


@dataclass
class Stats:
    """What a solve cost.

    Attributes:
        forward_evaluations: Calls of the field in the forward pass.
        backward_evaluations: Calls of the field in backward passes; grows while they run.
        accepted: Steps taken.
        rejected: Steps tried and discarded.
        step_ends: Times at which the accepted steps ended; where every sample has its own times, on
            a clock from zero to one.
    """

    forward_evaluations: int = 0
    backward_evaluations: int = 0
    accepted: int = 0
    rejected: int = 0
    step_ends: list[float] = field(default_factory=list, repr=False)


State = TypeVar("State", Tensor, tuple[Tensor, ...])


@dataclass
class Solution(Generic[State]):
    """A trajectory.

    Attributes:
        ts: The requested times.
        ys: The states at these times: the axes of `ts` come first, then the state's own. With one
            row of times a sample, the state's batch axis is that of `ts`. Rows that a failed solve
            did not reach hold not-a-number.
        stats: What it cost.
        status: How it ended.
    """

    ts: Tensor
    ys: State
    stats: Stats = field(default_factory=Stats)
    status: Status = Status.SUCCESS


class SolverError(RuntimeError):
    """A solve that could not be finished.

    Attributes:
        status: Why.
        stats: What it had cost by then.
    """

    def __init__(self, status: Status, where: str, stats: Stats) -> None:
        super().__init__(f"{where}: {status.value}")
        self.status = status
        self.stats = stats
