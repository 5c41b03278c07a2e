"""Gradients by the continuous adjoint equation, solved backward in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bfno.ode.adams import AdamsMethod
from bfno.ode.control import Norm, largest, root_mean_square
from bfno.ode.dependencies import Dependencies, mark, without_hooks
from bfno.ode.evaluate import Field, TrackingEvaluator, borrows_parameters
from bfno.ode.integrate import Plan, Watcher
from bfno.ode.problem import Problem
from bfno.ode.replay import NOT_REPEATABLE, Replayer, address
from bfno.ode.solution import GradientError
from bfno.ode.state import Packing, real_dtype
from bfno.ode.tableaus import Tableau
from bfno.tracing import is_followed, is_transformed

__all__ = ["AdjointSettings", "adjoint_norm", "solve_adjoint"]


@dataclass(frozen=True)
class AdjointSettings:
    """How the adjoint equation is solved.

    Attributes:
        method: The method.
        plan: Makes a plan for an interval, given the norm of the adjoint's state.
        norm: Norm of a tuple: time's adjoint, state, its adjoint, the parameters' adjoints.
        parameters: The only tensors that get gradients, or None to find all that the field uses.
        further: Tensors that the field may use, though perhaps not at the start.
        zero_unused: Whether tensors that the field did not use get gradients of zero, not None.
        with_times: Whether the adjoint of time is solved for, and its error counted, for the first
            requested time; if not, its gradient follows from the field there.
        watcher: Makes the watcher of the backward steps, given how the adjoint's state is packed.
    """

    method: Tableau | AdamsMethod
    plan: Callable[[Tensor, Callable[[Tensor], Any]], Plan]
    norm: Callable[[tuple[Tensor, ...]], Any]
    parameters: Sequence[Tensor] | None = None
    further: Sequence[Tensor] = ()
    zero_unused: bool = False
    with_times: bool = False
    watcher: Callable[[Packing], Watcher | None] = lambda packing: None


def adjoint_norm(state_norm: Norm, *, seminorm: bool) -> Callable[[tuple[Tensor, ...]], Tensor]:
    """Norm of the adjoint equation's state: the largest of its components'.

    Args:
        state_norm: Norm of the state and of its adjoint.
        seminorm: Leave the parameters' adjoints out, which do not feed back.
    """

    def norm(state: tuple[Tensor, ...]) -> Tensor:
        time, y, adjoint, *parameters = state
        sizes = [time.abs(), *(torch.as_tensor(state_norm(part)) for part in (y, adjoint))]
        if not seminorm:
            sizes += [root_mean_square(parameter) for parameter in parameters]
        return largest([size.to(real_dtype(y.dtype)) for size in sizes], y)

    return norm


def solve_adjoint(problem: Problem, y0: Tensor, times: Tensor, settings: AdjointSettings) -> Tensor:
    """Solve; the backward pass solves the continuous adjoint equation."""
    _refuse_unseen()
    if not torch.is_grad_enabled():
        return problem.states(y0, times)
    found = _Witness(problem, y0, times, settings)
    return _Adjoint.apply(problem, settings, found, y0, times, *found.tensors)


def _refuse_unseen() -> None:
    """Refuse transforms and temporary parameters, which the backward solve would not see."""
    if is_transformed():
        raise GradientError(
            "gradient='adjoint' does not work under torch.func, forward-mode differentiation or "
            "torch.compile; use gradient='checkpoint' or 'direct'"
        )
    if torch.is_grad_enabled() and borrows_parameters():
        raise GradientError(
            "gradient='adjoint' evaluates the field after functional_call or parametrize.cached "
            "has put its own parameters back; use gradient='checkpoint' or 'direct'"
        )


class _Witness:
    """Evaluates the field at both ends, finds what it depends on, and can tell if it changed."""

    def __init__(
        self, problem: Problem, y0: Tensor, times: Tensor, settings: AdjointSettings
    ) -> None:
        self._problem, self._kind = problem, real_dtype(y0.dtype)
        self._replayer = Replayer(y0, problem.stats)
        self._random = self.surroundings.random_state()
        start = times.detach()[0].to(self._kind), y0.detach()
        evaluate = TrackingEvaluator(problem.field, y0.detach())
        given = settings.parameters
        further = settings.further if given is None else given
        self.dependencies = Dependencies(evaluate, *start, further, only=given is not None)
        self._refuse_random_numbers()
        self.slope = self.dependencies.slope
        problem.stats.forward_evaluations += 1
        self.tensors = self.dependencies.tensors
        self._addresses = [address(one) for one in self.tensors]
        self._seen = [(*start, self._replayer.checksum(self.slope))]

    @property
    def surroundings(self) -> Any:
        return self._replayer.surroundings

    def solve(self, y0: Tensor, times: Tensor) -> Tensor:
        """Solve forward, and note two more evaluations, because the start may not show a change."""
        problem, noted = self._problem, _Noted(self._problem.field, self._replayer)
        if problem.compile:  # whose field must stay the same object, and is not called here
            ys = problem.states(y0, times, self.slope)
            problem.stats.forward_evaluations += 1
            noted(times[-1].to(self._kind), ys[-1].clone())
        else:
            watched = replace(problem, field=noted)
            ys = watched.states(y0, times, self.slope)
            problem.status, problem.reached = watched.status, watched.reached
        self._refuse_random_numbers()
        self._seen += noted.seen()
        return ys

    def refuse_change(self) -> None:
        """Refuse a field that no longer returns what it returned in the solve."""
        for tensor, before in zip(self.tensors, self._addresses, strict=True):
            if address(tensor) != before:
                raise GradientError(
                    f"the data of a tensor of shape {tuple(tensor.shape)} that the field uses was "
                    "replaced before the backward pass; call backward() first, or solve again"
                )
        since = mark()
        for time, y, checksum in self._seen:
            y = y.detach().requires_grad_()
            with torch.enable_grad():
                slope = self._problem.field(time, y)
            self._problem.stats.backward_evaluations += 1
            # With different memory, or with autograd, the processor may round differently.
            if not self._replayer.is_same(checksum, slope, exactly=False):
                raise GradientError(NOT_REPEATABLE)
            self.dependencies.refuse_others(slope, since, (y,))

    def _refuse_random_numbers(self) -> None:
        if self.surroundings.random_state() is not self._random:
            raise GradientError(
                "gradient='adjoint' needs a field without random numbers, and this one draws some "
                "(is dropout in training mode?); use gradient='checkpoint', or call .eval()"
            )


class _Noted:
    """A field that notes the times, states and checksums of one of its first calls and its last."""

    def __init__(self, field: Field, replayer: Replayer) -> None:
        self._field, self._replayer, self._calls = field, replayer, 0
        self._early: list[Any] = []
        self._last: list[Any] = []

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        slope = self._field(t, y)
        self._calls += 1
        if self._calls <= 5 and isinstance(slope, Tensor):  # inside the first step, or at its end
            # At once: a field may write its next slope into the same tensor.
            self._early = [t, y, self._replayer.checksum(slope)]
        self._last = [t, y, slope]
        return slope

    def seen(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Times, states and checksums of the two calls."""
        if not self._last or not isinstance(self._last[-1], Tensor):
            return []
        self._last[-1] = self._replayer.checksum(self._last[-1])
        # Copies: a state may be a small part of a large table.
        return [
            (t.detach(), y.detach().clone(), check) for t, y, check in (self._early, self._last)
        ]


class _Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        problem: Problem,
        settings: AdjointSettings,
        witness: _Witness,
        y0: Tensor,
        times: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        with torch.no_grad():
            ys = witness.solve(y0.detach(), times.detach())
        ctx.problem, ctx.settings, ctx.witness = problem, settings, witness
        # Callers of torchdiffeq look the norm up here, and may replace it.
        ctx.adjoint_options = {"norm": settings.norm}
        ctx.wants_times = times.requires_grad
        ctx.save_for_backward(y0, times, ys, *tensors)
        return ys

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if is_followed(gradients[0]):
            raise GradientError(
                "a solve with gradient='adjoint' cannot be differentiated under torch.func or with "
                "is_grads_batched=True; use gradient='checkpoint' or 'direct'"
            )
        if torch.is_grad_enabled():
            # Autograd is on in a backward pass only if its result is to be differentiated again.
            raise GradientError(
                "a solve with gradient='adjoint' can be differentiated once, not twice; use "
                "gradient='direct' (odeint instead of odeint_adjoint) for higher derivatives"
            )
        try:
            _, times, ys, *tensors = ctx.saved_tensors
        except RuntimeError as error:
            raise GradientError(
                "a tensor that the field uses, or the solution itself, was changed in place before "
                f"the backward pass, or the graph was used up; call backward() first ({error})"
            ) from error
        system = _AdjointSystem(ctx, ys[0], tensors)
        surroundings = ctx.witness.surroundings
        with surroundings.restored(surroundings.random_state()), without_hooks(tensors):
            ctx.witness.refuse_change()
            y0, moved, found = system.solve(ys, times, gradients[0])
        used = [
            part if index in system.used or ctx.settings.zero_unused else None
            for index, part in enumerate(found)
        ]
        return None, None, None, y0, moved if ctx.wants_times else None, *used


class _AdjointSystem:
    """State, adjoint and the integrals that give the gradients of time and parameters."""

    def __init__(self, ctx: Any, y0: Tensor, tensors: list[Tensor]) -> None:
        self._problem, self._dependencies = ctx.problem, ctx.witness.dependencies
        self._settings, self._norm = ctx.settings, ctx.adjoint_options["norm"]
        self._wants_times, self._with_times = ctx.wants_times, ctx.settings.with_times
        self._tensors = tuple(tensors)
        self._zero = torch.zeros((), dtype=real_dtype(y0.dtype), device=y0.device)
        self._packing = Packing((self._zero, y0, y0, *tensors))
        self._since = mark()
        self.used: set[int] = set()

    def solve(
        self, ys: Tensor, times: Tensor, gradient: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Gradients of the first state, of the times and of the tensors."""
        moved = torch.zeros_like(times)
        zeros = [torch.zeros_like(tensor) for tensor in self._tensors]
        state = (self._zero, ys[-1], gradient[-1], *zeros)
        for index in reversed(range(1, len(times))):
            if self._wants_times:
                moved[index] = self._time_gradient(times[index], ys[index], gradient[index])
                state = (state[0] - moved[index].to(self._zero.dtype), *state[1:])
            interval = times[index - 1 : index + 1].flip(0)
            state = self._integrate(state, interval)
            if index == 1 and self._wants_times:
                moved[0] = state[0] if self._with_times else self._start_gradient(times, ys, state)
            # The forward pass knows the state better than the backward solve does.
            state = (state[0], ys[index - 1], state[2] + gradient[index - 1], *state[3:])
        return state[2], moved, state[3:]

    def _time_gradient(self, time: Tensor, y: Tensor, gradient: Tensor) -> Tensor:
        """The derivative of the loss by one requested time while the path stays the same."""
        self._problem.stats.backward_evaluations += 1
        with torch.no_grad():
            slope = self._problem.field(time.to(self._zero.dtype), y)
        return (slope * gradient.conj()).sum().real.to(time.dtype)

    def _start_gradient(self, times: Tensor, ys: Tensor, state: tuple[Tensor, ...]) -> Tensor:
        """The same for the first time; an integral of ∂f/∂t would not see where the field jumps."""
        return -self._time_gradient(times[0], ys[0], state[2])

    def _integrate(self, state: tuple[Tensor, ...], interval: Tensor) -> tuple[Tensor, ...]:
        """Solve backward over one interval between requested times."""
        packing, settings, norm = self._packing, self._settings, self._norm
        backward = Problem(
            lambda t, y: packing.pack(self._slopes(t, packing.unpack(y))),
            settings.method,
            lambda times: settings.plan(times, lambda scaled: norm(packing.unpack(scaled))),
            watcher=settings.watcher(packing),
        )
        with torch.no_grad():
            ys = backward.states(packing.pack(state), interval)
        self._problem.stats.backward_evaluations += backward.stats.forward_evaluations
        self._problem.stats.stiff += backward.stats.stiff
        backward.stats = self._problem.stats
        backward.refuse_failure("the adjoint equation")
        return packing.unpack(ys[-1])

    def _slopes(self, time: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        _, y, adjoint, *_ = state
        with torch.enable_grad():
            y, time = y.detach().requires_grad_(), time.detach()
            time.requires_grad_(self._with_times)
            slope = self._problem.field(time, y)
        inputs = (y, time) if self._with_times else (y,)
        pulled = self._pull_back(slope, inputs, -adjoint)
        by_time = pulled.pop(1) if self._with_times else None
        if len(self.used) < len(self._tensors):
            self.used.update(i for i, part in enumerate(pulled[1:]) if part is not None)
        shapes = (self._zero, y, *self._tensors)
        filled = [
            torch.zeros_like(shape) if part is None else part
            for part, shape in zip((by_time, *pulled), shapes, strict=True)
        ]
        return (filled[0], slope.detach(), *filled[1:])

    def _pull_back(
        self, slope: Tensor, inputs: tuple[Tensor, ...], cotangent: Tensor
    ) -> list[Tensor | None]:
        self._dependencies.refuse_others(slope, self._since, inputs)
        # Autocast may have narrowed the slope.
        return self._dependencies.pull_back(slope, inputs, cotangent.to(slope.dtype))
