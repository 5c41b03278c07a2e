"""Work and precision: which solver has the smallest error after so many evaluations?

Every candidate solves the ODE of trained BFNO fields at many tolerances or step sizes. Its error is
held against a solution at a tight tolerance in double precision.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cases import RELEASED, Case, cifar_case, digits_case, smooth_images, training_step
from benchmarks.timing import Line
from bfno.lab.data import load
from bfno.lab.errors import DataError
from bfno.ode import METHODS, Stats, Tableau, solve
from bfno.ode.control import FIRST_RATIOS, Control, Ratios
from bfno.ode.problem import Problem
from bfno.ode.solve import Options, make_plan

__all__ = ["precision"]

BUDGETS = (8, 14, 20, 26)
TOLERANCES = tuple(10 ** (-half / 2) for half in range(1, 9))
TIMES = torch.tensor([0.0, 1.0], dtype=torch.float64)
BATCH = 4

_RALSTON2 = Tableau("ralston2", 2, ((), (2 / 3,)), (1 / 4, 3 / 4), None, ((1 / 4,), (3 / 4,)), 1)
_RALSTON3 = Tableau(
    "ralston3", 3, ((), (1 / 2,), (0.0, 3 / 4)), (2 / 9, 1 / 3, 4 / 9), None,
    ((2 / 9,), (1 / 3,), (4 / 9,)), 1,
)  # fmt: skip


@dataclass(frozen=True)
class Remembering(Control):
    """The rule of `solve`, and what the next solve might begin with.

    Attributes:
        seen: Gets the first step that was taken, as large as its error would have let it be.
    """

    seen: list[float] = field(default_factory=list)

    def next_size(
        self, size: float, ratio: float, order: int, past: Ratios = FIRST_RATIOS
    ) -> float:
        if ratio <= 1 and not self.seen:
            factor = self.safety / max(ratio, 1e-9) ** (1 / order)
            self.seen.append(min(1.0, abs(size) * min(self.growth, factor)))
        return super().next_size(size, ratio, order, past)


@dataclass(frozen=True)
class Proportional(Remembering):
    """A PI rule: the last error has a say too (Hairer and Wanner, Solving ODEs II, IV.2)."""

    last: list[float] = field(default_factory=list)

    def next_size(
        self, size: float, ratio: float, order: int, past: Ratios = FIRST_RATIOS
    ) -> float:
        plain = super().next_size(size, ratio, order, past)
        if not 0 < ratio <= 1:
            return plain
        before, self.last[:] = (self.last or [1.0])[0], [max(ratio, 1e-4)]
        factor = self.safety * ratio ** (-0.7 / order) * before ** (0.4 / order)
        return self.clamp(size * min(self.growth, max(factor, self.shrink)))


@dataclass(frozen=True)
class Candidate:
    """A solver at all its tolerances or step sizes.

    Attributes:
        method: The method.
        rule: How large steps are; None takes equal ones.
        start: The first step: `"estimated"`, `"remembered"` from another batch, or a number.
    """

    method: Tableau
    rule: type[Remembering] | None = None
    start: str | float = "estimated"

    @property
    def name(self) -> str:
        if self.rule is None:
            return f"{self.method.name} fixed"
        kind = "PI" if self.rule is Proportional else "I"
        return f"{self.method.name} {kind} {self.start}"

    def points(self, problem: _Trained) -> Iterator[tuple[float, float]]:
        """Evaluations and error at one setting after the other, until there are too many."""
        for run in self._runs():
            found = [run(problem, batch) for batch in range(len(problem.batches))]
            evaluations = statistics.mean(count for count, _ in found)
            yield evaluations, statistics.geometric_mean(error for _, error in found)
            if evaluations > BUDGETS[-1]:
                return

    def _runs(self) -> Iterator[Callable[[_Trained, int], tuple[int, float]]]:
        if self.rule is not None:
            yield from (functools.partial(self._adapt, tolerance) for tolerance in TOLERANCES)
            return
        stages = len(self.method.without_end_stage.stages)
        counts = range(1, BUDGETS[-1] // stages + 1)
        if stages < 3:
            counts = sorted({budget // stages for budget in BUDGETS})
        yield from (functools.partial(self._step, count, count * stages) for count in counts)

    def _step(self, count: int, cost: int, problem: _Trained, batch: int) -> tuple[int, float]:
        # The slope at the end of the last step, which a method may share with the next, is free.
        return cost, problem.solve(batch, self.method, None, step=1 / count)[1]

    def _adapt(self, tolerance: float, problem: _Trained, batch: int) -> tuple[int, float]:
        assert self.rule is not None
        control = self.rule(tolerance, tolerance)
        if self.start == "remembered":
            other = Remembering(tolerance, tolerance)
            problem.solve(batch - 1, self.method, other)
            control = replace(control, first_step=other.seen[0])
        elif self.start != "estimated":
            control = replace(control, first_step=float(self.start))
        stats, error = problem.solve(batch, self.method, control)
        return stats.forward_evaluations, error


class _Trained:
    """A trained field, batches for it, and where they end."""

    def __init__(self, name: str, field: nn.Module, images: Tensor) -> None:
        self.name, self._field, self.batches = name, field, images.split(BATCH)
        double, tight = field.double(), Control(1e-6, 1e-6)
        self._ends = [
            self._end(double, batch.double(), METHODS["dopri5"], tight)[0] for batch in self.batches
        ]
        field.float()

    def solve(
        self, batch: int, method: Tableau, control: Control | None, step: float | None = None
    ) -> tuple[Stats, float]:
        """What a solve costs, and its error as tolerances measure it: relative to 1 + |y|."""
        end, stats = self._end(self._field, self.batches[batch], method, control, step)
        right = self._ends[batch]
        scaled = (end.double() - right) / (1 + right.abs())
        return stats, float(scaled.square().mean().sqrt())

    @staticmethod
    def _end(
        field: nn.Module, y0: Tensor, method: Tableau, control: Any, step: float | None = None
    ) -> tuple[Tensor, Stats]:
        plan = functools.partial(make_plan, method, Options(step=step), control)
        problem = Problem(field, method, plan)
        with torch.no_grad():
            return problem.states(y0, TIMES)[-1], problem.stats


def precision(repeats: int, notes: dict[str, Any]) -> Iterator[Line]:
    """Smallest errors after 8, 14, 20 and 26 evaluations, for every candidate and field."""
    for trained in _fields():
        errors = {}
        for candidate in _candidates():
            points = list(candidate.points(trained))
            errors[candidate.name] = best = [_smallest(points, budget) for budget in BUDGETS]
            usual = errors["dopri5 I estimated"]
            pairs = [pair for pair in zip(usual, best, strict=True) if None not in pair]
            ratio = statistics.geometric_mean(one / other for one, other in pairs) if pairs else 0
            shown = {f"error_{budget}": error for budget, error in zip(BUDGETS, best, strict=True)}
            names = ("precision", f"{trained.name}: {candidate.name}", "dopri5 I estimated")
            yield Line(*names, 0.0, 0.0, ratio, (0.0, 0.0), {**shown, **notes})


def _smallest(points: Sequence[tuple[float, float]], budget: int) -> float | None:
    return min((error for count, error in points if count <= budget), default=None)


def _candidates() -> Iterator[Candidate]:
    """The one that experiments use comes first."""
    for start in ("estimated", "remembered", 1.0, 0.5, 0.25):
        yield Candidate(METHODS["dopri5"], Remembering, start)
    yield Candidate(METHODS["dopri5"], Proportional)
    for name in ("tsit5", "bosh3", "fehlberg2", "adaptive_heun"):
        for start in ("estimated", "remembered"):
            yield Candidate(METHODS[name], Remembering, start)
    yield Candidate(METHODS["bosh3"], Proportional)
    for name in ("euler", "midpoint", "heun2", "heun3", "rk4", "bosh3", "dopri5", "tsit5"):
        yield Candidate(METHODS[name])
    yield from map(Candidate, (_RALSTON2, _RALSTON3))


def _fields() -> Iterator[_Trained]:
    """The authors' fields, where they are at hand, and one that is trained here."""
    for epoch in ("01", "10"):
        weights = RELEASED.with_name(f"cifar10_epoch{epoch}.pt")
        if weights.exists():
            name = f"cifar10 epoch {int(epoch)}"
            yield _Trained(name, cifar_case(weights).field, _photos(2 * BATCH))
    case = _trained_digits()
    yield _Trained("digits", case.field, case.images[: 2 * BATCH])


def _photos(count: int) -> Tensor:
    """The first images of CIFAR-10, or random ones like photos where the data are missing."""
    try:
        return load("cifar10", None).train.images[:count].float() / 255
    except DataError:
        return smooth_images(count, 3, 32)


def _trained_digits(steps: int = 150) -> Case:
    """The model of the demo's size after so many steps on its digits."""
    found = load("digits", None).train
    images, labels = found.images.float() / 255, found.labels
    case = digits_case()
    weights = [*case.field.parameters(), *case.head.parameters()]
    optimizer = torch.optim.Adam(weights, lr=1e-2)

    def solver(model: nn.Module, y0: Tensor, ts: Tensor) -> Tensor:
        return solve(model, y0, ts, rtol=1e-2, atol=1e-2).ys[-1]

    for step in range(steps):
        rows = torch.arange(64 * step, 64 * (step + 1)) % len(images)
        batch = replace(case, images=images[rows])
        training_step(batch, case.field, solver, labels[rows])()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
    return replace(case, images=images)
