"""Fields that fail, each in its own way, and what a solve of each has to report.

The check compares without `assert`, so that the same code also judges a run under `python -O`: run
this file to try every field with every method.
"""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import bfno
from bfno.ode import METHODS, Status

SECONDS = 10.0
TIMES = torch.tensor([0.0, 1.5, 2.0], dtype=torch.float64)
STEP = 0.02  # of the methods that cannot choose their own
Field = Callable[[Tensor, Tensor], Tensor]


class UserError(Exception):
    """Something the user's own code raises."""


@dataclass(frozen=True)
class Case:
    """A field on (0, 2) and the ways in which its solve may end.

    A status names the right reports; where the solve must refuse the field instead, `error` is
    what it raises and `words` what the message must contain. `end` is the exact final state.
    """

    field: Field
    adaptive: frozenset[Status] = frozenset()
    fixed: frozenset[Status] = frozenset()
    error: type[Exception] | None = None
    words: tuple[str, ...] = ()
    end: float | None = None

    @property
    def failing(self) -> bool:
        """Whether the solve is to end early with a status."""
        return self.error is None and self.end is None


def _nan_later(t: Tensor, y: Tensor) -> Tensor:
    return -y if float(t) < 0.7 else y * torch.nan


def _jump(t: Tensor, y: Tensor) -> Tensor:
    return torch.full_like(y, -1.0 if float(t) < 1 / 3 else 2.0)


def _raising(t: Tensor, y: Tensor) -> Tensor:
    raise UserError("the field has a bug of its own")


_NON_FINITE = frozenset({Status.NON_FINITE})
CASES: dict[str, Case] = {
    "nan at once": Case(lambda t, y: y * torch.nan, _NON_FINITE, _NON_FINITE),
    # Its norm is infinite although each slope is a number.
    "huge": Case(
        lambda t, y: y * 1e300,
        frozenset({Status.NON_FINITE, Status.STEP_UNDERFLOW}),
        _NON_FINITE,
    ),
    "nan later": Case(_nan_later, _NON_FINITE, _NON_FINITE),
    # y = 1 / (1 - t). An adaptive method follows it until time has no smaller step; a fixed one
    # steps over t = 1 and overflows.
    "blow-up": Case(
        lambda t, y: y**2, frozenset({Status.STEP_UNDERFLOW, Status.NON_FINITE}), _NON_FINITE
    ),
    # Stable steps are about 3e-6 long, and half a million of them are past the limit; the steps
    # of a fixed method amplify by 2e4 or more each.
    "stiff": Case(
        lambda t, y: -1e6 * (y - math.cos(float(t))),
        frozenset({Status.STEP_LIMIT, Status.STIFF}),
        _NON_FINITE,
    ),
    "discontinuous": Case(
        _jump, frozenset({Status.SUCCESS}), frozenset({Status.SUCCESS}), end=1 - 1 / 3 + 2 * 5 / 3
    ),
    "wrong shape": Case(lambda t, y: y[:1], error=ValueError, words=("shape", "(3,)", "(1,)")),
    "wrong dtype": Case(lambda t, y: y.float(), error=ValueError, words=("float32", "float64")),
    "raising": Case(_raising, error=UserError, words=("the field has a bug of its own",)),
}
EXPLICIT_ONLY = ("huge", "stiff")
"""What implicit methods solve, or damp to nothing although it grows, as all that is fast."""


def solve(name: str, method: str, **options: Any) -> bfno.Solution:
    """Solve one of the cases with default tolerances and limits."""
    y0 = torch.ones(3, dtype=torch.float64)
    step = None if METHODS[method].adaptive else STEP
    return bfno.solve(CASES[name].field, y0, TIMES, method=method, step=step, **options)


def mistakes(name: str, method: str) -> list[str]:
    """What one field with one method reports wrongly, or takes too long to report."""
    if METHODS[method].implicit and name in EXPLICIT_ONLY:
        return []
    start = time.process_time()
    try:
        solution = solve(name, method, throw=False)
    except Exception as error:
        found = _wrong_refusal(CASES[name], error)
    else:
        found = _wrong_status(CASES[name], METHODS[method], solution)
    seconds = time.process_time() - start
    if seconds > SECONDS:
        found.append(f"took {seconds:.1f} s")
    return [f"{name} with {method}: {mistake}" for mistake in found]


def _wrong_refusal(case: Case, error: Exception) -> list[str]:
    found = [] if type(error) is case.error else [f"raised {type(error).__name__}"]
    return found + [f"no {word!r} in {error}" for word in case.words if word not in str(error)]


def _wrong_status(case: Case, method: bfno.Tableau, solution: bfno.Solution) -> list[str]:
    if case.error is not None:
        return ["was not refused"]
    found = []
    right = case.adaptive if method.adaptive else case.fixed
    if method.implicit and case.failing:  # whose equations may have no solution either
        right = right | {Status.NEWTON_FAILURE}
    if solution.status not in right:
        found.append(f"status {solution.status.name}")
    if case.failing:
        if bool(solution.ys[-1].isfinite().any()):
            found.append("returned numbers for a time it did not reach")
    # A fixed method may spread the jump of 3 over one step.
    elif case.end is not None and not (solution.ys[-1] - case.end).abs().max().item() < 3 * STEP:
        found.append(f"ended at {solution.ys[-1].tolist()}")
    return found


if __name__ == "__main__":
    lines = [line for name in CASES for method in METHODS for line in mistakes(name, method)]
    print(f"optimised: {not __debug__}; {len(CASES) * len(METHODS)} solves")
    print(*lines, sep="\n")
    sys.exit(bool(lines))
