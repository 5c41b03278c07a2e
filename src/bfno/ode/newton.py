"""Newton's method for the stages of an implicit step.

The unknowns are the slopes of a block of stages, `k_i = f(t_i, base_i + Σ_j coupling_ij k_j)`. The
Jacobian is that at the start of a step, and is kept for later steps as long as the iterations
converge quickly with it: an outdated Jacobian costs iterations, never accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfno.ode.control import Control
from bfno.ode.evaluate import Evaluator
from bfno.ode.linearise import Linearisation, Linearizer, make_system
from bfno.ode.sizes import euclidean_norm
from bfno.ode.step import combine_quickly

__all__ = ["Newton", "Stages"]

SHARE = 0.01
"""Share of the tolerance to which stages are solved."""
MOST_ITERATIONS = 10
MOST_EXACT_ITERATIONS = 30
SLOW = 0.1
"""Share of the last change above which the next one is due to an outdated Jacobian."""


class Stages:
    """The equations of a block of stages.

    Args:
        times: The times of the stages.
        bases: The stages' states without their own slopes.
        coupling: Their weights in each other, times the step size.
        guess: Initial slopes.
    """

    def __init__(
        self,
        times: Sequence[Tensor],
        bases: Sequence[Tensor],
        coupling: np.ndarray,
        guess: Sequence[Tensor],
    ) -> None:
        self.times, self.bases, self.coupling, self.guess = times, bases, coupling, guess
        self._rows = [tuple(row) for row in coupling.tolist()]

    def points(self, slopes: Sequence[Tensor]) -> list[Tensor]:
        """The states of the stages, given their slopes."""
        pairs = zip(self.bases, self._rows, strict=True)
        return [combine_quickly(base, slopes, row, 1.0) for base, row in pairs]

    def moved(self, changes: Sequence[Tensor]) -> Tensor:
        """The change of the stages' states for a change of their slopes."""
        if len(changes) == 1:
            return changes[0] * self._rows[0][0]
        zero = torch.zeros_like(changes[0])
        return torch.stack([combine_quickly(zero, changes, row, 1.0) for row in self._rows])


class Newton:
    """Solves the stages of one step after the other.

    Args:
        evaluate: Calls the field.
        linearizer: Linearises it.
    """

    def __init__(self, evaluate: Evaluator, linearizer: Linearizer) -> None:
        self.evaluate, self._linearizer, self._stats = evaluate, linearizer, linearizer.stats
        self._control: Control | None = None
        self._start: Any = None  # time and state at the start of the step
        self._units: Any = None
        self._around: Linearisation | None = None
        self._is_fresh, self._is_slow, self._factor = False, False, 1.0
        self.is_finite, self.has_graph = True, False

    def prepare(self, control: Control) -> None:
        """Note how errors are measured; otherwise stages are solved up to rounding."""
        self._control = control

    def begin(self, t: Tensor, y: Tensor) -> None:
        """Begin an attempt from a state."""
        if self._start is not None and y is self._start[1]:
            return
        self._start, self._is_fresh = (t, y), False
        if self._control is not None:
            rounding, known = 4 * torch.finfo(y.dtype).eps, y.detach()
            units = self._control.tolerance(known).mul(SHARE)
            self._units = units.add_(known.abs(), alpha=rounding)
        # The convergence of the next iterations becomes less and less certain.
        self._factor = max(self._factor, 1e-15) ** 0.8
        if self._is_slow:
            self._around = None

    def jump(self) -> None:
        """The field jumps here."""
        self._around = self._start = None

    def around_start(self) -> Linearisation:
        """The linearised field at the start of this step, or of an earlier one."""
        if self._around is None:
            self._renew()
        return self._around  # pyright: ignore[reportReturnType]

    def solve(self, stages: Stages) -> list[Tensor] | None:
        """The slopes of a block of stages, or None if they cannot be found."""
        iterate = self._iterate_exactly if self._control is None else self._iterate
        while True:
            around = self.around_start()
            system, found = around.system(stages.coupling), None
            if system is None:
                self.is_finite = around.is_finite()
            else:
                found = iterate(stages, system)
            if found is not None or self._is_fresh:
                return found
            self._renew()

    def filtered(self, error: Tensor, coupling: float) -> Tensor:
        """An error estimate, damped in stiff parts as implicit stages damp it."""
        system = self.around_start().system(np.array([[coupling]]))
        return error if system is None else system.solve([error])[0]

    def _renew(self) -> None:
        """Linearise the field around the start of the step."""
        self._around = self._linearizer.at(self.evaluate, *self._start)
        self._is_fresh, self._is_slow, self._factor = True, False, 1.0

    def _residuals(self, stages: Stages, slopes: Sequence[Tensor]) -> list[Tensor]:
        self._stats.forward_evaluations += len(slopes)
        points = stages.points(slopes)
        values = [self.call(t, z) for t, z in zip(stages.times, points, strict=True)]
        return [value - slope for value, slope in zip(values, slopes, strict=True)]

    def call(self, t: Tensor, z: Tensor) -> Tensor:
        """Call the field without a graph, and note whether it would have one."""
        value = self.evaluate(t, z)
        if value.requires_grad:
            self.has_graph = True
            return value.detach()
        return value

    def _iterate(self, stages: Stages, system: Any) -> list[Tensor] | None:
        """Iterate until the residual is a small share of the tolerance."""
        control: Any = self._control
        slopes, before, factor = list(stages.guess), math.inf, self._factor
        for left in reversed(range(MOST_ITERATIONS)):
            changes = system.solve(self._residuals(stages, slopes))
            size = control.measure(stages.moved(changes) / self._units)
            self.is_finite = math.isfinite(size)
            if not self.is_finite:
                return None
            slopes = [slope + change for slope, change in zip(slopes, changes, strict=True)]
            if before < math.inf:
                rate = size / before
                self._is_slow = self._is_slow or rate > SLOW
                # Will the remaining iterations be enough?
                if rate >= 1 or size * rate**left / (1 - rate) > 1:
                    return None
                factor = self._factor = max(rate / (1 - rate), 1e-15)
            if size * factor <= 1 or size == 0:
                return slopes
            before = size
        return None

    def _iterate_exactly(self, stages: Stages, system: Any) -> list[Tensor] | None:
        """Iterate until only rounding errors are left, with new Jacobians if that is slow.

        It begins with the stages' states without their own slopes: without a tolerance, the step
        may be so large that the slopes differ.
        """
        slopes, before = [torch.zeros_like(one) for one in stages.guess], math.inf
        residuals = self._residuals(stages, slopes)
        for _ in range(MOST_EXACT_ITERATIONS):
            changes = system.solve(residuals, 1e-6)
            points = stages.points(slopes)
            size = _root_mean_square(stages.moved(changes))
            # Stages are sums of bases and slopes, which may be much larger.
            largest = max(_root_mean_square(torch.stack(list(p))) for p in (points, stages.bases))
            scale = largest * torch.finfo(points[0].dtype).eps
            self.is_finite = math.isfinite(size)
            if not self.is_finite:
                return None
            if size <= 2 * scale or (size > before / 2 and before < 1e3 * scale):
                return [slope + change for slope, change in zip(slopes, changes, strict=True)]
            if before < math.inf and size > SLOW * before:
                system = self._system_around(stages, points)
                if system is None:
                    return None
                changes = system.solve(residuals, 1e-6)
            slopes, residuals = self._damped(stages, slopes, changes, residuals)
            before = size
        return None

    def _system_around(self, stages: Stages, points: Sequence[Tensor]) -> Any:
        """The equations of the stages around their present points."""
        places = zip(stages.times, points, strict=True)
        around = [self._linearizer.at(self.evaluate, t, z) for t, z in places]
        return make_system(self._linearizer, around, stages.coupling)

    def _damped(
        self,
        stages: Stages,
        slopes: Sequence[Tensor],
        changes: Sequence[Tensor],
        residuals: Sequence[Tensor],
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Slopes and residuals of their equations after a change, or after part of it."""
        before, share = _root_mean_square(torch.stack(list(residuals))), 1.0
        while True:
            pairs = zip(slopes, changes, strict=True)
            moved = [torch.add(slope, change, alpha=share) for slope, change in pairs]
            found = self._residuals(stages, moved)
            if _root_mean_square(torch.stack(found)) < 2 * before or share < 1e-3:
                return moved, found
            share /= 4


def _root_mean_square(values: Tensor) -> float:
    return euclidean_norm(values) / math.sqrt(max(values.numel(), 1))
