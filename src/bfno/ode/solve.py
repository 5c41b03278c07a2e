"""`solve`, and the plan of its steps, which `odeint` uses too."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bfno.ode.adjoint import AdjointSettings, adjoint_norm, solve_adjoint
from bfno.ode.control import Control, Norm, component_norm, root_mean_square
from bfno.ode.dense import DenseOutput, DenseRecorder
from bfno.ode.dependencies import refuse_batch_norm
from bfno.ode.evaluate import Evaluator, Field, WithArguments, is_mapped
from bfno.ode.events import EventOutputs
from bfno.ode.inputs import (
    ATOL,
    RTOL,
    check_function,
    check_inputs,
    check_use,
    read_controller,
    read_settings,
    read_tolerances,
    refuse_unknown,
    split_memory,
)
from bfno.ode.integrate import Plan, SharedOutputs, Stop
from bfno.ode.problem import Problem
from bfno.ode.replay import Room
from bfno.ode.samples import Gauge, Rule, SampleIntegration, for_some_samples, refuse_other_axis
from bfno.ode.solution import Solution, Stats, Status
from bfno.ode.state import Packing, clock_dtype, on_host, real_dtype, scale_rows
from bfno.ode.step import Clock, Moment
from bfno.ode.tableaus import Tableau, find_method
from bfno.ode.timetable import Timetable
from bfno.tracing import is_transformed

__all__ = [
    "Options",
    "fixed_stops",
    "make_plan",
    "read_options",
    "solve",
]

_CLOCK = "on a clock from 0 to 1"


@dataclass(frozen=True)
class Options:
    """Rarely needed settings of a solve.

    Attributes:
        args: Further arguments of the field, after time and state.
        step: Size of fixed steps; None lets an adaptive method choose, and makes any other method
            take one step between two requested times.
        first_step: Size of the first adaptive step; None estimates it.
        min_step: Adaptive steps of this size are accepted whatever their error.
        max_step: Adaptive steps are never larger.
        max_steps: Largest number of adaptive steps that are tried before the solve gives up.
        controller: Rule for the size of adaptive steps: `"I"` uses the last error; `"PI"` and
            `"PID"` also use how errors changed over the last two and three steps, which avoids
            rejected steps on rough or mildly stiff fields. Or coefficients `(P, I, D)`.
        norm: Norm of a state that measures errors; None is the root mean square, or for a nest of
            tensors, the largest one of its components.
        ignore: Components of a nested state whose errors do not count, by their place.
        jumps: Times at which the field may jump: steps end there and start afresh. A jump does not
            move with a requested time at the same point. With fixed steps, the state requested
            there moves with its time along the line of its last step, a slope of first order.
        stops: Other times at which steps have to end.
        land: Whether the last step ends at the last requested time. If not, steps run past it, and
            the state there is dense output, as in torchdiffeq.
        event: Function of time and state that ends the solve when its sign changes: one value, or
            one per sample to end each separately. After its event, a state stands still.
        dense: Whether `Solution.evaluate` can be asked for states between the requested times.
        on_step: Called after every accepted step with the time, a copy of the state, and the
            statistics. If every sample has its own times, the time is on a clock from zero to one:
            along each row of `ts`, or with fixed steps, from each of its times to the next.
        throw: Whether a failed solve raises an error; if not, the solution's status says so.
        memory: What one solve may keep with gradient="checkpoint"; the backward pass recomputes the
            rest, and the gradient is the same. Bytes, or text such as "256 MB", "2 GiB" or
            "unlimited", limit the graphs; the inputs of all stages are kept in addition. "stages"
            is zero bytes. "steps" keeps one state per step and no graphs; "steps 50 MB" keeps as
            many of these states as fit; "log" keeps about twice the logarithm of the number of
            steps. None is 512 MiB of graphs, shared by all solves whose backward pass is still to
            come.
        compile: Whether to compile the whole solve and its gradient into one call of machine code,
            which pays off for small fields that are solved many times. The state has to be one
            tensor, and the times shared. If that is impossible, it is compiled step by step, with a
            warning that says why; `Stats.compiled` tells which.
        adjoint: Settings of gradient="adjoint" that differ from the forward solve's: method, rtol,
            atol, step, and seminorm, which leaves the parameters' adjoints out of the error.
        parameters: The tensors that get gradients with gradient="adjoint", such as
            `net.parameters()`; None finds all.
        independent: Whether every sample, along the state's first axis, has its own steps: sizes,
            error tests and ends that depend on no other sample. The field is called with one time
            per sample, and without the samples that have finished. A sample that fails does not
            stop the others. `Stats.per_sample` has the cost of each.
    """

    args: tuple[Any, ...] = ()
    step: float | None = None
    first_step: float | None = None
    min_step: float = 0.0
    max_step: float = math.inf
    max_steps: int = 10_000
    controller: str | Sequence[float] = "I"
    norm: Callable[[Any], Any] | None = None
    ignore: tuple[int, ...] = ()
    jumps: tuple[float, ...] = ()
    stops: tuple[float, ...] = ()
    land: bool = True
    event: Callable[[Any, Any], Tensor] | None = None
    dense: bool = False
    on_step: Callable[[float, Any, Stats], Any] | None = None
    throw: bool = True
    memory: Any = None
    compile: bool = False
    adjoint: Mapping[str, Any] | None = None
    parameters: Sequence[Tensor] | None = None
    independent: bool = False

    def __post_init__(self) -> None:
        for name, value in read_settings(self).items():
            object.__setattr__(self, name, value)


def solve(
    field: Callable[..., Any],
    y0: Any,
    ts: Tensor,
    *,
    method: str | Tableau = "dopri5",
    rtol: float | Tensor = RTOL,
    atol: float | Tensor = ATOL,
    gradient: str = "checkpoint",
    **options: Any,
) -> Solution[Any]:
    """Solve `dy/dt = field(t, y)` from `y(ts[0]) = y0` and return the states at `ts`.

    Args:
        field: The derivative, a module or any callable. `t` is a tensor without axes, or one value
            per sample if `ts` has one row per sample, or with `independent=True`.
        y0: A real or complex tensor of any shape, or a tuple, list, dict or nest of them.
        ts: Requested times, increasing or decreasing: `(time,)`, or `(batch, time)` with one row
            per sample, whose times may repeat (as padding does).
        method: A Runge–Kutta method: its name, see `METHODS`, or its tableau.
        rtol: Relative tolerance of adaptive steps: one number, or a tensor that fits the state.
        atol: Absolute tolerance of adaptive steps.
        gradient: `"checkpoint"`: exact gradient of the discrete solution in as much `memory` as it
            may take.
            `"direct"`: the same gradient, and all memory that autograd wants. `"adjoint"`: the
            continuous adjoint.
        **options: See `Options`.

    Raises:
        SolverError: If the solve fails and `throw` is not False.
        GradientError: If a gradient could not be exact: raised in the solve itself with adjoint, in
            the backward pass otherwise.

    Example:
        >>> ts = torch.linspace(0, 1, 3)
        >>> solution = solve(lambda t, y: -y, torch.ones(2), ts, rtol=1e-6)
        >>> torch.allclose(solution.ys[-1], torch.exp(-ts[-1]).expand(2), atol=1e-5)
        True
    """
    check_function("field", field)
    known = on_host(ts)
    check_inputs(y0, known)
    refuse_batch_norm(field)
    tolerances, settings = read_tolerances(rtol, atol, y0), read_options(options)
    check_use(settings, gradient, tolerances, y0)
    call = _Call(field, y0, ts, method, tolerances, gradient, settings)
    if call.options.independent:
        ys = call.independently(ts if ts.requires_grad else known)
    elif ts.dim() == 2:
        ys = call.by_rows(ts, known)
    elif gradient == "adjoint":
        ys = call.adjoint(ts if ts.requires_grad else known)
    elif call.options.event is not None or call.options.dense:
        ys = call.with_extras(ts if ts.requires_grad else known)
    else:
        ys = call.problem.states(call.y0, ts if ts.requires_grad else known)
    if call.options.throw:
        call.problem.refuse_failure(call.who)
    problem, ys = call.problem, call.packing.unpack(ys)
    return Solution(ts, ys, problem.stats, problem.status, call.event_times, call.dense)


class _Call:
    """One call of `solve`, its state packed into one tensor."""

    def __init__(
        self,
        field: Callable[..., Any],
        y0: Any,
        ts: Tensor,
        method: str | Tableau,
        tolerances: tuple[float | Tensor, float | Tensor],
        gradient: str,
        options: Options,
    ) -> None:
        self.options, self.gradient, self._given = options, gradient, field
        self._tableau = find_method(method)
        between = options.dense or options.event is not None
        if between and self._tableau.dense_order < min(3, self._tableau.order):
            self._tableau = self._tableau.with_end_stage()
        self._refuse_combinations(y0, ts)
        samples = ts.dim() == 2 or options.independent
        samples = samples or (options.event is not None and _has_samples(y0))
        self.packing = Packing(y0, by_sample=samples)
        self._control = _make_control(self.packing, options, *tolerances)
        self.y0 = _counting_changes(self.packing.pack(y0))
        graphs, snapshots = split_memory(options.memory)
        self.problem = Problem(
            self.packing.wrap(WithArguments(field, options.args) if options.args else field),
            self._tableau,
            self._planner(options),
            replay=gradient == "checkpoint" and graphs != math.inf,
            compile=options.compile,
            room=Room(graphs),
            snapshots=snapshots,
        )
        if options.on_step is not None:
            self.problem.watcher = _Reporter(options.on_step, self.packing, self.problem.stats)
        self.who = "solve"
        self.event_times: Tensor | None = None
        self.dense: DenseOutput | None = None

    def adjoint(self, ts: Tensor) -> Tensor:
        """Integrate with gradients by the continuous adjoint."""
        return solve_adjoint(self.problem, self.y0, ts, self._adjoint_settings(self.options))

    def with_extras(self, ts: Tensor) -> Tensor:
        """Integrate with an event or dense output."""
        outputs, event, unpack = None, self.options.event, self.packing.unpack
        times = ts.tolist()
        if event is not None:
            outputs = EventOutputs(lambda t, y: event(t, unpack(y)), times, self.y0)
        watching = outputs = outputs or SharedOutputs(times, self.y0)
        if self.options.dense:
            clock = Clock(ts, self.y0)
            self.dense = DenseOutput(clock, self.packing)
            watching = DenseRecorder(outputs, self.dense)
        integration = self.problem.integration(self.y0, ts, watching)
        integration.run(self.y0)
        self.problem.note(integration)
        if isinstance(outputs, EventOutputs):
            self.event_times = outputs.event_times
        return outputs.stacked()

    def independently(self, ts: Tensor) -> Tensor:
        """Integrate every sample with its own steps."""
        options, problem, tableau = self.options, self.problem, self._tableau
        adaptive = tableau.adaptive and options.step is None
        count = ts.shape[-1]
        landings = range(count - 1 if adaptive and not tableau.is_coarse else 1, count)
        if adaptive and not options.land:
            landings = range(0)
        if ts.dim() == 1:
            times = ts.tolist()
            stops = _knots(times, landings, options.stops, options.jumps)
        else:
            times, stops = [], [Stop(Moment(math.nan, place)) for place in landings]
        rule = Rule(
            self._control if adaptive else None,
            step=math.inf if options.step is None else options.step,
            max_steps=options.max_steps,
            jump_at_start=bool(times) and times[0] in options.jumps,
        )
        rtol, atol = self._control.rtol, self._control.atol
        gauge = Gauge(rtol, atol, self.packing, options.norm, options.ignore)
        problem.field = for_some_samples(problem.field, len(self.y0))
        evaluate = problem.evaluator(self.y0)
        table = Timetable(ts, self.y0, stops)
        if _is_square(self.packing.unpack(self.y0)) and not is_transformed():
            begin = table.times[:, 0].to(self.y0.device, real_dtype(self.y0.dtype))
            refuse_other_axis(problem.field, begin, self.y0, problem.stats)
        integration = SampleIntegration(
            evaluate, tableau, table, rule, gauge, problem.stats, problem.room
        )
        ys = integration.run(self.y0)
        problem.status, sample, self.who = integration.failure()
        problem.reached = float(integration.reached[sample]) if self.who else 0.0
        return ys if ts.dim() == 1 else self._with_moving_starts(ys, ts, problem.field)

    def by_rows(self, ts: Tensor, known: Tensor) -> Tensor:
        """Integrate with one row of times per sample, also given as numbers."""
        wide, exact = ts.to(clock_dtype(ts.device)), known.detach().to(clock_dtype(known.device))
        if self._tableau.adaptive and self.options.step is None:
            spans = exact[:, -1] - exact[:, 0]
            return self._on_clocks(wide, float(spans.abs().max()) if len(ts) else 0.0)
        spans = exact.diff(dim=1).abs()
        return self._by_intervals(wide, spans.amax(0).tolist() if len(ts) else [0.0] * ts.shape[1])

    def _on_clocks(self, ts: Tensor, longest: float) -> Tensor:
        """Integrate every sample over its own interval, all on a clock from zero to one."""
        if self.gradient == "adjoint":
            raise ValueError(
                "gradient='adjoint' needs times that all samples share, got one row per sample; "
                "use gradient='checkpoint'"
            )
        first, span = ts[:, 0], ts[:, -1] - ts[:, 0]
        one = torch.ones_like(span)
        clock = (ts - first[:, None]) / torch.where(span == 0, one, span)[:, None]
        self._control = _on_clock(self._control, longest)
        options = self.options
        if self._tableau.is_coarse:
            options = replace(options, stops=tuple(clock.detach().unique().tolist()))
        self.problem.plan, field = self._planner(options), self.problem.field
        self.problem.field = _rescaled(field, first, span)
        self.problem.by_sample = True
        self.who = f"solve, {_CLOCK} along each row of ts,"
        return self._with_moving_starts(self.problem.states(self.y0, clock), ts, field)

    def _with_moving_starts(self, ys: Tensor, ts: Tensor, field: Field) -> Tensor:
        """Let states move with times that repeat the first one of their row.

        No step leads to them, which would have moved them along the field.

        Args:
            ys: The states.
            ts: Rows of times.
            field: The field, called with one time per sample.
        """
        if not ((ts.requires_grad and torch.is_grad_enabled()) or is_transformed()):
            return ys
        first = ts[:, 0]
        samples, columns = (ts.detach()[:, 1:] == first.detach()[:, None]).nonzero(as_tuple=True)
        if not len(samples):
            return ys
        self.problem.stats.forward_evaluations += 1
        slope = Evaluator(field)(first.to(ys.device, real_dtype(ys.dtype)), self.y0)
        delay = (ts[samples, columns + 1] - first[samples]).to(ys.device, ys.dtype)  # of zero
        samples, columns = samples.to(ys.device), columns.to(ys.device) + 1
        # If there is none, the state is still known.
        slope = slope.masked_fill(~torch.isfinite(slope), 0.0)[samples]
        moved = slope * scale_rows(delay, slope)
        return ys.index_put((samples, columns), moved, accumulate=True)

    def _by_intervals(self, ts: Tensor, lengths: Sequence[float]) -> Tensor:
        """Take fixed steps from each row's time to its next, all samples together."""
        step, y = self.options.step, self.y0
        states, clock = [y], torch.tensor([0.0, 1.0], dtype=ts.dtype)
        for index in range(1, ts.shape[1]):
            first, span = ts[:, index - 1], ts[:, index] - ts[:, index - 1]
            length = lengths[index - 1]
            count = 1 if step is None else max(1, math.ceil(length / step - 1e-9))
            options = replace(self.options, step=1 / count)
            # A separate problem, because its backward pass needs its own field.
            field = _rescaled(self.problem.field, first, span)
            part = replace(self.problem, field=field, plan=self._planner(options))
            if self.gradient == "adjoint":
                backward = dict(options.adjoint or {})
                if backward.get("step") is not None:  # in time; the clock runs from 0 to 1
                    backward["step"] = min(1.0, backward["step"] / length) if length else 1.0
                settings = self._adjoint_settings(replace(options, adjoint=backward), first, span)
                y = solve_adjoint(part, y, clock, settings)[-1]
            else:
                y = part.states(y, clock)[-1]
            states.append(y)
            if part.status is not Status.SUCCESS and self.problem.status is Status.SUCCESS:
                self.problem.status, self.problem.reached = part.status, part.reached
                self.who = f"solve, {_CLOCK} from ts[:, {index - 1}] to ts[:, {index}],"
        return torch.stack(states, dim=1)

    def _planner(self, options: Options) -> Callable[[Tensor], Plan]:
        # Not a method of this call: a problem that held its call would keep both alive.
        return functools.partial(make_plan, self._tableau, options, self._control)

    def _adjoint_settings(self, options: Options, *further: Tensor) -> AdjointSettings:
        """How the adjoint equation is solved, for a field that uses further tensors."""
        wanted = {"seminorm": False, **(options.adjoint or {})}
        tableau, step = self._adjoint_method(wanted, options)
        options, control = replace(options, step=step), self._control
        tolerances = {name: wanted.get(name, getattr(control, name)) for name in ("rtol", "atol")}
        norm = adjoint_norm(control.norm or root_mean_square, seminorm=wanted["seminorm"])

        def plan(times: Tensor, packed_norm: Norm) -> Plan:
            steered = replace(control, **tolerances, norm=packed_norm, first_step=None)
            return make_plan(tableau, options, steered, times)

        # A module may use any of its parameters later, even if not at the start.
        own = tuple(self._given.parameters()) if isinstance(self._given, nn.Module) else ()
        given = None if options.parameters is None else (*options.parameters, *further)
        return AdjointSettings(tableau, plan, norm, parameters=given, further=(*own, *further))

    def _adjoint_method(
        self, wanted: Mapping[str, Any], options: Options
    ) -> tuple[Tableau, float | None]:
        """Method and step of the backward solve; those of the forward solve if none are given."""
        step = wanted.get("step")
        if "method" not in wanted:
            return self._tableau, options.step if step is None else step
        tableau = find_method(wanted["method"])
        if tableau.adaptive or step is not None:
            return tableau, step
        if options.step is None:
            raise ValueError(
                f"adjoint={{'method': {tableau.name!r}}} needs a step, as the method has no own: "
                f"adjoint={{'method': {tableau.name!r}, 'step': 0.1}}"
            )
        return tableau, options.step

    def _refuse_combinations(self, y0: Any, ts: Tensor) -> None:
        """Refuse options that exclude each other."""
        options = self.options
        if options.independent:
            _refuse_dependent(options, self.gradient, y0)
        extras = [name for name in ("event", "dense") if getattr(options, name)]
        if extras and (ts.dim() == 2 or self.gradient == "adjoint" or options.compile):
            raise ValueError(
                f"{extras[0]} needs times that all samples share, gradient='checkpoint' or "
                "'direct', and no compile=True"
            )
        places = [name for name in ("jumps", "stops") if getattr(options, name)]
        if places and ts.dim() == 2:
            raise ValueError(
                f"{places[0]} need times that all samples share, got one row of ts per sample"
            )
        for name in ("compile", "independent"):
            if getattr(options, name) and self._tableau.implicit:
                raise ValueError(
                    f"{name}=True needs an explicit method such as dopri5, got "
                    f"{self._tableau.name!r}"
                )
        if options.compile and (not isinstance(y0, Tensor) or ts.dim() == 2 or ts.requires_grad):
            raise ValueError(
                "compile=True needs a state that is one tensor, and times that all samples share "
                "and that need no gradient"
            )


def _refuse_dependent(options: Options, gradient: str, y0: Any) -> None:
    """Refuse options that independent=True does not support."""
    if not _has_samples(y0):
        raise ValueError(
            "independent=True needs samples along the first axis of the state, the same number in "
            f"each component, got shapes {[tuple(part.shape) for part in tree_leaves(y0)]}"
        )
    if gradient == "adjoint":
        raise ValueError(
            "independent=True needs gradient='checkpoint' or 'direct', got gradient='adjoint'"
        )
    shared = [name for name in ("event", "dense", "on_step", "compile") if getattr(options, name)]
    if shared:
        raise ValueError(
            f"{shared[0]} needs steps that all samples share; pass independent=False, or leave "
            f"{shared[0]} out"
        )
    if is_mapped():
        raise ValueError(
            "independent=True needs numbers, and torch.func.vmap has none; solve the whole batch "
            "at once without vmap"
        )


def _has_samples(y0: Any) -> bool:
    """Whether all components of a state have the same first axis."""
    parts = [part.shape[:1] for part in tree_leaves(y0)]
    return len(set(parts)) == 1 and len(parts[0]) == 1


def _is_square(y0: Any) -> bool:
    """Whether one value per sample also broadcasts to another axis of a state, without an error."""
    return any(part.dim() > 1 and part.shape[-1] == len(part) > 1 for part in tree_leaves(y0))


def _counting_changes(y0: Tensor) -> Tensor:
    """A state whose changes autograd can count, unlike those made in inference mode."""
    return y0.clone() if y0.is_inference() and not torch.is_inference_mode_enabled() else y0


def _on_clock(control: Control, longest: float) -> Control:
    """The step-size rule on a clock from zero to one, scaled by the longest interval.

    So no sample's steps are larger than `max_step`.
    """
    if longest == 0:
        return control
    first = None if control.first_step is None else control.first_step / longest
    bounds = {"min_step": control.min_step / longest, "max_step": control.max_step / longest}
    return replace(control, first_step=first, **bounds)


class _Reporter:
    """Reports every accepted step to a user's function."""

    def __init__(
        self, on_step: Callable[[float, Any, Stats], Any], packing: Packing, stats: Stats
    ) -> None:
        self._on_step, self._packing, self._stats = on_step, packing, stats

    def tried(self, start: Moment, size: float, y: Tensor) -> None:
        pass

    def judged(self, start: Moment, size: float, y: Tensor, *, accepted: bool) -> None:
        pass

    def moved(self, end: Moment, y1: Tensor) -> None:
        with torch.inference_mode(False):  # in which tensors do not count their changes
            copy = y1.detach().clone()
        version = copy._version
        self._on_step(end.value, self._packing.unpack(copy), self._stats)
        if copy._version != version:
            raise ValueError(
                "on_step must not change the state in place: it is given a copy, and the solve "
                "continues without the change; write y = y * 2 instead of y.mul_(2)"
            )


def _make_control(packing: Packing, options: Options, rtol: Any, atol: Any) -> Control:
    """The step-size rule of a state and options."""
    norm: Norm | None = options.norm
    if packing.is_nest and norm is None:
        norm = component_norm(packing.slices, options.ignore)
    elif packing.is_nest:
        user = options.norm or root_mean_square
        norm = lambda scaled: user(packing.unpack(scaled))  # noqa: E731
    return Control(
        rtol,
        atol,
        first_step=options.first_step,
        min_step=options.min_step,
        max_step=options.max_step,
        norm=norm,
        coefficients=read_controller("controller", options.controller),
    )


def make_plan(
    tableau: Tableau, options: Options, control: Control | None, requested: Tensor
) -> Plan:
    """Where steps end on the way through the requested times."""
    times = requested.tolist()
    start = Moment(times[0], 0)
    if tableau.adaptive and options.step is None:
        landings = (
            range(1 if tableau.is_coarse else len(times) - 1, len(times)) if options.land else ()
        )
        stops = _knots(times, landings, options.stops, options.jumps)
    else:
        stops, control = fixed_stops(times, options.step, options.stops, options.jumps), None
    direction, length = _direction(times), abs(times[-1] - times[0])
    goals = () if options.event is not None else {times[-1], *options.jumps}
    return Plan(
        start,
        stops,
        control,
        direction,
        tableau.error_order,
        options.max_steps,
        jump_at_start=times[0] in options.jumps,
        goals=tuple(sorted(goals, key=lambda time: time * direction)),
        trial_limit=length if control is None else min(length, control.max_step),
    )


def _direction(times: Sequence[float]) -> float:
    return 1.0 if times[-1] >= times[0] else -1.0


def _knots(
    times: Sequence[float],
    landings: Iterable[int],
    others: Iterable[float],
    jumps: Iterable[float],
) -> list[Stop]:
    """Jumps, other stops and some of the requested times, in order."""
    stops = {time: Stop(Moment(time, None)) for time in others}
    stops |= {times[index]: Stop(Moment(times[index], index)) for index in landings}
    for time in jumps:
        # The place of a jump does not depend on a requested time at the same point.
        is_last = time == times[-1] and time in stops
        stops[time] = Stop(stops[time].moment if is_last else Moment(time, None), jump=True)
    direction = _direction(times)
    ahead = [stop for time, stop in stops.items() if (time - times[0]) * direction > 0]
    return sorted(ahead, key=lambda stop: stop.moment.value * direction)


def fixed_stops(
    times: Sequence[float],
    step: float | None,
    others: Iterable[float] = (),
    jumps: Iterable[float] = (),
) -> list[Stop]:
    """Where fixed steps end: equal ones from each knot to the next, and the rest for the last one.

    Args:
        times: Requested times.
        step: Size of the steps; None takes one from knot to knot.
        others: Other times at which steps have to end.
        jumps: Times at which the field may jump.
    """
    stops, begin, direction = [], Moment(times[0], 0), _direction(times)
    for knot in _knots(times, range(1, len(times)), others, jumps):
        if step is not None:
            length = abs(knot.moment.value - begin.value)
            for part in range(1, max(1, math.ceil(length / step - 1e-9))):
                stops.append(Stop(Moment(begin.value + direction * part * step, begin.anchor)))
        stops.append(knot)
        begin = knot.moment
    return stops


def _rescaled(field: Field, first: Tensor, span: Tensor) -> Field:
    """The field on a clock that runs from zero to one while time runs over a sample's span."""

    def on_clock(clock: Tensor, y: Tensor) -> Tensor:
        times = (first + clock * span).to(real_dtype(y.dtype))
        return scale_rows(span.to(y.dtype), y) * field(times, y)

    return on_clock


def read_options(options: Mapping[str, Any]) -> Options:
    """Options from keywords; an unknown one is refused by name."""
    refuse_unknown("option", options, [field.name for field in fields(Options)])
    return Options(**options)
