"""Solving until a function of time and state changes its sign."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bfno.ode.integrate import SharedOutputs
from bfno.ode.state import real_dtype, scale_rows
from bfno.ode.step import Moment, Stepper, dense_matrix

__all__ = ["Event", "EventFinder", "EventOutputs", "at_event", "first_crossing"]

Event = Callable[[Tensor, Any], Tensor]


class EventOutputs(SharedOutputs):
    """Requested states of a solve that an event ends, for the whole state or for each sample.

    A state whose event has happened stands still: it is the state at the event from then on. The
    event's time moves so that the event function stays zero on the dense output of the step, by
    the implicit function theorem; gradients reach whatever the function depends on.

    Args:
        event: The function of time and state; one value, or one per sample. Inside a step it is
            called with one time per sample.
        times: Requested times.
        y0: State at the start.
        tolerance: How exactly the event's time is found.

    Attributes:
        event_times: When the events happened; infinite where none has.
    """

    def __init__(self, event: Event, times: Sequence[float], y0: Tensor, tolerance: float) -> None:
        super().__init__(times, y0)
        self._event, self._tolerance = event, max(tolerance, 1e-14)
        with torch.no_grad():
            start = torch.tensor(times[0], dtype=real_dtype(y0.dtype), device=y0.device)
            self._signs = torch.sign(event(start, y0.detach()))
        by_sample = y0.shape[:1] if y0.dim() else ()
        if self._signs.shape not in ((), by_sample):
            raise ValueError(
                "the event must return one value, or one per sample of the state, got shape "
                f"{tuple(self._signs.shape)} for a state of shape {tuple(y0.shape)}"
            )
        clock = {"dtype": torch.float64, "device": y0.device}
        self.event_times = torch.full(self._signs.shape, math.inf * self._forward, **clock)
        self.event_times = self.event_times.where(self._signs != 0, times[0])
        self._states = y0  # of those that begin with their event
        self._moving = self._signs != 0

    def complete(self) -> bool:
        return super().complete() or not bool(self._moving.any())

    def collect(
        self, stepper: Stepper, start: Moment, end: Moment, ends: tuple[Tensor, Tensor]
    ) -> bool:
        with torch.no_grad():
            value = self._event(stepper.clock.time(end), ends[1]) * self._signs
        crossed = self._moving & (value <= 0)
        happened = bool(crossed.any())
        if happened:
            self._note(crossed, stepper, (start, end), ends[0])
        before = len(self.states)
        served = super().collect(stepper, start, end, ends)
        for index in range(before, len(self.states)):
            self.states[index] = self._stand_still(self.times[index], self.states[index])
        if happened and self._moving.dim():
            stepper.freeze(self._moving)
        return served

    def stacked(self) -> Tensor:
        """All states; behind the last event they are those at the events."""
        if not bool(self._moving.any()):
            missing = self.times[len(self.states) :]
            self.states += [self._stand_still(time, self.states[0]) for time in missing]
        return super().stacked()

    def _stand_still(self, time: float, state: Tensor) -> Tensor:
        past = (self.event_times.detach() - time) * self._forward <= 0
        return torch.where(_spread(past, state), self._states, state)

    def _note(
        self, crossed: Tensor, stepper: Stepper, step: tuple[Moment, Moment], y: Tensor
    ) -> None:
        """Find the events of one step."""
        line = _Line(stepper, step, y, self._event)
        shares = line.crossing(self._signs, self._tolerance)
        times, states = line.at_event(shares)
        self.event_times = torch.where(crossed, times, self.event_times)
        self._states = torch.where(_spread(crossed, y), states, self._states)
        self._moving = self._moving & ~crossed


def _spread(chosen: Tensor, like: Tensor) -> Tensor:
    return scale_rows(chosen, like) if chosen.dim() else chosen


class _Line:
    """Dense output of one step, at a share of it for the whole state or for each sample."""

    def __init__(
        self, stepper: Stepper, step: tuple[Moment, Moment], y: Tensor, event: Event
    ) -> None:
        self._stepper, self._y, self._event = stepper, y, event
        self._begin, self._size = stepper.clock.exact(step[0]), stepper.clock.size(*step)

    def crossing(self, signs: Tensor, tolerance: float) -> Tensor:
        """The shares at which an event function changes its sign, by bisection."""
        ahead = torch.zeros(signs.shape, dtype=torch.float64, device=self._y.device)
        past = torch.ones_like(ahead)
        with torch.no_grad():
            length = abs(float(self._size))
            for _ in range(math.ceil(math.log2(max(length / tolerance, 1))) + 1):
                middle = (ahead + past) / 2
                still = self._event(self._time(middle), self._state(middle)) * signs > 0
                ahead, past = torch.where(still, middle, ahead), torch.where(still, past, middle)
        return (ahead + past) / 2

    def at_event(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Times and states of events, differentiable where autograd is on."""
        if torch.is_grad_enabled():
            value = self._event(self._time(shares), self._state(shares))
            if value.requires_grad:
                rate = self._rate(shares)
                # Zero, but for its derivative; no derivative where the event does not move.
                shift = (value - value.detach()) / torch.where(rate == 0, 1.0, rate)
                shares = shares - torch.where(rate == 0, 0.0, shift).to(shares.dtype)
        return self._exact_time(shares), self._state(shares)

    def _rate(self, shares: Tensor) -> Tensor:
        """How fast the event function changes with the share."""
        with torch.enable_grad():
            moved = shares.detach().requires_grad_()
            value = self._event(self._time(moved), self._state(moved, detached=True))
            (rate,) = torch.autograd.grad(value.sum(), moved, allow_unused=True)
        return torch.zeros_like(shares) if rate is None else rate

    def _exact_time(self, shares: Tensor) -> Tensor:
        return self._begin + shares * self._size

    def _time(self, shares: Tensor) -> Tensor:
        return self._exact_time(shares).to(real_dtype(self._y.dtype))

    def _state(self, shares: Tensor, *, detached: bool = False) -> Tensor:
        y, slopes = self._y, torch.stack(list(self._stepper.slopes))
        if detached:
            y, slopes = y.detach(), slopes.detach()
        weights = dense_matrix(self._stepper.tableau, shares.reshape(-1)).to(y.dtype) * self._size
        if shares.dim() == 0:
            return y + torch.tensordot(weights.to(y.dtype)[0], slopes, dims=1)
        return y + torch.einsum("bs,sb...->b...", weights.to(y.dtype), slopes)


def first_crossing(event: Event, time: Tensor, y0: Any) -> Event:
    """One function, positive at the start, that vanishes where the first of several does."""
    with torch.no_grad():
        signs = torch.sign(event(time, y0))
    return lambda t, y: torch.min(event(t, y) * signs)


class EventFinder:
    """Watches for the first step in which an event function changes its sign.

    Args:
        event: The function, positive at the start.
        tolerance: How exactly the event's time is found.

    Attributes:
        moment: When it happened, or None.
    """

    def __init__(self, event: Event, tolerance: float) -> None:
        self._event, self._tolerance = event, max(tolerance, 1e-14)
        self.moment: Moment | None = None

    def complete(self) -> bool:
        return self.moment is not None

    def collect(
        self, stepper: Stepper, start: Moment, end: Moment, ends: tuple[Tensor, Tensor]
    ) -> bool:
        if self._is_ahead(stepper, end, ends[1]):
            return False
        ahead, past = start.value, end.value
        for _ in range(math.ceil(math.log2(max(abs(past - ahead) / self._tolerance, 1)))):
            middle = Moment((ahead + past) / 2)
            state = stepper.interpolate(start, end, ends[0], middle)
            if self._is_ahead(stepper, middle, state):
                ahead = middle.value
            else:
                past = middle.value
        self.moment = Moment((ahead + past) / 2)
        return True

    def _is_ahead(self, stepper: Stepper, moment: Moment, y: Tensor) -> bool:
        return float(self._event(stepper.clock.time(moment), y)) > 0


def at_event(
    field: Callable[..., Tensor], event: Event, time: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Time and state of an event, differentiable with respect to what made the state.

    The time moves so that the event function stays zero, by the implicit function theorem, and the
    state moves along the field with it.

    Args:
        field: The field.
        event: The event function.
        time: When the event happened.
        y: The state then, differentiable.
    """
    if not torch.is_grad_enabled():
        return time, y
    kind = real_dtype(y.dtype)
    with torch.no_grad():
        slope = field(time.to(kind), y.detach())
    with torch.enable_grad():
        instant, state = time.detach().requires_grad_(), y.detach().requires_grad_()
        value = event(instant.to(kind), state)
    if not value.requires_grad:
        return time, y
    by_time, by_state = torch.autograd.grad(value, (instant, state), allow_unused=True)
    rate = torch.zeros_like(value) if by_time is None else by_time.to(value.dtype)
    if by_state is not None:
        rate = rate + (by_state.conj() * slope).sum().real
    if float(rate) == 0:
        return time, y
    moved = event(time.to(kind), y)  # with a graph to the state and to the event's own parameters
    delay = -(moved - moved.detach()) / rate  # zero, but for its derivative
    return time + delay.to(time.dtype), y + slope * delay
