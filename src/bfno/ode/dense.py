"""The solution between requested times."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bfno.ode.events import EventOutputs
from bfno.ode.integrate import SharedOutputs
from bfno.ode.state import Packing
from bfno.ode.step import Clock, Moment, Stepper, dense_matrix
from bfno.ode.tableaus import Tableau
from bfno.tracing import without_autocast

__all__ = ["DenseOutput", "DenseRecorder"]


class DenseStep(NamedTuple):
    """An accepted step: its ends, the state at its start, its method and its stages' slopes."""

    start: Moment
    end: Moment
    y: Tensor
    tableau: Tableau
    slopes: Sequence[Tensor]


class DenseOutput:
    """A solution as a function of time; autograd records its evaluation.

    Args:
        clock: Gives the time.
        packing: How states lie in one tensor.
    """

    def __init__(self, clock: Clock, packing: Packing) -> None:
        self._clock, self._packing = clock, packing
        self._steps: list[DenseStep] = []
        self._ends: list[float] = []  # of the steps, with their sign changed if time decreases
        self._outputs: Any = None

    def begin(self, outputs: SharedOutputs) -> None:
        """Note what the solve has to return."""
        self._outputs = outputs
        self._forward = 1.0 if outputs.times[-1] >= outputs.times[0] else -1.0

    def add(self, step: DenseStep) -> None:
        """Append the next step."""
        self._steps.append(step)
        self._ends.append(step.end.value * self._forward)

    def evaluate(self, t: Tensor | float) -> Any:
        """The state at a time, or the states at many, time first.

        Raises:
            ValueError: If a time lies outside the interval that was solved.
        """
        times = torch.as_tensor(t, dtype=torch.float64)
        if times.dim() > 1:
            raise ValueError(
                f"t must be one time or one row of times, got shape {tuple(times.shape)}"
            )
        row = times.reshape(-1)
        values = row.tolist()
        self._refuse_outside(values)
        found = self._between(row, values)
        if isinstance(self._outputs, EventOutputs):
            found = self._outputs.stand_still(row.to(found.device), found)
        return self._packing.unpack(found[0] if times.dim() == 0 else found)

    def _refuse_outside(self, values: list[float]) -> None:
        first = last = self._outputs.times[0]
        if isinstance(self._outputs, EventOutputs) and self._outputs.is_over():
            last = self._outputs.times[-1]
        elif self._steps:
            last = self._steps[-1].end.value
        # Times in single precision, such as 0.7, do not match the ends of an interval exactly.
        slack = min(1.2e-7 * max(abs(first), abs(last)), 1e-6 * abs(last - first))
        low, high = min(first, last), max(first, last)
        for value in values:
            if not low - slack <= value <= high + slack:
                raise ValueError(f"t must lie between {low:.9g} and {high:.9g}, got {value:.9g}")

    def _between(self, row: Tensor, values: list[float]) -> Tensor:
        y0 = self._outputs.states[0]
        if not self._steps or not values:
            return y0.expand(len(values), *y0.shape)
        last = len(self._steps) - 1
        places = [min(bisect.bisect_left(self._ends, v * self._forward), last) for v in values]
        # Step by step, and then back in the requested order.
        order = torch.tensor(places).argsort(stable=True)
        steps, counts = torch.tensor(places).unique(return_counts=True)
        parts = row[order].split(counts.tolist())
        pieces = zip(steps.tolist(), parts, strict=True)
        found = torch.cat([self._within(self._steps[place], part) for place, part in pieces])
        return found[order.argsort()]

    def _within(self, step: DenseStep, times: Tensor) -> Tensor:
        size, y = self._clock.size(step.start, step.end), step.y
        begin = self._clock.exact(step.start)
        # After an event, time may continue, but the state stands still.
        thetas = ((times - begin) / size).clamp(max=1 + 1e-6)
        weights = dense_matrix(step.tableau, thetas).to(device=y.device, dtype=y.dtype)
        slopes = torch.stack([slope.reshape(-1) for slope in step.slopes])
        with without_autocast(y):
            change = (weights @ slopes).view(len(times), *y.shape)
        return y + change * (size.to(y.dtype) if isinstance(size, Tensor) else size)


class DenseRecorder:
    """Outputs that also note every step for dense output."""

    def __init__(self, outputs: SharedOutputs, dense: DenseOutput) -> None:
        self._outputs, self._dense = outputs, dense
        dense.begin(outputs)

    def complete(self) -> bool:
        return self._outputs.complete()

    def collect(
        self, stepper: Stepper, start: Moment, end: Moment, ends: tuple[Tensor, Tensor]
    ) -> bool:
        self._dense.add(DenseStep(start, end, ends[0], stepper.tableau, tuple(stepper.slopes)))
        return self._outputs.collect(stepper, start, end, ends)
