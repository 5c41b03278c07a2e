"""Three ways to differentiate a solve.

`direct` lets autograd record every operation. `checkpoint` keeps the inputs of the stages and
recomputes one evaluation after another in the backward pass: the same gradient, without the graph.
`adjoint` solves the continuous adjoint equation backward in time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bfno.ode.adams import AdamsMethod, AdamsStepper
from bfno.ode.compiled import CompiledStepper
from bfno.ode.control import Norm, largest, root_mean_square
from bfno.ode.march import March, Outputs, Path, Plan, RowOutputs, SharedOutputs, TakenStep
from bfno.ode.reverse import Reverser
from bfno.ode.solution import SolverError, Stats, Status
from bfno.ode.state import Packing
from bfno.ode.step import BufferedStepper, Field, GraphStepper
from bfno.ode.tableaus import Tableau

__all__ = [
    "AdjointSettings",
    "Problem",
    "adjoint_norm",
    "solve_adjoint",
    "solve_checkpoint",
    "solve_direct",
]

PlanMaker = Callable[[list[float]], Plan]


@dataclass
class Problem:
    """A field on one tensor, and how to integrate it.

    Attributes:
        field: The field.
        method: The method.
        plan: Makes a plan for requested times.
        by_sample: Whether times are a clock for every sample.
        stats: Where costs are counted.
        compile: Whether steps are compiled.
        path: Where the last solve went.
    """

    field: Field
    method: Tableau | AdamsMethod
    plan: PlanMaker
    by_sample: bool = False
    stats: Stats = dataclasses.field(default_factory=Stats)
    compile: bool = False
    path: Path | None = None

    def outputs(self, times: Tensor, y0: Tensor) -> SharedOutputs | RowOutputs:
        """A collector for the requested times."""
        return RowOutputs(times, y0) if self.by_sample else SharedOutputs(times.tolist(), y0)

    def requested(self, times: Tensor) -> list[float]:
        """What the plan is made for: the times, or the clock's whole range."""
        return [0.0, 1.0] if self.by_sample else times.tolist()

    def integrate(self, y0: Tensor, times: Tensor, *, keep: bool) -> Tensor:
        """Solve without a graph."""
        with torch.no_grad():
            y0, times = y0.detach(), times.detach()
            outputs = self.outputs(times, y0)
            self.march(y0, times, outputs, keep=keep)
            return outputs.stacked()

    def take_steps(self) -> list[TakenStep]:
        """Hand over the steps of the last solve, so that nobody else keeps them."""
        if self.path is None:
            return []
        steps, self.path.steps = self.path.steps, []
        return steps

    def march(self, y0: Tensor, times: Tensor, outputs: Outputs, *, keep: bool) -> None:
        """Take steps until the outputs are complete, with a graph where autograd is on."""
        if isinstance(self.method, AdamsMethod):
            stepper = AdamsStepper(self.field, self.method, times, self.stats)
        elif self.compile:
            stepper = CompiledStepper(self.field, self.method, y0, self.stats, keep=keep)
        elif torch.is_grad_enabled():
            clock = times.detach().flatten() if self.by_sample else times
            stepper = GraphStepper(self.field, self.method, clock, self.stats)
        else:
            stepper = BufferedStepper(self.field, self.method, y0, self.stats)
        plan = self.plan(self.requested(times))
        self.path = March(stepper, plan, outputs, self.stats, keep=keep).run(y0)


def solve_direct(problem: Problem, y0: Tensor, times: Tensor) -> Tensor:
    """Solve; autograd records every operation."""
    if not torch.is_grad_enabled():
        return problem.integrate(y0, times, keep=False)
    outputs = problem.outputs(times, y0)
    problem.march(y0, times, outputs, keep=False)
    return outputs.stacked()


def solve_checkpoint(
    problem: Problem, y0: Tensor, times: Tensor, parameters: tuple[Tensor, ...]
) -> Tensor:
    """Solve a problem with a Runge–Kutta method; see the module for the backward pass."""
    inputs = (y0, times, *parameters)
    if not torch.is_grad_enabled() or not any(value.requires_grad for value in inputs):
        return problem.integrate(y0, times, keep=False)
    return _Checkpoint.apply(problem, *inputs)


def _refuse_second_derivatives(gradient: str) -> None:
    """Autograd is on in a backward pass only if its result is to be differentiated again."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"a solve with gradient={gradient!r} can be differentiated once, not twice; use "
            "gradient='direct' (odeint instead of odeint_adjoint) for higher derivatives"
        )


class _Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, problem: Problem, y0: Tensor, times: Tensor, *parameters: Tensor
    ) -> Tensor:
        ys = problem.integrate(y0, times, keep=True)
        ctx.problem, ctx.steps = problem, problem.take_steps()
        ctx.wants_times = times.requires_grad
        ctx.save_for_backward(times, *parameters)
        return ys

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        _refuse_second_derivatives("checkpoint")
        problem: Problem = ctx.problem
        times, *parameters = ctx.saved_tensors
        reverser = Reverser(
            problem.field,
            problem.method,  # pyright: ignore[reportArgumentType]: never an Adams method
            parameters,
            times.detach(),
            problem.stats,
            wants_times=ctx.wants_times,
        )
        first = gradient[:, 0] if problem.by_sample else gradient[0]
        total = torch.zeros_like(first)
        for step in reversed(ctx.steps):
            total = reverser.pull_back(step, total, gradient)
        if problem.by_sample:
            at_start = (times <= 0).view(*times.shape, *[1] * (gradient.dim() - 2))
            total = total + (gradient * at_start).sum(1)
        else:
            total = total + first
        moved = reverser.time_gradient.to(times.dtype) if ctx.wants_times else None
        return None, total, moved, *reverser.parameter_gradients()


@dataclass(frozen=True)
class AdjointSettings:
    """How the adjoint equation is solved.

    Attributes:
        method: The method.
        plan: Makes a plan for an interval, given the norm of the adjoint's state.
        norm: Norm of a tuple: time's adjoint, state, its adjoint, the parameters' adjoints.
    """

    method: Tableau | AdamsMethod
    plan: Callable[[list[float], Callable[[Tensor], Any]], Plan]
    norm: Callable[[tuple[Tensor, ...]], Any]


def adjoint_norm(state_norm: Norm, *, seminorm: bool) -> Callable[[tuple[Tensor, ...]], Tensor]:
    """Norm of the adjoint equation's state: the largest of its components'.

    Args:
        state_norm: Norm of the state and of its adjoint.
        seminorm: Leave the parameters' adjoints out, which do not feed back.
    """

    def norm(state: tuple[Tensor, ...]) -> Tensor:
        time, y, adjoint, *parameters = state
        sizes = [time.abs(), *(torch.as_tensor(state_norm(part)) for part in (y, adjoint))]
        if not seminorm:
            sizes += [root_mean_square(parameter) for parameter in parameters]
        return largest([size.to(y.dtype) for size in sizes], y)

    return norm


def solve_adjoint(
    problem: Problem,
    y0: Tensor,
    times: Tensor,
    parameters: tuple[Tensor, ...],
    settings: AdjointSettings,
) -> Tensor:
    """Solve; the backward pass solves the continuous adjoint equation."""
    return _Adjoint.apply(problem, settings, y0, times, *parameters)


class _Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        problem: Problem,
        settings: AdjointSettings,
        y0: Tensor,
        times: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        ys = problem.integrate(y0, times, keep=False)
        ctx.problem, ctx.settings = problem, settings
        # Callers of torchdiffeq look the norm up here, and may replace it.
        ctx.adjoint_options = {"norm": settings.norm}
        ctx.wants_times = times.requires_grad
        ctx.save_for_backward(times, ys, *parameters)
        return ys

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        _refuse_second_derivatives("adjoint")
        times, ys, *parameters = ctx.saved_tensors
        system = _AdjointSystem(ctx.problem, ys[0], parameters, wants_times=ctx.wants_times)
        moved = torch.zeros_like(times)
        state = system.first_state(ys[-1], gradient[-1])
        for index in reversed(range(1, len(times))):
            if ctx.wants_times:
                moved[index] = system.end_time_gradient(times[index], ys[index], gradient[index])
                state = (state[0] - moved[index], *state[1:])
            interval = times[[index, index - 1]]
            state = system.integrate(state, interval, ctx.settings, ctx.adjoint_options["norm"])
            # The forward pass knows the state better than the backward solve does.
            state = (state[0], ys[index - 1], state[2] + gradient[index - 1], *state[3:])
        moved[0] = state[0]
        return None, None, state[2], moved if ctx.wants_times else None, *state[3:]


class _AdjointSystem:
    """State, adjoint and the integrals that give the gradients of time and parameters."""

    def __init__(
        self, problem: Problem, y0: Tensor, parameters: list[Tensor], *, wants_times: bool
    ) -> None:
        self._problem, self._parameters, self._wants_times = problem, parameters, wants_times
        self._zero = y0.new_zeros(())
        self._packing = Packing((self._zero, y0, y0, *parameters))

    def first_state(self, y: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        zeros = [torch.zeros_like(parameter) for parameter in self._parameters]
        return (self._zero, y, gradient, *zeros)

    def end_time_gradient(self, time: Tensor, y: Tensor, gradient: Tensor) -> Tensor:
        """How the loss changes when one requested time moves and the path does not."""
        self._problem.stats.backward_evaluations += 1
        with torch.no_grad():
            slope = self._problem.field(time.to(y.dtype), y)
        return (slope * gradient).sum().to(time.dtype)

    def integrate(
        self,
        state: tuple[Tensor, ...],
        interval: Tensor,
        settings: AdjointSettings,
        norm: Callable[[tuple[Tensor, ...]], Any],
    ) -> tuple[Tensor, ...]:
        """Solve backward over one interval between requested times."""
        packing = self._packing
        backward = Problem(
            packing.wrap(self._slopes),
            settings.method,
            lambda times: settings.plan(times, lambda scaled: norm(packing.unpack(scaled))),
        )
        ys = backward.integrate(packing.pack(state), interval, keep=False)
        self._problem.stats.backward_evaluations += backward.stats.forward_evaluations
        if backward.path is not None and backward.path.status is not Status.SUCCESS:
            where = f"adjoint equation at t = {backward.path.moment.value:.6g}"
            raise SolverError(backward.path.status, where, self._problem.stats)
        return packing.unpack(ys[-1])

    def _slopes(self, time: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        _, y, adjoint, *_ = state
        with torch.enable_grad():
            y = y.detach().requires_grad_()
            if self._wants_times:
                time = time.detach().requires_grad_()
            slope = self._problem.field(time, y)
        wanted = (time if self._wants_times else y, y, *self._parameters)
        if slope.requires_grad:
            pulled = torch.autograd.grad(slope, wanted, -adjoint, allow_unused=True)
        else:
            pulled = (None,) * len(wanted)
        first = pulled[0] if self._wants_times else None
        shapes = (self._zero, y, *self._parameters)
        filled = [
            torch.zeros_like(shape) if part is None else part
            for part, shape in zip((first, *pulled[1:]), shapes, strict=True)
        ]
        return (filled[0], slope.detach(), *filled[1:])
