"""`method="auto"`: explicit steps until the field is stiff, implicit ones while it is.

The steps of both form one sequence with one step-size rule. At a switch, the slope at the end of
the last step is the first one of the next, as between two steps of one method, so gradients are
exact there too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bfno.ode.control import Control
from bfno.ode.sizes import euclidean_norm
from bfno.ode.solution import Stats, Status
from bfno.ode.step import Clock, Moment, Stepper
from bfno.ode.stiffness import Detector, probe_of
from bfno.ode.tableaus import Tableau

__all__ = ["AutoStepper"]

_EVERY = 4
"""Number of implicit steps between two checks of the field."""
_CALM = 0.5
"""Share of the explicit method's stability bound below which its steps would be stable."""
_LOOKS = 2
"""Number of consecutive checks without stiffness after which explicit steps resume."""


class AutoStepper(Stepper):
    """Takes steps of two methods in turn.

    Args:
        explicit: Takes the explicit steps.
        stiff: Takes the implicit ones.
        clock: Gives the time.
        stats: Where switches are noted.
    """

    def __init__(self, explicit: Stepper, stiff: Stepper, clock: Clock, stats: Stats) -> None:
        self.clock, self.stats = clock, stats
        self._explicit, self._stiff, self._now = explicit, stiff, explicit
        self._bound = probe_of(explicit.tableau).bound
        self._goals: Sequence[float] = ()
        self._detector = Detector(explicit.tableau, (), stats)
        self._step: Any = None  # start, end and end state of the last attempt
        self._handed_over = True
        self._taken = self._calm = 0
        self._direction: Tensor | None = None

    # What the current method does

    @property
    def tableau(self) -> Tableau:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._now.tableau

    @property
    def failure(self) -> Status | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._now.failure

    @property
    def slopes(self) -> Sequence[Tensor]:
        return self._now.slopes

    def prepare(self, control: Control | None) -> None:
        self._explicit.prepare(control)
        self._stiff.prepare(control)

    def evaluate(self, moment: Moment, y: Tensor) -> Tensor:
        return self._now.evaluate(moment, y)

    def start(self, moment: Moment, y: Tensor, slope: Tensor | None = None) -> Tensor:
        self._handed_over = True
        return self._now.start(moment, y, slope)

    def attempt(self, start: Moment, end: Moment, y: Tensor, *, end_inside: bool = False) -> Tensor:
        if not self._handed_over:
            other = self._stiff if self._now is self._explicit else self._explicit
            self._now.follow(other)
            self._now.start(start, y, other.last_slope)
            other.discard()
            self._handed_over = True
        y1 = self._now.attempt(start, end, y, end_inside=end_inside)
        self._step = (start, end, y1.detach())
        return y1

    def error_ratio(self, control: Control, y: Tensor, y1: Tensor) -> float:
        return self._now.error_ratio(control, y, y1)

    def accept(self) -> None:
        self._now.accept()
        if self._now is self._stiff and self._has_calmed():
            self._switch(self._explicit)
        elif self._now is self._explicit and self._detector.is_stiff:
            self._switch(self._stiff)

    def discard(self) -> None:
        self._now.discard()
        self._step = None

    def interpolate(self, start: Moment, end: Moment, y: Tensor, requested: Moment) -> Tensor:
        return self._now.interpolate(start, end, y, requested)

    def interpolate_rows(self, size: float, y: Tensor, thetas: Tensor, samples: Tensor) -> Tensor:
        return self._now.interpolate_rows(size, y, thetas, samples)

    def freeze(self, moving: Tensor) -> None:
        self._now.freeze(moving)

    # Switches

    def detector(self, goals: Sequence[float]) -> AutoStepper:
        """The stepper itself, which never gives up."""
        self._goals = goals
        self._detector = Detector(self._explicit.tableau, goals, self.stats)
        return self

    def look(self, start: float, end: float, slopes: Sequence[Tensor]) -> bool:
        """Take note of an accepted step, before `accept`."""
        if self._now is self._explicit:
            self._detector.look(start, end, slopes)
        else:
            begin, _ = self.stats.stiff[-1]
            self.stats.stiff[-1] = (begin, end)
        return False

    def gives_up(self, max_steps: float) -> bool:
        """Never: the other method continues."""
        return False

    def _switch(self, to: Stepper) -> None:
        self._now, self._handed_over = to, False
        self._taken = self._calm = 0
        self._direction = None
        self._detector = Detector(self._explicit.tableau, self._goals, self.stats)
        self.stats.switches.append((self._step[1].value, to.tableau.name))

    def _has_calmed(self) -> bool:
        """Whether explicit steps of this size would be stable, judged by consecutive checks."""
        self._taken += 1
        if self._taken % _EVERY:
            return False
        start, end, _ = self._step
        pull = abs(end.value - start.value) * self._eigenvalue()
        self._calm = self._calm + 1 if pull < _CALM * self._bound else 0
        return self._calm == _LOOKS

    @torch.no_grad()
    def _eigenvalue(self) -> float:
        """Estimate the largest eigenvalue at the end of the last step, by the power method.

        Every check continues with the direction of the previous one, and takes one evaluation.
        """
        _, end, y = self._step
        slope = self._now.last_slope
        slope = self.evaluate(end, y) if slope is None else slope.detach()
        along, rounds = self._direction, 1
        if along is None:
            generator = torch.Generator().manual_seed(0)  # not the field's random numbers
            along = torch.randn(y.shape, generator=generator, dtype=y.real.dtype).to(y)
            rounds = 3
        value = 0.0
        for _ in range(rounds):
            length = euclidean_norm(along)
            if not (0 < length < math.inf):
                return 0.0
            reach = math.sqrt(torch.finfo(y.dtype).eps) * (1 + euclidean_norm(y))
            change = self.evaluate(end, y + along * (reach / length)) - slope
            value, along = euclidean_norm(change) / reach, change
        self._direction = along
        return value
