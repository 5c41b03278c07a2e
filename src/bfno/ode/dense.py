"""The solution between requested times."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bfno.ode.integrate import Outputs
from bfno.ode.state import Packing
from bfno.ode.step import Clock, Moment, Stepper, dense_matrix
from bfno.ode.tableaus import Tableau

__all__ = ["DenseOutput", "DenseRecorder"]


class DenseStep(NamedTuple):
    """An accepted step: its ends, the state at its start and the slopes of its stages."""

    start: Moment
    end: Moment
    y: Tensor
    slopes: Sequence[Tensor]


class DenseOutput:
    """A solution as a function of time; autograd records its evaluation.

    Args:
        tableau: The method, whose dense output it is.
        clock: Tells the time.
        packing: How states lie in one tensor.
    """

    def __init__(self, tableau: Tableau, clock: Clock, packing: Packing) -> None:
        self._tableau, self._clock, self._packing = tableau, clock, packing
        self._steps: list[DenseStep] = []

    def add(self, step: DenseStep) -> None:
        """Append the next step."""
        self._steps.append(step)

    def evaluate(self, t: Tensor | float) -> Any:
        """The state at a time, or the states at many, time first.

        Raises:
            ValueError: If a time lies outside the interval that was solved.
        """
        times = torch.as_tensor(t, dtype=torch.float64)
        if times.dim() > 1 or not self._steps:
            raise ValueError(f"t must be one time or one row of times, got {tuple(times.shape)}")
        row = times.reshape(-1)
        places = [self._place(value) for value in row.tolist()]
        pieces, order = [], []
        for place in sorted(set(places)):
            inside = [index for index, other in enumerate(places) if other == place]
            pieces.append(self._within(self._steps[place], row[inside]))
            order += inside
        found = torch.cat(pieces)[torch.tensor(order).argsort()] if pieces else self._nothing()
        return self._packing.unpack(found[0] if times.dim() == 0 else found)

    def _nothing(self) -> Tensor:
        y = self._steps[0].y
        return y.new_empty(0, *y.shape)

    def _place(self, time: float) -> int:
        """Which step a time lies in."""
        first, last = self._steps[0].start.value, self._steps[-1].end.value
        direction = 1.0 if last >= first else -1.0
        if not min(first, last) <= time <= max(first, last):
            raise ValueError(f"t must lie between {first:g} and {last:g}, got {time:g}")
        ends = [step.end.value * direction for step in self._steps]
        return min(bisect.bisect_left(ends, time * direction), len(ends) - 1)

    def _within(self, step: DenseStep, times: Tensor) -> Tensor:
        size, y = self._clock.size(step.start, step.end), step.y
        begin = self._clock.exact(step.start)
        thetas = (times - begin) / size
        weights = dense_matrix(self._tableau, thetas).to(device=y.device, dtype=y.dtype)
        slopes = torch.stack([slope.reshape(-1) for slope in step.slopes])
        change = (weights @ slopes).view(-1, *y.shape)
        return y + change * (size.to(y.dtype) if isinstance(size, Tensor) else size)


class DenseRecorder:
    """Outputs that also note every step for dense output."""

    def __init__(self, outputs: Outputs, dense: DenseOutput) -> None:
        self._outputs, self._dense = outputs, dense

    def complete(self) -> bool:
        return self._outputs.complete()

    def collect(
        self, stepper: Stepper, start: Moment, end: Moment, ends: tuple[Tensor, Tensor]
    ) -> bool:
        self._dense.add(DenseStep(start, end, ends[0], tuple(stepper.slopes)))
        return self._outputs.collect(stepper, start, end, ends)
