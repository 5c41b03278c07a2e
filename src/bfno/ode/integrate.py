"""The integration loop: steps from one requested time to the next."""

from __future__ import annotations

import bisect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from bfno.ode.control import FIRST_RATIOS, Control
from bfno.ode.replay import Room
from bfno.ode.solution import Stats, Status
from bfno.ode.step import Moment, Stepper
from bfno.tracing import is_transformed

__all__ = [
    "SLIVER",
    "AdaptiveIntegration",
    "FixedIntegration",
    "Integration",
    "Outputs",
    "Plan",
    "RowOutputs",
    "SharedOutputs",
    "Stop",
    "Watcher",
]


SLIVER = 1 + 1e-9
"""Share by which a step may be longer, so that rounding leaves no tiny step before a stop."""


class Stop(NamedTuple):
    """A moment at which a step has to end; after a jump of the field, the next starts afresh."""

    moment: Moment
    jump: bool = False


@dataclass(frozen=True)
class Plan:
    """Where steps may and must end.

    Attributes:
        start: The first moment.
        stops: Moments on which steps end, in order. Fixed steps end on nothing else; adaptive steps
            may go past the last one.
        control: Rule for the step size, or None to step from stop to stop.
        direction: 1.0 forward in time, -1.0 backward.
        order: Power of the step size that the error estimate falls with.
        max_steps: Largest number of steps tried.
        renew_limit: Whether the count restarts at every requested time.
        jump_at_start: Whether the field may jump at the first moment.
        keep_pace: Whether the step after one that a stop cut short may be as large as that one was
            meant to be.
        knots: Times that the moments move with, if not the requested ones alone: those first, then
            the points of a grid that was computed from them.
        goals: Where the count of steps restarts, the field may jump, or the solve ends, in order;
            None if unknown, as when an event ends the solve.
        trial_limit: How far beyond the start the field may be evaluated to estimate a first step.
    """

    start: Moment
    stops: Iterable[Stop]
    control: Control | None
    direction: float
    order: int
    max_steps: int
    renew_limit: bool = False
    jump_at_start: bool = False
    keep_pace: bool = True
    knots: Tensor | None = None
    goals: tuple[float, ...] = ()
    trial_limit: float = math.inf


class Outputs(Protocol):
    """Collects the states at the requested times while the loop goes past them."""

    def collect(
        self, stepper: Stepper, start: Moment, end: Moment, ends: tuple[Tensor, Tensor]
    ) -> bool:
        """Look at an accepted step and its end states; return whether it served a request."""
        ...

    def complete(self) -> bool:
        """Whether all requests are served."""
        ...


class SharedOutputs:
    """Requested times that are the same for the whole state."""

    def __init__(self, times: Sequence[float], y0: Tensor) -> None:
        self.times = times
        self.states = [y0]
        self._forward = 1.0 if len(times) < 2 or times[-1] >= times[0] else -1.0

    @property
    def served(self) -> int:
        """Number of requests served so far."""
        return len(self.states)

    def complete(self) -> bool:
        return len(self.states) == len(self.times)

    def collect(
        self, stepper: Stepper, start: Moment, end: Moment, ends: tuple[Tensor, Tensor]
    ) -> bool:
        before = len(self.states)
        for index in range(before, len(self.times)):
            if (self.times[index] - end.value) * self._forward > 0:
                break
            requested = Moment(self.times[index], index)
            at_end = stepper.clock.move_together(end, requested)
            self.states.append(
                ends[1] if at_end else stepper.interpolate(start, end, ends[0], requested)
            )
        return len(self.states) > before

    def stacked(self) -> Tensor:
        """All states; those that were not reached are not-a-number."""
        missing = len(self.times) - len(self.states)
        return torch.stack(self.states + [torch.full_like(self.states[0], math.nan)] * missing)


class RowOutputs:
    """One row of requested times per sample, on a clock that runs from zero to one for each.

    Attributes:
        served: Number of requests served so far.
    """

    def __init__(self, clock: Tensor, y0: Tensor) -> None:
        self._clock, self._columns = clock, clock.shape[1]
        values, self._order = clock.detach().flatten().sort()
        self._values = values.tolist()  # once, so that no step waits for a device
        self.served = bisect.bisect_right(self._values, 0.0)
        self._reached, self._y0 = 0.0, y0
        samples, columns = self.places(0, self.served)
        self._pieces = [((samples, columns), y0[samples])]

    def complete(self) -> bool:
        return self._reached >= 1

    def collect(
        self, stepper: Stepper, start: Moment, end: Moment, ends: tuple[Tensor, Tensor]
    ) -> bool:
        self._reached = end.value
        first, self.served = self.served, bisect.bisect_right(self._values, end.value)
        places = self.places(first, self.served)
        if self.served > first:
            values = self.between(stepper, start.value, end.value, ends[0], places)
            self._pieces.append((places, values))
        return self.served > first

    def between(
        self, stepper: Stepper, start: float, end: float, y: Tensor, places: tuple[Tensor, Tensor]
    ) -> Tensor:
        """States for some requests on the last step, which began at the state `y`."""
        samples, columns = places
        thetas = (self._clock[samples, columns] - start) / (end - start)
        return stepper.interpolate_rows(end - start, y, thetas, samples)

    def places(self, first: int, end: int) -> tuple[Tensor, Tensor]:
        """Samples and columns of some requests, which are counted from the earliest one."""
        chosen = self._order[first:end].sort().values
        return chosen // self._columns, chosen % self._columns

    def stacked(self) -> Tensor:
        """All states, `(batch, time, …)`; those that were not reached are not-a-number."""
        shape = (*self._clock.shape, *self._y0.shape[1:])
        result = self._y0.new_full(shape, math.nan)
        samples = torch.cat([index[0] for index, _ in self._pieces])
        columns = torch.cat([index[1] for index, _ in self._pieces])
        return result.index_put((samples, columns), torch.cat([v for _, v in self._pieces]))


class Watcher(Protocol):
    """Receives every step."""

    def tried(self, start: Moment, size: float, y: Tensor) -> None:
        """Called before a step of a size is tried from a state."""
        ...

    def judged(self, start: Moment, size: float, y: Tensor, *, accepted: bool) -> None:
        """Called when an adaptive step was accepted or rejected."""
        ...

    def moved(self, end: Moment, y1: Tensor) -> None:
        """Called when the solution has reached a moment."""
        ...


class Integration(ABC):
    """One integration, from the start of a plan until every requested time is served.

    Args:
        stepper: Takes the steps.
        plan: Where steps end.
        outputs: Collects the requested states.
        stats: Where steps are counted.
        watcher: Receives every step.
        room: Memory that the graphs of the steps may keep.

    Attributes:
        status: How it ended.
        moment: Where it ended.
    """

    def __init__(
        self,
        stepper: Stepper,
        plan: Plan,
        outputs: Outputs,
        stats: Stats,
        watcher: Watcher | None = None,
        room: Room | None = None,
    ) -> None:
        self._stepper, self._plan, self._outputs = stepper, plan, outputs
        self._stats, self._watcher, self._room = stats, watcher, room or Room()
        self.status, self.moment = Status.SUCCESS, plan.start

    @abstractmethod
    def run(self, y: Tensor, slope: Tensor | None = None) -> None:
        """Integrate.

        Args:
            y: State at the start.
            slope: Value of the field there, if it is known.
        """

    def _advance(self, end: Moment, y: Tensor, y1: Tensor) -> bool:
        """Count an accepted step and collect what it serves; return whether it served anything."""
        self._stats.accepted += 1
        self._stats.step_ends.append(end.value)
        served = self._outputs.collect(self._stepper, self.moment, end, (y, y1))
        self.moment = end
        if self._watcher is not None:
            self._watcher.moved(end, y1)
        return served

    def _just_after(self, moment: Moment, like: Tensor) -> Moment:
        """The next moment that the state's dtype can distinguish from this one."""
        value = torch.tensor(moment.value, dtype=like.real.dtype)
        after = torch.nextafter(value, torch.full_like(value, self._plan.direction * math.inf))
        return Moment(float(after), moment.anchor)


class FixedIntegration(Integration):
    """Steps from stop to stop."""

    def run(self, y: Tensor, slope: Tensor | None = None) -> None:
        stepper, jumped, fresh = self._stepper, self._plan.jump_at_start, True
        reuse = stepper.tableau.reuses_last_stage
        for moment, jump in self._plan.stops:
            if self._outputs.complete():
                break
            start = self.moment
            if self._watcher is not None:
                self._watcher.tried(start, moment.value - start.value, y)
            if stepper.needs_start or jumped or slope is not None or (fresh and reuse):
                if jumped:  # a known slope belongs to the other side of the jump
                    stepper.start(self._just_after(start, y), y)
                else:
                    stepper.start(start, y, slope)
                slope = None
            y1 = stepper.attempt(start, moment, y, end_inside=jump)
            if stepper.failure is not None:
                self.status = stepper.failure
                return
            self._advance(moment, y, y1)
            stepper.accept()
            y, fresh, jumped = y1, jump, jump
        # Under a transform there may be no numbers to check.
        if not is_transformed() and not bool(torch.isfinite(y).all()):
            self.status = Status.NON_FINITE


class AdaptiveIntegration(Integration):
    """Steps whose size a rule chooses."""

    def run(self, y: Tensor, slope: Tensor | None = None) -> None:
        stepper, plan, control = self._stepper, self._plan, self._plan.control
        if self._outputs.complete() or control is None:
            return
        stepper.prepare(control)
        if plan.jump_at_start:
            slope = stepper.start(self._just_after(plan.start, y), y).detach()
        else:
            slope = stepper.start(plan.start, y, slope).detach()
        size = plan.direction * self._first_size(control, y, slope)
        stops, finite, limit = _StopList(plan.stops), True, plan.max_steps
        past, detector = FIRST_RATIOS, stepper.detector(plan.goals)
        while not self._outputs.complete():
            start = self.moment
            control.refuse_what_stands_still(y, lambda y=y: control.tolerance(y))
            size = control.clamp(size)
            stop, end = stops.end_of_step(start, size)
            if end.value == start.value:
                self.status = Status.STEP_UNDERFLOW if finite else Status.NON_FINITE
                self.status = stepper.failure or self.status
                return
            if limit == 0:
                self.status = Status.STEP_LIMIT
                return
            limit -= 1
            taken = end.value - start.value
            if self._watcher is not None:
                self._watcher.tried(start, size, y)
            self._room.begin()
            y1 = stepper.attempt(start, end, y, end_inside=stop is not None and stop.jump)
            ratio = stepper.error_ratio(control, y, y1)
            finite = math.isfinite(ratio)
            if not (finite or self._stats.accepted or bool(torch.isfinite(slope).all())):
                self.status = Status.NON_FINITE  # of the field at the very start
                return
            # Rounding may make a step of the smallest size slightly longer.
            smallest = min(abs(taken), abs(size)) <= control.min_step
            accepted = ratio <= 1 or (finite and smallest)
            if self._watcher is not None:
                self._watcher.judged(start, taken, y, accepted=accepted)
            # Near the resolution of time a step is rounded up; its nominal size still shrinks.
            tried = size if stop is None else taken
            wanted, size = size, control.next_size(tried, ratio, plan.order, past)
            if not accepted:
                self._stats.rejected += 1
                y1 = y  # otherwise the graph of this attempt would be kept beside the next
                stepper.discard()
                self._room.undo()
                continue
            if self._stats.accepted == 0 and ratio > 0:
                self._stats.first_step = abs(control.best_size(tried, ratio, plan.order))
            if self._advance(end, y, y1) and plan.renew_limit:
                limit = plan.max_steps
            looked = detector.look(start.value, end.value, stepper.slopes)
            if looked and detector.gives_up(plan.max_steps):
                self.status = Status.STIFF
                return
            y = y1
            stepper.accept()
            if stop is None:  # the error of a shortened step says little about the next
                past = control.remember(ratio, past)
            else:
                stops.drop_first()
                if plan.keep_pace:  # a shortened step says nothing about the next
                    size = max(size, wanted, key=abs)
                if stop.jump:
                    stepper.start(self._just_after(end, y), y)
        if not bool(torch.isfinite(y).all()):  # in a component whose errors do not count
            self.status = Status.NON_FINITE

    def _first_size(self, control: Control, y: Tensor, slope: Tensor) -> float:
        if control.first_step is not None:
            return control.first_step
        plan, begin, stepper = self._plan, self.moment.value, self._stepper
        direction = plan.direction

        def evaluate(time: float, state: Tensor) -> Tensor:
            moment = Moment(begin + direction * time, self.moment.anchor)
            return direction * stepper.evaluate(moment, state)

        with torch.no_grad():
            size = control.first_size(
                evaluate, y.detach(), direction * slope, plan.order, plan.trial_limit
            )
        return control.moving_clock(size, begin)


class _StopList:
    """The stops ahead, the next one first."""

    def __init__(self, stops: Iterable[Stop]) -> None:
        self._stops = list(stops)[::-1]

    def end_of_step(self, start: Moment, size: float) -> tuple[Stop | None, Moment]:
        """Where a step of `size` ends, and the stop it ends on if there is one."""
        free = start.value + size
        if self._stops:
            stop = self._stops[-1]
            if abs(stop.moment.value - start.value) <= abs(size) * SLIVER:
                return stop, stop.moment
        return None, Moment(free, start.anchor)

    def drop_first(self) -> None:
        self._stops.pop()
