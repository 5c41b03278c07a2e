"""Whether stability, not accuracy, keeps the steps of an explicit method small.

The slopes of one step show how strongly the field pulls. Some combination of its stages cancels the
smooth solution, such as the difference of two stages at the same time; what is left of the slopes,
divided by what is left of the states, is about the largest eigenvalue of the Jacobian. No field is
evaluated for that. If this eigenvalue times the step size is near the method's stability bound, the
field is stiff (Hairer and Wanner, Solving ODEs II, IV.2, for dopri5).
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bfno.ode.solution import Stats
from bfno.ode.state import constant
from bfno.ode.tableaus import Row, Tableau
from bfno.tracing import is_transformed, without_autocast

__all__ = ["Detector", "Probe", "probe_of"]

_LOOKS = 8
"""Number of consecutive steps in a row of checks, whose numbers the host reads all at once."""
_PAUSE = 24
"""Steps before the first such row, and between two while the field is stiff."""
_CALM_PAUSE = 56
"""Steps between two while it is not."""
_FAR = 64
"""Number of steps to the end, at the present pace, from which checks are worthwhile."""
_EDGE = 0.75
"""Share of the stability bound from which a step counts as limited by stability."""
_PROOF = 9
"""Number of stiff rows of checks before the solve gives up."""
_SETTLED = 1.25
"""Factor by which the pace may differ since the field is stiff."""
_MARGIN = 20
"""Factor by which the steps ahead must be too many, if the field stays stiff as long as it was."""


class Probe(NamedTuple):
    """How a method's slopes reveal stiffness.

    Attributes:
        slopes: Weights of a combination of slopes in which the smooth solution cancels.
        states: Weights of the slopes in the same combination of the stages' states, divided by the
            step size.
        bound: Step size times eigenvalue, on the negative real axis, above which steps grow.
    """

    slopes: Row
    states: Row
    bound: float


@functools.lru_cache(maxsize=32)
def probe_of(tableau: Tableau) -> Probe:
    """How the slopes of a method reveal stiffness.

    Example:
        >>> from bfno.ode import METHODS
        >>> round(probe_of(METHODS["dopri5"]).bound, 2)
        3.31
    """
    count = len(tableau.stages)
    matrix = np.zeros((count, count))
    for row, entries in enumerate(tableau.stages):
        matrix[row, : len(entries)] = entries
    combination = _difference(matrix)
    return Probe(
        tuple(combination.tolist()),
        tuple((combination @ matrix).tolist()),
        _stability_bound(matrix, np.array(tableau.weights)),
    )


def _difference(matrix: np.ndarray) -> np.ndarray:
    """Weights of stages that cancel a smooth solution, and terms that depend only on time."""
    nodes, count = matrix.sum(1), len(matrix)
    weights = np.zeros(count)
    for later, earlier in itertools.combinations(reversed(range(count)), 2):
        same_time = abs(nodes[later] - nodes[earlier]) < 1e-12
        if same_time and np.abs(matrix[later] - matrix[earlier]).max() > 1e-9:
            weights[[later, earlier]] = 1.0, -1.0
            return weights
    # Stages at different times: their divided difference cancels polynomials up to a degree.
    last = list(range(max(0, count - 4), count))
    powers = np.vander(nodes[last], len(last), increasing=True).T
    weights[last] = np.linalg.lstsq(powers, np.eye(len(last))[-1], rcond=None)[0]
    return weights


def _stability_bound(matrix: np.ndarray, weights: np.ndarray) -> float:
    """Where the factor of a step of `y' = -y` first exceeds one."""
    sizes = np.arange(0.01, 50, 0.01)
    stage, factors = np.ones(len(matrix)), np.ones_like(sizes)
    for power in range(1, len(matrix) + 1):  # a polynomial, because the stages are explicit
        factors += (weights @ stage) * (-sizes) ** power
        stage = matrix @ stage
    beyond = np.abs(factors) > 1 + 1e-9
    return float(sizes[beyond.argmax()]) if beyond.any() else float("inf")


class Mark(NamedTuple):
    """Number of steps tried when a time was reached."""

    tried: int
    time: float


class Detector:
    """Checks some accepted steps of an explicit method, and notes where the field is stiff.

    It holds no graph, evaluates nothing, and makes the host wait once in 64 steps, in 32 of a stiff
    field, and not at all in short solves.

    Args:
        tableau: The method.
        goals: Times before which the field is not known to change and the steps have to suffice, in
            order; none if that is not known.
        stats: Where it writes when the field was stiff, and reads how many steps were tried.

    Attributes:
        is_stiff: Whether the field was stiff at the last check.
    """

    def __init__(self, tableau: Tableau, goals: Sequence[float], stats: Stats) -> None:
        self._tableau, self._stats = tableau, stats
        self._goals = list(goals)[::-1]
        # Stages of implicit methods differ, and under a transform there are no numbers.
        self._blind = tableau.implicit or is_transformed()
        self._pause, self._seen = _PAUSE, list[Tensor]()
        self._weights: Tensor | None = None
        self._began = 0.0
        self._marks: list[Mark] = []
        self.is_stiff = False

    def look(self, start: float, end: float, slopes: Sequence[Tensor]) -> bool:
        """Take note of an accepted step; return whether its check was the last of a row.

        Args:
            start: Where the step began.
            end: Where it ended.
            slopes: Slopes of its stages; none if they are not known.
        """
        if self._pause:
            self._pause -= 1
            return False
        if self._blind or not slopes or self._steps_ahead(end, end - start) < _FAR:
            return False
        if not self._seen:
            self._began = start
        self._seen.append(self._norms(slopes))
        if len(self._seen) < _LOOKS:
            return False
        self._judge(end, torch.finfo(slopes[0].dtype).eps)
        return True

    def gives_up(self, max_steps: float) -> bool:
        """Whether the steps cannot suffice, unless the field soon stops being stiff.

        It has been stiff over some hundred consecutive steps; if it stayed so, many times more than
        `max_steps` would be needed; its pace was even all the time; and the pace does not grow fast
        enough to reach the end.

        Args:
            max_steps: Largest number of steps that may be tried.
        """
        marks = self._marks
        if len(marks) < _PROOF or not self._goals:
            return False
        quarters = [marks[part * (len(marks) - 1) // 4] for part in range(5)]
        paces = [_pace(*pair) for pair in itertools.pairwise(quarters)]
        tried, late = marks[-1].tried - marks[0].tried, _pace(quarters[2], quarters[4])
        if self._steps_ahead(marks[-1].time, late) * tried < _MARGIN * max_steps**2:
            return False
        if max(paces, key=abs) / min(paces, key=abs) > _SETTLED:  # it may come and go
            return False
        growth = late / _pace(quarters[0], quarters[2]) - 1
        # At this rate eigenvalues would be gone after so many steps; half of the rate may be noise.
        return growth <= 0 or tried / 2 / growth > 2 * max_steps

    def _steps_ahead(self, time: float, size: float) -> float:
        """Number of steps of a size to the next goal; infinite if there is none."""
        while self._goals and (self._goals[-1] - time) * size <= 0:
            self._goals.pop()
        return (self._goals[-1] - time) / size if self._goals else float("inf")

    @torch.no_grad()
    def _norms(self, slopes: Sequence[Tensor]) -> Tensor:
        """Sizes of the probe's combinations and of a slope, in some unit, on their device."""
        table = torch.stack([slope.detach().reshape(-1) for slope in slopes])
        if table.numel():  # in a unit in which squares neither overflow nor vanish
            largest = table.abs().amax().clamp(min=torch.finfo(table.dtype).tiny)
            highest = math.frexp(torch.finfo(table.dtype).max)[1] - 1
            # A power of two rounds nothing.
            table = table / largest.log2().floor().clamp(max=highest).exp2()
        if self._weights is None:
            probe, last = probe_of(self._tableau), (0.0,) * (len(slopes) - 1) + (1.0,)
            self._weights = constant((probe.slopes, probe.states, last), table)
        with without_autocast(table):
            return torch.linalg.vector_norm(self._weights @ table, dim=1)

    def _judge(self, end: float, eps: float) -> None:
        """Evaluate a row of checks."""
        rows = torch.stack(self._seen).tolist()
        self._seen = []
        bound = _EDGE * probe_of(self._tableau).bound
        # Differences of slopes that are nearly the same are only rounding errors.
        found = [pull / gap if gap > 1e3 * eps * slope else 0.0 for pull, gap, slope in rows]
        before, self.is_stiff = self.is_stiff, statistics.median(found) >= bound
        self._pause = _PAUSE if self.is_stiff else _CALM_PAUSE
        if not self.is_stiff:
            self._marks = []
            return
        self._marks.append(Mark(self._stats.accepted + self._stats.rejected, end))
        if before:
            self._stats.stiff[-1] = (self._stats.stiff[-1][0], end)
        else:
            self._stats.stiff.append((self._began, end))


def _pace(one: Mark, other: Mark) -> float:
    """Time gained per tried step."""
    return (other.time - one.time) / (other.tried - one.tried)
