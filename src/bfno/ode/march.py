"""The integration loop: steps from one requested time to the next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from bfno.ode.control import Control
from bfno.ode.solution import Stats, Status
from bfno.ode.step import Moment, Stepper

__all__ = ["March", "Outputs", "Path", "Plan", "RowOutputs", "SharedOutputs", "Stop", "TakenStep"]


class Stop(NamedTuple):
    """A moment on which a step has to end; where the field jumps, the next one starts afresh."""

    moment: Moment
    jump: bool = False


class Served(NamedTuple):
    """Requested times that one step served.

    Attributes:
        at_end: Indices of times at which the step ended.
        inside: Indices of times inside the step.
        rows: Sample and time indices, with one row of times a sample.
    """

    at_end: tuple[int, ...] = ()
    inside: tuple[int, ...] = ()
    rows: tuple[Tensor, Tensor] | None = None


class TakenStep(NamedTuple):
    """What a backward pass needs to know of an accepted step."""

    start: Moment
    end: Moment
    times: Sequence[Tensor]
    inputs: Sequence[Tensor]
    served: Served


class Outputs(Protocol):
    """Collects the states at the requested times while the loop goes past them."""

    def collect(
        self, stepper: Stepper, start: Moment, end: Moment, ends: tuple[Tensor, Tensor]
    ) -> Served: ...

    def complete(self) -> bool: ...


class SharedOutputs:
    """Requested times that are the same for the whole state."""

    def __init__(self, times: Sequence[float], y0: Tensor) -> None:
        self.times = times
        self.states = [y0]
        self._forward = 1.0 if len(times) < 2 or times[-1] >= times[0] else -1.0

    def complete(self) -> bool:
        return len(self.states) == len(self.times)

    def collect(
        self, stepper: Stepper, start: Moment, end: Moment, ends: tuple[Tensor, Tensor]
    ) -> Served:
        at_end, inside = [], []
        for index in range(len(self.states), len(self.times)):
            ahead = (self.times[index] - end.value) * self._forward
            if ahead > 0:
                break
            if ahead == 0:
                at_end.append(index)
                self.states.append(ends[1])
            else:
                inside.append(index)
                requested = Moment(self.times[index], index)
                self.states.append(stepper.interpolate(start, end, ends[0], requested))
        return Served(tuple(at_end), tuple(inside))

    def stacked(self) -> Tensor:
        """All states, those that were not reached as not-a-number."""
        missing = len(self.times) - len(self.states)
        return torch.stack(self.states + [torch.full_like(self.states[0], math.nan)] * missing)


class RowOutputs:
    """One row of requested times a sample, on a clock that runs from zero to one for each."""

    def __init__(self, clock: Tensor, y0: Tensor) -> None:
        self._clock = clock
        self._values = clock.detach()
        self._pieces: list[tuple[tuple[Tensor, Tensor], Tensor]] = []
        first = torch.nonzero(self._values <= 0, as_tuple=True)
        self._pieces.append(((first[0], first[1]), y0[first[0]]))
        self._reached, self._y0 = 0.0, y0

    def complete(self) -> bool:
        return self._reached >= 1

    def collect(
        self, stepper: Stepper, start: Moment, end: Moment, ends: tuple[Tensor, Tensor]
    ) -> Served:
        self._reached = end.value
        inside = (self._values > start.value) & (self._values <= end.value)
        samples, columns = torch.nonzero(inside, as_tuple=True)
        if len(samples):
            size = end.value - start.value
            thetas = (self._clock[samples, columns] - start.value) / size
            values = stepper.interpolate_rows(size, ends[0], thetas, samples)
            self._pieces.append(((samples, columns), values))
        return Served(rows=(samples, columns))

    def stacked(self) -> Tensor:
        """All states, `(batch, time, …)`, those that were not reached as not-a-number."""
        shape = (*self._clock.shape, *self._y0.shape[1:])
        result = self._y0.new_full(shape, math.nan)
        samples = torch.cat([index[0] for index, _ in self._pieces])
        columns = torch.cat([index[1] for index, _ in self._pieces])
        return result.index_put((samples, columns), torch.cat([v for _, v in self._pieces]))


@dataclass(frozen=True)
class Plan:
    """Where steps may and must end.

    Attributes:
        start: The first moment.
        stops: Moments on which steps end, in order. Fixed steps end on nothing else; adaptive steps
            may go past the last one.
        control: Rule for the step size, or None to step from stop to stop.
        direction: 1.0 forward in time, -1.0 backward.
        order: Order of the method.
        max_steps: Most steps that are tried.
        renew_limit: Whether the count begins anew at every requested time.
        jump_at_start: Whether the field may jump at the first moment.
    """

    start: Moment
    stops: Iterable[Stop]
    control: Control | None
    direction: float
    order: int
    max_steps: int
    renew_limit: bool = False
    jump_at_start: bool = False


@dataclass
class Path:
    """Where the loop has been.

    Attributes:
        status: How it ended.
        moment: Where it ended.
        steps: The accepted steps, if they are to be kept.
    """

    status: Status
    moment: Moment
    steps: list[TakenStep] = field(default_factory=list)


class March:
    """One integration, from the start of a plan until every requested time is served.

    Args:
        stepper: Takes the steps.
        plan: Where steps end.
        outputs: Collects the requested states.
        stats: Where steps are counted.
        keep: Whether to keep what a backward pass needs.
    """

    def __init__(
        self, stepper: Stepper, plan: Plan, outputs: Outputs, stats: Stats, *, keep: bool
    ) -> None:
        self._stepper, self._plan, self._outputs, self._stats = stepper, plan, outputs, stats
        self._keep = keep
        self._path = Path(Status.SUCCESS, plan.start)

    def run(self, y0: Tensor) -> Path:
        """Integrate from `y0`."""
        if self._outputs.complete():
            return self._path
        self._stepper.prepare(self._plan.control)
        if self._plan.control is None:
            return self._run_fixed(y0)
        return self._run_adaptive(y0, self._plan.control)

    def _run_fixed(self, y: Tensor) -> Path:
        stepper, reuse, fresh = self._stepper, self._stepper.tableau.reuses_last_stage, True
        jumped = self._plan.jump_at_start
        for moment, jump in self._plan.stops:
            start = self._path.moment
            if fresh or not reuse:
                stepper.start(self._just_after(start, y) if jumped else start, y)
            y1 = stepper.attempt(start, moment, y, end_inside=jump)
            self._advance(moment, y, y1)
            if reuse:
                stepper.accept()
            y, fresh, jumped = y1, jump, jump
            if self._outputs.complete():
                break
        if not bool(torch.isfinite(y).all()):
            return self._fail(Status.NON_FINITE)
        return self._path

    def _run_adaptive(self, y: Tensor, control: Control) -> Path:
        stepper, plan = self._stepper, self._plan
        slope = stepper.start(plan.start, y)
        if not bool(torch.isfinite(slope).all()):
            return self._fail(Status.NON_FINITE)
        size = plan.direction * self._first_size(control, y, slope)
        stops, finite, limit = _StopList(plan.stops), True, plan.max_steps
        while not self._outputs.complete():
            start = self._path.moment
            size = control.clamp(size)
            stop, end = stops.end_of_step(start, size)
            if end.value == start.value:
                return self._fail(Status.STEP_UNDERFLOW if finite else Status.NON_FINITE)
            if limit == 0:
                return self._fail(Status.STEP_LIMIT)
            limit -= 1
            y1 = stepper.attempt(start, end, y, end_inside=stop is not None and stop.jump)
            taken = end.value - start.value
            ratio = stepper.error_ratio(control, taken, y, y1)
            finite = math.isfinite(ratio)
            # Near the resolution of time a step is rounded up; its nominal size still shrinks.
            tried = size if stop is None else taken
            wanted, size = size, control.next_size(tried, ratio, plan.order)
            if not (ratio <= 1 or (finite and abs(taken) <= control.min_step)):
                self._stats.rejected += 1
                continue
            if self._advance(end, y, y1) and plan.renew_limit:
                limit = plan.max_steps
            y = y1
            stepper.accept()
            if stop is not None:
                stops.drop_first()
                # The stop cut the step short; that says nothing about the next one.
                size = max(size, wanted, key=abs)
                if stop.jump:
                    stepper.start(self._just_after(end, y), y)
        return self._path

    def _first_size(self, control: Control, y: Tensor, slope: Tensor) -> float:
        if control.first_step is not None:
            return control.first_step
        direction, begin = self._plan.direction, self._path.moment.value

        def evaluate(time: float, state: Tensor) -> Tensor:
            moment = Moment(begin + direction * time)
            return direction * self._stepper.evaluate(moment, state)

        with torch.no_grad():
            return control.first_size(evaluate, y, direction * slope, self._plan.order)

    def _advance(self, end: Moment, y: Tensor, y1: Tensor) -> bool:
        """Count an accepted step and collect what it serves; tell whether it served anything."""
        start = self._path.moment
        self._stats.accepted += 1
        self._stats.step_ends.append(end.value)
        served = self._outputs.collect(self._stepper, start, end, (y, y1))
        if self._keep:
            stepper = self._stepper
            self._path.steps.append(TakenStep(start, end, stepper.times, stepper.inputs, served))
        self._path.moment = end
        return bool(served.at_end or served.inside)

    def _just_after(self, moment: Moment, like: Tensor) -> Moment:
        """The next moment that the state's dtype can tell from this one."""
        value = like.new_tensor(moment.value)
        after = torch.nextafter(value, value + self._plan.direction)
        return Moment(float(after), moment.anchor)

    def _fail(self, status: Status) -> Path:
        self._path.status = status
        return self._path


class _StopList:
    """The stops ahead, the next one first."""

    def __init__(self, stops: Iterable[Stop]) -> None:
        self._stops = list(stops)[::-1]

    def end_of_step(self, start: Moment, size: float) -> tuple[Stop | None, Moment]:
        """Where a step of `size` ends, and the stop it ends on if there is one."""
        free = start.value + size
        if self._stops:
            stop = self._stops[-1]
            # A sliver that rounding would leave behind is taken along.
            if abs(stop.moment.value - start.value) <= abs(size) * (1 + 1e-9):
                return stop, stop.moment
        return None, Moment(free)

    def drop_first(self) -> None:
        self._stops.pop()
