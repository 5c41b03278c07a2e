"""Methods and options by torchdiffeq's names."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bfno.ode.adams import AdamsMethod
from bfno.ode.adjoint import adjoint_norm
from bfno.ode.control import Control, Norm, component_norm, root_mean_square
from bfno.ode.evaluate import Field
from bfno.ode.implicit_tableaus import ImplicitTableau
from bfno.ode.inputs import (
    CONTROLLERS,
    check_function,
    read_controller,
    read_count,
    read_moments,
    read_number,
    read_tolerances,
    refuse_unknown,
    shown,
)
from bfno.ode.integrate import Plan, Stop
from bfno.ode.solve import Options, make_plan
from bfno.ode.state import Packing, real_dtype
from bfno.ode.step import Moment
from bfno.ode.tableaus import Tableau, find_method

__all__ = ["Scheme"]

_ADAMS = {"explicit_adams": False, "implicit_adams": True, "fixed_adams": True}
_ADAPTIVE_OPTIONS = (
    "norm",
    "first_step",
    "min_step",
    "max_step",
    "step_t",
    "jump_t",
    "safety",
    "ifactor",
    "dfactor",
    "controller",
    "max_num_steps",
    "dtype",
)
_FIXED_OPTIONS = ("norm", "step_size", "grid_constructor", "interp", "perturb")
_ADAMS_OPTIONS = (*_FIXED_OPTIONS, "max_order", "max_iters")
_SCIPY_OPTIONS = ("norm", "solver", "min_step", "max_step")
# Options of versions before 0.2: SciPy's solvers accept them silently, the others with a warning.
_IDLE_OPTIONS = ("eps", "grid_points")
_READERS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("step_size", "first_step", "max_step"), read_number),
    **dict.fromkeys(("max_num_steps", "max_order", "max_iters"), read_count),
    **dict.fromkeys(("step_t", "jump_t"), read_moments),
    **dict.fromkeys(("safety", "ifactor", "dfactor"), read_number),
    "controller": read_controller,
    "min_step": functools.partial(read_number, zero=True),
}
_MAX_STEPS = 100_000
_MAX_STEPS_TO_EVENT = 20_000


class Scheme:
    """A method with its options and tolerances.

    The option `dtype`, torchdiffeq's precision of time, is the precision in which callbacks get the
    time; steps are always computed in double precision here, if the device has it.

    Args:
        method: Name of a method, or a tableau; dopri5 if None.
        options: Settings by name.
        rtol: Relative tolerance, or one per component.
        atol: Absolute tolerance, or one per component.

    Attributes:
        name: Name of the method.
        method: The method; with SciPy's solvers, that of the backward solve.
        by_scipy: Whether SciPy solves forward.
    """

    def __init__(
        self,
        method: str | Tableau | None,
        options: Mapping[str, Any] | None,
        rtol: Any,
        atol: Any,
    ) -> None:
        self._given = "dopri5" if method is None else method
        # A tableau may have any name.
        self.name = self._given.name if isinstance(self._given, Tableau) else self._given
        self.by_scipy = self._given == "scipy_solver"
        self._by_adams = isinstance(self._given, str) and self._given in _ADAMS
        self._tableau = find_method("dopri5" if self.by_scipy or self._by_adams else self._given)
        if self._given == "trbdf2" and isinstance(self._tableau, ImplicitTableau):
            self._tableau = self._tableau.without_error()  # as in torchdiffeq
        self.rtol, self.atol = rtol, atol
        if not isinstance(options, Mapping | None):
            raise ValueError(f"options must be a dict of settings by name, got {shown(options)}")
        self.options = self._read_options(options or {})
        self.method = self._find_method()
        self._kind_of_time = torch.float64
        if self.options.get("interp", "linear") not in ("linear", "cubic"):
            raise ValueError(f"interp must be linear or cubic, got {self.options['interp']!r}")
        dtype = self.time_dtype()
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"dtype must be a real floating-point dtype, got {dtype!r}")
        if {"step_size", "grid_constructor"} <= self.options.keys():
            raise ValueError("step_size and grid_constructor exclude each other; pass one of them")

    def _read_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Options in the form used internally; None is the default, as in torchdiffeq."""
        known = _SCIPY_OPTIONS
        if self._by_adams:
            known = (*_ADAMS_OPTIONS, "implicit") if _ADAMS[self.name] else _ADAMS_OPTIONS
        elif not self.by_scipy:
            known = _ADAPTIVE_OPTIONS if self._tableau.adaptive else _FIXED_OPTIONS
        idle = _IDLE_OPTIONS if self.by_scipy else _IDLE_OPTIONS[:1]
        refuse_unknown(
            f"option of {self.name}", {key: given[key] for key in given if key not in idle}, known
        )
        if "eps" in given and not self.by_scipy:
            warnings.warn(
                f"option of {self.name} 'eps' does nothing; use perturb or jump_t", stacklevel=4
            )
        found = {key: given[key] for key in known if given.get(key) is not None}
        for key in _READERS.keys() & found.keys():
            found[key] = _READERS[key](key, found[key])
        if "grid_constructor" in found:
            check_function("grid_constructor", found["grid_constructor"], "field, state and times")
        if found.get("norm", "seminorm") != "seminorm":
            check_function("norm", found["norm"], "a state")
        return found

    def _find_method(self) -> Tableau | AdamsMethod:
        cubic = self.options.get("interp") == "cubic"
        if self._by_adams:
            order = self.options.get("max_order", 12)
            if order < 4:
                warnings.warn(
                    f"max_order is below 4, so that all steps are those of rk4, got {order}",
                    stacklevel=4,
                )
            return AdamsMethod(
                bool(self.options.get("implicit", True)) and _ADAMS[self.name],
                max_order=order,
                max_iterations=self.options.get("max_iters", 4),
                cubic=cubic,
            )
        return self._tableau.with_end_stage() if cubic else self._tableau

    def for_adjoint(self, given: Mapping[str, Any]) -> Scheme:
        """The scheme of the backward solve, given the settings that differ."""
        names = [f"adjoint_{name}" for name in ("rtol", "atol", "method", "options")]
        refuse_unknown("argument", given, names)
        rtol, atol, method, options = (given.get(argument) for argument in names)
        if options is None:
            if method not in (None, self._given) and self.options.keys() - {"norm"}:
                name = getattr(method, "name", method)
                raise ValueError(
                    f"adjoint_options must be given when adjoint_method={name!r} differs from "
                    f"method={self.name!r}; pass adjoint_options={{}} for defaults"
                )
            options = {key: value for key, value in self.options.items() if key != "norm"}
        # The backward solve has different components, so it takes the smallest tolerance.
        rtol, atol = read_tolerances(
            _smallest("adjoint_rtol", self.rtol if rtol is None else rtol),
            _smallest("adjoint_atol", self.atol if atol is None else atol),
            prefix="adjoint_",
        )
        backward = Scheme(self._given if method is None else method, options, rtol, atol)
        backward._settle(rtol, atol, self._kind_of_time)
        return backward

    def fit(self, packing: Packing, y0: Tensor, t: Tensor) -> None:
        """Make each tolerance one number or one per element of a packed state; note time's dtype.

        Args:
            packing: How the state is packed.
            y0: The packed state.
            t: The requested times.
        """
        rtol, atol = (
            value.expand(y0.shape) if isinstance(value, Tensor) and value.dim() else value
            for value in read_tolerances(
                _spread("rtol", self.rtol, packing, y0), _spread("atol", self.atol, packing, y0), y0
            )
        )
        self._settle(rtol, atol, t.dtype)

    def _settle(self, rtol: Any, atol: Any, kind_of_time: torch.dtype) -> None:
        self.rtol, self.atol, self._kind_of_time = rtol, atol, kind_of_time
        if isinstance(self.method, AdamsMethod):
            self.method = replace(self.method, rtol=rtol, atol=atol)

    def state_norm(self, packing: Packing) -> Norm:
        """Norm of a packed state."""
        user = self.options.get("norm")
        if user == "seminorm":
            raise ValueError("norm must be a function of a state, or a module, got 'seminorm'")
        if user is None:
            return component_norm(packing.slices) if packing.is_nest else root_mean_square
        return (lambda scaled: user(packing.unpack(scaled))) if packing.is_nest else user

    def adjoint_norm(
        self, packing: Packing, state_norm: Norm
    ) -> Callable[[tuple[Tensor, ...]], Any]:
        """Norm of the adjoint equation's state, as a tuple."""
        user = self.options.get("norm")
        if user is None or user == "seminorm":
            return adjoint_norm(state_norm, seminorm=user == "seminorm")
        if not packing.is_nest:
            return user

        def spread(state: tuple[Tensor, ...]) -> Any:
            time, y, adjoint, *parameters = state
            return user((time, *packing.unpack(y), *packing.unpack(adjoint), *parameters))

        return spread

    def plan(self, times: Tensor, norm: Norm, field: Field, y0: Tensor) -> Plan:
        """Where steps end on the way through the requested times."""
        if isinstance(self.method, Tableau) and self.method.adaptive:
            return self._adaptive_plan(self.method, times, norm)
        if "grid_constructor" in self.options:
            return self._grid_plan(times, field, y0)
        values = times.tolist()
        grid, anchors = values, {time: index for index, time in enumerate(values)}
        if "step_size" in self.options:  # all points but the last move with the first time
            grid = _equal_steps(values[0], values[-1], self.options["step_size"])
            anchors = {values[-1]: len(values) - 1}
        return self._fixed_plan(Moment(time, anchors.get(time, 0)) for time in grid)

    def endless_plan(self, times: Tensor, norm: Norm, field: Field, y0: Tensor) -> Plan:
        """The same without an end."""
        if isinstance(self.method, Tableau) and self.method.adaptive:
            return replace(self.plan(times, norm, field, y0), goals=())
        if "step_size" not in self.options:
            raise ValueError(f"an event with method {self.name!r} needs the option step_size")
        start, ahead = times[0].item(), 1.0 if times[-1] >= times[0] else -1.0
        step = ahead * self.options["step_size"]
        return self._fixed_plan(Moment(start + k * step) for k in range(_MAX_STEPS_TO_EVENT + 1))

    def event_tolerance(self) -> float:
        """The accuracy with which the time of an event is found."""
        return _smallest("atol", self.atol)

    def callbacks(self) -> tuple[str, ...]:
        """Callbacks that the method can make."""
        if self.by_scipy:
            return ()
        if self.is_adaptive():
            return ("callback_step", "callback_accept_step", "callback_reject_step")
        return ("callback_step",)

    def time_dtype(self) -> torch.dtype:
        """The precision in which an adaptive method reports the time to callbacks."""
        return self.options.get("dtype", torch.float64)

    def is_adaptive(self) -> bool:
        """Whether the method chooses its own steps."""
        return isinstance(self.method, Tableau) and self.method.adaptive

    def scipy_settings(self) -> dict[str, Any]:
        """Keywords for SciPy's solver."""
        bounds = {key: self.options[key] for key in ("min_step", "max_step") if key in self.options}
        solver = self.options.get("solver", "LSODA")
        rtol, atol = (
            # SciPy supports one axis and no tensors.
            one.reshape(-1).cpu().numpy() if isinstance(one, Tensor) and one.dim() else float(one)
            for one in (self.rtol, self.atol)
        )
        return {"method": solver, "rtol": rtol, "atol": atol, **bounds}

    def _adaptive_plan(self, tableau: Tableau, times: Tensor, norm: Norm) -> Plan:
        given = self.options
        control = Control(
            self.rtol,
            self.atol,
            first_step=given.get("first_step"),
            min_step=given.get("min_step", 0.0),
            max_step=given.get("max_step", math.inf),
            norm=None if norm is root_mean_square else norm,
            safety=given.get("safety", 0.9),
            growth=given.get("ifactor", 10.0),
            shrink=given.get("dfactor", 0.2),
            coefficients=given.get("controller", CONTROLLERS["I"]),
        )
        options = Options(
            jumps=given.get("jump_t", ()),
            stops=given.get("step_t", ()),
            # torchdiffeq, which has no such methods, interpolates; theirs are less exact between.
            land=tableau.implicit,
            max_steps=given.get("max_num_steps", _MAX_STEPS),
        )
        plan = make_plan(tableau, options, control, times)
        # max_num_steps counts from output to output.
        goals = sorted({*plan.goals, *times.tolist()}, key=lambda time: time * plan.direction)
        return replace(
            plan,
            renew_limit=True,
            keep_pace=False,
            goals=tuple(goals),
            # torchdiffeq does not limit its search for a first step.
            trial_limit=plan.trial_limit if tableau.implicit else math.inf,
        )

    def _grid_plan(self, times: Tensor, field: Field, y0: Tensor) -> Plan:
        """Steps on a user's grid, whose points may have been computed from the requested times."""
        requested = times.to(self._kind_of_time)
        points = self.options["grid_constructor"](field, y0, requested)
        if not isinstance(points, Tensor) or points.dim() != 1 or not len(points):
            raise ValueError(
                f"grid_constructor must return one row of times as a tensor, got {shown(points)}"
            )
        grid, values = points.tolist(), times.tolist()
        if grid[0] != values[0] or grid[-1] != values[-1]:
            raise ValueError(
                f"the grid must reach from t[0]={values[0]:g} to t[-1]={values[-1]:g}, "
                f"got {grid[0]:g} to {grid[-1]:g}"
            )
        if points.requires_grad:
            plan = self._fixed_plan(Moment(time, len(values) + k) for k, time in enumerate(grid))
            return replace(plan, knots=torch.cat((requested, points)))
        anchors = {time: index for index, time in enumerate(values)}
        return self._fixed_plan(Moment(time, anchors.get(time)) for time in grid)

    def _fixed_plan(self, moments: Iterable[Moment]) -> Plan:
        """Steps from moment to moment."""
        ahead = iter(moments)
        first, second = next(ahead), next(ahead, None)
        rest = () if second is None else itertools.chain((second,), ahead)
        direction = 1.0 if second is None or second.value >= first.value else -1.0
        perturb = bool(self.options.get("perturb", False))
        stops = (Stop(moment, jump=perturb) for moment in rest)
        return Plan(first, stops, None, direction, 1, _MAX_STEPS, jump_at_start=perturb)


def _equal_steps(start: float, end: float, step: float) -> list[float]:
    count = math.ceil(abs(end - start) / step)
    points = [start + math.copysign(k * step, end - start) for k in range(count)]
    return [*points, end]


def _is_row(tolerance: Any) -> bool:
    """Whether a tolerance is a tuple, a list, or a tensor or an array with an axis."""
    return isinstance(tolerance, (tuple, list)) or getattr(tolerance, "ndim", 0) > 0


def _smallest(name: str, tolerance: Any) -> Any:
    """The smallest of some tolerances."""
    if not _is_row(tolerance):
        return tolerance
    return min(_as_tensor(name, tolerance).reshape(-1).tolist(), default=1.0)


def _spread(name: str, tolerance: Any, packing: Packing, y0: Tensor) -> Any:
    """A tolerance for every element of a packed state, given one for every component."""
    if not _is_row(tolerance):
        return tolerance
    kind: dict[str, Any] = {"dtype": real_dtype(y0.dtype), "device": y0.device}
    if not packing.is_nest:
        return _as_tensor(name, tolerance, **kind)
    if len(tolerance) != len(packing.slices):
        raise ValueError(
            f"{name} must be a number, or one for each of the {len(packing.slices)} components of "
            f"the state, got {len(tolerance)}"
        )
    parts = []
    for one, place in zip(tolerance, packing.slices, strict=True):
        part, size = _as_tensor(name, one, **kind).reshape(-1), place.stop - place.start
        if len(part) not in (1, size):
            raise ValueError(
                f"{name} of a component of {size} numbers must hold as many, got {len(part)}"
            )
        parts.append(part.expand(size))
    return torch.cat(parts)


def _as_tensor(name: str, tolerance: Any, **kind: Any) -> Tensor:
    try:
        return torch.as_tensor(tolerance, **kind)
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"{name} must hold finite numbers, zero or more, got {shown(tolerance)}"
        raise ValueError(message) from error
