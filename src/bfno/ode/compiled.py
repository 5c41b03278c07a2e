"""Steps compiled as a whole: one call of generated code instead of dozens of small operations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bfno.ode.control import Control
from bfno.ode.inputs import check_slope
from bfno.ode.solution import Stats
from bfno.ode.step import Field, GraphStepper, Moment, clock_dtype, combine
from bfno.ode.tableaus import Tableau

__all__ = ["CompiledStepper"]


class CompiledStepper(GraphStepper):
    """Takes steps without a graph, each by one compiled function.

    The function is compiled when a field first meets a method, and again for other shapes of the
    state; that takes seconds to minutes, and every later solve with the same field profits.

    Args:
        field: The field.
        tableau: The method.
        y0: A state.
        stats: Where evaluations are counted.
        keep: Whether a backward pass will ask for the stages.
    """

    def __init__(
        self, field: Field, tableau: Tableau, y0: Tensor, stats: Stats, *, keep: bool
    ) -> None:
        super().__init__(field, tableau, y0.new_zeros(1), stats)
        self._keep, self._tolerances = keep, (1.0, 1.0)
        self._step = _compiled_step(field, tableau, full=keep)
        self._clock_dtype, self._last, self._squares = clock_dtype(y0.device), y0, y0

    def start(self, moment: Moment, y: Tensor) -> Tensor:
        self._first = check_slope(self.evaluate(moment, y), y)
        return self._first

    def attempt(self, start: Moment, end: Moment, y: Tensor, *, end_inside: bool = False) -> Tensor:
        if end_inside:
            raise ValueError("compile=True does not support jumps; leave one of the two out")
        y1, self._last, self._squares, slopes, self.times, inputs = self._call(
            self._step, start, end, y
        )
        self._slopes, self.inputs = [self._first, *slopes], [y, *inputs]
        self.stats.forward_evaluations += len(self.tableau.stages) - 1
        return y1

    def error_ratio(self, control: Control, size: float, y: Tensor, y1: Tensor) -> float:
        return math.sqrt(self._squares.item() / max(y.numel(), 1))

    def prepare(self, control: Control | None) -> None:
        if control is None:
            return
        rtol, atol = control.rtol, control.atol
        if control.norm is not None or isinstance(rtol, Tensor) or isinstance(atol, Tensor):
            raise ValueError("compile=True needs numbers as tolerances and the default norm")
        self._tolerances = (rtol, atol)

    def accept(self) -> None:
        self._first = self._last

    def interpolate(self, start: Moment, end: Moment, y: Tensor, requested: Moment) -> Tensor:
        if not self._keep:
            full = _compiled_step(self.field, self.tableau, full=True)
            self._slopes = [self._first, *self._call(full, start, end, y)[3]]
        return super().interpolate(start, end, y, requested)

    def _call(self, step: Callable[..., Any], start: Moment, end: Moment, y: Tensor) -> Any:
        values = [start.value, end.value - start.value, *self._tolerances]
        numbers = torch.tensor(values, dtype=self._clock_dtype, device=y.device)
        return step(y, self._first, numbers)


@functools.lru_cache(maxsize=16)
def _compiled_step(field: Field, tableau: Tableau, *, full: bool) -> Callable[..., Any]:
    """The compiled step of a field and a method; the last few are kept.

    Args:
        field: The field.
        tableau: The method.
        full: Whether the step returns its stages.
    """
    # Plain numbers, because the compiler cannot look into properties.
    nodes, stages, weights = tableau.nodes, tableau.stages, tableau.weights
    estimate, reuses = tableau.error or (0.0,), tableau.reuses_last_stage

    def step(y: Tensor, first: Tensor, numbers: Tensor) -> Any:
        start, size, rtol, atol = numbers.unbind(0)
        times = [(start + node * size).to(y.dtype) for node in nodes]
        small, slopes, points, point = size.to(y.dtype), [first], [], y
        for stage in range(1, len(nodes)):
            point = combine(y, slopes, stages[stage], small)
            points.append(point)
            slopes.append(field(times[stage], point))
        if not reuses:
            point = combine(y, slopes, weights, small)
        error = combine(torch.zeros_like(y), slopes, estimate, small)
        scale = torch.maximum(y.abs(), point.abs()) * rtol.to(y.dtype) + atol.to(y.dtype)
        squares = (error / scale).square().sum()
        if full:
            return point, slopes[-1], squares, slopes[1:], times, points
        return point, slopes[-1], squares, (), (), ()

    return torch.compile(step, dynamic=False)
