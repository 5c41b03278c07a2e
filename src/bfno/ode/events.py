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
from bfno.tracing import is_transformed, without_autocast

__all__ = ["Event", "EventFinder", "EventOutputs", "at_event", "first_crossing"]

Event = Callable[[Tensor, Any], Tensor]

_NOT_A_NUMBER = (
    "the event must return numbers, got not-a-number at t = {:.6g}; it has to be defined on both "
    "sides of where it is zero"
)


class EventOutputs(SharedOutputs):
    """Requested states of a solve that an event ends, for the whole state or for each sample.

    A state whose event has happened stands still: from then on it is the state at the event. The
    event's time moves so that the event function stays zero on the dense output of the step, by the
    implicit function theorem; gradients reach whatever the function depends on.

    Args:
        event: The function of time and state; one value, or one per sample. If it gives one per
            sample, it is called with one time per sample inside a step.
        times: Requested times.
        y0: State at the start.

    Attributes:
        event_times: When the events happened; infinite where none has.
    """

    def __init__(self, event: Event, times: Sequence[float], y0: Tensor) -> None:
        super().__init__(times, y0)
        if is_transformed():
            raise ValueError(
                "an event cannot be found under torch.func, forward-mode differentiation or "
                "torch.compile; call solve outside of them"
            )
        self._event = event
        with torch.no_grad():
            self._signs = torch.sign(self._check(event, y0.detach()))
        clock = {"dtype": torch.float64, "device": y0.device}
        self.event_times = torch.full(self._signs.shape, math.inf * self._forward, **clock)
        self.event_times = self.event_times.where(self._signs != 0, times[0])
        self._states = y0  # of samples that begin with their event
        self._moving = self._signs != 0
        self._free = torch.ones_like(self._moving)  # samples that the stepper moves

    def _check(self, event: Event, y: Tensor) -> Tensor:
        """The event's value at the start; an invalid one is refused."""
        kind = {"dtype": real_dtype(y.dtype), "device": y.device}
        value = event(torch.tensor(self.times[0], **kind), y)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            got = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"the event must return a tensor of real numbers, got {got}")
        if bool(value.isnan().any()):
            raise ValueError(_NOT_A_NUMBER.format(self.times[0]))
        if value.shape not in ((), y.shape[:1]):
            raise ValueError(
                "the event must return one value, or one per sample of the state, got shape "
                f"{tuple(value.shape)} for a state of shape {tuple(y.shape)}"
            )
        if value.numel() > 1 and not self._takes_rows(event, y, len(value)):
            raise ValueError(
                "an event with one value per sample must also take one time per sample, t of "
                f"shape ({len(value)},), and treat each sample alone; give t the state's axes, for "
                "example with t.view(-1, 1)"
            )
        return value

    def _takes_rows(self, event: Event, y: Tensor, count: int) -> bool:
        """Whether an event gives the same value for one time per sample as for one time for all."""
        kind = {"dtype": real_dtype(y.dtype), "device": y.device}
        times = torch.linspace(self.times[0], self.times[-1], count, **kind)
        alone = event(times[-1], y)
        try:
            together = event(times, y)
        except (IndexError, RuntimeError, ValueError):  # of shapes that do not match
            return False
        same = {"rtol": 1e-3, "atol": 1e-6, "equal_nan": True}
        return together.shape == (count,) and torch.allclose(together[-1], alone[-1], **same)

    def complete(self) -> bool:
        return super().complete() or self.is_over()

    def is_over(self) -> bool:
        """Whether all events have happened."""
        return not bool(self._moving.any())

    def collect(
        self, stepper: Stepper, start: Moment, end: Moment, ends: tuple[Tensor, Tensor]
    ) -> bool:
        with torch.no_grad():
            value = self._event(stepper.clock.time(end), ends[1]) * self._signs
        if bool((self._moving & value.isnan()).any()):
            raise ValueError(_NOT_A_NUMBER.format(end.value))
        crossed = self._moving & (value <= 0)
        if bool(crossed.any()):
            self._note(crossed, stepper, (start, end), ends[0])
        before = len(self.states)
        served = super().collect(stepper, start, end, ends)
        for index in range(before, len(self.states)):
            time = self.event_times.new_tensor(self.times[index])
            self.states[index] = self.stand_still(time, self.states[index])
        if self._moving.dim() and not torch.equal(self._moving, self._free):
            self._free = self._moving
            stepper.freeze(self._moving)
        return served

    def stacked(self) -> Tensor:
        """All states; after the last event they are the states at the events."""
        missing = self.times[len(self.states) :]
        if self.is_over() and missing:
            last = self.stand_still(self.event_times.new_tensor(missing[-1]), self.states[0])
            self.states += [last] * len(missing)
        return super().stacked()

    def stand_still(self, times: Tensor, states: Tensor) -> Tensor:
        """States at a time, or at a row of times, taking earlier events into account."""
        spread = times[(...,) + (None,) * self.event_times.dim()]
        past = (self.event_times.detach() - spread) * self._forward <= 0
        wide = past[(...,) + (None,) * (states.dim() - past.dim())]
        return torch.where(wide, self._states, states)

    def _note(
        self, crossed: Tensor, stepper: Stepper, step: tuple[Moment, Moment], y: Tensor
    ) -> None:
        """Find the events of one step."""
        line = _Line(stepper, step, y, self._event)
        shares = line.crossing(self._signs)
        times, states = line.at_event(shares)
        if (step[1].value - self.times[-1]) * self._forward > 0:
            # The solve ends inside this step, and events after that do not happen.
            crossed = crossed & ((times.detach() - self.times[-1]) * self._forward <= 0)
        self.event_times = torch.where(crossed, times, self.event_times)
        chosen = scale_rows(crossed, y) if crossed.dim() else crossed
        self._states = torch.where(chosen, states, self._states)
        self._moving = self._moving & ~crossed


class _Line:
    """Dense output of one step, at a share of it for the whole state or for each sample."""

    def __init__(
        self, stepper: Stepper, step: tuple[Moment, Moment], y: Tensor, event: Event
    ) -> None:
        self._tableau, self._y, self._event = stepper.tableau, y, event
        self._slopes = torch.stack(list(stepper.slopes))
        self._begin, self._size = stepper.clock.exact(step[0]), stepper.clock.size(*step)

    def crossing(self, signs: Tensor) -> Tensor:
        """The shares at which an event function changes its sign, by bisection to rounding.

        At any other share, the derivative would not be that of the discrete solution.
        """
        ahead = torch.zeros(signs.shape, dtype=torch.float64, device=self._y.device)
        past = torch.ones_like(ahead)
        with torch.no_grad():
            for _ in range(round(-math.log2(torch.finfo(self._y.dtype).eps))):
                middle = (ahead + past) / 2
                still = self._event(self._time(middle), self._state(middle)) * signs > 0
                ahead, past = torch.where(still, middle, ahead), torch.where(still, past, middle)
        return (ahead + past) / 2

    def at_event(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Times and states of events, differentiable where autograd is on."""
        if torch.is_grad_enabled() and self._value(shares).requires_grad:
            rate = self._rate(shares)
            still, divisor = rate == 0, torch.where(rate == 0, 1.0, rate)
            # Newton's method, each step of which makes derivatives of one more order correct. It
            # changes only the derivatives, and not even these if the event stands still.
            for _ in range(2):
                value = self._value(shares)
                shift = torch.where(still, 0.0, (value - value.detach()) / divisor)
                shares = shares - shift.to(shares.dtype)
        return self._exact_time(shares), self._state(shares)

    def _value(self, shares: Tensor) -> Tensor:
        return self._event(self._time(shares), self._state(shares))

    def _rate(self, shares: Tensor) -> Tensor:
        """Rate of change of the event function with the share."""
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
        y, slopes = self._y, self._slopes
        if detached:
            y, slopes = y.detach(), slopes.detach()
        weights = (dense_matrix(self._tableau, shares.reshape(-1)) * self._size).to(y.dtype)
        with without_autocast(y):
            if shares.dim() == 0:
                return y + torch.tensordot(weights[0], slopes, dims=1)
            return y + torch.einsum("bs,sb...->b...", weights, slopes)


def first_crossing(event: Event, time: Tensor, y0: Any) -> Event:
    """One function, positive at the start, that is zero at the first zero of several functions."""
    with torch.no_grad():
        signs = torch.sign(event(time, y0))
    return lambda t, y: torch.min(event(t, y) * signs)


class EventFinder:
    """Finds the first step in which an event function changes its sign.

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
        value = float(self._event(stepper.clock.time(moment), y))
        if math.isnan(value):
            raise ValueError(_NOT_A_NUMBER.format(moment.value))
        return value > 0


def at_event(
    field: Callable[..., Tensor], event: Event, time: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Time and state of an event, twice differentiable with respect to all that they depend on.

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
    kind, rate = real_dtype(y.dtype), _rate_of_change(field, event, time, y)
    if rate is None or float(rate) == 0:
        return time, y

    def later(delay: Tensor) -> tuple[Tensor, Tensor]:
        # The midpoint method is right up to second derivatives in the delay.
        middle = y + field(time.to(kind), y) * (delay / 2)
        return time + delay, y + field((time + delay / 2).to(kind), middle) * delay

    delay, moment, state = torch.zeros_like(time), time, y
    # Newton's method changes only derivatives, those of one more order with every step.
    for _ in range(2):
        value = event(moment.to(kind), state)
        delay = delay - ((value - value.detach()) / rate).to(time.dtype)
        moment, state = later(delay)
    return moment, state


def _rate_of_change(
    field: Callable[..., Tensor], event: Event, time: Tensor, y: Tensor
) -> Tensor | None:
    """Rate of change of an event function along the field; None if it has no gradient."""
    kind = real_dtype(y.dtype)
    with torch.no_grad():
        slope = field(time.to(kind), y.detach())
    with torch.enable_grad():
        instant, state = time.detach().requires_grad_(), y.detach().requires_grad_()
        value = event(instant.to(kind), state)
    if not value.requires_grad:
        return None
    by_time, by_state = torch.autograd.grad(value, (instant, state), allow_unused=True)
    rate = torch.zeros_like(value) if by_time is None else by_time.to(value.dtype)
    return rate.detach() if by_state is None else rate + (by_state.conj() * slope).sum().real
