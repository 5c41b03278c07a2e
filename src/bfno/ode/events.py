"""Solving until a function of time and state changes its sign."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bfno.ode.march import Served
from bfno.ode.step import Field, Moment, Stepper

__all__ = ["Event", "EventOutputs", "at_event", "first_crossing"]

Event = Callable[[Tensor, Any], Tensor]


def first_crossing(event: Event, time: Tensor, y0: Any) -> Event:
    """One function, positive at the start, that vanishes where the first of several does."""
    with torch.no_grad():
        signs = torch.sign(event(time, y0))
    return lambda t, y: torch.min(event(t, y) * signs)


class EventOutputs:
    """Watches for the first step in which an event function changes its sign.

    Args:
        event: The function, positive at the start.
        tolerance: How exactly the event's time is found.
    """

    def __init__(self, event: Event, tolerance: float) -> None:
        self._event, self._tolerance = event, max(tolerance, 1e-14)
        self.moment: Moment | None = None

    def complete(self) -> bool:
        return self.moment is not None

    def collect(
        self, stepper: Stepper, start: Moment, end: Moment, ends: tuple[Tensor, Tensor]
    ) -> Served:
        if self._is_ahead(end.value, ends[1]):
            return Served()
        ahead, past = start.value, end.value
        for _ in range(math.ceil(math.log2(max(abs(past - ahead) / self._tolerance, 1)))):
            middle = (ahead + past) / 2
            if self._is_ahead(middle, stepper.interpolate(start, end, ends[0], Moment(middle))):
                ahead = middle
            else:
                past = middle
        self.moment = Moment((ahead + past) / 2)
        return Served(at_end=(1,))

    def _is_ahead(self, time: float, y: Tensor) -> bool:
        return float(self._event(y.new_tensor(time), y)) > 0


def at_event(field: Field, event: Event, time: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Time and state of an event, differentiable with respect to what made the state.

    The time moves so that the event function stays zero, by the implicit function theorem, and the
    state moves along the field with it.

    Args:
        field: The field.
        event: The event function.
        time: When the event happened.
        y: The state then, differentiable.
    """
    with torch.no_grad():
        slope = field(time.to(y.dtype), y.detach())
    with torch.enable_grad():
        instant, state = time.detach().requires_grad_(), y.detach().requires_grad_()
        value = event(instant.to(y.dtype), state)
    by_time, by_state = torch.autograd.grad(value, (instant, state), allow_unused=True)
    rate = torch.zeros_like(value) if by_time is None else by_time.to(value.dtype)
    if by_state is None:
        return time, y
    rate = rate + (by_state * slope).sum()
    delay = -(by_state * (y - y.detach())).sum() / rate  # zero, but for its derivative
    return time + delay.to(time.dtype), y + slope * delay
