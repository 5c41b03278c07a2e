"""`odeint`, `odeint_adjoint`, `odeint_event` and `odeint_dense` with the calls of torchdiffeq.

If you change only the import line, you get the same answers: steps follow the same rule, and run
past the last requested time, as in torchdiffeq. With dopri5 and all fixed methods the answers are
the same up to rounding. With dopri8, bosh3, fehlberg2 and adaptive_heun they agree only within the
tolerance, because torchdiffeq starts their next step with a slope that is not the one at its start,
or interpolates with a lower order; fehlberg2 and adaptive_heun take more evaluations here. An
unknown option is an error.
"""

from __future__ import annotations

import functools
import math
import numbers
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bfno.ode.adjoint import AdjointSettings, solve_adjoint
from bfno.ode.dense import DenseOutput, DenseRecorder
from bfno.ode.dependencies import refuse_batch_norm
from bfno.ode.events import EventFinder, at_event, first_crossing
from bfno.ode.inputs import (
    check_function,
    check_state,
    check_times,
    read_memory,
    read_parameters,
    shown,
    split_memory,
)
from bfno.ode.integrate import SharedOutputs, Watcher
from bfno.ode.problem import Problem
from bfno.ode.replay import Room
from bfno.ode.scheme import Scheme
from bfno.ode.scipy_bridge import ScipyProblem
from bfno.ode.solution import SolverError, Status
from bfno.ode.state import Packing, real_dtype
from bfno.ode.step import Clock, Moment
from bfno.ode.tableaus import Tableau

__all__ = ["odeint", "odeint_adjoint", "odeint_dense", "odeint_event"]

Func = Callable[[Any, Any], Any]


def odeint(
    func: Func,
    y0: Tensor | tuple[Tensor, ...],
    t: Tensor,
    *,
    rtol: Any = 1e-7,
    atol: Any = 1e-9,
    method: str | Tableau | None = None,
    options: Mapping[str, Any] | None = None,
    event_fn: Callable[[Any, Any], Tensor] | None = None,
    memory: float | str | None = None,
) -> Any:
    """Solve `dy/dt = func(t, y)` from `y(t[0]) = y0`; autograd runs through every step.

    Args:
        func: The derivative. Its methods `callback_step`, `callback_accept_step` and
            `callback_reject_step`, if it has them, are called for every step with `(t0, y0, dt)`.
        y0: A tensor, or a tuple of tensors.
        t: Requested times, strictly increasing or decreasing.
        rtol: Relative tolerance, or one per component of a tuple.
        atol: Absolute tolerance, or one per component of a tuple.
        method: Name of a method, or a tableau; dopri5 if None.
        options: Settings of the method by torchdiffeq's names.
        event_fn: Solve until this function of time and state changes its sign; of `t`, the first
            element is the start and the second one gives the direction.
        memory: How much memory autograd's graphs of the steps may keep, in bytes or as text such as
            "256 MB", or "steps" or "log" to keep states instead, see `Options`; the backward pass
            recomputes the rest. None keeps everything, as torchdiffeq does.

    Returns:
        The states at `t`, time first; with an event, its time and the states at start and event.

    Example:
        >>> odeint(lambda t, y: -y, torch.ones(1), torch.tensor([0.0, 1.0])).shape
        torch.Size([2, 1])
    """
    call = _Call(func, y0, t, Scheme(method, options, rtol, atol))
    if memory is not None:
        call.limit(read_memory("memory", memory))
    return call.answer(call.direct, event_fn)


def odeint_adjoint(
    func: Func,
    y0: Tensor | tuple[Tensor, ...],
    t: Tensor,
    *,
    rtol: Any = 1e-7,
    atol: Any = 1e-9,
    method: str | Tableau | None = None,
    options: Mapping[str, Any] | None = None,
    event_fn: Callable[[Any, Any], Tensor] | None = None,
    adjoint_params: Iterable[Tensor] | None = None,
    **adjoint: Any,
) -> Any:
    """`odeint` whose gradients solve the continuous adjoint equation.

    Args:
        func: The derivative, with callbacks as in `odeint`; `callback_step_adjoint` and the other
            adjoint callbacks are called in the backward pass.
        y0: A tensor, or a tuple of tensors.
        t: Requested times, strictly increasing or decreasing.
        rtol: Relative tolerance, or one per component of a tuple.
        atol: Absolute tolerance, or one per component of a tuple.
        method: Name of a method, or a tableau; dopri5 if None.
        options: Settings of the method by torchdiffeq's names.
        event_fn: As in `odeint`.
        adjoint_params: The only tensors that get gradients; None finds all that `func` uses.
        **adjoint: `adjoint_rtol`, `adjoint_atol`, `adjoint_method` and `adjoint_options` of the
            backward solve, if they differ. Of several tolerances, it uses the smallest;
            `adjoint_options={"norm": "seminorm"}` leaves the parameters out of its error.
    """
    check_function("func", func)
    refuse_batch_norm(func)
    scheme = Scheme(method, options, rtol, atol)
    call = _Call(func, y0, t, scheme, read_parameters("adjoint_params", adjoint_params))
    backward = scheme.for_adjoint(adjoint)
    return call.answer(lambda times: call.adjoint(times, backward), event_fn)


def odeint_event(
    func: Func,
    y0: Tensor | tuple[Tensor, ...],
    t0: Tensor | float,
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
    start = _time("t0", t0, y0).reshape(1)
    t = torch.cat((start, start.detach() + (-1.0 if reverse_time else 1.0)))
    return odeint_interface(func, y0, t, event_fn=event_fn, **settings)


def odeint_dense(
    func: Func,
    y0: Any,
    t0: Tensor | float,
    t1: Tensor | float,
    *,
    rtol: Any = 1e-7,
    atol: Any = 1e-9,
    method: str | Tableau | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[[Tensor | float], Any]:
    """Solve from `t0` to `t1` and return the solution as a function of time.

    Args:
        func: The derivative.
        y0: State at `t0`.
        t0: The start.
        t1: The end.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        method: Name of an adaptive method, or its tableau; dopri5 if None.
        options: Settings of the method by torchdiffeq's names.

    Example:
        >>> zero, one = torch.tensor(0.0), torch.tensor(1.0)
        >>> solution = odeint_dense(lambda t, y: -y, torch.ones(1), zero, one)
        >>> solution(0.5)
        tensor([0.6065])
    """
    start, end = _time("t0", t0, y0), _time("t1", t1, y0)
    t = torch.stack((start, end.to(start)))
    call = _Call(func, y0, t, Scheme(method, options, rtol, atol))
    return call.dense()


def _time(name: str, value: Any, y0: Any) -> Tensor:
    """A time as a tensor without axes; a number in the precision of the state."""
    check_state(y0)
    if isinstance(value, Tensor):
        if value.numel() == 1:
            return value.reshape(())
    elif isinstance(value, numbers.Real):
        like = tree_leaves(y0)[0]
        return torch.tensor(float(value), dtype=real_dtype(like.dtype), device=like.device)
    raise ValueError(f"{name} must be one time, a number or a tensor, got {shown(value)}")


class _Call:
    """One call, its state packed into one tensor."""

    def __init__(
        self,
        func: Func,
        y0: Any,
        t: Tensor,
        scheme: Scheme,
        parameters: Sequence[Tensor] | None = None,
    ) -> None:
        check_function("func", func)
        check_state(y0)
        check_times(t)
        self._func, self._packing = func, Packing(y0)
        self._y0 = self._packing.pack(y0)
        self._t, self._scheme, self._parameters = t, scheme, parameters
        self._scheme.fit(self._packing, self._y0, t)
        self._norm = scheme.state_norm(self._packing)
        self._field, self._told = self._packing.wrap(func), False
        self._graphs: float | None = math.inf
        self._snapshots: float | None = None

    def limit(self, memory: float | str) -> None:
        """Limit the bytes that the graphs of the steps may keep, or keep states instead."""
        if not isinstance(self._scheme.method, Tableau):
            raise ValueError(
                f"memory needs a Runge–Kutta method such as dopri5, got {self._scheme.name!r}"
            )
        self._graphs, self._snapshots = split_memory(memory)
        if self._snapshots is not None and any(hasattr(self._func, name) for name in _CALLBACKS):
            raise ValueError(
                f"memory={memory!r} gives callbacks states without history; leave "
                "callback_step and its like out, or pass memory=0"
            )

    def answer(self, run: Callable[[Tensor], Tensor], event_fn: Any) -> Any:
        """The states; with an event, its time and the states."""
        if event_fn is None:
            return self._packing.unpack(run(self._t))
        check_function("event_fn", event_fn)
        return self._answer_event(run, event_fn)

    def direct(self, times: Tensor) -> Tensor:
        """Solve with autograd; SciPy's solvers, which autograd cannot follow, with the adjoint."""
        if self._scheme.by_scipy:
            return self.adjoint(times, self._scheme.for_adjoint({"adjoint_options": {}}))
        problem = self._problem()
        ys = problem.states(self._y0, times)
        problem.refuse_failure("odeint")
        return ys

    def adjoint(self, times: Tensor, backward: Scheme) -> Tensor:
        """Solve with adjoint gradients."""
        problem, func = self._problem(), self._func
        settings = AdjointSettings(
            backward.method,
            lambda requested, packed: backward.plan(requested, packed, self._field, self._y0),
            backward.adjoint_norm(self._packing, self._norm),
            parameters=self._parameters,
            further=tuple(func.parameters()) if isinstance(func, nn.Module) else (),
            zero_unused=True,
            with_times="jump_t" not in self._scheme.options,
            watcher=lambda packing: _callbacks(func, packing, backward, times, adjoint=True),
        )
        ys = solve_adjoint(problem, self._y0, times, settings)
        problem.refuse_failure("odeint_adjoint")
        return ys

    def dense(self) -> Callable[[Tensor | float], Any]:
        """Solve, and return the solution as a function of time."""
        problem, method = self._problem(), self._scheme.method
        if not (isinstance(method, Tableau) and method.adaptive):
            raise ValueError(
                f"odeint_dense needs an adaptive method, got {self._scheme.name!r}; use dopri5"
            )
        dense = DenseOutput(Clock(self._t, self._y0), self._packing)
        outputs = DenseRecorder(SharedOutputs(self._t.tolist(), self._y0), dense)
        integration = problem.integration(self._y0, self._t, outputs)
        integration.run(self._y0)
        problem.note(integration)
        problem.refuse_failure("odeint_dense")
        return dense.evaluate

    def _problem(self) -> Problem:
        scheme, kind = self._scheme, Problem
        if scheme.by_scipy:
            kind = functools.partial(ScipyProblem, settings=scheme.scipy_settings())
        return kind(
            self._field,
            scheme.method,
            lambda requested: scheme.plan(requested, self._norm, self._field, self._y0),
            replay=self._graphs != math.inf,
            room=Room(self._graphs),
            snapshots=self._snapshots,
            # The search for an event has already reported its steps.
            watcher=None if self._told else _callbacks(self._func, self._packing, scheme, self._t),
        )

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
        self._told = True
        ys = run(torch.cat((self._t[:1], self._t.new_tensor([end]))))
        time, y = at_event(self._field, event, self._t.new_tensor(end), ys[-1])
        return time, unpacked(torch.stack((ys[0], y)))

    def _find_event(self, event: Callable[[Tensor, Tensor], Tensor]) -> float:
        scheme, times = self._scheme, self._t.detach()
        finder = EventFinder(event, scheme.event_tolerance())
        with torch.no_grad():
            y0 = self._y0.detach()
            if float(event(times[0].to(real_dtype(y0.dtype)), y0)) == 0:
                return float(times[0])
            problem = self._problem()
            if not scheme.is_adaptive():
                problem.watcher = None  # as in torchdiffeq
            problem.plan = lambda requested: scheme.endless_plan(
                requested, self._norm, self._field, y0
            )
            integration = problem.integration(y0, times, finder)
            integration.run(y0)
        if finder.moment is None:
            problem.note(integration)
            failed = problem.status is not Status.SUCCESS
            status = problem.status if failed else Status.STEP_LIMIT
            where = f"no event until t = {problem.reached:.6g}"
            raise SolverError(status, where, problem.stats)
        return finder.moment.value


_CALLBACKS = ("callback_step", "callback_accept_step", "callback_reject_step")


class _Callbacks:
    """Reports every step to a function's callbacks, which have torchdiffeq's names.

    Args:
        found: The callbacks.
        packing: How states lie in one tensor.
        time: Makes a tensor of a time or of a length of time.
        sign: -1.0 to report negative times.
    """

    def __init__(
        self,
        found: dict[str, Any],
        packing: Packing,
        time: Callable[[float], Tensor],
        sign: float = 1.0,
    ) -> None:
        self._found, self._packing, self._time, self._sign = found, packing, time, sign

    def tried(self, start: Moment, size: float, y: Tensor) -> None:
        self._tell("callback_step", start, size, y)

    def judged(self, start: Moment, size: float, y: Tensor, *, accepted: bool) -> None:
        name = "callback_accept_step" if accepted else "callback_reject_step"
        self._tell(name, start, size, y)

    def moved(self, end: Moment, y1: Tensor) -> None:
        pass

    def _tell(self, name: str, start: Moment, size: float, y: Tensor) -> None:
        if name in self._found:
            begin, length = self._time(self._sign * start.value), self._time(abs(size))
            self._found[name](begin, self._packing.unpack(y), length)


def _callbacks(
    func: Any, packing: Packing, scheme: Scheme, times: Tensor, *, adjoint: bool = False
) -> Watcher | None:
    """Watcher that reports steps to a function's callbacks, if it has any."""
    suffix = "_adjoint" if adjoint else ""
    found = {
        name: getattr(func, name + suffix) for name in _CALLBACKS if hasattr(func, name + suffix)
    }
    if found.keys() - scheme.callbacks():
        unsupported = ", ".join(sorted(found.keys() - scheme.callbacks()))
        warnings.warn(
            f"method {scheme.name!r} does not support callbacks: {unsupported}", stacklevel=4
        )
    if not found:
        return None
    dtype = scheme.time_dtype() if scheme.is_adaptive() else times.dtype
    # If time runs backward, torchdiffeq passes negative times to its adjoint callbacks.
    sign = -1.0 if adjoint and len(times) > 1 and bool(times[-1] < times[0]) else 1.0
    time = functools.partial(torch.tensor, dtype=dtype, device=times.device)
    return _Callbacks(found, packing, time, sign)
