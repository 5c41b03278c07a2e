"""Adams methods on fixed grids, explicit and implicit.

A step extends the polynomial through earlier slopes. The coefficients are for equal steps; the
first steps, which have no history, are Runge–Kutta steps of order four.
"""

from __future__ import annotations

import functools
import warnings
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from bfno.ode.evaluate import Evaluator
from bfno.ode.solution import Stats
from bfno.ode.step import Clock, Moment, Stepper, Sums
from bfno.ode.tableaus import METHODS

__all__ = ["AdamsMethod", "AdamsStepper"]

_SHORTEST = 3
"""Smallest number of earlier slopes from which a step is extrapolated."""


@dataclass(frozen=True)
class AdamsMethod:
    """An Adams method.

    Attributes:
        implicit: Whether predicted steps are corrected by fixed-point iteration.
        max_order: Highest order that is used.
        max_iterations: Largest number of corrections per step.
        rtol: Corrections stop once they change the step by less than this share of it plus `atol`;
            a number, or a tensor that broadcasts to the state.
        atol: The absolute part of that bound, likewise.
        cubic: Whether output between grid points is cubic instead of linear.
    """

    implicit: bool
    max_order: int = 12
    max_iterations: int = 4
    rtol: Tensor | float = 1e-7
    atol: Tensor | float = 1e-9
    cubic: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.max_order <= 12:
            raise ValueError(f"max_order must lie between 1 and 12, got {self.max_order}")


@functools.lru_cache(maxsize=64)
def coefficients(count: int, *, implicit: bool) -> tuple[float, ...]:
    """Weights of slopes at 0, -1, … (explicit) or 1, 0, -1, … that integrate over [0, 1]."""
    points = [Fraction(1 - index if implicit else -index) for index in range(count)]
    return tuple(float(_integrated_basis(points, index)) for index in range(count))


def _integrated_basis(points: list[Fraction], index: int) -> Fraction:
    """Integral over [0, 1] of the Lagrange polynomial that is one at one of the points."""
    polynomial, scale = [Fraction(1)], Fraction(1)
    for other, point in enumerate(points):
        if other == index:
            continue
        shifted = [Fraction(0), *polynomial]
        polynomial = [
            a - point * b for a, b in zip(shifted, [*polynomial, Fraction(0)], strict=True)
        ]
        scale *= points[index] - point
    return sum((c / (power + 1) for power, c in enumerate(polynomial)), Fraction(0)) / scale


class AdamsStepper(Stepper):
    """Takes Adams steps; autograd records them where it is on."""

    needs_start = True

    def __init__(
        self, evaluate: Evaluator, method: AdamsMethod, clock: Clock, stats: Stats
    ) -> None:
        super().__init__(evaluate, METHODS["rk4"], clock, Sums(METHODS["rk4"]), stats)
        self._method = method
        self._history: deque[Tensor] = deque(maxlen=max(method.max_order - 1, 1))
        self._y1: Any = None

    def start(self, moment: Moment, y: Tensor, slope: Tensor | None = None) -> Tensor:
        slope = super().start(moment, y, slope)
        self._history.appendleft(slope)
        return slope

    def attempt(self, start: Moment, end: Moment, y: Tensor, *, end_inside: bool = False) -> Tensor:
        if len(self._history) < _SHORTEST:
            y1 = super().attempt(start, end, y, end_inside=end_inside)
        else:
            size = self.clock.size(start, end)
            weights = coefficients(len(self._history), implicit=False)
            change = self._weighted(weights, y) * size
            if self._method.implicit:
                change = self._corrected(end, y, change, size)
            y1 = y + change
        self._y1 = y1
        return y1

    def interpolate(self, start: Moment, end: Moment, y: Tensor, requested: Moment) -> Tensor:
        size = self.clock.size(start, end)
        share = self.clock.size(start, requested) / size
        change = self._y1 - y
        if not self._method.cubic:
            return y + share * change
        slopes = self._first * size, self.evaluate(end, self._y1) * size
        bend = (1 - share) * (slopes[0] - change) + share * (change - slopes[1])
        return y + share * change + share * (1 - share) * bend

    def _weighted(self, weights: tuple[float, ...], like: Tensor) -> Tensor:
        total = torch.zeros_like(like)
        for weight, slope in zip(weights, self._history, strict=True):
            total = torch.add(total, slope, alpha=weight)
        return total

    def _corrected(self, end: Moment, y: Tensor, change: Tensor, size: Tensor | float) -> Tensor:
        first, *others = coefficients(len(self._history) + 1, implicit=True)
        known = self._weighted(tuple(others), y) * size
        for _ in range(self._method.max_iterations):
            before = change
            change = known + (first * size) * self.evaluate(end, y + change)
            if self._is_settled(before, change):
                return change
        warnings.warn(
            f"the corrections of an implicit Adams step did not settle at t = {end.value:g}; "
            "take smaller steps",
            stacklevel=2,
        )
        # The oldest slope has misled this step and is dropped, so that the next step has no higher
        # order, as in torchdiffeq.
        self._history.pop()
        return change

    @torch.no_grad()
    def _is_settled(self, before: Tensor, change: Tensor) -> bool:
        scale = torch.maximum(before.abs(), change.abs()) * self._method.rtol + self._method.atol
        return bool(((before - change).abs() < scale).all())
