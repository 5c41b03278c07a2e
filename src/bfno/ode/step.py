"""One Runge–Kutta step, with and without an autograd graph.

`BufferedStepper` runs without autograd on buffers that it reuses; `GraphStepper` has the same
interface and builds a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bfno.ode.control import Control
from bfno.ode.inputs import check_slope
from bfno.ode.solution import Stats
from bfno.ode.tableaus import Tableau

__all__ = [
    "BufferedStepper",
    "Field",
    "GraphStepper",
    "Moment",
    "Stepper",
    "clock_dtype",
    "combine",
    "dense_matrix",
]

Field = Callable[[Any, Tensor], Tensor]


class Moment(NamedTuple):
    """A point in time, and the requested time that it moves with.

    Step boundaries that the solver chose freely move with the first requested time; boundaries at a
    requested time move with that one. Gradients with respect to times follow from this.
    """

    value: float
    anchor: int = 0


def clock_dtype(device: torch.device) -> torch.dtype:
    """The dtype of time: double precision where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def stage_times(
    nodes: Sequence[float], start: float, size: float, like: Tensor
) -> Sequence[Tensor]:
    """The stages' times, exact in double precision, as tensors without axes like the state."""
    return like.new_tensor([start + node * size for node in nodes]).unbind(0)


class BufferedStepper:
    """Takes steps without recording a graph.

    One table holds the inputs of all stages, the change over the step and its error estimate. A
    stage adds its slope, weighted, to all of them in one operation.
    """

    def __init__(self, field: Field, tableau: Tableau, y0: Tensor, stats: Stats) -> None:
        self.field, self.tableau, self.stats = field, tableau, stats
        self.inputs: Sequence[Tensor] = ()
        self.times: Sequence[Tensor] = ()
        self._start = self._end = Moment(0.0)
        self._first, self._raw, self._slopes, self._error = y0, y0, [y0], y0
        # A stage at the end of the step has no part in it, only in the error.
        self._inner = len(tableau.stages) - tableau.reuses_last_stage
        self._last_share = (tableau.error or (0.0,))[-1]
        self._begins = y0.new_tensor([1.0] * (self._inner - 1) + [0.0, 0.0])
        self._shares = [y0.new_tensor(self._column(stage)) for stage in range(self._inner)]

    def _column(self, stage: int) -> list[float]:
        """Weights of one slope in later stages, in the change and in the error."""
        later = self.tableau.stages[1 : self._inner]
        inputs = [row[stage] if stage < len(row) else 0.0 for row in later]
        error = self.tableau.error
        return [*inputs, self.tableau.weights[stage], 0.0 if error is None else error[stage]]

    def prepare(self, control: Control | None) -> None:
        """Learn how errors will be measured before the first step."""

    def evaluate(self, moment: Moment, y: Tensor) -> Tensor:
        """The field at one moment."""
        self.stats.forward_evaluations += 1
        return self.field(y.new_tensor(moment.value), y)

    def start(self, moment: Moment, y: Tensor) -> Tensor:
        """Evaluate the first stage of the next step and return it."""
        self._start = moment
        self._raw = check_slope(self.evaluate(moment, y), y)
        self._first = self._raw.clone()
        return self._first

    def attempt(self, start: Moment, end: Moment, y: Tensor, *, end_inside: bool = False) -> Tensor:
        """Try a step whose first stage is known, and return the state at its end.

        Args:
            start: Where the step begins.
            end: Where it ends.
            y: State at the start.
            end_inside: Evaluate stages at the end just before it, where the field may jump.
        """
        size, field = end.value - start.value, self.field
        times = stage_times(self.tableau.nodes, start.value, size, y)
        if end_inside:
            times = _keep_inside(times, self.tableau, start, end)
        if self._start.value != start.value:  # the first stage lies just after a jump
            times = [y.new_tensor(self._start.value), *times[1:]]
        table = torch.outer(self._begins, y.reshape(-1))
        *points, change, error = table.view(len(table), *y.shape).unbind(0)
        slope = self._first
        slopes = [slope]
        table.addr_(self._shares[0], slope.reshape(-1), alpha=size)
        for stage, point in enumerate(points, start=1):
            slope = self._own(field(times[stage], point))
            slopes.append(slope)
            table.addr_(self._shares[stage], slope.reshape(-1), alpha=size)
        y1 = y + change  # summed up before it is added, the change is rounded once
        if self.tableau.reuses_last_stage:
            points.append(y1)
            slopes.append(self._own(field(times[-1], y1)))
            error.add_(slopes[-1], alpha=size * self._last_share)
        self.stats.forward_evaluations += len(points)
        self.inputs, self.times, self._end = [y, *points], times, end
        self._slopes, self._error = slopes, error
        return y1

    def _own(self, slope: Tensor) -> Tensor:
        """A slope that nobody else will write to: a field may return its input or one buffer."""
        if slope is self._raw or slope._is_view():
            self._raw = slope
            return slope.clone()
        self._raw = slope
        return slope

    def error_ratio(self, control: Control, size: float, y: Tensor, y1: Tensor) -> float:
        """Error of the last attempt, from `y` to `y1`, in units of the tolerance."""
        return control.error_ratio(self._error, y, y1)

    def accept(self) -> None:
        """Make the last stage of the last attempt the first one of the next."""
        self._first, self._start = self._slopes[-1], self._end

    def interpolate(self, start: Moment, end: Moment, y: Tensor, requested: Moment) -> Tensor:
        """Dense output of the last attempt at a moment between its ends."""
        size = end.value - start.value
        weights = self.tableau.dense_weights((requested.value - start.value) / size)
        return combine(y, self._slopes, weights, size)

    def interpolate_rows(self, size: float, y: Tensor, thetas: Tensor, samples: Tensor) -> Tensor:
        """Dense output of single samples, each at its own share θ of the last attempt."""
        return _interpolated_rows(self.tableau, size, y, thetas, (self._slopes, samples))


class GraphStepper:
    """Takes steps that autograd records, with the interface of `BufferedStepper`.

    Args:
        field: The field.
        tableau: The method.
        ts: Requested times; gradients reach them if they require any.
        stats: Where evaluations are counted.
    """

    def __init__(self, field: Field, tableau: Tableau, ts: Tensor, stats: Stats) -> None:
        self.field, self.tableau, self.stats = field, tableau, stats
        self.inputs: Sequence[Tensor] = ()
        self.times: Sequence[Tensor] = ()
        self._ts = ts
        self._requested = ts.tolist() if ts.requires_grad else None
        self._first = ts
        self._slopes: list[Tensor] = []

    def evaluate(self, moment: Moment, y: Tensor) -> Tensor:
        self.stats.forward_evaluations += 1
        return self.field(torch.as_tensor(self._time(moment), dtype=y.dtype, device=y.device), y)

    def start(self, moment: Moment, y: Tensor) -> Tensor:
        self._first = check_slope(self.evaluate(moment, y), y)
        return self._first.detach()

    def attempt(self, start: Moment, end: Moment, y: Tensor, *, end_inside: bool = False) -> Tensor:
        time, size = self._time(start), self._size(start, end)
        times = [torch.as_tensor(time + node * size, dtype=y.dtype, device=y.device)
                 for node in self.tableau.nodes]  # fmt: skip
        if end_inside:
            times = _keep_inside(times, self.tableau, start, end)
        slopes, point = [self._first], y
        for stage in range(1, len(times)):
            point = combine(y, slopes, self.tableau.stages[stage], size)
            slopes.append(self.field(times[stage], point))
        self.stats.forward_evaluations += len(times) - 1
        self._slopes = slopes
        if self.tableau.reuses_last_stage:
            return point
        return combine(y, slopes, self.tableau.weights, size)

    def prepare(self, control: Control | None) -> None:
        pass

    def error_ratio(self, control: Control, size: float, y: Tensor, y1: Tensor) -> float:
        with torch.no_grad():
            error = combine(torch.zeros_like(y1), self._slopes, self.tableau.error or (), size)
            return control.error_ratio(error, y, y1)

    def accept(self) -> None:
        self._first = self._slopes[-1]

    def interpolate(self, start: Moment, end: Moment, y: Tensor, requested: Moment) -> Tensor:
        size = self._size(start, end)
        theta = self._size(start, requested) / size
        return combine(y, self._slopes, self.tableau.dense_weights(theta), size)

    def interpolate_rows(self, size: float, y: Tensor, thetas: Tensor, samples: Tensor) -> Tensor:
        return _interpolated_rows(self.tableau, size, y, thetas, (self._slopes, samples))

    def _time(self, moment: Moment) -> Any:
        if self._requested is None:
            return moment.value
        return self._ts[moment.anchor] + (moment.value - self._requested[moment.anchor])

    def _size(self, start: Moment, end: Moment) -> Any:
        if start.anchor == end.anchor:  # both move together
            return end.value - start.value
        return self._time(end) - self._time(start)


Stepper = BufferedStepper | GraphStepper


def dense_matrix(tableau: Tableau, thetas: Tensor, *, slope: bool = False) -> Tensor:
    """`p_i(θ)`, or the derivatives, for many θ: one row a θ, one column a stage."""
    coefficients = thetas.new_tensor(tableau.dense)
    degrees = torch.arange(1, coefficients.shape[1] + 1, device=thetas.device)
    powers = thetas[:, None] ** (degrees - 1 if slope else degrees)
    return (powers * degrees if slope else powers) @ coefficients.T


def _interpolated_rows(
    tableau: Tableau,
    size: float,
    y: Tensor,
    thetas: Tensor,
    rows: tuple[Sequence[Tensor], Tensor],
) -> Tensor:
    slopes, samples = rows
    chosen = torch.stack([slope[samples].reshape(len(samples), -1) for slope in slopes])
    weights = dense_matrix(tableau, thetas).to(y.dtype)
    change = torch.einsum("os,sof->of", weights, chosen).view(-1, *y.shape[1:])
    return torch.add(y[samples], change, alpha=size)


def combine(y: Tensor, slopes: Sequence[Tensor], weights: Sequence[Any], size: Any) -> Tensor:
    """`y + size * Σ weights * slopes`, with numbers or tensors without axes as factors."""
    change = None
    for slope, weight in zip(slopes, weights, strict=False):
        if isinstance(weight, Tensor):
            part = weight.to(y.dtype) * slope
            change = part if change is None else change + part
        elif weight != 0:
            change = slope * weight if change is None else torch.add(change, slope, alpha=weight)
    if change is None:
        return y
    if isinstance(size, Tensor):
        return y + size.to(y.dtype) * change
    return torch.add(y, change, alpha=size)


def _keep_inside(
    times: Sequence[Tensor], tableau: Tableau, start: Moment, end: Moment
) -> Sequence[Tensor]:
    """Move the times of stages at the end of a step to the last moment before it."""
    before = torch.nextafter(times[0].new_tensor(end.value), times[0].new_tensor(start.value))
    return [before if node == 1 else time for time, node in zip(times, tableau.nodes, strict=True)]
