"""When samples start, where their steps stop, and at which times their states are requested."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bfno.ode.integrate import SLIVER, Stop
from bfno.ode.state import clock_dtype, real_dtype
from bfno.tracing import is_transformed

__all__ = ["Leg", "Points", "Timetable"]


@dataclass(frozen=True)
class Points:
    """One point in time for every sample, and the requested time that it moves with.

    Attributes:
        values: The times.
        anchors: Places of requested times, -1 for none; see `Moment`.
    """

    values: Tensor
    anchors: Tensor

    def keep(self, chosen: Tensor) -> Points:
        """Keep some samples."""
        return Points(self.values[chosen], self.anchors[chosen])


@dataclass(frozen=True)
class Leg:
    """The end of a step for every sample.

    Attributes:
        end: The time.
        lands: Whether it is a stop.
        jumps: Whether the field may jump there.
    """

    end: Points
    lands: Tensor
    jumps: Tensor

    def keep(self, chosen: Tensor) -> Leg:
        """Keep some samples."""
        return Leg(self.end.keep(chosen), self.lands[chosen], self.jumps[chosen])


class Timetable:
    """The times of all samples of a batch.

    Numbers are on the host. Tensors, on the state's device, move with the requested times where
    these have a graph.

    Args:
        ts: Requested times, `(time,)` or `(batch, time)`.
        y0: State at the start, samples first.
        stops: Where steps have to end. One that moves with a requested time is, for every sample,
            that time of its own.

    Attributes:
        times: Requested times of every sample.
        direction: 1.0 forward in time, -1.0 backward, for every sample.
        is_shared: Whether all samples have the same times.
    """

    def __init__(self, ts: Tensor, y0: Tensor, stops: Sequence[Stop]) -> None:
        self.is_shared = ts.dim() == 1
        self._device, self._kind = y0.device, real_dtype(y0.dtype)
        rows = ts.expand(len(y0), ts.shape[-1])
        self.times = rows.detach().cpu().double()
        moving = (ts.requires_grad and torch.is_grad_enabled()) or is_transformed()
        self._ts = rows.to(self._device).to(clock_dtype(self._device)) if moving else None
        self.direction = torch.where(self.times[:, -1] >= self.times[:, 0], 1.0, -1.0).double()
        anchors = [-1 if stop.moment.anchor is None else stop.moment.anchor for stop in stops]
        own = [
            torch.full_like(self.direction, stop.moment.value)
            if place < 0
            else self.times[:, place]
            for stop, place in zip(stops, anchors, strict=True)
        ]
        # The last one is never reached, so that there always is one ahead.
        self._stops = torch.stack([*own, self.direction * math.inf], dim=1)
        self._anchors = torch.tensor([*anchors, -1])
        self._jumps = torch.tensor([*(stop.jump for stop in stops), False])

    def is_over(self, samples: Tensor, point: Points) -> Tensor:
        """Which samples have reached their last time."""
        return (self.times[samples, -1] - point.values) * self.direction[samples] <= 0

    def leg(self, samples: Tensor, begin: Points, size: Tensor) -> Leg:
        """Where steps of given sizes end."""
        stops = self._stops[samples]
        ahead = (stops - begin.values[:, None]) * self.direction[samples, None]
        gap, place = ahead.where(ahead > 0, math.inf).min(dim=1)
        lands = gap <= size.abs() * SLIVER
        stop = stops.gather(1, place[:, None])[:, 0]
        values = torch.where(lands, stop, begin.values + size)
        anchors = torch.where(lands, self._anchors[place], begin.anchors)
        return Leg(Points(values, anchors), lands, lands & self._jumps[place])

    def exact(self, samples: Tensor, points: Points) -> Tensor:
        """Points in time as a tensor in double precision, where the device has it."""
        values = points.values.to(self._device, clock_dtype(self._device))
        if self._ts is None:
            return values
        place = points.anchors.clamp(min=0)
        shift = (points.values - self.times[samples, place]).to(values)
        moved = self._ts[samples.to(self._device), place.to(self._device)] + shift
        return torch.where((points.anchors >= 0).to(self._device), moved, values)

    def beside(self, samples: Tensor, points: Points, side: float) -> Points:
        """The nearest points that the state's dtype can distinguish from these.

        Args:
            samples: The samples that the points belong to.
            points: The points.
            side: 1.0 for those after them, -1.0 for those before.
        """
        values = points.values.to(self._kind)
        goal = (self.direction[samples] * side * math.inf).to(self._kind)
        return replace(points, values=torch.nextafter(values, goal).double())

    def requests_at_start(self) -> tuple[Tensor, Tensor]:
        """Requested times that are the first one of their sample: samples and places."""
        samples, places = (self.times == self.times[:, :1]).nonzero(as_tuple=True)
        return samples, places

    def requests(
        self, samples: Tensor, begin: Points, end: Points
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Requested times after the beginning and up to the end of a step.

        Returns:
            The samples they belong to, their places, and whether they are exactly the step's end.
        """
        times, direction = self.times[samples], self.direction[samples, None]
        late = (times - begin.values[:, None]) * direction > 0
        early = (times - end.values[:, None]) * direction <= 0
        whose, places = (late & early).nonzero(as_tuple=True)
        at_end = times[whose, places] == end.values[whose]
        if self._ts is not None:  # one that moves separately from the end is inside the step
            at_end &= places == end.anchors[whose]
        return whose, places, at_end
