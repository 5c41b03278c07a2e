"""The order of steps of an ODE-RNN, which moves all series at once, each on its own times."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Schedule", "make_schedule"]

MOST_TICKS = 100_000
"""Largest number of steps of one series; no sensible setting needs more."""


@dataclass(frozen=True)
class Schedule:
    """The steps of all series, one tick after the other.

    At tick `k` every series takes the `k`-th of its own steps. Series with more steps come first,
    so those that have ended are last; ticks follow each other without gaps.

    Attributes:
        width: Number of series.
        active: Number of series that have not ended, for each tick.
        rows: The row that a step leads to, counted through the batch, `(steps,)`.
        times: The dynamics' clock at the start of each step, `(steps,)`.
        lengths: The time that each step adds to the clock.
        sizes: The factor of the rates in each step.
        updated: Number of series that see a row at the end of each tick and are updated.
        updates: The steps that end with these updates, in order, `(updates,)`.
        members: The series that each of these steps belongs to, counted within its tick.
        place: Tick after which each row has been seen, as the index of a step; numbers below
            `width` are the series' starts, `(batch, time)`.
        moved: Whether any step leads to a row, `(batch, time)`.
    """

    width: int
    active: list[int]
    rows: Tensor
    times: Tensor
    lengths: Tensor
    sizes: Tensor
    updated: list[int]
    updates: Tensor
    members: Tensor
    place: Tensor
    moved: Tensor

    def at_rows(self, before: Tensor, after: Tensor) -> list[Tensor]:
        """States of the rows of the batch from those of the steps.

        Args:
            before: Start of each series and then each step's result, `(width + steps, size)`.
            after: The same after updates, with the second part, `(width + steps, 2, size)`.

        Returns:
            Before each row, after it, and the second part after it, `(batch, time, size)`.
        """
        chosen = after.index_select(0, self.place.flatten())
        chosen = chosen.unflatten(0, self.place.shape)
        arrived = before.index_select(0, self.place.flatten()).unflatten(0, self.place.shape)
        seen, spread = chosen.unbind(2)
        # For a row that no step leads to, the last step led to an earlier row, whose update counts.
        return [arrived.where(self.moved.unsqueeze(-1), seen), seen, spread]


def make_schedule(
    gaps: Tensor, counts: Tensor, observed: Tensor, interval: tuple[float, float]
) -> Schedule:
    """Line up the steps of all series.

    Args:
        gaps: Signed time before each row, `(batch, time)`.
        counts: Number of steps in each gap, `(batch, time)`.
        observed: Whether each row updates the state, `(batch, time)`.
        interval: Start and end of the dynamics' clock in every gap.
    """
    counts = torch.maximum(counts, observed.long())
    ends = counts.cumsum(1)
    totals = ends[:, -1]
    # All that the host needs to know about the steps, in one transfer from the device: where rows
    # end, negative for rows that are not seen.
    signed: list[list[int]] = ends.where(observed, -ends).tolist()
    known = [abs(ends_of_rows[-1]) for ends_of_rows in signed]
    most = max(known)
    if most > MOST_TICKS:
        raise ValueError(
            f"a series needs {most} steps; scale its times to about one, or use larger steps"
        )
    order = totals.argsort(descending=True, stable=True)
    ticks = torch.arange(most, device=gaps.device)
    active = (ticks[:, None] < totals).sum(1)
    starts = torch.nn.functional.pad(active.cumsum(0), (1, 0))
    number = ticks.repeat_interleave(active, output_size=sum(known))
    series = order[torch.arange(len(number), device=gaps.device) - starts[number]]
    found = torch.searchsorted(ends, ticks.expand(len(ends), -1).contiguous(), right=True)
    row = found[series, number]
    count = counts[series, row]
    within = number - (ends[series, row] - count)
    length = (interval[1] - interval[0]) / count.to(gaps.dtype)
    first = torch.nn.functional.pad(starts[:-1] + len(gaps), (1, 0))
    ending = Counter(end for ends_of_rows in signed for end in ends_of_rows if end > 0)
    updated = [ending[tick] for tick in range(1, most + 1)]
    idle = (within < count - 1) | ~observed[series, row]
    updates = idle.byte().argsort(stable=True)[: sum(updated)]  # `nonzero` waits for the device
    return Schedule(
        width=len(gaps),
        active=_still_going(known),
        rows=series * gaps.shape[1] + row,
        times=interval[0] + within * length,
        lengths=length,
        sizes=gaps[series, row] / count,
        updated=updated,
        updates=updates,
        members=updates - starts[number[updates]],
        place=first[ends] + order.argsort()[:, None],
        moved=counts > 0,
    )


def _still_going(totals: list[int]) -> list[int]:
    """Number of series that take a step at each tick, given the number of steps of each series."""
    ending = Counter(totals)
    going, active = len(totals), []
    for tick in range(max(totals)):
        going -= ending[tick]
        active.append(going)
    return active
