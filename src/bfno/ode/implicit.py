"""Steps of implicit Runge–Kutta methods, with exact gradients.

Stages are solved for without a graph. The gradient follows from the equations that they solve, by
the implicit function theorem: every stage is evaluated once more at the solution, with a graph, and
in a backward pass the gradient of its slope is first multiplied by the inverse of the transposed
equations. So the gradient does not depend on how the solution was found. It is the same with
gradient="direct" and "checkpoint"; the latter repeats these evaluations instead of keeping them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from bfno.ode.control import Control
from bfno.ode.evaluate import Evaluator
from bfno.ode.implicit_tableaus import Block, ImplicitTableau
from bfno.ode.linearise import Linearizer, Pullback, solve_transposed
from bfno.ode.newton import Newton, Stages
from bfno.ode.replay import Replayer
from bfno.ode.runge_kutta import Tableau
from bfno.ode.solution import GradientError, Stats, Status
from bfno.ode.step import Clock, Moment, RecordingStepper, Stepper, Sums, combine, combine_quickly

__all__ = ["EquationStepper", "ImplicitStepper", "attach", "refuse_second_derivative", "traced"]


class EquationStepper(RecordingStepper):
    """Takes steps whose slopes solve equations: first without a graph, then with the solution's.

    Args:
        evaluate: Calls the field; the graphs of its calls are kept.
        tableau: The method.
        clock: Tells the time.
        replayer: Records steps and repeats them, or None to keep their graphs.
        stats: Where evaluations are counted.
        like: A state.
    """

    def __init__(
        self,
        evaluate: Evaluator,
        tableau: Tableau,
        clock: Clock,
        replayer: Replayer | None,
        stats: Stats,
        like: Tensor,
    ) -> None:
        super().__init__(evaluate, tableau, clock, replayer, stats)
        self._linearizer = Linearizer(like, stats)

    def attempt(self, start: Moment, end: Moment, y: Tensor, *, end_inside: bool = False) -> Tensor:
        size, times = self.clock.size(start, end), self._times(start, end, end_inside)
        self.failure = None
        self._begin(start, times, y)
        tracked = y.requires_grad or (self._first is not None and self._first.requires_grad)
        has_graph = torch.is_grad_enabled() and (tracked or self.clock.moves)
        # Until it is known, a graph shows whether there are weights to learn.
        looking = torch.is_grad_enabled() and not (has_graph or self._has_weights())
        with torch.set_grad_enabled(looking):
            found = self._solve(times, end.value - start.value, y.detach())
        self._sums.begin(y, size)
        if found is None:
            return torch.full_like(y, math.nan)
        if not (has_graph or (torch.is_grad_enabled() and self._has_weights())):
            self._sums.slopes = found
            return combine(y, found, self.tableau.weights, size)
        return self._attach(times, size, y, found)

    def error_ratio(self, control: Control, y: Tensor, y1: Tensor) -> float:
        return math.inf if self.failure is not None else super().error_ratio(control, y, y1)

    def _times(self, start: Moment, end: Moment, end_inside: bool) -> list[Tensor]:
        times, nodes = self.clock.times(self.tableau.nodes, start, end), self.tableau.nodes
        if not end_inside:
            return list(times)
        before = self.clock.just_before(end, start)
        # Some methods have stages even later than the end.
        return [before if n >= 1 else t for t, n in zip(times, nodes, strict=True)]

    def _attach(
        self, times: Sequence[Tensor], size: Any, y: Tensor, found: Sequence[Tensor]
    ) -> Tensor:
        """Attach the graph to a solved step."""
        first = () if self._first is None else (self._first,)
        step, count = self._recorded(times, size, found), len(times) - len(first)
        self.stats.forward_evaluations += count
        if self._replayer is None or self._replayer.reserve():
            y1, self._sums, *_ = step(y, *first)
            return y1
        with self._replayer.recording(step, (y, *first), count) as call:
            y1, self._sums, *_ = call.result = step(y, *first)
        return y1

    @abstractmethod
    def _has_weights(self) -> bool:
        """Whether the field has been seen to depend on trainable tensors."""

    @abstractmethod
    def _begin(self, start: Moment, times: Sequence[Tensor], y: Tensor) -> None:
        """Prepare a step from a state, with stages at these times."""

    @abstractmethod
    def _solve(self, times: Sequence[Tensor], size: float, y: Tensor) -> list[Tensor] | None:
        """The slopes of all stages without a graph; None if they are not found, see `failure`."""

    @abstractmethod
    def _recorded(
        self, times: Sequence[Tensor], size: Any, found: Sequence[Tensor]
    ) -> Callable[..., tuple[Any, ...]]:
        """The step as a function of the state, and of the first slope where that is known."""


class ImplicitStepper(EquationStepper):
    """Takes steps of an implicit Runge–Kutta method; its arguments are those of the base class."""

    tableau: ImplicitTableau

    def __init__(self, evaluate: Evaluator, *rest: Any) -> None:
        super().__init__(evaluate, *rest)
        self._newton = Newton(evaluate, self._linearizer)
        self._last: Tensor | None = None  # slope at the end of the last step

    def _has_weights(self) -> bool:
        return self._newton.has_graph

    def prepare(self, control: Control | None) -> None:
        if control is not None:
            self._newton.prepare(control)

    def start(self, moment: Moment, y: Tensor, slope: Tensor | None = None) -> Tensor:
        self._newton.jump()
        slope = self._last = super().start(moment, y, slope)
        if not self.tableau.begins_at_start:
            self._first = None  # useful only as a guess
        return slope

    def _begin(self, start: Moment, times: Sequence[Tensor], y: Tensor) -> None:
        self._newton.begin(self.clock.time(start), y)

    def accept(self) -> None:
        super().accept()
        self._last = self._sums.slopes[-1].detach()

    def follow(self, other: Stepper) -> None:
        super().follow(other)
        self._newton.evaluate = self._evaluate

    def freeze(self, moving: Tensor) -> None:
        super().freeze(moving)
        self._newton.evaluate = self._evaluate
        self._newton.jump()

    def _error(self) -> Tensor:
        error = super()._error()
        if not self.tableau.filters_error:
            return error
        return self._newton.filtered(error, self._step * self.tableau.stages[-1][-1])

    def _solve(self, times: Sequence[Tensor], size: float, y: Tensor) -> list[Tensor] | None:
        slopes: list[Tensor] = []
        self._step = size
        for block in self.tableau.blocks:
            bases = self._bases(block, y, slopes, size)
            if block.explicit:
                slopes.append(self._explicit(times[block.begin], bases[0], block.begin))
                continue
            guess = self._guess(block, slopes)
            coupling = np.array(block.coupling) * size
            stages = Stages(times[block.begin : block.end], bases, coupling, guess)
            found = self._newton.solve(stages)
            if found is None:
                finite = self._newton.is_finite
                self.failure = Status.NEWTON_FAILURE if finite else Status.NON_FINITE
                return None
            slopes += found
        return slopes

    def _explicit(self, time: Tensor, point: Tensor, stage: int) -> Tensor:
        if stage == 0 and self._first is not None:
            return self._first.detach()
        self.stats.forward_evaluations += 1
        return self._newton.call(time, point)

    def _bases(self, block: Block, y: Tensor, slopes: Sequence[Tensor], size: Any) -> list[Tensor]:
        """Where the stages of a block would be without their own slopes."""
        rows = [row[: block.begin] for row in self.tableau.stages[block.begin : block.end]]
        return [combine_quickly(y, slopes, row, size) for row in rows]

    def _guess(self, block: Block, slopes: Sequence[Tensor]) -> list[Tensor]:
        """Slopes to begin with."""
        if slopes:
            zero = torch.zeros_like(slopes[0])
            return [combine_quickly(zero, slopes, row, 1.0) for row in block.guesses]
        last = self._last
        slope = self._newton.around_start().slope if last is None else last.detach()
        return [slope] * (block.end - block.begin)

    def _recorded(
        self, times: Sequence[Tensor], size: Any, found: Sequence[Tensor]
    ) -> Callable[..., tuple[Any, ...]]:
        evaluate, tableau, linearizer = self._evaluate, self.tableau, self._linearizer
        bases, length = self._bases, float(size.detach() if isinstance(size, Tensor) else size)

        def step(y: Tensor, *first: Tensor) -> tuple[Any, ...]:
            sums, seen = Sums(tableau), []
            sums.begin(y, size)
            for block in tableau.blocks:
                places = range(block.begin, block.end)
                points = bases(block, y, sums.slopes, size)
                if block.explicit:
                    known = block.begin == 0 and first
                    sums.add(first[0] if known else evaluate(times[block.begin], points[0]))
                    continue
                values = [found[place] for place in places]
                rows = zip(points, block.coupling, strict=True)
                points = [traced(combine(base, values, row, size)) for base, row in rows]
                raw = [evaluate(times[i], z) for i, z in zip(places, points, strict=True)]
                coupling = np.array(block.coupling) * length
                seen += raw
                for slope in attach(linearizer, coupling, points, raw, values):
                    sums.add(slope)
            # These values of the field show whether it has changed when the step is repeated.
            return combine(y, sums.slopes, tableau.weights, size), sums, *sums.slopes, *seen

        return step


def traced(point: Tensor) -> Tensor:
    """A tensor that autograd follows, whether or not it has a history."""
    if point.requires_grad:
        return point
    return point + torch.zeros((), dtype=point.dtype, device=point.device, requires_grad=True)


def attach(
    linearizer: Linearizer,
    coupling: np.ndarray,
    points: Sequence[Tensor],
    raw: Sequence[Tensor],
    values: Sequence[Tensor],
) -> Sequence[Tensor]:
    """The slopes of a solved block of stages, with the gradient of the equations that they solve.

    Args:
        linearizer: What is known about the field.
        coupling: How stages depend on each other, times the step size.
        points: Where the field was evaluated; they move with all but the slopes of the block.
        raw: The values of the field there.
        values: The slopes.
    """
    if not any(one.requires_grad for one in raw):
        return values
    edges = [
        (get_gradient_edge(one), get_gradient_edge(point)) if one.requires_grad else (None, None)
        for one, point in zip(raw, points, strict=True)
    ]
    return _Implicit.apply(linearizer, coupling, edges, values, *raw)


class _Implicit(torch.autograd.Function):
    """Solutions of `k_i = f(z_i + Σ_j coupling_ij k_j)` in place of the values of `f` there."""

    @staticmethod
    def forward(
        ctx: Any, linearizer: Linearizer, coupling: Any, edges: Any, values: Any, *raw: Tensor
    ) -> tuple[Tensor, ...]:
        # Places in the graph, not tensors, which would be kept with everything they depend on.
        ctx.linearizer, ctx.coupling, ctx.edges = linearizer, coupling, edges
        return tuple(value.detach().clone() for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        pulls = [
            Pullback(edge[0], edge[1], gradient)
            for edge, gradient in zip(ctx.edges, gradients, strict=True)
        ]
        found = solve_transposed(ctx.linearizer, pulls, ctx.coupling, gradients)
        return None, None, None, None, *found


def refuse_second_derivative() -> None:
    """Autograd is on in a backward pass only if its result will be differentiated again."""
    if torch.is_grad_enabled():
        raise GradientError(
            "a solve with an implicit method can be differentiated once, not twice; use an "
            "explicit method such as dopri5 for higher derivatives"
        )
