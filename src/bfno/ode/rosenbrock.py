"""Steps of Rosenbrock methods, with exact gradients.

A step solves one linear system with several right-hand sides. Its matrix holds the Jacobian of the
field, so that its gradient holds second derivatives of the field: they come from the graph of
products of the Jacobian with the stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from bfno.ode.evaluate import Evaluator
from bfno.ode.implicit import EquationStepper, refuse_second_derivative, traced
from bfno.ode.implicit_tableaus import RosenbrockTableau
from bfno.ode.linearise import (
    Linearizer,
    TransposedSystem,
    differentiating_twice,
    following_time,
)
from bfno.ode.solution import GradientError, Status
from bfno.ode.step import Moment, Sums, combine, combine_quickly
from bfno.tracing import is_followed, is_transformed

__all__ = ["RosenbrockStepper"]


class RosenbrockStepper(EquationStepper):
    """Takes steps of a Rosenbrock method; its arguments are those of the base class."""

    tableau: RosenbrockTableau

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._y: Any = None  # where the field is linearised
        self._around: Any = None
        self._has_graph = False  # whether any evaluation had one
        self._after_jump: Tensor | None = None  # the time at which a step starts afresh

    def start(self, moment: Moment, y: Tensor, slope: Tensor | None = None) -> Tensor:
        self._after_jump, self._y = self.clock.time(moment), None
        if slope is None:
            return self._look(self._after_jump, y)
        self._has_graph = self._has_graph or slope.requires_grad
        return slope.detach()

    def _look(self, time: Tensor, y: Tensor) -> Tensor:
        """Evaluate the field, and note whether it depends on trainable tensors."""
        self.stats.forward_evaluations += 1
        slope = self._evaluate(time, y)
        self._has_graph = self._has_graph or slope.requires_grad
        return slope.detach()

    def _times(self, start: Moment, end: Moment, end_inside: bool) -> list[Tensor]:
        times = super()._times(start, end, end_inside)
        if self._after_jump is not None:
            times[0] = self._after_jump
        return times

    def _has_weights(self) -> bool:
        return self._has_graph

    def _begin(self, start: Moment, times: Sequence[Tensor], y: Tensor) -> None:
        is_first = self._around is None and self._after_jump is None
        if is_first and torch.is_grad_enabled() and not y.requires_grad:
            self._look(times[0], y)  # later steps begin where a stage was evaluated
        if y is not self._y:
            self._y = y
            self._around = self._linearizer.at(self._evaluate, times[0], y.detach(), with_time=True)

    def accept(self) -> None:
        self._first = self._after_jump = None

    def freeze(self, moving: Tensor) -> None:
        super().freeze(moving)
        self._y = None

    def _solve(self, times: Sequence[Tensor], size: float, y: Tensor) -> list[Tensor] | None:
        tableau, around = self.tableau, self._around
        system = around.system(np.array([[size * tableau.gamma]]))
        if system is None:
            self.failure = Status.NEWTON_FAILURE if around.is_finite() else Status.NON_FINITE
            return None
        found: list[Tensor] = []
        for stage, time in enumerate(times):
            slope = around.slope
            if stage:
                point = combine_quickly(y, found, tableau.stages[stage], size)
                slope = self._look(time, point)
            right = combine_quickly(slope, found, tableau.couplings[stage], 1.0)
            if around.by_time is not None:
                right = torch.add(right, around.by_time, alpha=size * tableau.time_weights[stage])
            found += system.solve([right * tableau.gamma], 1e-10)
        return found

    def _recorded(
        self, times: Sequence[Tensor], size: Any, found: Sequence[Tensor]
    ) -> Callable[..., tuple[Any, ...]]:
        evaluate, tableau, linearizer = self._evaluate, self.tableau, self._linearizer
        length = float(size.detach() if isinstance(size, Tensor) else size)

        def step(y: Tensor) -> tuple[Any, ...]:
            sums, gamma = Sums(tableau), tableau.gamma
            sums.begin(y, size)
            around = _Tangents(evaluate, traced(times[0]), traced(y))
            solution = around.solution(linearizer, length * gamma)
            seen = [around.slope]
            for stage, value in enumerate(found):
                if stage:
                    seen.append(evaluate(times[stage], sums.point()))
                right = combine(seen[-1], sums.slopes, tableau.couplings[stage], 1.0)
                turned = around.along(tableau.time_weights[stage], value)
                right = combine(right * gamma, (turned,), (gamma,), size)
                if stage == 0:
                    _refuse_inconsistent(right, value, turned * (length * gamma))
                sums.add(solution(right, value))
            return combine(y, sums.slopes, tableau.weights, size), sums, *sums.slopes, *seen

        return step


class _Tangents:
    """Derivatives of a field at one point along directions in time and state, with a graph."""

    def __init__(self, evaluate: Evaluator, t: Tensor, y: Tensor) -> None:
        with following_time():
            self.slope, self._y = evaluate(t, y), y
        # Younger than the state: autograd would go through all earlier steps in search of a leaf.
        self._dual = y * 0
        self._pulled: Sequence[Tensor | None] = (None, None)
        if self.slope.requires_grad:
            with differentiating_twice():
                self._pulled = torch.autograd.grad(
                    self.slope, (t, y), self._dual, create_graph=True, allow_unused=True
                )

    def along(self, by_time: float, by_state: Tensor) -> Tensor:
        """The derivative along one direction."""
        time, state = self._pulled
        pairs = [
            (time, None if time is None else torch.full_like(time, by_time)),
            (state, by_state),
        ]
        outputs = [(one, along) for one, along in pairs if one is not None and one.requires_grad]
        if not outputs:
            return torch.zeros_like(self.slope)
        with differentiating_twice():
            (found,) = torch.autograd.grad(
                [one for one, _ in outputs],
                self._dual,
                [along for _, along in outputs],
                create_graph=True,
                allow_unused=True,
            )
        return torch.zeros_like(self.slope) if found is None else found

    def solution(self, linearizer: Linearizer, factor: float) -> Callable[..., Tensor]:
        """Gives right-hand sides the values and gradients of solutions of `I - factor J`."""
        if not self.slope.requires_grad:
            return lambda right, value: _Solved.apply(None, value, right)
        edges = get_gradient_edge(self.slope), get_gradient_edge(self._y)
        equations = TransposedSystem(linearizer, edges, factor)
        return lambda right, value: _Solved.apply(equations, value, right)


@torch.no_grad()
def _refuse_inconsistent(right: Tensor, value: Tensor, turned: Tensor) -> None:
    """Refuse derivatives that differ from those with which the step was solved.

    Autograd silently leaves parts of a field that can be differentiated only once out of its second
    derivatives.

    Args:
        right: The first stage according to the derivatives.
        value: The first stage as it was solved.
        turned: The part of the derivatives, whose rounding counts.
    """
    allowed = math.sqrt(torch.finfo(right.dtype).eps)
    allowed *= float(torch.linalg.vector_norm(value) + torch.linalg.vector_norm(turned))
    if float(torch.linalg.vector_norm(right - value)) > 100 * allowed:
        with differentiating_twice():
            raise RuntimeError("a part of it has no second derivative")


class _Solved(torch.autograd.Function):
    """The solution of linear equations in place of their right-hand side."""

    @staticmethod
    def forward(ctx: Any, equations: Any, value: Tensor, right: Tensor) -> Tensor:
        ctx.equations = equations
        return value.detach().clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        if ctx.equations is None:
            return None, None, gradients[0]
        if is_followed(gradients[0]) and not is_transformed():
            raise GradientError(
                "a solve with a Rosenbrock method cannot be differentiated with "
                "is_grads_batched=True; use torch.func.vmap, or an implicit method such as kvaerno5"
            )
        return None, None, ctx.equations.solve(gradients[0])
