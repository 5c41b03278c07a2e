"""Solves that keep some of their states; the backward pass repeats the steps in between.

Autograd records one evaluation at a time in the forward pass, to see which tensors the field takes
from elsewhere, and its graph is released at once. All that remains of a step is a `Link`, a few
numbers, and of the solve, the states that its `Shelf` keeps. The backward pass goes through the
steps from the last one to the first. It finds the state at which a step begins by repeating those
since the nearest state that was kept, repeats the step with a graph, and differentiates it.

No error test is repeated, and a repeated step has to give the same result, or the backward pass
raises an error. Gradients are added up in the order in which autograd would add them up through the
whole graph, so that on a processor they agree with its own to the last bit.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from bfno.ode.dependencies import Gathering, mark, without_hooks
from bfno.ode.evaluate import Field, ReplayingEvaluator, TrackingEvaluator
from bfno.ode.integrate import RowOutputs, SharedOutputs
from bfno.ode.replay import (
    FAILED,
    NOT_REPEATABLE,
    RandomState,
    Recording,
    Replayer,
    Room,
    address,
)
from bfno.ode.solution import GradientError, Stats
from bfno.ode.state import clock_dtype
from bfno.ode.step import Clock, Moment, Stepper, Sums
from bfno.ode.tableaus import Tableau
from bfno.tracing import is_followed

__all__ = ["Chain", "ChainStepper", "Shelf", "split"]

Root = tuple[Tensor, Tensor | None]
"""A result of a step and its gradient."""


class Link(NamedTuple):
    """An accepted step.

    Attributes:
        start: Where it began.
        end: Where it ended.
        end_inside: Whether stages at the end were evaluated just before it.
        random: State of the random numbers before it.
        begun: Moment and random numbers of the first stage, if it was not the last one of the step
            before.
        checksum: One number that distinguishes results.
        served: Number of requests served when it ended.
    """

    start: Moment
    end: Moment
    end_inside: bool
    random: RandomState
    begun: tuple[Moment, RandomState] | None
    checksum: float = 0.0
    served: int = 0


class Snapshot(NamedTuple):
    """A state at which a step begins.

    Attributes:
        y: The state.
        slope: The slope there, if evaluating the field again would give another.
        version: How often the state had been written into.
    """

    y: Tensor
    slope: Tensor | None
    version: int

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return self.y.nbytes * (1 if self.slope is None else 2)


class Shelf:
    """Keeps as many of the states of a solve as fit, whose number is not known beforehand.

    When the shelf is full, a new state replaces one that has become dispensable because a later one
    has a higher level; if there is none, it replaces the last one, at one level above it. So no
    step is repeated more often than a schedule made in hindsight would (Wang, Moin and Iaccarino,
    Minimal repetition dynamic checkpointing algorithm for unsteady adjoint calculation, 2009).

    Args:
        size: How much memory the states may take. At least `4 + 2 log2(steps)` states are kept,
            with which a step is repeated about as often as the number of steps has digits.

    Attributes:
        kept: The states by the number of the step that begins there, in order. The very first state
            is kept elsewhere.
    """

    def __init__(self, size: float) -> None:
        self._size = size
        self._levels: dict[int, int] = {}
        self.kept: dict[int, Snapshot] = {}

    def capacity(self, steps: int, size: int) -> float:
        """Number of states of a size in bytes that may be kept for a number of steps."""
        fitting = self._size // size if size and self._size < math.inf else self._size
        return max(fitting, 2 + 2 * steps.bit_length())

    def put(self, place: int, snapshot: Snapshot) -> None:
        """Keep the state at which a step begins, in place of another if necessary."""
        full = len(self.kept) >= self.capacity(place, snapshot.size)
        self._levels[place] = self._drop_one() if full else 0
        self.kept[place] = snapshot

    def _drop_one(self) -> int:
        """Drop a state; return the level of the one that replaces it."""
        highest, last = 0, next(reversed(self._levels))
        for place, level in reversed(self._levels.items()):
            if level < highest:
                del self._levels[place], self.kept[place]
                return 0
            highest = level
        del self.kept[last]
        return self._levels.pop(last) + 1


def split(steps: int, free: int) -> int:
    """After how many steps to keep a state, if a given number of states can be kept.

    Example:
        >>> split(10, free=2), split(10, free=3), split(10, free=9)
        (6, 4, 1)
    """
    times = 1  # that a step is repeated
    while math.comb(free + times, times) < steps:
        times += 1
    return min(max(1, steps - math.comb(free - 1 + times, times)), steps - 1)


# The forward pass


class _LettingGo(TrackingEvaluator):
    """Calls a field with autograd on, because its result may depend on that, but keeps no graph."""

    def __init__(self, chain: Chain) -> None:
        super().__init__(chain.field, chain.y0)
        self._chain = chain
        self._is_wanted = chain.y0.requires_grad or bool(chain.moving)

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            since, y = mark(), self._chain.gathering.state(y, wanted=self._is_wanted)
            slope = self._call(t.detach(), y)
            self._look_at(slope, since, t, y)
        self._is_wanted |= slope.requires_grad
        return slope.detach()

    def _call(self, t: Tensor, y: Tensor) -> Tensor:
        return super().__call__(t, y)

    def _look_at(self, slope: Tensor, since: int, t: Tensor, y: Tensor) -> None:
        """Check a repeated call when it is differentiated."""


class _Gathering(_LettingGo):
    """Also notes which tensors the field uses."""

    def _call(self, t: Tensor, y: Tensor) -> Tensor:
        chain = self._chain
        if chain.calls == 2:
            return super()._call(t, y)
        # A function without a reference to the chain, which would keep itself alive through it.
        again = TrackingEvaluator(self.field, y)
        with chain.replayer.recording(again, (t, y)) as call:
            slope = call.result = super()._call(t, y)
        chain.calls, chain.witness = chain.calls + 1, call
        return slope

    def _look_at(self, slope: Tensor, since: int, t: Tensor, y: Tensor) -> None:
        chain = self._chain

        def again() -> None:
            chain.stats.forward_evaluations += 1
            with chain.surroundings.restored(chain.surroundings.random_state()):
                self.field(t.detach(), y)

        if chain.gathering.gather(slope, since, y, again):
            chain.note_tensors()


class ChainStepper(Stepper):
    """Takes steps without a graph, and adds accepted ones to a chain as links.

    Args:
        chain: The chain.
        outputs: Collects requested states.
    """

    def __init__(self, chain: Chain, outputs: SharedOutputs | RowOutputs) -> None:
        method = chain.method
        super().__init__(_Gathering(chain), method, chain.clock, Sums(method), chain.stats)
        self._chain, self._outputs = chain, outputs
        self._begun: tuple[Moment, RandomState] | None = None
        self._tried: Any = None

    def start(self, moment: Moment, y: Tensor, slope: Tensor | None = None) -> Tensor:
        self._begun = moment, self._chain.surroundings.random_state()
        return super().start(moment, y)

    def attempt(self, start: Moment, end: Moment, y: Tensor, *, end_inside: bool = False) -> Tensor:
        random = self._chain.surroundings.random_state()
        y1 = super().attempt(start, end, y, end_inside=end_inside)
        link = Link(start, end, end_inside, random, self._begun)
        self._tried = link, y1, y1._version
        return y1

    def accept(self) -> None:
        super().accept()
        link, y1, version = self._tried
        checksum = self._chain.checksum(y1, self.slopes)
        link = link._replace(checksum=checksum, served=self._outputs.served)
        self._chain.add(link, Snapshot(y1, self._first, version))
        self._begun = self._tried = None


class Chain:
    """The steps of a solve, and what a backward pass needs to repeat them.

    Args:
        field: The field.
        method: The method.
        given: State at the start, requested times, and times that step boundaries move with.
        stats: Where evaluations are counted.
        size: How many bytes the kept states may take.
        by_sample: Whether every sample has its own clock.
        by_step: Whether the backward pass keeps all tensors of one step at once.

    Attributes:
        requests: The states requested from the steps.
        links: The accepted steps.
        shelf: Some of the states.
        gathering: The tensors that the field uses.
        moving: Stand-ins of the times that are to be differentiated.
        clock: Tells the time.
        calls: How many of the first two evaluations have been made.
        witness: The last one of these, whose repetition shows whether the field has changed.
        draws: Whether the field draws random numbers.
    """

    def __init__(
        self,
        field: Field,
        method: Tableau,
        given: tuple[Tensor, Tensor, Tensor],
        stats: Stats,
        *,
        size: float,
        by_sample: bool,
        by_step: bool,
    ) -> None:
        y0, times, knots = given
        self.field, self.method, self.y0, self.stats = field, method, y0, stats
        self._by_step = by_step
        self.replayer = Replayer(y0, stats, Room(0))
        self.surroundings = self.replayer.surroundings
        self.gathering = Gathering()
        self.links: list[Link] = []
        self.shelf = Shelf(size)
        self.lock = threading.RLock()  # several threads may differentiate one graph at once
        self._noted: list[tuple[Tensor, int, int]] = []
        self.draws = False
        self._first = self._last = Snapshot(y0, None, y0._version)
        # Of rows, the clocks move; of shared times, the step boundaries.
        self._times = times if by_sample else knots
        alone = _alone(self._times)
        self.moving = [alone] if alone.requires_grad else []
        self.clock = Clock(knots if by_sample else alone, y0)
        self.requests: _Requests
        if by_sample:
            self.requests = _RowRequests(alone, y0.detach())
        else:
            self.requests = _SharedRequests(times.tolist(), self.clock)
        self.calls = 0
        self.witness: Recording | None = None

    def add(self, link: Link, end: Snapshot) -> None:
        """Append a step and the state at its end."""
        if self.links:
            self.shelf.put(len(self.links), self._last)
        self.links.append(link)
        # A slope takes as much memory as a state, and one evaluation computes it again, unless
        # that would draw other random numbers.
        self.draws |= self.surroundings.random_state() is not link.random
        self._last = end if self.draws else end._replace(slope=None)

    def note_tensors(self) -> None:
        """Note the versions of the tensors that the field uses."""
        seen = {id(tensor) for tensor, _, _ in self._noted}
        new = [tensor for tensor in self.gathering.tensors if id(tensor) not in seen]
        self._noted += [(tensor, tensor._version, address(tensor)) for tensor in new]

    def checksum(self, y1: Tensor, slopes: Sequence[Tensor]) -> float:
        """One number that distinguishes steps."""
        return self.replayer.checksum(_mixed(y1, slopes)).item()

    def refuse_other_result(self, link: Link, y1: Tensor, slopes: Sequence[Tensor]) -> None:
        """Refuse a repeated step that gives a different result."""
        result = _mixed(y1, slopes)
        before = torch.tensor(link.checksum, dtype=clock_dtype(y1.device), device=y1.device)
        if not self.replayer.is_same(before, result):
            raise GradientError(NOT_REPEATABLE)

    def refuse_changes(self) -> None:
        """Refuse a backward pass if a tensor has changed since the solve."""
        for tensor, version, where in self._noted:
            if tensor._version != version or address(tensor) != where:
                raise GradientError(
                    f"a tensor of shape {tuple(tensor.shape)} that the field uses was replaced, or "
                    "changed in place as optimizer.step() changes parameters, before the backward "
                    "pass; call backward() first, or solve again"
                )
        if self.witness is not None:
            self.witness.verify()

    def states(self, outputs: SharedOutputs | RowOutputs) -> Tensor:
        """The states that were collected, for autograd to differentiate."""
        if not self.links or self.witness is None:
            return self.requests.outputs_of(self.y0).stacked()
        self.witness.saved = None
        self._last = self._first
        for snapshot in (self._first, *self.shelf.kept.values()):
            if snapshot.y._version != snapshot.version:
                raise GradientError(_WRITTEN)
        times = [self._times.to(clock_dtype(self._times.device))] if self.moving else []
        return _Rewound.apply(self, outputs, self.y0, *times, *self.gathering.tensors)

    def recording_evaluator(self) -> TrackingEvaluator:
        """Calls the field in a step that is differentiated.

        Where states are large, the graphs of all evaluations of one step may not fit, and the
        inputs of some are kept instead.
        """
        if self._by_step:
            return TrackingEvaluator(self.field, self.y0)
        return ReplayingEvaluator(self.field, self.y0, Replayer(self.y0, self.stats))


_WRITTEN = (
    "a state of the solve was changed in place, such as y0 by the field or by on_step; change a "
    "copy instead: y0.clone()"
)


def _alone(times: Tensor) -> Tensor:
    """Times for the solver's clock, without history, but differentiable if they were."""
    alone = times.detach().to(clock_dtype(times.device))
    return alone.requires_grad_() if times.requires_grad else alone


def _mixed(y1: Tensor, slopes: Sequence[Tensor]) -> Tensor:
    """The result of a step, in which every slope counts, however small the step."""
    # A device that rounds differently every time needs to agree only up to its own precision.
    exact = y1.device.type == "cpu"
    dtype = torch.promote_types(y1.dtype, torch.float64) if exact else y1.dtype
    mixed = y1.detach().to(dtype, copy=True)
    for place, slope in enumerate(slopes, 1):
        mixed.add_(slope.detach(), alpha=math.cos(place))
    return mixed


# Requested times


class _Requests(Protocol):
    """The requested states of a solve, and their gradients.

    Attributes:
        served: Number of requests that the very first state serves.
    """

    served: int

    def outputs_of(self, y0: Tensor) -> Any:
        """The collector of the states."""
        ...

    def at_end(self, link: Link | None, served: int, y: Tensor, gradient: Tensor) -> list[Root]:
        """Requested states that are the state at the end of a step, or at the very start.

        Args:
            link: The step; None asks for the start of all.
            served: How many requests were served before it.
            y: The state.
            gradient: Gradient of all requested states.
        """
        ...

    def inside(
        self, link: Link, served: int, stepper: Stepper, y: Tensor, gradient: Tensor
    ) -> list[Root]:
        """Requested states that lie between the ends of a step, which was the stepper's last."""
        ...


class _SharedRequests:
    """Times that are the same for the whole state."""

    served = 1

    def __init__(self, times: Sequence[float], clock: Clock) -> None:
        self._times, self._clock = times, clock

    def outputs_of(self, y0: Tensor) -> SharedOutputs:
        return SharedOutputs(self._times, y0)

    def _is_at_end(self, link: Link, place: int) -> bool:
        return self._clock.move_together(link.end, Moment(self._times[place], place))

    def at_end(self, link: Link | None, served: int, y: Tensor, gradient: Tensor) -> list[Root]:
        if link is None:
            return [(y, gradient[0])]
        places = range(served, link.served)
        return [(y, gradient[place]) for place in places if self._is_at_end(link, place)]

    def inside(
        self, link: Link, served: int, stepper: Stepper, y: Tensor, gradient: Tensor
    ) -> list[Root]:
        places = [place for place in range(served, link.served) if not self._is_at_end(link, place)]
        moments = [Moment(self._times[place], place) for place in places]
        states = [stepper.interpolate(link.start, link.end, y, moment) for moment in moments]
        return [(state, gradient[place]) for state, place in zip(states, places, strict=True)]


class _RowRequests:
    """One row of times per sample."""

    def __init__(self, clock: Tensor, y0: Tensor) -> None:
        self._clock = clock
        self._layout = self.outputs_of(y0)
        self.served = self._layout.served

    def outputs_of(self, y0: Tensor) -> RowOutputs:
        return RowOutputs(self._clock, y0)

    def at_end(self, link: Link | None, served: int, y: Tensor, gradient: Tensor) -> list[Root]:
        if link is not None:
            return []
        samples, columns = self._layout.places(0, served)
        return [(y[samples], gradient[samples, columns])]

    def inside(
        self, link: Link, served: int, stepper: Stepper, y: Tensor, gradient: Tensor
    ) -> list[Root]:
        samples, columns = self._layout.places(served, link.served)
        if not len(samples):
            return []
        moments = link.start.value, link.end.value
        values = self._layout.between(stepper, *moments, y, (samples, columns))
        return [(values, gradient[samples, columns])]


# The backward pass


class _Rewound(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, chain: Chain, outputs: SharedOutputs | RowOutputs, y0: Tensor, *others: Tensor
    ) -> Tensor:
        ctx.chain, ctx.places = chain, list(chain.shelf.kept)
        kept = [part for one in chain.shelf.kept.values() for part in (one.y, one.slope)]
        ctx.save_for_backward(y0, *kept)
        chain.shelf.kept.clear()  # saved tensors go when a backward pass has used them
        return outputs.stacked()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if is_followed(gradients[0]):
            raise GradientError(
                "a solve that keeps no graphs of its steps cannot be differentiated under "
                "torch.func, in forward mode or with is_grads_batched=True; use gradient='direct'"
            )
        if torch.is_grad_enabled():
            # Autograd is on in a backward pass only if its result is to be differentiated again.
            raise GradientError(
                "a solve that keeps no graphs of its steps can be differentiated once, not twice; "
                "use memory=0 for higher derivatives"
            )
        try:
            y0, *kept = ctx.saved_tensors
        except RuntimeError as error:
            raise GradientError(
                "a state of the solve was changed in place before the backward pass (y0, or what a "
                f"callback was given), or the graph was used up; call backward() first ({error})"
            ) from error
        pairs = zip(ctx.places, kept[::2], kept[1::2], strict=True)
        snapshots = {place: (y, slope) for place, y, slope in pairs}
        chain: Chain = ctx.chain
        with chain.lock, without_hooks(chain.gathering.tensors):
            chain.refuse_changes()
            rewind = _Rewind(chain, {0: (y0, None), **snapshots}, gradients[0])
            return None, None, *rewind.run()


class _Repeater(Stepper):
    """Repeats links of a chain."""

    def __init__(self, chain: Chain, evaluate: TrackingEvaluator) -> None:
        super().__init__(evaluate, chain.method, chain.clock, Sums(chain.method), Stats())
        self._surroundings, self._total = chain.surroundings, chain.stats

    def slope_after(self, link: Link, y: Tensor) -> Tensor | None:
        """The slope at the end of a step, which is the first one of the next."""
        if not self.tableau.reuses_last_stage:
            return None
        self._total.backward_evaluations += 1
        time = self._stage_times(link.start, link.end, link.end_inside)[-1]
        with self._surroundings.restored(link.random):
            return self._evaluate(time, y)

    def repeat(self, link: Link, y: Tensor, slope: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Repeat a step from a state and the slope there; return both at its end."""
        before, self._first = self.stats.forward_evaluations, slope
        if link.begun is not None:
            moment, random = link.begun
            with self._surroundings.restored(random):
                self.start(moment, y)
        with self._surroundings.restored(link.random):
            y1 = self.attempt(link.start, link.end, y, end_inside=link.end_inside)
        self._total.backward_evaluations += self.stats.forward_evaluations - before
        self.accept()
        return y1, self._first


class _Rewind:
    """One backward pass.

    Args:
        chain: The steps.
        kept: States and slopes at which steps begin, by their number.
        gradient: Gradient of the requested states.
    """

    def __init__(
        self, chain: Chain, kept: dict[int, tuple[Tensor, Tensor | None]], gradient: Tensor
    ) -> None:
        self._chain, self._links, self._gradient = chain, chain.links, gradient
        self._kept, self._is_tangled = kept, chain.gathering.is_tangled()
        self._capacity = chain.shelf.capacity(len(chain.links), chain.y0.nbytes * (1 + chain.draws))
        self._letting_go = _Repeater(chain, _LettingGo(chain))
        self._others = (*chain.moving, *chain.gathering.tensors)
        self._sums: list[Tensor | None] = [None] * len(self._others)
        # Gradients of the state and of the slope at the end of the step before.
        self._of_y: Tensor | None = None
        self._of_slope: Tensor | None = None

    def run(self) -> tuple[Tensor | None, ...]:
        """Gradients of the start, of the times and of the tensors."""
        chain, count = self._chain, len(self._links)
        last, y = self._links[-1], self._kept[0][0]
        roots = chain.requests.at_end(last, self._served(count - 1), y, self._gradient)
        if roots:  # the last step ends on a requested time
            self._of_y = roots[0][1]
        try:
            for place in reversed(range(count)):
                self._pull(place, *self._state_before(place))
                self._kept.pop(place, None)
        except GradientError:
            raise
        except Exception as error:
            raise GradientError(FAILED.format(error)) from error
        if not self._is_tangled:
            return self._of_y, *self._sums
        times, tensors = self._sums[: len(chain.moving)], self._sums[len(chain.moving) :]
        return self._of_y, *times, *chain.gathering.untangle(tensors)

    def _served(self, place: int) -> int:
        """Number of requests served before a step."""
        return self._links[place - 1].served if place else self._chain.requests.served

    def _state_before(self, place: int) -> tuple[Tensor, Tensor | None]:
        """The state at which a step begins, and the slope there if the step before knows it."""
        known = next(reversed(self._kept))  # later ones are gone
        y, slope = self._kept[known]
        if slope is None and known and self._links[known].begun is None:
            slope = self._letting_go.slope_after(self._links[known - 1], y)
        while known < place:
            free = self._capacity - len(self._kept) + 1  # the very first state does not count
            steps = split(place + 1 - known, int(free)) if free > 0 else place - known
            for link in self._links[known : known + steps]:
                y, slope = self._letting_go.repeat(link, y, slope)
            known += steps
            if known < place:
                self._kept[known] = y, slope if self._chain.draws else None
        return y, slope

    def _pull(self, place: int, y: Tensor, slope: Tensor | None) -> None:
        """Pull gradients back through a step."""
        chain, link, served = self._chain, self._links[place], self._served(place)
        y = y.detach().requires_grad_(place > 0 or chain.y0.requires_grad)
        inputs = [y] if slope is None else [y, slope := slope.detach().requires_grad_()]
        since, gradient = mark(), self._gradient
        with torch.enable_grad():
            stepper = _Repeater(chain, chain.recording_evaluator())
            y1, last = stepper.repeat(link, y, slope)
            with chain.surroundings.restored(link.random):  # and to its autocast
                inside = chain.requests.inside(link, served, stepper, y, gradient)
            before = self._links[place - 1] if place else None
            start = chain.requests.at_end(before, self._served(max(place - 1, 0)), y, gradient)
        chain.gathering.refuse_others((y1, *stepper.slopes), since, (*inputs, *chain.moving))
        chain.refuse_other_result(link, y1, stepper.slopes)
        roots = [(y1, self._of_y), *start, *inside]
        if last is not None:
            roots.append((last, self._of_slope))
        self._of_y, *rest = self._pull_back(roots, inputs)
        self._of_slope = rest[0] if rest else None

    def _pull_back(self, roots: list[Root], inputs: list[Tensor]) -> list[Tensor | None]:
        """Gradients of inputs; those of times and tensors are added to the sums."""
        if not self._is_tangled:
            # First in line, so that parts are added to the sums in autograd's own order. Through
            # tensors that were computed from each other the sums would be pulled back again.
            roots = [*zip(self._others, self._sums, strict=True), *roots]
        roots = [(one, part) for one, part in roots if part is not None and one.requires_grad]
        if not roots:
            return [None] * len(inputs)
        wanted = [one for one in (*inputs, *self._others) if one.requires_grad]
        results, parts = zip(*roots, strict=True)
        found = torch.autograd.grad(
            results, wanted, parts, allow_unused=True, retain_graph=self._is_tangled
        )
        by_tensor = {id(one): part for one, part in zip(wanted, found, strict=True)}
        new: list[Tensor | None] = [by_tensor[id(one)] for one in self._others]
        if self._is_tangled:
            pairs = zip(self._sums, new, strict=True)
            new = [b if a is None else a if b is None else a + b for a, b in pairs]
        self._sums = new
        return [by_tensor.get(id(one)) for one in inputs]
