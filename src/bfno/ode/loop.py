"""Whole solves in one call of machine code, with exact gradients.

The forward pass keeps the states at which accepted steps begin; the backward pass goes through them
in reverse, repeats each step and differentiates it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bfno.ode.captured import CannotCompile, capture
from bfno.ode.evaluate import Field
from bfno.ode.inputs import CONTROLLERS
from bfno.ode.integrate import Plan
from bfno.ode.native import Recipe, load_library
from bfno.ode.solution import Stats, Status, refuse_all_but_one_gradient
from bfno.ode.tableaus import Tableau
from bfno.tracing import is_transformed

__all__ = ["Loop"]

_STATUSES = (Status.SUCCESS, Status.STEP_LIMIT, Status.STEP_UNDERFLOW, Status.NON_FINITE)
_FAILED = len(_STATUSES)
_MOST_STEPS = 2**62
"""The number that stands for infinitely many."""


class _Plan(ctypes.Structure):
    """`Plan` of `loop.cpp`."""

    _fields_ = [
        *((name, ctypes.c_double) for name in (
            "start", "direction", "rtol", "atol", "first_step", "min_step", "max_step", "safety",
            "growth", "shrink", "last", "before", "earlier", "trial_limit",
        )),
        *((name, ctypes.c_int64) for name in (
            "adaptive", "order", "max_steps", "renew_limit", "keep_pace", "time_count",
            "stop_count",
        )),
        ("times", ctypes.c_void_p),
        ("stops", ctypes.c_void_p),
    ]  # fmt: skip


class Loop:
    """One solve of a field, compiled as a whole.

    Args:
        field: The field.
        tableau: The method.
        plan: Where steps end.
        y0: State at the start.
        vector_bits: Width of the processor's vectors; None if the compiler knows it.

    Attributes:
        status: How the solve ended.
        reached: The time at which it ended.

    Raises:
        CannotCompile: If it has to be solved step by step.
    """

    def __init__(
        self, field: Field, tableau: Tableau, plan: Plan, y0: Tensor, vector_bits: int | None
    ) -> None:
        _refuse(tableau, plan, y0)
        self._tableau, self._plan, self._y0 = tableau, plan, y0.contiguous()
        y = self._y0.detach().requires_grad_(torch.is_grad_enabled())
        captured, self._tensors = capture(field, torch.zeros((), dtype=y0.dtype), y)
        adaptive, graph = plan.control is not None, torch.is_grad_enabled()
        places = enumerate(self._tensors)
        self.summed = tuple(i for i, one in places if one.requires_grad) if graph else ()
        self.differentiable = graph and (bool(self.summed) or y0.requires_grad)
        # By identity, because hashing all its numbers takes as long as a step.
        key = (id(tableau), adaptive, self.summed, self.differentiable, torch.get_num_threads())
        if key not in captured.programs:
            recipe = Recipe(
                captured, tableau, adaptive, y, self._tensors, self.summed, self.differentiable
            )
            try:
                captured.programs[key] = tableau, load_library(recipe, vector_bits), ""
            except CannotCompile as reason:
                captured.programs[key] = tableau, None, str(reason)
        _, self._library, failure = captured.programs[key]
        if failure:
            raise CannotCompile(failure)
        self.status, self.reached = Status.SUCCESS, plan.start.value

    def states(self, times: Sequence[float], slope: Tensor | None, stats: Stats) -> Tensor:
        """The states at requested times.

        Args:
            times: The times.
            slope: Value of the field at the start, if it is known.
            stats: Where costs are counted.
        """
        if slope is not None and (self.differentiable or not self._tableau.reuses_last_stage):
            raise CannotCompile("the slope at the start is given")
        if self.differentiable:
            return _Differentiable.apply(self, times, stats, self._y0, *self._tensors)
        return self.solve(times, slope, stats, keep=False)[0]

    def solve(
        self, times: Sequence[float], slope: Tensor | None, stats: Stats, *, keep: bool
    ) -> tuple[Tensor, _Run]:
        """The states at requested times, and what a gradient needs from the solve."""
        plan, control = self._plan, self._plan.control
        stops = [stop.moment.value for stop in plan.stops]
        arrays = [(ctypes.c_double * len(one))(*one) for one in (times, stops)]
        native = _Plan(
            start=plan.start.value, direction=plan.direction, first_step=-1.0, order=plan.order,
            max_steps=int(min(plan.max_steps, _MOST_STEPS)), renew_limit=plan.renew_limit,
            keep_pace=plan.keep_pace,
            time_count=len(times), stop_count=len(stops), trial_limit=plan.trial_limit,
            times=ctypes.addressof(arrays[0]), stops=ctypes.addressof(arrays[1]),
        )  # fmt: skip
        if control is not None:
            native.adaptive = 1
            native.rtol, native.atol = float(control.rtol), float(control.atol)
            native.first_step = -1.0 if control.first_step is None else control.first_step
            for name in ("min_step", "max_step", "safety", "growth", "shrink"):
                setattr(native, name, getattr(control, name))
            if control.coefficients != CONTROLLERS["I"]:  # whose exponents are all zero there
                native.last, native.before, native.earlier = control.exponents(plan.order)
        y0 = self._y0.detach()
        ys = y0.new_full((len(times), *y0.shape), math.nan)
        given = None if slope is None else slope.detach().contiguous()
        handle = self._library.loop_solve(
            ctypes.addressof(native), y0.data_ptr(), None if given is None else given.data_ptr(),
            _pointers(self._tensors), ys.data_ptr(), keep,
        )  # fmt: skip
        run = _Run(self._library, handle)
        self._count(run, stats)
        return ys, run

    def _count(self, run: _Run, stats: Stats) -> None:
        status, evaluations, accepted, rejected, _, _ = run.counts()
        self.reached = run.reached
        self.status = _STATUSES[status]
        stats.forward_evaluations += evaluations
        stats.accepted += accepted
        stats.rejected += rejected
        stats.step_ends += run.step_ends(accepted)
        stats.first_step = run.first_step


def _refuse(tableau: Tableau, plan: Plan, y0: Tensor) -> None:
    """Refuse what only a Python loop can do."""
    if is_transformed():
        raise CannotCompile("a function transform or another compiler is at work")
    if y0.device.type != "cpu":
        raise CannotCompile(f"the state is on {y0.device}")
    if y0.dtype not in (torch.float32, torch.float64):
        raise CannotCompile(f"the state is of {y0.dtype}")
    if type(y0) not in (Tensor, torch.nn.Parameter):
        raise CannotCompile(f"the state is a {type(y0).__name__}")
    if y0.numel() == 0:
        raise CannotCompile("the state is empty")
    if torch.is_autocast_enabled("cpu"):
        raise CannotCompile("autocast is on")
    if plan.control is not None and not tableau.reuses_last_stage:
        raise CannotCompile(f"{tableau.name} has no stage at the end of its steps")


def _pointers(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * max(1, len(tensors)))(*(one.data_ptr() for one in tensors))


class _Run:
    """What a library remembers about one solve."""

    def __init__(self, library: Any, handle: int) -> None:
        self._library, self._handle = library, handle
        self._counts = (ctypes.c_int64 * 6)()
        self._reached, self._first_step = ctypes.c_double(), ctypes.c_double()

    def counts(self) -> list[int]:
        """Status, evaluations, accepted and rejected steps, served times, backward evaluations."""
        sizes = ctypes.byref(self._reached), ctypes.byref(self._first_step)
        self._library.loop_counts(self._handle, self._counts, *sizes)
        if self._counts[0] == _FAILED:
            raise CannotCompile(self._library.loop_error(self._handle).decode())
        return list(self._counts)

    @property
    def reached(self) -> float:
        return self._reached.value

    @property
    def first_step(self) -> float:
        return self._first_step.value

    def step_ends(self, count: int) -> list[float]:
        if not count:
            return []
        ends = (ctypes.c_double * count).from_address(self._library.loop_ends(self._handle))
        return list(ends)

    def differentiate(
        self, tensors: Sequence[Tensor], gys: Tensor, gy0: Tensor, sums: Sequence[Tensor]
    ) -> int:
        """Add up gradients; return the number of evaluations that took."""
        self._library.loop_differentiate(
            self._handle, _pointers(tensors), gys.data_ptr(), gy0.data_ptr(), _pointers(sums)
        )
        return self.counts()[-1]

    def __del__(self) -> None:
        self._library.loop_free(self._handle)


class _Differentiable(torch.autograd.Function):
    """A solve as one operation."""

    @staticmethod
    def forward(
        ctx: Any, loop: Loop, times: Any, stats: Stats, y0: Tensor, *tensors: Tensor
    ) -> Any:
        ys, ctx.run = loop.solve(times, None, stats, keep=True)
        ctx.stats, ctx.summed = stats, loop.summed
        ctx.save_for_backward(y0, *tensors)  # which also notices changes in place
        return ys

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        refuse_all_but_one_gradient(
            gradients, "a solve with compile=True", "or use compile=False and gradient='direct'"
        )
        (gys,) = gradients
        y0, *tensors = ctx.saved_tensors
        sums = [
            torch.zeros(tensors[place].shape, dtype=tensors[place].dtype) for place in ctx.summed
        ]
        gy0 = torch.empty_like(y0, memory_format=torch.contiguous_format)
        evaluations = ctx.run.differentiate(tensors, gys.contiguous(), gy0, sums)
        ctx.stats.backward_evaluations += evaluations
        found: list[Tensor | None] = [None] * len(tensors)
        for place, one in zip(ctx.summed, sums, strict=True):
            found[place] = one
        return (None, None, None, gy0, *found)
