"""Methods and options by torchdiffeq's names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bfno.ode.adams import AdamsMethod
from bfno.ode.adjoint import adjoint_norm
from bfno.ode.control import Control, Norm, component_norm, root_mean_square
from bfno.ode.evaluate import Field
from bfno.ode.inputs import check_tolerances
from bfno.ode.integrate import Plan, Stop
from bfno.ode.solve import Options, make_plan, refuse_unknown
from bfno.ode.state import Packing
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
    "max_num_steps",
    "dtype",
)
_FIXED_OPTIONS = ("norm", "step_size", "grid_constructor", "interp", "perturb")
_ADAMS_OPTIONS = (*_FIXED_OPTIONS, "max_order", "max_iters")
_SCIPY_OPTIONS = ("norm", "solver", "min_step", "max_step")
_MAX_STEPS = 100_000
_MAX_STEPS_TO_EVENT = 20_000


class Scheme:
    """A method with its options and tolerances.

    The option `dtype`, torchdiffeq's precision of time, is that in which callbacks are told the
    time; steps are always computed in double precision here, where the device has it.

    Args:
        name: Name of a method; dopri5 if None.
        options: Settings by name.
        rtol: Relative tolerance, or one per component.
        atol: Absolute tolerance, or one per component.
    """

    def __init__(
        self, name: str | None, options: Mapping[str, Any] | None, rtol: Any, atol: Any
    ) -> None:
        self.name = name or "dopri5"
        self.options = dict(options or {})
        self.rtol, self.atol = rtol, atol
        self.method = self._find_method()
        if self.options.get("interp", "linear") not in ("linear", "cubic"):
            raise ValueError(f"interp must be linear or cubic, got {self.options['interp']!r}")
        dtype = self.time_dtype()
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"dtype must be a real floating-point dtype, got {dtype!r}")
        if {"step_size", "grid_constructor"} <= self.options.keys():
            raise ValueError("step_size and grid_constructor exclude each other; pass one of them")

    def _find_method(self) -> Tableau | AdamsMethod:
        cubic = self.options.get("interp") == "cubic"
        if self.name in _ADAMS:
            refuse_unknown(f"option of {self.name}", self.options, _ADAMS_OPTIONS)
            return AdamsMethod(
                _ADAMS[self.name],
                max_order=self.options.get("max_order", 12),
                max_iterations=self.options.get("max_iters", 4),
                rtol=float(self.rtol),
                atol=float(self.atol),
                cubic=cubic,
            )
        if self.name == "scipy_solver":
            refuse_unknown("option of scipy_solver", self.options, _SCIPY_OPTIONS)
            return find_method("dopri5")
        tableau = find_method(self.name)
        known = _ADAPTIVE_OPTIONS if tableau.adaptive else _FIXED_OPTIONS
        refuse_unknown(f"option of {self.name}", self.options, known)
        return tableau.with_end_stage() if cubic else tableau

    def for_adjoint(self, given: Mapping[str, Any]) -> Scheme:
        """The scheme of the backward solve, given what differs."""
        names = [f"adjoint_{name}" for name in ("rtol", "atol", "method", "options")]
        refuse_unknown("argument", given, names)
        rtol, atol, name, options = (given.get(argument) for argument in names)
        if options is None:
            if name not in (None, self.name) and self.options.keys() - {"norm"}:
                raise ValueError(
                    f"adjoint_options must be given when adjoint_method={name!r} differs from "
                    f"method={self.name!r}; pass adjoint_options={{}} for defaults"
                )
            options = {key: value for key, value in self.options.items() if key != "norm"}
        return Scheme(
            name or self.name,
            options,
            self.rtol if rtol is None else rtol,
            self.atol if atol is None else atol,
        )

    def expand_tolerances(self, packing: Packing, like: Tensor) -> None:
        """Turn tolerances for the components of a tuple into one value per element."""
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if isinstance(value, (tuple, list)):
                parts = packing.unpack(torch.ones_like(like).abs())
                if not packing.is_nest or len(parts) != len(value):
                    raise ValueError(f"{name} must hold one value per component of the state")
                scaled = [part * one for part, one in zip(parts, value, strict=True)]
                setattr(self, name, packing.pack(scaled))
        check_tolerances(self.rtol, self.atol)

    def state_norm(self, packing: Packing) -> Norm:
        """Norm of a packed state."""
        user = self.options.get("norm")
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

    def plan(self, times: list[float], norm: Norm, field: Field, y0: Tensor) -> Plan:
        """Where steps end on the way through the requested times."""
        if isinstance(self.method, Tableau) and self.method.adaptive:
            return self._adaptive_plan(self.method, times, norm)
        direction = 1.0 if times[-1] >= times[0] else -1.0
        return self._fixed_plan(times[0], self._grid_stops(times, field, y0), direction)

    def endless_plan(self, times: list[float], norm: Norm, field: Field, y0: Tensor) -> Plan:
        """The same without an end."""
        if isinstance(self.method, Tableau) and self.method.adaptive:
            return self.plan(times, norm, field, y0)
        if "step_size" not in self.options:
            raise ValueError(f"an event with method {self.name!r} needs the option step_size")
        direction = 1.0 if times[-1] >= times[0] else -1.0
        step = direction * float(self.options["step_size"])
        steps = (Stop(Moment(times[0] + k * step)) for k in range(1, _MAX_STEPS_TO_EVENT + 1))
        return self._fixed_plan(times[0], steps, direction)

    def event_tolerance(self) -> float:
        """How exactly the time of an event is found."""
        return float(self.atol) if not isinstance(self.atol, Tensor) else float(self.atol.min())

    def callbacks(self) -> tuple[str, ...]:
        """Callbacks that the method can make."""
        if self.name == "scipy_solver":
            return ()
        if self.is_adaptive():
            return ("callback_step", "callback_accept_step", "callback_reject_step")
        return ("callback_step",)

    def time_dtype(self) -> torch.dtype:
        """In what precision an adaptive method tells callbacks the time."""
        return self.options.get("dtype", torch.float64)

    def is_adaptive(self) -> bool:
        """Whether the method chooses its own steps."""
        return isinstance(self.method, Tableau) and self.method.adaptive

    def scipy_settings(self) -> dict[str, Any]:
        """Keywords for SciPy's solver."""
        bounds = {key: self.options[key] for key in ("min_step", "max_step") if key in self.options}
        solver = self.options.get("solver", "LSODA")
        return {"method": solver, "rtol": self.rtol, "atol": self.atol, **bounds}

    def _adaptive_plan(self, tableau: Tableau, times: list[float], norm: Norm) -> Plan:
        given = self.options
        first = given.get("first_step")
        control = Control(
            self.rtol,
            self.atol,
            first_step=None if first is None else float(first),
            min_step=float(given.get("min_step", 0.0)),
            max_step=float(given.get("max_step", math.inf)),
            norm=None if norm is root_mean_square else norm,
            safety=float(given.get("safety", 0.9)),
            growth=float(given.get("ifactor", 10.0)),
            shrink=float(given.get("dfactor", 0.2)),
        )
        jumps, stops = (
            tuple(torch.as_tensor(given.get(name, ())).tolist()) for name in ("jump_t", "step_t")
        )
        limit = int(given.get("max_num_steps", _MAX_STEPS))
        options = Options(jumps=jumps, stops=stops, land=False, max_steps=limit)
        plan = make_plan(tableau, options, control, times)
        # max_num_steps counts from output to output.
        return replace(plan, renew_limit=True, keep_pace=False)

    def _fixed_plan(self, start: float, stops: Any, direction: float) -> Plan:
        perturb = bool(self.options.get("perturb", False))
        stops = (stop._replace(jump=perturb) for stop in stops)
        return Plan(Moment(start), stops, None, direction, 1, _MAX_STEPS, jump_at_start=perturb)

    def _grid_stops(self, times: list[float], field: Field, y0: Tensor) -> Iterator[Stop]:
        grid = times
        if "grid_constructor" in self.options:
            requested = torch.tensor(times, dtype=y0.dtype, device=y0.device)
            grid = self.options["grid_constructor"](field, y0, requested).tolist()
        elif self.options.get("step_size") is not None:
            grid = _equal_steps(times[0], times[-1], float(self.options["step_size"]))
        if grid[0] != times[0] or grid[-1] != times[-1]:
            raise ValueError(
                f"the grid must reach from t[0]={times[0]:g} to t[-1]={times[-1]:g}, "
                f"got {grid[0]:g} to {grid[-1]:g}"
            )
        anchors = {time: index for index, time in enumerate(times)}
        if "step_size" in self.options:  # its points move with the first time, but for the last
            anchors = {times[-1]: len(times) - 1}
        return (Stop(Moment(time, anchors.get(time, 0))) for time in grid[1:])


def _equal_steps(start: float, end: float, step: float) -> list[float]:
    if not step > 0:
        raise ValueError(f"step_size must be positive, got {step}")
    count = math.ceil(abs(end - start) / step)
    points = [start + math.copysign(k * step, end - start) for k in range(count)]
    return [*points, end]
