"""`odeint`, `odeint_adjoint` and `odeint_event` with the call of torchdiffeq.

Someone who replaces only the import line gets the same answers: steps follow the same rule and run
past the last requested time like there. An option that is not known is an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bfno.ode.events import EventOutputs, at_event, first_crossing
from bfno.ode.gradients import AdjointSettings, Problem, solve_adjoint, solve_direct
from bfno.ode.inputs import check_state, check_times
from bfno.ode.parameters import trainable_tensors
from bfno.ode.scheme import Scheme
from bfno.ode.scipy_bridge import ScipyProblem
from bfno.ode.solution import SolverError, Status
from bfno.ode.state import Packing

__all__ = ["odeint", "odeint_adjoint", "odeint_event"]

Func = Callable[[Any, Any], Any]


def odeint(
    func: Func,
    y0: Tensor | tuple[Tensor, ...],
    t: Tensor,
    *,
    rtol: Any = 1e-7,
    atol: Any = 1e-9,
    method: str | None = None,
    options: Mapping[str, Any] | None = None,
    event_fn: Callable[[Any, Any], Tensor] | None = None,
) -> Any:
    """Solve `dy/dt = func(t, y)` from `y(t[0]) = y0`; autograd runs through every step.

    Args:
        func: The derivative.
        y0: A tensor, or a tuple of tensors.
        t: Requested times, strictly increasing or decreasing.
        rtol: Relative tolerance, or one a component of a tuple.
        atol: Absolute tolerance, or one a component of a tuple.
        method: Name of a method; dopri5 if None.
        options: Settings of the method by torchdiffeq's names.
        event_fn: Solve until this function of time and state changes its sign; of `t`, the first
            element is the start and the second one gives the direction.

    Returns:
        The states at `t`, time first; with an event, its time and the states at start and event.

    Example:
        >>> odeint(lambda t, y: -y, torch.ones(1), torch.tensor([0.0, 1.0])).shape
        torch.Size([2, 1])
    """
    parameters = trainable_tensors(func) if method == "scipy_solver" else ()
    call = _Call(func, y0, t, Scheme(method, options, rtol, atol), parameters)
    return call.answer(call.direct, event_fn)


def odeint_adjoint(
    func: Func,
    y0: Tensor | tuple[Tensor, ...],
    t: Tensor,
    *,
    rtol: Any = 1e-7,
    atol: Any = 1e-9,
    method: str | None = None,
    options: Mapping[str, Any] | None = None,
    event_fn: Callable[[Any, Any], Tensor] | None = None,
    adjoint_params: Sequence[Tensor] | None = None,
    **adjoint: Any,
) -> Any:
    """`odeint` whose gradients solve the continuous adjoint equation.

    Args:
        func: The derivative.
        y0: A tensor, or a tuple of tensors.
        t: Requested times, strictly increasing or decreasing.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        method: Name of a method; dopri5 if None.
        options: Settings of the method by torchdiffeq's names.
        event_fn: As in `odeint`.
        adjoint_params: Tensors that get gradients; None finds all that `func` can reach.
        **adjoint: `adjoint_rtol`, `adjoint_atol`, `adjoint_method` and `adjoint_options` of the
            backward solve, where they differ; `adjoint_options={"norm": "seminorm"}` leaves the
            parameters out of its error.
    """
    scheme = Scheme(method, options, rtol, atol)
    parameters = trainable_tensors(func) if adjoint_params is None else tuple(adjoint_params)
    call = _Call(func, y0, t, scheme, tuple(p for p in parameters if p.requires_grad))
    backward = scheme.for_adjoint(adjoint)
    return call.answer(lambda times: call.adjoint(times, backward), event_fn)


def odeint_event(
    func: Func,
    y0: Tensor | tuple[Tensor, ...],
    t0: Tensor,
    *,
    event_fn: Callable[[Any, Any], Tensor],
    reverse_time: bool = False,
    odeint_interface: Callable[..., Any] = odeint,
    **settings: Any,
) -> Any:
    """Solve until an event; its time is differentiable.

    Args:
        func: The derivative.
        y0: State at the start.
        t0: The start.
        event_fn: Function of time and state whose change of sign ends the solve.
        reverse_time: Solve backward in time.
        odeint_interface: `odeint` or `odeint_adjoint`.
        **settings: Other arguments of that function.
    """
    start = t0.reshape(1)
    t = torch.cat((start, start.detach() + (-1.0 if reverse_time else 1.0)))
    return odeint_interface(func, y0, t, event_fn=event_fn, **settings)


class _Call:
    """One call, its state packed into one tensor."""

    def __init__(
        self,
        func: Func,
        y0: Any,
        t: Tensor,
        scheme: Scheme,
        parameters: tuple[Tensor, ...] = (),
    ) -> None:
        check_state(y0)
        check_times(t)
        self._packing = Packing(y0)
        self._y0 = self._packing.pack(y0)
        self._t, self._scheme, self._parameters = t, scheme, parameters
        self._scheme.expand_tolerances(self._packing, self._y0)
        self._norm = scheme.state_norm(self._packing)
        self._field = self._packing.wrap(func)

    def answer(self, run: Callable[[Tensor], Tensor], event_fn: Any) -> Any:
        """The states, or with an event its time and the states."""
        if event_fn is None:
            return self._packing.unpack(run(self._t))
        return self._answer_event(run, event_fn)

    def direct(self, times: Tensor) -> Tensor:
        """Solve with autograd; SciPy's solvers, which it cannot see into, with the adjoint."""
        if self._scheme.name == "scipy_solver":
            return self.adjoint(times, self._scheme.for_adjoint({"adjoint_options": {}}))
        problem = self._problem()
        return self._finished(problem, solve_direct(problem, self._y0, times))

    def adjoint(self, times: Tensor, backward: Scheme) -> Tensor:
        """Solve with adjoint gradients."""
        problem = self._problem()
        norm = backward.adjoint_norm(self._packing, self._norm)
        settings = AdjointSettings(
            backward.method,
            lambda requested, packed: backward.plan(requested, packed, self._field, self._y0),
            norm,
        )
        ys = solve_adjoint(problem, self._y0, times, self._parameters, settings)
        return self._finished(problem, ys)

    def _problem(self) -> Problem:
        scheme, kind = self._scheme, Problem
        if scheme.name == "scipy_solver":
            kind = functools.partial(ScipyProblem, settings=scheme.scipy_settings())
        return kind(
            self._field,
            scheme.method,
            lambda requested: scheme.plan(requested, self._norm, self._field, self._y0),
        )

    def _finished(self, problem: Problem, ys: Tensor) -> Tensor:
        path = problem.path
        if path is not None and path.status is not Status.SUCCESS:
            where = f"odeint stopped at t = {path.moment.value:.6g}"
            raise SolverError(path.status, where, problem.stats)
        return ys

    def _answer_event(self, run: Callable[[Tensor], Tensor], event_fn: Any) -> Any:
        if len(self._t) != 2:
            raise ValueError(f"t must hold two times when there is an event, got {len(self._t)}")
        unpacked = self._packing.unpack
        event = first_crossing(
            lambda time, y: event_fn(time, unpacked(y)), self._t[0].detach(), self._y0.detach()
        )
        end = self._find_event(event)
        if end == self._t[0].item():
            return self._t[0], unpacked(torch.stack((self._y0, self._y0)))
        ys = run(torch.cat((self._t[:1], self._t.new_tensor([end]))))
        time, y = at_event(self._field, event, self._t.new_tensor(end), ys[-1])
        return time, unpacked(torch.stack((ys[0], y)))

    def _find_event(self, event: Callable[[Tensor, Tensor], Tensor]) -> float:
        scheme, times = self._scheme, self._t.detach()
        outputs = EventOutputs(event, scheme.event_tolerance())
        with torch.no_grad():
            y0 = self._y0.detach()
            if float(event(times[0].to(y0.dtype), y0)) == 0:
                return float(times[0])
            problem = self._problem()
            problem.plan = lambda requested: scheme.endless_plan(
                requested, self._norm, self._field, y0
            )
            problem.march(y0, times, outputs, keep=False)
        if outputs.moment is None and problem.path is not None:
            status = problem.path.status
            status = Status.STEP_LIMIT if status is Status.SUCCESS else status
            where = f"no event until t = {problem.path.moment.value:.6g}"
            raise SolverError(status, where, problem.stats)
        return outputs.moment.value if outputs.moment is not None else float(times[0])
