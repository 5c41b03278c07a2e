"""A field and a method, ready to be integrated from any state over any times."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bfno.ode.adams import AdamsMethod, AdamsStepper
from bfno.ode.auto import AutoStepper
from bfno.ode.compiled import CompiledStepper, solve_whole
from bfno.ode.evaluate import (
    Evaluator,
    Field,
    ReplayingEvaluator,
    TrackingEvaluator,
    borrows_parameters,
    is_mapped,
)
from bfno.ode.implicit import ImplicitStepper
from bfno.ode.implicit_tableaus import RosenbrockTableau
from bfno.ode.integrate import (
    AdaptiveIntegration,
    FixedIntegration,
    Integration,
    Outputs,
    Plan,
    RowOutputs,
    SharedOutputs,
    Watcher,
)
from bfno.ode.replay import Replayer, Room
from bfno.ode.rosenbrock import RosenbrockStepper
from bfno.ode.snapshots import Chain, ChainStepper
from bfno.ode.solution import SolverError, Stats, Status
from bfno.ode.state import real_dtype
from bfno.ode.step import Clock, ReplayedStepper, Stepper, Sums, TableSums
from bfno.ode.tableaus import AutoTableau, Tableau
from bfno.tracing import is_transformed

__all__ = ["Problem"]

SMALL_STATE = 1 << 14
"""Numbers in a state up to which a backward pass repeats whole steps, not single evaluations."""


@dataclass
class Problem:
    """A field on one tensor, and how to integrate it.

    Attributes:
        field: The field.
        method: The method.
        plan: Makes a plan for requested times.
        by_sample: Whether every sample has its own clock.
        replay: Whether backward passes repeat evaluations, instead of keeping their tensors.
        compile: Whether the solve is compiled.
        watcher: Receives every step.
        stats: Where costs are counted.
        room: Memory that the graphs of the solve may keep.
        snapshots: Bytes of states that are kept instead of graphs; None keeps graphs.
        status: How the last integration ended.
        reached: The time at which it ended.
    """

    field: Field
    method: Tableau | AdamsMethod
    plan: Callable[[Tensor], Plan]
    by_sample: bool = False
    replay: bool = False
    compile: bool = False
    watcher: Watcher | None = None
    stats: Stats = dataclasses.field(default_factory=Stats)
    room: Room = dataclasses.field(default_factory=Room)
    snapshots: float | None = None
    status: Status = Status.SUCCESS
    reached: float = 0.0

    def states(self, y0: Tensor, times: Tensor, slope: Tensor | None = None) -> Tensor:
        """The states at requested times, with a graph if autograd is on.

        Args:
            y0: State at the start.
            times: Requested times, or a clock for every sample.
            slope: Value of the field at the start, if it is known.
        """
        if self.compile and (ys := solve_whole(self, y0, times, slope)) is not None:
            return ys
        if self.snapshots is not None and isinstance(self.method, Tableau) and self._lets_go():
            return self._states_by_snapshots(self.method, y0, times, self.snapshots)
        outputs = RowOutputs(times, y0) if self.by_sample else SharedOutputs(times.tolist(), y0)
        integration = self.integration(y0, times, outputs)
        integration.run(y0, slope)
        self.note(integration)
        return outputs.stacked()

    def _lets_go(self) -> bool:
        """Whether graphs need not be kept, because a backward pass can repeat the calls."""
        return torch.is_grad_enabled() and not is_transformed() and not borrows_parameters()

    def _states_by_snapshots(
        self, method: Tableau, y0: Tensor, times: Tensor, size: float
    ) -> Tensor:
        """The same with a graph of one node, whose backward pass repeats the steps."""
        if method.implicit:
            raise ValueError(
                "memory='steps' and memory='log' need an explicit method such as dopri5, got "
                f"{method.name!r}; pass memory=0"
            )
        plan = self._plan(times)
        chain = Chain(
            self.field,
            method,
            (y0, times, self._knots(plan, times)),
            self.stats,
            size=size,
            by_sample=self.by_sample,
            by_step=y0.numel() <= SMALL_STATE,
        )
        outputs = chain.requests.outputs_of(y0.detach())
        integration = self._integration(ChainStepper(chain, outputs), plan, outputs)
        with torch.no_grad():
            integration.run(y0.detach())
        self.note(integration)
        return chain.states(outputs)

    def note(self, integration: Integration) -> None:
        """Remember how an integration ended."""
        self.status, self.reached = integration.status, integration.moment.value

    def integration(self, y0: Tensor, times: Tensor, outputs: Outputs) -> Integration:
        """An integration that is ready to run."""
        plan = self._plan(times)
        if plan.control is not None and is_mapped():
            raise ValueError(
                "adaptive steps need numbers, and torch.func.vmap has none; pass step=… for fixed "
                "steps, or solve the whole batch at once without vmap"
            )
        return self._integration(self._stepper(y0, self._knots(plan, times)), plan, outputs)

    def _integration(self, stepper: Stepper, plan: Plan, outputs: Outputs) -> Integration:
        kind = FixedIntegration if plan.control is None else AdaptiveIntegration
        return kind(stepper, plan, outputs, self.stats, self.watcher, self.room)

    def _plan(self, times: Tensor) -> Plan:
        return self.plan(torch.tensor([0.0, 1.0]) if self.by_sample else times)

    def _knots(self, plan: Plan, times: Tensor) -> Tensor:
        """Times that moments move with; with their own clocks, samples move separately."""
        if self.by_sample:
            return times.detach().flatten()
        return times if plan.knots is None else plan.knots

    def _stepper(self, y0: Tensor, knots: Tensor) -> Stepper:
        clock = Clock(knots, y0)
        method, stats, replayer = self.method, self.stats, self._replayer(y0)
        evaluate = Evaluator(self.field) if is_transformed() else TrackingEvaluator(self.field, y0)
        if isinstance(method, AdamsMethod):
            return AdamsStepper(evaluate, method, clock, stats)
        make = functools.partial(self._stepper_of, evaluate, clock, replayer, y0)
        if isinstance(method, AutoTableau):
            return AutoStepper(make(method.explicit), make(method.stiff), clock, stats)
        return make(method)

    def _stepper_of(
        self,
        evaluate: Evaluator,
        clock: Clock,
        replayer: Replayer | None,
        y0: Tensor,
        method: Tableau,
    ) -> Stepper:
        """The stepper of one method."""
        stats, has_graph = self.stats, torch.is_grad_enabled() or is_transformed()
        if method.implicit:
            _refuse_equations(method, y0)
            rosenbrock = isinstance(method, RosenbrockTableau)
            kind: Any = RosenbrockStepper if rosenbrock else ImplicitStepper
            return kind(evaluate, method, clock, replayer, stats, y0)
        if self.compile:
            return CompiledStepper(evaluate, method, clock, replayer, stats)
        if replayer is not None:
            if y0.numel() <= SMALL_STATE:
                return ReplayedStepper(evaluate, method, clock, replayer, stats)
            evaluate = ReplayingEvaluator(self.field, y0, replayer)
        sums = Sums(method) if has_graph else TableSums(method, y0)
        return Stepper(evaluate, method, clock, sums, stats)

    def evaluator(self, y0: Tensor) -> Evaluator:
        """The evaluator for steps that are recorded evaluation by evaluation."""
        replayer = self._replayer(y0)
        if replayer is not None:
            return ReplayingEvaluator(self.field, y0, replayer)
        return Evaluator(self.field) if is_transformed() else TrackingEvaluator(self.field, y0)

    def _replayer(self, y0: Tensor) -> Replayer | None:
        """The replayer of calls, if a backward pass is to repeat them and can."""
        return Replayer(y0, self.stats, self.room) if self.replay and self._lets_go() else None

    def refuse_failure(self, name: str) -> None:
        """Raise if the last integration failed."""
        if self.status is not Status.SUCCESS:
            where = f"{name} stopped at t = {self.reached:.6g}"
            raise SolverError(self.status, where, self.stats)


def _refuse_equations(method: Tableau, y0: Tensor) -> None:
    """Refuse a method that solves equations if that is impossible."""
    if is_transformed():
        raise ValueError(
            f"method {method.name!r} solves equations and needs numbers, which torch.func, "
            "forward-mode differentiation and torch.compile do not have; use an explicit method"
        )
    if real_dtype(y0.dtype) not in (torch.float32, torch.float64):
        raise ValueError(
            f"method {method.name!r} solves equations and needs a state in single or double "
            f"precision, got {y0.dtype}; use y0.float(), or an explicit method"
        )
