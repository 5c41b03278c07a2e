"""The result of a solve: trajectory, counts and status."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from bfno.tracing import is_followed

__all__ = [
    "GradientError",
    "SampleStats",
    "Solution",
    "SolverError",
    "Stats",
    "Status",
    "refuse_all_but_one_gradient",
]


class Status(enum.Enum):
    """How a solve ended; the value is a sentence that says what to do."""

    SUCCESS = "the solution reached every requested time"
    STEP_LIMIT = (
        "the step limit was reached; the problem may be stiff or the tolerance too small: loosen "
        "rtol and atol, or raise max_steps"
    )
    STEP_UNDERFLOW = (
        "the step size fell below the resolution of time; the field may be discontinuous, too "
        "steep or growing without bound: loosen rtol and atol, or check the field near this time"
    )
    STIFF = (
        "the field is stiff: its explicit steps are so small that many times more than max_steps "
        "would be needed; use an implicit method such as method='kvaerno5', or raise max_steps a "
        "lot if the field will not stay stiff"
    )
    NEWTON_FAILURE = (
        "the equations of an implicit step could not be solved, however small the step; the field "
        "may jump, draw random numbers (dropout) or have a singular Jacobian: check the field near "
        "this time, name jumps with jumps=…, or use an explicit method such as dopri5; with fixed "
        "steps take smaller ones"
    )
    NON_FINITE = (
        "the field or the state became infinite or not a number; the solution may blow up in "
        "finite time, or the weights may have diverged: check the field's inputs and weights, or "
        "lower the learning rate"
    )


@dataclass(frozen=True)
class SampleStats:
    """Cost of a solve with independent=True for each sample.

    Attributes:
        evaluations: Calls of the field that a sample needed, `(batch,)`.
        accepted: Steps it took, `(batch,)`.
        rejected: Steps it tried and discarded, `(batch,)`.
        statuses: How it ended, for every sample.
    """

    evaluations: Tensor
    accepted: Tensor
    rejected: Tensor
    statuses: tuple[Status, ...] = field(repr=False)


@dataclass
class Stats:
    """Cost of a solve.

    Attributes:
        forward_evaluations: Calls of the field in the forward pass.
        backward_evaluations: Calls of the field in backward passes; grows while they run.
        accepted: Steps taken; with independent=True those of all samples together.
        rejected: Steps tried and discarded, counted likewise: their error was above the tolerance
            or not a number, or the equations of an implicit step had no solution.
        first_step: The best size of the first adaptive step, judged by its error, for the sample
            that needs the smallest; zero if there was none.
        step_ends: Times at which the accepted steps ended; if every sample has its own times, on a
            clock from zero to one. Empty with independent=True.
        stiff: When the field looked stiff to an explicit adaptive method, as pairs of times; see
            `step_ends`. Compiled solves and those with independent=True do not check.
        switches: When method="auto" switched to another method, as pairs of time and method.
        jacobians: Jacobians of implicit methods; each takes one evaluation, which is counted above,
            and one backward pass through its graph per column.
        factorisations: How often implicit methods factorised a matrix.
        compiled: What compile=True compiled: "solve", or "step: " and the reason why not the whole
            solve.
        per_sample: The cost of each sample, with independent=True.
    """

    forward_evaluations: int = 0
    backward_evaluations: int = 0
    accepted: int = 0
    rejected: int = 0
    first_step: float = field(default=0.0, repr=False)
    step_ends: list[float] = field(default_factory=list, repr=False)
    stiff: list[tuple[float, float]] = field(default_factory=list, repr=False)
    switches: list[tuple[float, str]] = field(default_factory=list, repr=False)
    jacobians: int = field(default=0, repr=False)
    factorisations: int = field(default=0, repr=False)
    compiled: str = field(default="", repr=False)
    per_sample: SampleStats | None = field(default=None, repr=False)

    @classmethod
    def together(cls, parts: Iterable[Stats]) -> Stats:
        """Cost of several solves together, without what belongs to a single one."""
        total = cls()
        for part in parts:
            total.forward_evaluations += part.forward_evaluations
            total.backward_evaluations += part.backward_evaluations
            total.accepted += part.accepted
            total.rejected += part.rejected
            total.step_ends += part.step_ends
        return total


State = TypeVar("State")


class Evaluable(Protocol):
    """A function of time."""

    def evaluate(self, t: Tensor | float) -> Any:
        """The state at a time."""
        ...


@dataclass
class Solution(Generic[State]):
    """A trajectory.

    Attributes:
        ts: The requested times.
        ys: The states at these times: the axes of `ts` come first, then the state's own. With one
            row of times per sample, the state's batch axis is that of `ts`. Rows that a failed
            solve did not reach hold not-a-number.
        stats: Its cost.
        status: How it ended.
        event_times: When the event happened, for the whole state or for each sample; infinite if it
            did not happen. None for a solve without an event.
        dense: The solution between the requested times, if it was asked for.
    """

    ts: Tensor
    ys: State
    stats: Stats = field(default_factory=Stats)
    status: Status = Status.SUCCESS
    event_times: Tensor | None = None
    dense: Evaluable | None = field(default=None, repr=False)

    def evaluate(self, t: Tensor | float) -> State:
        """The state at any time of the solved interval, or the states at many, time first.

        Gradients flow through it, to `t` as well.

        Raises:
            ValueError: If the solve was not made with `dense=True`, or a time lies outside.

        Example:
            >>> import torch
            >>> from bfno.ode import solve
            >>> ts = torch.tensor([0.0, 1.0])
            >>> solution = solve(lambda t, y: -y, torch.ones(1), ts, rtol=1e-6, dense=True)
            >>> torch.allclose(solution.evaluate(0.5), torch.tensor(-0.5).exp(), atol=1e-5)
            True
        """
        if self.dense is None:
            raise ValueError("evaluate needs a solve with dense=True")
        return self.dense.evaluate(t)


class GradientError(RuntimeError):
    """A gradient that would not be exact; the message says why and what to do instead."""


def refuse_all_but_one_gradient(gradients: Iterable[Tensor], name: str, remedy: str) -> None:
    """Refuse all but one plain gradient in a backward pass that autograd does not follow.

    Args:
        gradients: The gradients given to the backward pass; unused results have plain zeros.
        name: What is differentiated.
        remedy: What can be differentiated without restrictions.

    Raises:
        GradientError: If they will be differentiated again, are several at once or have tangents.
    """
    # A compiler follows the pass itself, or waits until it has numbers.
    at_once = not torch.compiler.is_compiling() and any(map(is_followed, gradients))
    # Autograd is on in a backward pass only if its result is to be differentiated again. PyTorch's
    # own guard lets constant gradients pass, and then leaves out terms silently.
    if torch.is_grad_enabled() or at_once:
        raise GradientError(
            f"{name} can be differentiated once, not twice, and for one gradient at a time: not "
            "with create_graph=True, is_grads_batched=True, torch.func or in forward mode; pull "
            f"back each gradient alone, {remedy}"
        )


class SolverError(RuntimeError):
    """A solve that could not be finished.

    Attributes:
        status: Why.
        stats: The cost up to then.
    """

    def __init__(self, status: Status, where: str, stats: Stats) -> None:
        super().__init__(f"{where}: {status.value}{_evidence(status, stats)}")
        self.status = status
        self.stats = stats


def _evidence(status: Status, stats: Stats) -> str:
    """When the field was stiff, if the solve ended because steps became too small."""
    if not stats.stiff or status not in (Status.STEP_LIMIT, Status.STEP_UNDERFLOW, Status.STIFF):
        return ""
    begin, end = stats.stiff[-1]
    remedy = "" if status is Status.STIFF else "; try method='kvaerno5'"
    return f" (the field looks stiff between t = {begin:.3g} and {end:.3g}{remedy})"
