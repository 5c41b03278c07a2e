"""Solves with `compile=True`: as a whole in one call of machine code, or step by step.

`loop.py` compiles whole solves on the processor. For solves that it does not support,
`CompiledStepper` compiles single steps and leaves the loop to Python.
"""

from __future__ import annotations

import functools
import math
import platform
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from bfno.ode.captured import CannotCompile
from bfno.ode.control import Control
from bfno.ode.evaluate import Evaluator, Field, WithArguments
from bfno.ode.integrate import Plan, Watcher
from bfno.ode.loop import Loop
from bfno.ode.replay import Replayer
from bfno.ode.solution import Stats, Status
from bfno.ode.state import clock_dtype
from bfno.ode.step import Clock, Moment, Stepper, Sums, take_stages
from bfno.ode.tableaus import Tableau

__all__ = ["CompiledStepper", "solve_whole"]


class _Problem(Protocol):
    """The attributes of a problem that are read and written."""

    field: Field
    method: Any
    plan: Callable[[Tensor], Plan]
    by_sample: bool
    watcher: Watcher | None
    stats: Stats
    status: Status
    reached: float


def solve_whole(
    problem: _Problem, y0: Tensor, times: Tensor, slope: Tensor | None
) -> Tensor | None:
    """The states at requested times, or None if the problem has to be solved step by step.

    Args:
        problem: What to solve.
        y0: State at the start.
        times: Requested times.
        slope: Value of the field at the start, if it is known.
    """
    if problem.by_sample or not isinstance(problem.method, Tableau) or y0.is_complex():
        return None
    plan = problem.plan(times)
    if _is_refused(plan):
        return None
    try:
        if problem.watcher is not None:
            raise CannotCompile("on_step is told of every step")
        loop = Loop(problem.field, problem.method, plan, y0, _vector_bits())
        ys = loop.states(times.tolist(), slope, problem.stats)
    except CannotCompile as reason:
        problem.stats.compiled = f"step: {reason}"
        warnings.warn(
            f"compile=True compiles single steps here, which gains little: {reason}", stacklevel=4
        )
        return None
    problem.stats.compiled = "solve"
    problem.status, problem.reached = loop.status, loop.reached
    return ys


def _is_refused(plan: Plan) -> bool:
    """Whether the step-by-step solve will refuse the input with its own message."""
    control = plan.control
    if plan.jump_at_start or any(stop.jump for stop in plan.stops):
        return True
    return control is not None and (control.norm is not None or control.is_elementwise())


class CompiledStepper(Stepper):
    """Takes steps, each by one compiled function, where a whole solve cannot be compiled.

    The function is compiled when a field first meets a method, and again for other shapes of the
    state and for gradients; that takes seconds to minutes, and every later solve with the same
    field profits. A backward pass repeats whole steps.

    Args:
        evaluate: Calls the field outside of steps.
        tableau: The method.
        clock: Gives the time.
        replayer: Records steps for backward passes to repeat; None if they do not repeat any.
        stats: Where evaluations are counted.
    """

    def __init__(
        self,
        evaluate: Evaluator,
        tableau: Tableau,
        clock: Clock,
        replayer: Replayer | None,
        stats: Stats,
    ) -> None:
        super().__init__(evaluate, tableau, clock, Sums(tableau), stats)
        self._replayer, self._tolerances = replayer, (1.0, 1.0)
        self._step = _step_of(evaluate.field, tableau, full=False)
        self._last: Any = None
        self._squares: Any = None

    def start(self, moment: Moment, y: Tensor, slope: Tensor | None = None) -> Tensor:
        if y.is_complex():
            raise ValueError(f"compile=True needs a real state, got {y.dtype}; leave compile out")
        return super().start(moment, y, slope)

    def attempt(self, start: Moment, end: Moment, y: Tensor, *, end_inside: bool = False) -> Tensor:
        if end_inside:
            raise ValueError("compile=True does not support jumps; leave one of the two out")
        if self._first is None:
            self.start(start, y)
        self.stats.forward_evaluations += len(self.tableau.stages) - 1
        self._sums.slopes = []  # the repeated step belongs to an earlier attempt
        y1, self._last, self._squares, _ = self._call(self._step, start, end, y)
        return y1

    def error_ratio(self, control: Control, y: Tensor, y1: Tensor) -> float:
        return math.sqrt(self._squares.item() / max(y.numel(), 1))

    def prepare(self, control: Control | None) -> None:
        if control is None:
            return
        rtol, atol = control.rtol, control.atol
        if control.norm is not None or isinstance(rtol, Tensor) or isinstance(atol, Tensor):
            raise ValueError("compile=True needs numbers as tolerances and the default norm")
        self._tolerances = (rtol, atol)

    def accept(self) -> None:
        self._first = self._last if self.tableau.reuses_last_stage else None

    def discard(self) -> None:
        super().discard()
        self._last = self._squares = None  # or their graph would be kept beside the next

    def interpolate(self, start: Moment, end: Moment, y: Tensor, requested: Moment) -> Tensor:
        if not self._sums.slopes:  # the first time inside this step: repeat it for its slopes
            full = _step_of(self._field, self.tableau, full=True)
            self.stats.forward_evaluations += len(self.tableau.stages) - 1
            self._sums.slopes = [self._first, *self._call(full, start, end, y)[3]]
        return super().interpolate(start, end, y, requested)

    def _call(self, step: Callable[..., Any], start: Moment, end: Moment, y: Tensor) -> Any:
        values = [start.value, end.value - start.value, *self._tolerances]
        numbers = torch.tensor(values, dtype=clock_dtype(y.device), device=y.device)
        inputs = (y, self._first, numbers)
        if self._replayer is None or self._replayer.reserve():
            return step(*inputs)
        with self._replayer.recording(step, inputs, len(self.tableau.stages) - 1) as call:
            result = call.result = step(*inputs)
        return result


def _step_of(field: Field, tableau: Tableau, *, full: bool) -> Callable[..., Any]:
    """The compiled step of a field and a method, with the field's further arguments, if any."""
    if not isinstance(field, WithArguments):
        return functools.partial(_compiled_step(field, tableau, full=full), ())
    return functools.partial(_compiled_step(field.field, tableau, full=full), field.arguments)


@functools.lru_cache(maxsize=16)
def _compiled_step(field: Callable[..., Tensor], tableau: Tableau, *, full: bool) -> Any:
    """The compiled step of a field and a method; the last few are kept.

    Args:
        field: The field.
        tableau: The method.
        full: Whether the step returns its slopes.
    """
    nodes = tableau.nodes  # the compiler cannot trace properties that are computed on access

    def step(arguments: tuple[Any, ...], y: Tensor, first: Tensor, numbers: Tensor) -> Any:
        start, size, rtol, atol = numbers.unbind(0)
        times = [(start + node * size).to(y.dtype) for node in nodes]
        sums = Sums(tableau)
        sums.begin(y, size.to(y.dtype))
        sums.add(first)
        end = take_stages(lambda t, y: field(t, y, *arguments), times, sums)
        scale = torch.maximum(y.abs(), end.abs()) * rtol.to(y.dtype) + atol.to(y.dtype)
        # If a number is zero, its tolerance may be zero too; a zero error there stays zero.
        scale = scale.clamp(min=torch.finfo(y.dtype).tiny)
        squares = (sums.error() / scale).detach().square().sum()
        return end, sums.slopes[-1], squares, tuple(sums.slopes[1:]) if full else ()

    # The compiler limits the variants of one code object, so every field gets its own.
    step.__code__ = step.__code__.replace()
    options: dict[str, Any] = {"cpp.simdlen": _vector_bits()}
    return torch.compile(step, dynamic=False, options=options)


def _vector_bits() -> int | None:
    """Width in bits of the vectors that torch uses on an Intel or AMD processor.

    Without this, torch's compiler may take code from its cache on disk that was made for wider
    vectors (ATEN_CPU_CAPABILITY changes the width), and give wrong numbers.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    return {"AVX512": 512, "AVX2": 256}.get(torch.backends.cpu.get_cpu_capability(), 1)
