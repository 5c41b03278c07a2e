"""One Runge–Kutta step.

`take_stages` is the step. Weighted sums of slopes are formed in several ways: recorded by autograd
(`Sums`), without a graph in one table (`TableSums`), or with a separate step size for every sample
(`RowSums` for `advance`, `SampleSums` for independent=True).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bfno.ode.control import Control
from bfno.ode.evaluate import Evaluator
from bfno.ode.replay import Replayer
from bfno.ode.solution import Stats, Status
from bfno.ode.state import clock_dtype, constant, real_dtype, scale_rows
from bfno.ode.stiffness import Detector
from bfno.ode.tableaus import Row, Tableau
from bfno.tracing import is_transformed, without_autocast

__all__ = [
    "Clock",
    "Moment",
    "RecordingStepper",
    "ReplayedStepper",
    "RowSums",
    "Stepper",
    "Sums",
    "TableSums",
    "combine",
    "combine_quickly",
    "combine_rows",
    "dense_matrix",
    "take_stages",
]


class Moment(NamedTuple):
    """A point in time, and the requested time that it moves with.

    A step boundary at a requested time moves with that time; one where the field jumps does not
    move; boundaries that the solver chose freely move like the one before them. Gradients with
    respect to times follow from this.
    """

    value: float
    anchor: int | None = 0


class Clock:
    """Gives the time as tensors like the state; gradients flow through them to requested times.

    Args:
        ts: Requested times.
        like: A state.
    """

    def __init__(self, ts: Tensor, like: Tensor) -> None:
        self._kind: dict[str, Any] = {"dtype": real_dtype(like.dtype), "device": like.device}
        self._like = torch.empty((), **self._kind)
        moving = ts.requires_grad and torch.is_grad_enabled()
        self._ts = ts.to(clock_dtype(ts.device)) if moving or is_transformed() else None
        self._requested = ts.tolist() if self._ts is not None else []

    @property
    def moves(self) -> bool:
        """Whether gradients flow to requested times."""
        return self._ts is not None

    def time(self, moment: Moment) -> Tensor:
        """A moment."""
        if self._ts is None:
            return self._like.new_full((), moment.value)  # without waiting for the device
        return torch.as_tensor(self.exact(moment), **self._kind)

    def size(self, start: Moment, end: Moment) -> Any:
        """Signed length of a step: a number, or a tensor without axes."""
        if start.anchor == end.anchor or self._ts is None:  # both move together
            return end.value - start.value
        return self.exact(end) - self.exact(start)

    def move_together(self, one: Moment, other: Moment) -> bool:
        """Whether two moments are the same point in time, even if gradients differ."""
        return one.value == other.value and (self._ts is None or one.anchor == other.anchor)

    def times(self, nodes: Sequence[float], start: Moment, end: Moment) -> Sequence[Tensor]:
        """The stages' times, exact in double precision before they are rounded."""
        first, size = self.exact(start), self.size(start, end)
        if self._ts is None:
            values = [first + node * size for node in nodes]
            if self._like.device.type != "cpu":  # because a copy would make the host wait
                return [self._like.new_full((), value) for value in values]
            return self._like.new_tensor(values).unbind(0)
        return [torch.as_tensor(first + node * size, **self._kind) for node in nodes]

    def just_before(self, end: Moment, start: Moment) -> Tensor:
        """The last moment before the end of a step that the state's dtype distinguishes from it."""
        value = torch.tensor(end.value, **self._kind)
        before = torch.nextafter(value, torch.tensor(start.value, **self._kind))
        return self.time(Moment(before.item(), end.anchor))

    def exact(self, moment: Moment) -> Any:
        """A moment before it is rounded: a number, or a tensor without axes."""
        if self._ts is None or moment.anchor is None:
            return moment.value
        return self._ts[moment.anchor] + (moment.value - self._requested[moment.anchor])


class Sums:
    """Weighted sums of the slopes of one step, in operations that autograd records.

    Args:
        tableau: The method.
    """

    def __init__(self, tableau: Tableau) -> None:
        self.tableau = tableau
        self.slopes: list[Tensor] = []
        self._y: Any = None
        self._size: Any = None
        self._point: Any = None

    def begin(self, y: Tensor, size: Any) -> None:
        """Start a step of a size from a state."""
        self._y, self._size, self._point, self.slopes = y, size, y, []

    def add(self, slope: Tensor) -> None:
        """Take the slope of the next stage."""
        self.slopes.append(slope)

    def clear(self) -> None:
        """Release the slopes and their graphs."""
        self._point, self.slopes = self._y, []

    def point(self) -> Tensor:
        """Where the next stage is evaluated."""
        row, last = self.tableau.stages[len(self.slopes)], len(self.tableau.stages) - 1
        # A stage at the end is the result of the step, whose change is rounded once.
        sums = combine if len(self.slopes) == last else combine_quickly
        self._point = sums(self._y, self.slopes, row, self._size)
        return self._point

    def end(self) -> Tensor:
        """The state at the end of the step."""
        if self.tableau.reuses_last_stage:
            return self._point
        return combine(self._y, self.slopes, self.tableau.weights, self._size)

    def error(self) -> Tensor:
        """The error estimate of the step, without a graph."""
        slopes = torch.stack([slope.detach().reshape(-1) for slope in self.slopes])
        weights = constant(self.tableau.error or (0.0,) * len(slopes), slopes)
        with without_autocast(slopes):
            return torch.mv(slopes.T, weights).mul_(self._size).view(self._y.shape)


class TableSums(Sums):
    """The same without a graph.

    One table holds the inputs of all stages, the change over the step and its error estimate. A
    stage adds its slope, weighted, to all of them in one operation.

    Args:
        tableau: The method.
        like: A state.
    """

    def __init__(self, tableau: Tableau, like: Tensor) -> None:
        super().__init__(tableau)
        # A stage at the end of the step contributes only to the error, not to the step.
        self._inner = len(tableau.stages) - tableau.reuses_last_stage
        self._last_share = (tableau.error or (0.0,))[-1]
        self._begins = constant([1.0] * (self._inner - 1) + [0.0, 0.0], like)
        self._shares = [constant(self._column(stage), like) for stage in range(self._inner)]
        self._table, self._error, self._change = like, like, like
        self._points: list[Any] = []

    def _column(self, stage: int) -> list[float]:
        """Weights of one slope in later stages, in the change and in the error."""
        later = self.tableau.stages[1 : self._inner]
        inputs = [row[stage] if stage < len(row) else 0.0 for row in later]
        error = self.tableau.error
        return [*inputs, self.tableau.weights[stage], 0.0 if error is None else error[stage]]

    def begin(self, y: Tensor, size: float) -> None:
        self._y, self._size, self.slopes = y, size, []
        self._table = torch.outer(self._begins, y.reshape(-1))
        rows = self._table.view(len(self._table), *y.shape).unbind(0)
        self._points, self._change, self._error = [y, *rows[:-2]], rows[-2], rows[-1]

    def add(self, slope: Tensor) -> None:
        stage = len(self.slopes)
        self.slopes.append(slope)
        if stage == self._inner:
            self._error.add_(slope, alpha=self._size * self._last_share)
            return
        self._table.addr_(self._shares[stage], slope.reshape(-1), alpha=self._size)
        if stage == self._inner - 1:
            # Summed up before it is added, the change is rounded once.
            self._points.append(self._y + self._change)

    def point(self) -> Tensor:
        return self._points[len(self.slopes)]

    def end(self) -> Tensor:
        return self._points[self._inner]

    def error(self) -> Tensor:
        return self._error


class RowSums(Sums):
    """The same with a step size for every sample."""

    def begin(self, y: Tensor, size: Tensor) -> None:
        super().begin(y, scale_rows(size.to(y.dtype), y))

    def point(self) -> Tensor:
        return self._moved(self.tableau.stages[len(self.slopes)])

    def end(self) -> Tensor:
        return self._moved(self.tableau.weights)

    def _moved(self, weights: Sequence[float]) -> Tensor:
        y = self._y
        for slope, weight in zip(self.slopes, weights, strict=True):
            if weight:
                y = torch.addcmul(y, slope, self._size, value=weight)
        return y


def take_stages(
    evaluate: Callable[[Tensor, Tensor], Tensor], times: Sequence[Tensor], sums: Sums
) -> Tensor:
    """Evaluate the stages whose slopes are missing in `sums`; return the state after the step."""
    for time in times[len(sums.slopes) :]:
        sums.add(evaluate(time, sums.point()))
    return sums.end()


class Stepper:
    """Takes steps of one method.

    Args:
        evaluate: Calls the field.
        tableau: The method.
        clock: Gives the time.
        sums: Forms the sums of a step.
        stats: Where evaluations are counted.

    Attributes:
        needs_start: Whether every step needs the slope at its start beforehand.
        failure: Why the last attempt has no result, if it has none.
    """

    needs_start = False
    failure: Status | None = None

    def __init__(
        self, evaluate: Evaluator, tableau: Tableau, clock: Clock, sums: Sums, stats: Stats
    ) -> None:
        self.tableau, self.clock, self.stats = tableau, clock, stats
        self._evaluate, self._field, self._sums = evaluate, evaluate.field, sums
        self._first: Any = None  # slope of the next step's first stage, if it is known
        self._moving: Tensor | None = None  # which samples still move, if not all

    @property
    def slopes(self) -> Sequence[Tensor]:
        """Slopes of the stages of the last attempt."""
        return self._sums.slopes

    @property
    def last_slope(self) -> Tensor | None:
        """Slope at the start of the next step, if it is known."""
        return self._first

    def follow(self, other: Stepper) -> None:
        """Take over from another stepper; some samples may stand still."""
        if other._moving is not None:
            self._evaluate = copy.copy(self._evaluate)
            self._evaluate.field, self._moving = other._evaluate.field, other._moving

    def detector(self, goals: Sequence[float]) -> Any:
        """The detector of stiffness, which looks at accepted steps; see `Detector`."""
        return Detector(self.tableau, goals, self.stats)

    def prepare(self, control: Control | None) -> None:
        """Note how errors will be measured, before the first step."""

    def evaluate(self, moment: Moment, y: Tensor) -> Tensor:
        """The field at one moment."""
        self.stats.forward_evaluations += 1
        return self._evaluate(self.clock.time(moment), y)

    def start(self, moment: Moment, y: Tensor, slope: Tensor | None = None) -> Tensor:
        """Evaluate the first stage of the next step, unless its slope is known, and return it."""
        self._first = self.evaluate(moment, y) if slope is None else slope
        return self._first

    def attempt(self, start: Moment, end: Moment, y: Tensor, *, end_inside: bool = False) -> Tensor:
        """Try a step and return the state at its end.

        Args:
            start: Where the step begins.
            end: Where it ends.
            y: State at the start.
            end_inside: Evaluate stages at the end just before it, where the field may jump.
        """
        self._sums.begin(y, self.clock.size(start, end))
        if self._first is not None:
            self._sums.add(self._first)
        times = self._stage_times(start, end, end_inside)
        return take_stages(self._evaluate, times, self._sums)

    def _stage_times(self, start: Moment, end: Moment, end_inside: bool) -> Sequence[Tensor]:
        times, nodes = self.clock.times(self.tableau.nodes, start, end), self.tableau.nodes
        self.stats.forward_evaluations += len(times) - (self._first is not None)
        if end_inside:
            before = self.clock.just_before(end, start)
            times = [before if n == 1 else t for t, n in zip(times, nodes, strict=True)]
        return times

    def error_ratio(self, control: Control, y: Tensor, y1: Tensor) -> float:
        """Error of the last attempt, from `y` to `y1`, in units of the tolerance."""
        with torch.no_grad():
            error = self._error()
            if self._moving is not None and not control.is_elementwise():
                # Samples that stand still have no error, and would loosen a mean over all.
                error, y, y1 = error[self._moving], y[self._moving], y1[self._moving]
            return control.error_ratio(error, y, y1)

    def _error(self) -> Tensor:
        """The error estimate of the last attempt."""
        return self._sums.error()

    def accept(self) -> None:
        """Reuse the last stage of the last attempt as the first one of the next, if possible."""
        self._first = self._sums.slopes[-1] if self.tableau.reuses_last_stage else None

    def discard(self) -> None:
        """Discard the last attempt, which was rejected."""
        self._sums.clear()

    def interpolate(self, start: Moment, end: Moment, y: Tensor, requested: Moment) -> Tensor:
        """Dense output of the last attempt at a moment between its ends."""
        size = self.clock.size(start, end)
        theta = self.clock.size(start, requested) / size
        return combine(y, self.slopes, self.tableau.dense_weights(theta), size)

    def freeze(self, moving: Tensor) -> None:
        """Let only some samples move in later steps.

        Args:
            moving: Which samples, `(batch,)`.
        """
        field = self._field

        def frozen(t: Tensor, y: Tensor) -> Tensor:
            return field(t, y).masked_fill(scale_rows(~moving, y), 0)

        last = self._sums.slopes[-1]
        self._sums.slopes[-1] = last.masked_fill(scale_rows(~moving, last), 0)
        # A new object: a backward pass repeats earlier steps with the field that they had.
        self._evaluate = copy.copy(self._evaluate)
        self._evaluate.field = frozen
        self._moving = moving

    def interpolate_rows(self, size: float, y: Tensor, thetas: Tensor, samples: Tensor) -> Tensor:
        """Dense output of single samples, each at its own share θ of the last attempt.

        Args:
            size: Size of the attempt.
            y: The state that it began with.
            thetas: The shares, one for each output.
            samples: Which sample each output is of, in ascending order.
        """
        weights = (size * dense_matrix(self.tableau, thetas)).to(y.dtype)
        with without_autocast(y):
            change = combine_rows(weights, self.slopes, samples)
        return y.index_select(0, samples) + change  # not a part of the sum, which rounds often


class RecordingStepper(Stepper):
    """Takes steps, and can record evaluations for a backward pass to repeat.

    Args:
        evaluate: Calls the field.
        tableau: The method.
        clock: Gives the time.
        replayer: Records and repeats, or None to keep all graphs.
        stats: Where evaluations are counted.
    """

    def __init__(
        self,
        evaluate: Evaluator,
        tableau: Tableau,
        clock: Clock,
        replayer: Replayer | None,
        stats: Stats,
    ) -> None:
        super().__init__(evaluate, tableau, clock, Sums(tableau), stats)
        self._replayer = replayer

    def evaluate(self, moment: Moment, y: Tensor) -> Tensor:
        if self._replayer is None or not torch.is_grad_enabled() or self._replayer.reserve():
            return super().evaluate(moment, y)
        self.stats.forward_evaluations += 1
        time = self.clock.time(moment)
        with self._replayer.recording(self._evaluate, (time, y)) as call:
            slope = call.result = self._evaluate(time, y)
        return slope


class ReplayedStepper(RecordingStepper):
    """Takes steps that a backward pass repeats as a whole.

    For small states, recording and repeating single evaluations takes longer than the evaluations
    themselves; instead, the graphs of all evaluations of one step exist at once.
    """

    def attempt(self, start: Moment, end: Moment, y: Tensor, *, end_inside: bool = False) -> Tensor:
        if self._replayer is None or self._replayer.reserve():
            return super().attempt(start, end, y, end_inside=end_inside)
        size, evaluate, tableau = self.clock.size(start, end), self._evaluate, self.tableau
        times = self._stage_times(start, end, end_inside)
        first = () if self._first is None else (self._first,)

        def step(y: Tensor, *first: Tensor) -> tuple[Any, ...]:
            sums = Sums(tableau)
            sums.begin(y, size)
            for slope in first:
                sums.add(slope)
            # The slopes show a change of the field that a small step nearly hides.
            return take_stages(evaluate, times, sums), sums, *sums.slopes

        with self._replayer.recording(step, (y, *first), len(times) - len(first)) as call:
            y1, self._sums, *_ = call.result = step(y, *first)
        return y1


def dense_matrix(tableau: Tableau, thetas: Tensor) -> Tensor:
    """`p_i(θ)` for many θ: one row per θ, one column per stage."""
    coefficients = constant(tableau.dense, thetas)
    degrees = torch.arange(1, coefficients.shape[1] + 1, device=thetas.device)
    return thetas[:, None] ** degrees @ coefficients.T


def combine_rows(weights: Tensor, parts: Sequence[Tensor], samples: Tensor) -> Tensor:
    """`Σ weights[r, m] * parts[m][samples[r]]` for every row `r`, as products of matrices.

    Rows of a sample share its parts, which would take far longer to copy for every row than to
    multiply. They are divided into groups of the same size, padded in the last group of each
    sample, so that a sample with many rows does not enlarge the others. The largest possible number
    of groups is known without reading the numbers, which would mean waiting for a device.

    Args:
        weights: `(rows, parts)`.
        parts: `(batch, ...)` each.
        samples: `(rows,)`, ascending; at least one.

    Returns:
        `(rows, ...)`.
    """
    rows, batch, shape = len(samples), len(parts[0]), parts[0].shape[1:]
    size = -(-rows // min(rows, batch))
    groups = rows if size == 1 else rows // size + batch
    number = torch.arange(rows, device=samples.device)
    number = number - torch.searchsorted(samples, samples)  # of a row, within its sample
    group = (number % size == 0).cumsum(0) - 1
    place = group * size + number % size
    owner = torch.zeros(groups, dtype=samples.dtype, device=samples.device)
    owner = owner.scatter(0, group, samples)
    chosen = [part.reshape(batch, -1).index_select(0, owner) for part in parts]
    spread = weights.new_zeros(groups * size, len(parts)).index_copy(0, place, weights)
    found = torch.bmm(spread.unflatten(0, (groups, size)), torch.stack(chosen, dim=1))
    return found.flatten(0, 1).index_select(0, place).view(rows, *shape)


def combine_quickly(y: Tensor, slopes: Sequence[Tensor], weights: Row, size: Any) -> Tensor:
    """`combine` with numbers, in fewer operations, each of which rounds."""
    if isinstance(size, Tensor):
        return combine(y, slopes, weights, size)
    for slope, weight in zip(slopes, weights, strict=True):
        if weight:
            y = torch.add(y, slope, alpha=weight * size)
    return y


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
