"""Separate steps for every sample: its cost and result depend on no other sample of the batch.

All samples under way are evaluated together, each at its own time. Each has its own step size,
error test and end: a sample whose step was rejected tries a smaller one while the others go on, and
a sample that has reached its last time leaves the batch.

Sums, norms, powers and additions with a factor round differently from place to place in a tensor,
and thus depend on the number of samples. This module uses only operations that round each number
once, and sums in a fixed order: a sample's result is the same to the last bit alone and in any
batch, if its field treats samples likewise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bfno.ode.control import FIRST_RATIOS, Control
from bfno.ode.evaluate import Field
from bfno.ode.inputs import read_norm
from bfno.ode.replay import Room, Surroundings
from bfno.ode.solution import SampleStats, Stats, Status
from bfno.ode.state import Packing, clock_dtype, real_dtype, scale_rows
from bfno.ode.step import Sums, take_stages
from bfno.ode.tableaus import Tableau
from bfno.ode.timetable import Leg, Points, Timetable

__all__ = ["Gauge", "Rule", "SampleIntegration", "for_some_samples", "refuse_other_axis"]


class Gauge:
    """Measures the errors of samples, each by its own numbers.

    Args:
        rtol: Relative tolerance: a number, or a tensor that broadcasts to the state.
        atol: Absolute tolerance, likewise.
        packing: How states lie in one tensor.
        norm: The user's norm of a state, if any; it is given a batch of one sample at a time.
        ignore: Components that do not count.
    """

    def __init__(
        self,
        rtol: Tensor | float,
        atol: Tensor | float,
        packing: Packing,
        norm: Callable[[Any], Any] | None = None,
        ignore: Sequence[int] = (),
    ) -> None:
        self._tolerances, self._unpack, self._norm = (rtol, atol), packing.unpack, norm
        counted = [part for place, part in enumerate(packing.slices) if place not in ignore]
        self._parts = counted if packing.is_nest else [slice(None)]

    def scale(self, sizes: Tensor, samples: Tensor) -> Tensor:
        """The tolerance of each number of some samples, given its size."""
        rtol, atol = (_of_samples(one, sizes, samples) for one in self._tolerances)
        # If a number is zero, its tolerance may be zero too; a zero error there stays zero.
        return (sizes * rtol + atol).clamp_(min=torch.finfo(sizes.dtype).tiny)

    def norms(self, errors: Tensor, scale: Tensor) -> list[float]:
        """The norm of every sample's error in units of its tolerance."""
        if self._norm is not None:
            norm, unpack = self._norm, self._unpack
            return [read_norm(norm(unpack(one))) for one in (errors / scale).split(1)]
        rows = (magnitude(errors) / scale).reshape(len(errors), errors.shape[1:].numel())
        rows = rows.to(clock_dtype(rows.device))
        means = [_mean_square(rows[:, part]) for part in self._parts]
        if not means:
            return [0.0] * len(errors)
        # The largest of several components counts, and not-a-number as larger than all.
        return torch.stack(means).amax(dim=0).sqrt().tolist()


def magnitude(values: Tensor) -> Tensor:
    """Absolute values, from operations that round once."""
    if not values.is_complex():
        return values.abs()
    parts = torch.view_as_real(values.resolve_conj())
    return (parts[..., 0] * parts[..., 0] + parts[..., 1] * parts[..., 1]).sqrt()


def _of_samples(tolerance: Tensor | float, sizes: Tensor, samples: Tensor) -> Tensor | float:
    """The tolerance of some samples, which may be one per sample."""
    if not isinstance(tolerance, Tensor):
        return tolerance
    tolerance = tolerance.to(sizes)
    own = tolerance.dim() == sizes.dim() and len(tolerance) > 1
    return tolerance[samples.to(tolerance.device)] if own else tolerance


def _mean_square(rows: Tensor) -> Tensor:
    """Mean of the squares along each row; halves are added, always in the same order."""
    count = rows.shape[1]
    if count == 0:
        return rows.new_zeros(len(rows))
    rows = rows * rows
    while rows.shape[1] > 1:
        half, odd = divmod(rows.shape[1], 2)
        total = rows[:, :half] + rows[:, half : 2 * half]
        if odd:
            total[:, 0] += rows[:, -1]
        rows = total
    return rows[:, 0] / count


class SampleSums(Sums):
    """Weighted sums of slopes with a step size for every sample; each operation rounds once."""

    def begin(self, y: Tensor, size: Tensor) -> None:
        super().begin(y, scale_rows(size.to(y.dtype), y))

    def point(self) -> Tensor:
        self._point = self._moved(self.tableau.stages[len(self.slopes)])
        return self._point

    def end(self) -> Tensor:
        return self._point if self.tableau.reuses_last_stage else self._moved(self.tableau.weights)

    def error(self) -> Tensor:
        if self.tableau.error is None:
            return torch.zeros_like(self._y, requires_grad=False)
        slopes = [slope.detach() for slope in self.slopes]
        change = weighted_sum(slopes, self.tableau.error)
        return torch.zeros_like(slopes[0]) if change is None else change * self._size.detach()

    def _moved(self, weights: Sequence[float]) -> Tensor:
        change = weighted_sum(self.slopes, weights)
        return self._y if change is None else self._y + change * self._size


def weighted_sum(slopes: Sequence[Tensor], weights: Sequence[Any]) -> Tensor | None:
    """`Σ weights * slopes`, with numbers or tensors as weights; None if all are zero."""
    total = None
    for slope, weight in zip(slopes, weights, strict=True):
        if isinstance(weight, Tensor) or weight:
            total = slope * weight if total is None else total + slope * weight
    return total


def for_some_samples(field: Field, batch: int) -> Field:
    """A field with a helpful error if it cannot be evaluated for only some samples of its batch."""

    def explained(t: Tensor, y: Tensor) -> Tensor:
        try:
            slope = field(t, y)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            if len(y) == batch:
                _refuse_one_time(field, t, y)
                raise
            raise ValueError(_CANNOT_SHRINK.format(len(y), batch, error)) from error
        if len(y) < batch and isinstance(slope, Tensor) and slope.shape != y.shape:
            reason = f"it returned {tuple(slope.shape)} for a state of shape {tuple(y.shape)}"
            raise ValueError(_CANNOT_SHRINK.format(len(y), batch, reason))
        return slope

    return explained


def _refuse_one_time(field: Field, t: Tensor, y: Tensor) -> None:
    """Check whether a call failed because the field takes only one time for all samples."""
    try:
        with torch.no_grad():
            field(t[0], y.clone())
    except Exception:  # then it has a different fault, which is raised
        return
    if not (y.is_leaf and y.requires_grad):  # into which the field may not write
        raise ValueError(_ONE_TIME.format(tuple(t.shape), "takes one for all"))


def refuse_other_axis(field: Field, t: Tensor, y: Tensor, stats: Stats) -> None:
    """Refuse a field in which the time of one sample affects another.

    `t * y` does so without an error if the state's last axis is as long as its first.

    Args:
        field: The field.
        t: One time per sample.
        y: The state.
        stats: Where evaluations are counted.
    """
    later = t.clone()
    later[:1] += 1e-3 * (1 + t[:1].abs())

    def others(t: Tensor) -> Tensor:
        stats.forward_evaluations += 1
        return field(t, y.detach().clone())[1:].nan_to_num()

    surroundings = Surroundings(y.device)
    with torch.no_grad(), surroundings.restored(surroundings.random_state()):
        try:
            before, after = others(t), others(later)
            if torch.equal(before, after) or not torch.equal(before, others(t)):  # or at random
                return
        except Exception:  # which the solve itself will meet
            return
    raise ValueError(_ONE_TIME.format(tuple(t.shape), "lets that of one sample move others"))


_ONE_TIME = (
    "independent=True gives the field one time per sample, t of shape {}, and it {}; give t the "
    "state's axes, for example with t.view(-1, 1)"
)
_CANNOT_SHRINK = (
    "independent=True asked the field for {} of {} samples, since the others were not to be "
    "evaluated, and it failed ({}); if it keeps a value per sample of its own, make that a "
    "component of the state whose derivative is zero"
)


@dataclass(frozen=True)
class Rule:
    """The sizes of steps.

    Attributes:
        control: Rule for adaptive steps, or None for fixed ones.
        step: Size of fixed steps; infinity takes one from stop to stop.
        max_steps: Largest number of adaptive steps that a sample tries.
        jump_at_start: Whether the field may jump at the first time.
    """

    control: Control | None = None
    step: float = math.inf
    max_steps: float = math.inf
    jump_at_start: bool = False


@dataclass(frozen=True)
class _Going:
    """Samples under way.

    Attributes:
        samples: Their places in the whole batch.
        y: Their states.
        slope: The field there.
        point: Their times.
        size: The steps they will try, whose signs are their directions.
        past: Error ratios of their last two accepted steps, the last one first, `(samples, 2)`.
        finite: Whether the last step they tried gave finite numbers.
    """

    samples: Tensor
    y: Tensor
    slope: Tensor
    point: Points
    size: Tensor
    past: Tensor
    finite: Tensor

    def __len__(self) -> int:
        return len(self.samples)

    def keep(self, chosen: Tensor) -> _Going:
        """Some of them."""
        if bool(chosen.all()):
            return self
        there, point = _places(chosen, self.y), self.point.keep(chosen)
        size, past, finite = self.size[chosen], self.past[chosen], self.finite[chosen]
        rows = self.samples[chosen], self.y[there], self.slope[there]
        return _Going(*rows, point, size, past, finite)


@dataclass(frozen=True)
class _Step:
    """A step of some samples: its size, the state after it, its slopes and its error."""

    size: Tensor
    y1: Tensor
    slopes: tuple[Tensor, ...]
    error: Tensor

    def keep(self, chosen: Tensor) -> _Step:
        """The step of some of the samples."""
        if bool(chosen.all()):
            return self
        there = _places(chosen, self.y1)
        slopes = tuple(slope[there] for slope in self.slopes)
        return _Step(self.size[there], self.y1[there], slopes, self.error[there])


class SampleIntegration:
    """One integration in which every sample has its own steps.

    Args:
        evaluate: Calls the field, with one time per sample.
        tableau: The method.
        timetable: When samples start and stop.
        rule: The sizes of steps.
        gauge: Measures errors.
        stats: Where costs are counted.
        room: What the graphs of the steps may keep.

    Attributes:
        statuses: How each sample ended.
        reached: When.
    """

    def __init__(
        self,
        evaluate: Field,
        tableau: Tableau,
        timetable: Timetable,
        rule: Rule,
        gauge: Gauge,
        stats: Stats,
        room: Room,
    ) -> None:
        self._evaluate, self._tableau, self._table = evaluate, tableau, timetable
        self._rule, self._gauge, self._stats, self._room = rule, gauge, stats, room
        batch = len(timetable.times)
        self._evaluations, self._accepted, self._rejected = torch.zeros(3, batch).long().unbind()
        self._best_first = math.inf
        self._pieces: list[tuple[Tensor, Tensor, Tensor]] = []
        self.statuses = [Status.SUCCESS] * batch
        self.reached = timetable.times[:, 0].clone()

    def run(self, y0: Tensor) -> Tensor:
        """The states at the requested times, `(time, batch, …)` or `(batch, time, …)`."""
        going = self._set_out(y0)
        while len(going):
            going = self._without_stuck(going)
            if len(going):
                going = self._go_on(going)
        stats = self._stats
        stats.accepted += int(self._accepted.sum())
        stats.rejected += int(self._rejected.sum())
        stats.first_step = self._best_first if math.isfinite(self._best_first) else 0.0
        stats.per_sample = SampleStats(
            self._evaluations, self._accepted, self._rejected, tuple(self.statuses)
        )
        return self._stacked(y0)

    def failure(self) -> tuple[Status, int, str]:
        """Status and place of the first failed sample, with a line about all; or success."""
        failed = [i for i, status in enumerate(self.statuses) if status is not Status.SUCCESS]
        if not failed:
            return Status.SUCCESS, 0, ""
        named = ", ".join(map(str, failed[:5])) + (", …" if len(failed) > 5 else "")
        what = f"{len(failed)} of {len(self.statuses)} samples failed ({named}): sample {failed[0]}"
        return self.statuses[failed[0]], failed[0], what

    # The start

    def _set_out(self, y0: Tensor) -> _Going:
        """All samples that have an interval to cover, at their start."""
        table, everyone = self._table, torch.arange(len(y0))
        samples, places = table.requests_at_start()
        self._pieces.append((samples, places, y0[samples.to(y0.device)]))
        start = Points(table.times[:, 0], torch.zeros_like(everyone))
        size, finite = torch.zeros_like(start.values), torch.ones_like(everyone).bool()
        past = size.new_tensor(FIRST_RATIOS).expand(len(size), -1)
        going = _Going(everyone, y0, y0, start, size, past, finite)
        going = going.keep(~table.is_over(everyone, start))
        jumped = torch.full((len(going),), self._rule.jump_at_start)
        going = self._with_slopes(going, torch.ones_like(jumped), jumped)
        sizes = going.size.new_tensor(self._first_sizes(going))
        return replace(going, size=sizes * table.direction[going.samples])

    def _with_slopes(self, going: _Going, fresh: Tensor, jumped: Tensor) -> _Going:
        """Evaluate the field again for some samples; those where it is not finite end here."""
        if not bool(fresh.any()):
            return going
        samples, point, there = going.samples[fresh], going.point, _places(fresh, going.y)
        if bool(jumped.any()):
            after = self._table.beside(going.samples, point, 1.0)
            point = replace(point, values=torch.where(jumped, after.values, point.values))
        y = going.y[there]
        slope = self._call(self._table.exact(samples, point.keep(fresh)), y)
        sound = _are_finite(slope) & _are_finite(y)
        if bool(sound.all()):
            self._evaluations[samples] += 1
            return replace(going, slope=_put(going.slope, there, slope))
        lost = fresh.clone()
        lost[fresh] = ~sound
        self._evaluations[going.samples[lost]] += 1
        self._end(going, lost, Status.NON_FINITE)
        # Again without them: no gradient, not even zero, may flow through not-a-number.
        return self._with_slopes(going.keep(~lost), fresh[~lost], jumped[~lost])

    def _first_sizes(self, going: _Going) -> list[float]:
        control = self._rule.control
        if control is None:
            return [self._rule.step] * len(going)
        if control.first_step is not None or not len(going):
            return [control.first_step or 0.0] * len(going)
        gauge, table, samples = self._gauge, self._table, going.samples
        with torch.no_grad():
            y, slope = going.y.detach(), going.slope.detach()
            scale = gauge.scale(magnitude(y), samples)
            sizes, rates = gauge.norms(y, scale), gauge.norms(slope, scale)
            spans = (table.times[samples, -1] - going.point.values).abs()
            known = zip(sizes, rates, spans.clamp(max=control.max_step).tolist(), strict=True)
            trials = [control.trial_size(*one) or 1e-6 for one in known]
            ahead = table.direction[samples] * going.size.new_tensor(trials)
            near = y + slope * scale_rows(ahead.to(y.device, y.dtype), y)
            point = replace(going.point, values=going.point.values + ahead)
            changes = gauge.norms(self._call(table.exact(samples, point), near) - slope, scale)
        self._evaluations[samples] += 1
        estimates = [
            control.size_after_trial(trial, rate, change / trial, self._tableau.error_order)
            for trial, rate, change in zip(trials, rates, changes, strict=True)
        ]
        starts = going.point.values.tolist()
        return [control.moving_clock(*one) for one in zip(estimates, starts, strict=True)]

    def _call(self, time: Tensor, y: Tensor) -> Tensor:
        self._stats.forward_evaluations += 1
        return self._evaluate(time.to(real_dtype(y.dtype)), y)

    # One step of every sample

    def _without_stuck(self, going: _Going) -> _Going:
        """Keep the samples that can continue: their steps still move time, and some are left."""
        control = self._rule.control
        if control is None:
            return going
        sizes = [control.clamp(size) for size in going.size.tolist()]
        going = replace(going, size=going.size.new_tensor(sizes))
        leg = self._table.leg(going.samples, going.point, going.size)
        stuck = leg.end.values == going.point.values
        self._end(going, stuck & going.finite, Status.STEP_UNDERFLOW)
        self._end(going, stuck & ~going.finite, Status.NON_FINITE)
        tries = (self._accepted + self._rejected)[going.samples]
        spent = ~stuck & (tries >= self._rule.max_steps)
        self._end(going, spent, Status.STEP_LIMIT)
        return going.keep(~(stuck | spent))

    def _go_on(self, going: _Going) -> _Going:
        """Try one step of every sample."""
        if self._rule.control is not None:
            self._rule.control.refuse_what_stands_still(
                going.y, lambda: self._gauge.scale(going.y.abs(), going.samples)
            )
        leg = self._table.leg(going.samples, going.point, going.size)
        self._room.begin()
        step = self._attempt(going, leg)
        self._evaluations[going.samples] += len(self._tableau.stages) - 1
        accepted, going = self._judge(going, leg, step)
        tried = torch.ones_like(accepted)
        if not bool(accepted.any()):
            self._room.undo()
        elif torch.is_grad_enabled() and not bool(going.finite.all()):
            # Again without them, for the same reason as at the start.
            self._room.undo()
            tried = going.finite
            step = self._attempt(going.keep(tried), leg.keep(tried))
        going = self._move(going, leg, accepted, step.keep(accepted[tried]))
        lost = ~going.finite & (self._rule.control is None)
        over = self._table.is_over(going.samples, going.point)
        if bool(over.any()):  # a component whose errors do not count may be anything
            lost = lost | (over & ~_are_finite(going.y))
        self._end(going, lost, Status.NON_FINITE)
        alive = ~(over | lost)
        fresh = accepted & (leg.jumps | (not self._tableau.reuses_last_stage))
        return self._with_slopes(going.keep(alive), fresh[alive], leg.jumps[alive])

    def _attempt(self, going: _Going, leg: Leg) -> _Step:
        begin, nodes = self._table.exact(going.samples, going.point), self._tableau.nodes
        size = self._table.exact(going.samples, leg.end) - begin
        times = [begin + size * node for node in nodes]
        if bool(leg.jumps.any()):
            before = self._table.beside(going.samples, leg.end, -1.0)
            inside = self._table.exact(going.samples, before)
            jumps = leg.jumps.to(inside.device)
            pairs = zip(times, nodes, strict=True)
            times = [torch.where(jumps, inside, one) if node == 1 else one for one, node in pairs]
        sums = SampleSums(self._tableau)
        sums.begin(going.y, size)
        sums.add(going.slope)
        y1 = take_stages(self._call, times, sums)
        return _Step(size, y1, tuple(sums.slopes), sums.error())

    def _judge(self, going: _Going, leg: Leg, step: _Step) -> tuple[Tensor, _Going]:
        """Which steps are accepted, and the samples with the sizes that they will try next."""
        control, samples, order = self._rule.control, going.samples, self._tableau.error_order
        if control is None:
            accepted = _are_finite(step.y1)
            self._accepted[samples[accepted]] += 1
            return accepted, replace(going, finite=accepted)
        ratios = self._ratios(going, step)
        finite = torch.tensor([math.isfinite(ratio) for ratio in ratios])
        taken = leg.end.values - going.point.values
        # Rounding may make a step of the smallest size slightly longer.
        smallest = torch.minimum(taken.abs(), going.size.abs()) <= control.min_step
        accepted = finite & (smallest | torch.tensor([ratio <= 1 for ratio in ratios]))
        # Near the resolution of time a step is rounded up; its nominal size still shrinks.
        tried = torch.where(leg.lands, taken, going.size).tolist()
        before = [(last, one) for last, one in going.past.tolist()]
        known = list(zip(tried, ratios, before, strict=True))
        sizes = going.size.new_tensor(
            [control.next_size(size, ratio, order, past) for size, ratio, past in known]
        )
        past = going.past.new_tensor([control.remember(ratio, past) for _, ratio, past in known])
        # A step shortened by a stop says nothing about the pace.
        past = torch.where((accepted & ~leg.lands)[:, None], past.view(-1, 2), going.past)
        # A shortened step says nothing about the next.
        paced = torch.where(sizes.abs() < going.size.abs(), going.size, sizes)
        sizes = torch.where(accepted & leg.lands, paced, sizes)
        for place in (accepted & (self._accepted[samples] == 0)).nonzero()[:, 0].tolist():
            if ratios[place] > 0:
                best = abs(control.best_size(tried[place], ratios[place], order))
                self._best_first = min(self._best_first, best)
        self._accepted[samples[accepted]] += 1
        self._rejected[samples[~accepted]] += 1
        return accepted, replace(going, size=sizes, past=past, finite=finite)

    def _ratios(self, going: _Going, step: _Step) -> list[float]:
        with torch.no_grad():
            sizes = torch.maximum(magnitude(going.y), magnitude(step.y1))
            return self._gauge.norms(step.error, self._gauge.scale(sizes, going.samples))

    def _move(self, going: _Going, leg: Leg, accepted: Tensor, step: _Step) -> _Going:
        """Take the steps that were accepted."""
        if not bool(accepted.any()):
            return going
        self._collect(going.keep(accepted), leg.keep(accepted).end, step)
        there = _places(accepted, going.y)
        slope = going.slope
        if self._tableau.reuses_last_stage:
            slope = _put(slope, there, step.slopes[-1])
        values = torch.where(accepted, leg.end.values, going.point.values)
        anchors = torch.where(accepted, leg.end.anchors, going.point.anchors)
        self.reached[going.samples] = values
        return replace(
            going, y=_put(going.y, there, step.y1), slope=slope, point=Points(values, anchors)
        )

    def _end(self, going: _Going, chosen: Tensor, status: Status) -> None:
        """Note how some samples ended."""
        for sample in going.samples[chosen].tolist():
            self.statuses[sample] = status

    # Requested states

    def _collect(self, going: _Going, end: Points, step: _Step) -> None:
        """Note the states that were requested on a step."""
        whose, places, at_end = self._table.requests(going.samples, going.point, end)
        if bool(at_end.any()):
            chosen = whose[at_end]
            states = step.y1[chosen.to(step.y1.device)]
            self._pieces.append((going.samples[chosen], places[at_end], states))
        if not bool(at_end.all()):
            chosen, places = whose[~at_end], places[~at_end]
            samples = going.samples[chosen]
            states = self._between(going, step, chosen, places)
            self._pieces.append((samples, places, states))

    def _between(self, going: _Going, step: _Step, chosen: Tensor, places: Tensor) -> Tensor:
        """Dense output of single samples at requested times inside their steps."""
        table, samples, there = self._table, going.samples[chosen], chosen.to(step.size.device)
        size, y = step.size[there], going.y[there]
        request = table.exact(samples, Points(table.times[samples, places], places))
        thetas = (request - table.exact(samples, going.point.keep(chosen))) / size
        weights = [
            scale_rows(_polynomial(row, thetas).to(y.dtype), y) if any(row) else 0.0
            for row in self._tableau.dense
        ]
        change = weighted_sum([slope[there] for slope in step.slopes], weights)
        return y if change is None else y + change * scale_rows(size.to(y.dtype), y)

    def _stacked(self, y0: Tensor) -> Tensor:
        """All requested states, those that were not reached as not-a-number."""
        parts = [torch.cat(part).to(y0.device) for part in zip(*self._pieces, strict=True)]
        (samples, places, values), shape = parts, self._table.times.shape
        if self._table.is_shared:
            samples, places, shape = places, samples, shape[::-1]
        whole = y0.new_full((*shape, *y0.shape[1:]), math.nan)
        return whole.index_put((samples, places), values)


def _polynomial(coefficients: Sequence[float], theta: Tensor) -> Tensor:
    """`Σ c_k θ^(k+1)` by Horner's rule."""
    value = theta * coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        value = (value + coefficient) * theta
    return value


def _are_finite(states: Tensor) -> Tensor:
    """Which samples have only finite numbers, read on the host."""
    return torch.isfinite(states.detach()).reshape(len(states), -1).all(dim=1).cpu()


def _places(chosen: Tensor, like: Tensor) -> Tensor:
    """Places of the true values in a row."""
    return chosen.nonzero()[:, 0].to(like.device)


def _put(whole: Tensor, places: Tensor, part: Tensor) -> Tensor:
    """A tensor with some rows replaced, in order."""
    return part if len(part) == len(whole) else whole.index_copy(0, places, part)
