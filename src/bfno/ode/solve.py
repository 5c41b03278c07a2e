"""`solve`: the one entrance to the engine."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from bfno.ode.control import Control, Norm, component_norm, root_mean_square
from bfno.ode.gradients import (
    AdjointSettings,
    Problem,
    adjoint_norm,
    solve_adjoint,
    solve_checkpoint,
    solve_direct,
)
from bfno.ode.inputs import check_inputs
from bfno.ode.march import Plan, Stop
from bfno.ode.parameters import refuse_batch_norm, trainable_tensors
from bfno.ode.solution import Solution, SolverError, Stats, Status
from bfno.ode.state import Packing, scale_rows
from bfno.ode.step import Field, Moment, clock_dtype
from bfno.ode.tableaus import Tableau, find_method

__all__ = [
    "GRADIENTS",
    "Options",
    "make_control",
    "make_plan",
    "read_options",
    "refuse_unknown",
    "solve",
]

GRADIENTS = ("checkpoint", "direct", "adjoint")


@dataclass(frozen=True)
class Options:
    """Rarely needed settings of a solve.

    Attributes:
        step: Size of fixed steps; None lets an adaptive method choose, and makes any other method
            take one step between two requested times.
        first_step: Size of the first adaptive step; None estimates it.
        min_step: Adaptive steps of this size are accepted whatever their error.
        max_step: Adaptive steps are never larger.
        max_steps: Most adaptive steps that are tried before the solve gives up.
        norm: Norm of a state that measures errors; None is the root mean square, of the largest
            component where the state is a tuple.
        ignore: Components of a tuple state that do not count as errors.
        jumps: Times at which the field may jump: steps end there and start afresh.
        stops: Other times at which steps have to end.
        land: Whether the last step ends on the last requested time. If not, steps run past it and
            the state there is dense output, as in torchdiffeq.
        throw: Whether a failed solve raises; if not, the solution says so in its status.
        compile: Whether to compile whole steps, which pays off for small fields that are solved
            many times. The state has to be one tensor, and the times shared.
        adjoint: Settings of gradient="adjoint" that differ from the forward solve's: method, rtol,
            atol, step, and seminorm to leave the parameters' adjoints out of the error.
        parameters: Tensors that get gradients; None finds all that the field can reach.
    """

    step: float | None = None
    first_step: float | None = None
    min_step: float = 0.0
    max_step: float = math.inf
    max_steps: int = 10_000
    norm: Callable[[Any], Any] | None = None
    ignore: tuple[int, ...] = ()
    jumps: tuple[float, ...] = ()
    stops: tuple[float, ...] = ()
    land: bool = True
    throw: bool = True
    compile: bool = False
    adjoint: Mapping[str, Any] | None = None
    parameters: Sequence[Tensor] | None = None

    def __post_init__(self) -> None:
        for name in ("step", "first_step", "max_step", "max_steps"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if not 0 <= self.min_step <= self.max_step:
            raise ValueError(
                f"min_step must lie between 0 and max_step={self.max_step}, got {self.min_step}"
            )


def solve(
    field: Callable[[Any, Any], Any],
    y0: Tensor | tuple[Tensor, ...],
    ts: Tensor,
    *,
    method: str = "dopri5",
    rtol: float = 1e-4,
    atol: float = 1e-6,
    gradient: str = "checkpoint",
    **options: Any,
) -> Solution[Any]:
    """Solve `dy/dt = field(t, y)` from `y(ts[0]) = y0` and return the states at `ts`.

    Args:
        field: The derivative. `t` is a tensor without axes, or one value a sample where `ts` has a
            row a sample. A module, or any callable.
        y0: A real tensor of any shape, or a tuple of them.
        ts: Requested times, increasing or decreasing: `(time,)`, or `(batch, time)` with one row a
            sample, whose times may repeat (as padding does).
        method: Name of a Runge–Kutta method, see `METHODS`.
        rtol: Relative tolerance of adaptive steps.
        atol: Absolute tolerance of adaptive steps.
        gradient: `"checkpoint"`: exact gradient of the discrete solution in little memory.
            `"direct"`: autograd through all steps, for higher derivatives. `"adjoint"`: the
            continuous adjoint.
        **options: See `Options`.

    Raises:
        SolverError: If the solve fails and `throw` is not False.

    Example:
        >>> ts = torch.linspace(0, 1, 3)
        >>> solution = solve(lambda t, y: -y, torch.ones(2), ts, rtol=1e-6)
        >>> torch.allclose(solution.ys[-1], torch.exp(-ts[-1]).expand(2), atol=1e-5)
        True
    """
    task = Task(field, find_method(method), gradient, read_options(options))
    check_inputs(y0, ts, rtol, atol)
    refuse_batch_norm(field)
    packing = Packing(y0, by_sample=ts.dim() == 2)
    task.control = make_control(packing, task.options, rtol, atol)
    packed, wrapped = packing.pack(y0), packing.wrap(field)
    if ts.dim() == 1:
        ys = task.run(wrapped, packed, ts)
    elif task.adaptive:
        ys = _solve_on_clocks(task, wrapped, packed, ts)
    else:
        ys = _solve_by_intervals(task, wrapped, packed, ts)
    if task.options.throw and task.status is not Status.SUCCESS:
        raise SolverError(task.status, f"solve stopped at t = {task.reached:.6g}", task.stats)
    return Solution(ts, packing.unpack(ys), task.stats, task.status)


class Task:
    """One call of `solve`: its settings, and how it went."""

    def __init__(
        self, field: Callable[..., Any], tableau: Tableau, gradient: str, options: Options
    ) -> None:
        if gradient not in GRADIENTS:
            raise ValueError(f"gradient must be one of {', '.join(GRADIENTS)}, got {gradient!r}")
        self.tableau, self.gradient, self.options = tableau, gradient, options
        self.adaptive = tableau.adaptive and options.step is None
        self.control: Control | None = None
        self.stats = Stats()
        self.status, self.reached = Status.SUCCESS, math.nan
        self._field = field

    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors that get gradients."""
        if self.gradient == "direct" or not torch.is_grad_enabled():
            return ()
        if self.options.parameters is not None:
            return tuple(self.options.parameters)
        return trainable_tensors(self._field)

    def run(
        self,
        field: Field,
        y0: Tensor,
        times: Tensor,
        *,
        by_sample: bool = False,
        extra: tuple[Tensor, ...] = (),
    ) -> Tensor:
        """Integrate a field on one tensor.

        Args:
            field: The field.
            y0: State at the start.
            times: Requested times, or a clock for every sample.
            by_sample: Which of the two.
            extra: Tensors besides the field's own that get gradients.
        """
        compiled = self.options.compile
        if compiled and (field is not self._field or self.gradient == "direct"):
            raise ValueError(
                "compile=True needs a state that is one tensor, times that all samples share, and "
                "gradient='checkpoint' or 'adjoint'"
            )
        problem = Problem(field, self.tableau, self._plan, by_sample, self.stats, compiled)
        if self.gradient == "direct":
            ys = solve_direct(problem, y0, times)
        elif self.gradient == "checkpoint":
            ys = solve_checkpoint(problem, y0, times, (*self.parameters(), *extra))
        else:
            ys = solve_adjoint(problem, y0, times, self.parameters(), self._adjoint_settings())
        if problem.path is not None and problem.path.status is not Status.SUCCESS:
            self.status, self.reached = problem.path.status, problem.path.moment.value
        return ys

    def _plan(self, times: list[float]) -> Plan:
        return make_plan(self.tableau, self.options, self.control, times)

    def _adjoint_settings(self) -> AdjointSettings:
        wanted = {"seminorm": False, **(self.options.adjoint or {})}
        refuse_unknown("adjoint option", wanted, ("method", "rtol", "atol", "step", "seminorm"))
        tableau = find_method(wanted["method"]) if "method" in wanted else self.tableau
        options = replace(self.options, step=wanted.get("step", self.options.step), first_step=None)
        control = self.control or Control(1e-4, 1e-6)
        tolerances = {name: wanted.get(name, getattr(control, name)) for name in ("rtol", "atol")}
        norm = adjoint_norm(control.norm or root_mean_square, seminorm=wanted["seminorm"])

        def plan(times: list[float], packed_norm: Norm) -> Plan:
            steered = Control(**tolerances, norm=packed_norm, max_step=options.max_step)
            return make_plan(tableau, options, steered, times)

        return AdjointSettings(tableau, plan, norm)


def make_control(
    packing: Packing, options: Options, rtol: Tensor | float, atol: Tensor | float
) -> Control:
    """The step-size rule of a state and options."""
    norm: Norm | None = options.norm
    if packing.is_tuple and norm is None:
        norm = component_norm(packing.slices, options.ignore)
    elif packing.is_tuple:
        user = options.norm or root_mean_square
        norm = lambda scaled: user(packing.unpack(scaled))  # noqa: E731
    return Control(
        rtol,
        atol,
        first_step=options.first_step,
        min_step=options.min_step,
        max_step=options.max_step,
        norm=norm,
    )


def make_plan(
    tableau: Tableau, options: Options, control: Control | None, times: Sequence[float]
) -> Plan:
    """Where steps end on the way through the requested times."""
    start = Moment(times[0], 0)
    direction = 1.0 if times[-1] >= times[0] else -1.0
    if not tableau.adaptive or options.step is not None:
        stops = list(_fixed_stops(times, options.step, direction))
        return Plan(start, stops, None, direction, tableau.order, options.max_steps)
    stops = _adaptive_stops(tableau, options, times, direction)
    return Plan(start, stops, control, direction, tableau.order, options.max_steps)


def _adaptive_stops(
    tableau: Tableau, options: Options, times: Sequence[float], direction: float
) -> list[Stop]:
    """Jumps, other stops and, where steps land on them, requested times, in order."""
    stops = {time: Stop(Moment(time)) for time in options.stops}
    if options.land:
        # Dense output of much lower order than the steps would spoil what they achieve.
        coarse = tableau.dense_order < tableau.order - 1
        first = 1 if coarse else len(times) - 1
        stops |= {
            times[index]: Stop(Moment(times[index], index)) for index in range(first, len(times))
        }
    for time in options.jumps:
        stops[time] = Stop(stops[time].moment if time in stops else Moment(time), jump=True)
    ahead = [stop for time, stop in stops.items() if (time - times[0]) * direction > 0]
    return sorted(ahead, key=lambda stop: stop.moment.value * direction)


def _fixed_stops(times: Sequence[float], step: float | None, direction: float) -> Iterator[Stop]:
    """Equal steps from each requested time to the next; the last one takes what is left."""
    for index in range(1, len(times)):
        begin, end = times[index - 1], times[index]
        if step is not None:
            count = max(1, math.ceil(abs(end - begin) / step - 1e-9))
            for part in range(1, count):
                yield Stop(Moment(begin + direction * part * step, index - 1))
        yield Stop(Moment(end, index))


def _solve_on_clocks(task: Task, field: Field, y0: Tensor, ts: Tensor) -> Tensor:
    """Integrate every sample over its own interval, all on a clock from zero to one."""
    if task.gradient == "adjoint":
        raise ValueError(
            "gradient='adjoint' needs times that all samples share, got one row a sample; "
            "use gradient='checkpoint'"
        )
    wide = ts.to(clock_dtype(ts.device))
    first, span = wide[:, 0], wide[:, -1] - wide[:, 0]
    clock = (wide - first[:, None]) / torch.where(span == 0, torch.ones_like(span), span)[:, None]
    on_clock = _rescaled(field, first, span)
    return task.run(on_clock, y0, clock, by_sample=True, extra=_differentiable(first, span))


def _solve_by_intervals(task: Task, field: Field, y0: Tensor, ts: Tensor) -> Tensor:
    """Take fixed steps from each row's time to its next, all samples together."""
    wide, states, y = ts.to(clock_dtype(ts.device)), [y0], y0
    for index in range(1, ts.shape[1]):
        first, span = wide[:, index - 1], wide[:, index] - wide[:, index - 1]
        step, clock = task.options.step, wide.new_tensor([0.0, 1.0])
        count = 1 if step is None else max(1, math.ceil(float(span.abs().max()) / step - 1e-9))
        task.options = replace(task.options, step=1 / count)
        on_clock = _rescaled(field, first, span)
        y = task.run(on_clock, y, clock, extra=_differentiable(first, span))[-1]
        task.options = replace(task.options, step=step)
        states.append(y)
    return torch.stack(states, dim=1)


def _rescaled(field: Field, first: Tensor, span: Tensor) -> Field:
    """The field on a clock that runs from zero to one while time runs over a sample's span."""

    def on_clock(clock: Tensor, y: Tensor) -> Tensor:
        times = (first + clock * span).to(y.dtype)
        return scale_rows(span.to(y.dtype), y) * field(times, y)

    return on_clock


def _differentiable(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor for tensor in tensors if tensor.requires_grad)


def read_options(options: Mapping[str, Any]) -> Options:
    """Options from keywords; an unknown one is refused by name."""
    refuse_unknown("option", options, [field.name for field in fields(Options)])
    return Options(**options)


def refuse_unknown(kind: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse names that do not exist, with the nearest one that does."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise ValueError(f"{kind} {name!r} does not exist; {hint}")
