"""The numbers of a Runge–Kutta method.

With stages `k_i = f(t + c_i h, y + h Σ_j a_ij k_j)` a method is a set of numbers: the step
`y + h Σ_i b_i k_i`, its error estimate `h Σ_i e_i k_i`, and its dense output
`y(t + θh) = y + h Σ_i p_i(θ) k_i` with polynomials `p_i` without a constant term.

Named explicit methods with an error estimate are stored with their last stage at the step's end
(`a_s = b`), which is the first stage of the next step and costs nothing; others need not be.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

__all__ = ["Row", "Tableau", "check_dense", "check_sum", "hermite_output", "linear_output"]

Row = tuple[float, ...]


_CLOSE = 1e-10
"""Tolerance for sums of coefficients; published ones are rounded."""


@dataclass(frozen=True, repr=False)
class Tableau:
    """Coefficients of one explicit method.

    Attributes:
        name: The name that users give.
        order: Order of the step.
        stages: Rows of `a`, the first one empty.
        weights: `b`.
        error: `e`, or None where the method cannot estimate its error.
        dense: Coefficients of `p_i`, one row per stage, lowest power (θ) first.
        dense_order: Order of the dense output.

    Raises:
        ValueError: If the stages are not explicit, or the numbers do not match each other.
    """

    name: str
    order: int
    stages: tuple[Row, ...]
    weights: Row
    error: Row | None
    dense: tuple[Row, ...]
    dense_order: int

    def __post_init__(self) -> None:
        for part in ("stages", "dense"):
            rows = tuple(tuple(map(float, row)) for row in getattr(self, part))
            object.__setattr__(self, part, rows)
        for part in ("weights", "error"):
            if getattr(self, part) is not None:
                object.__setattr__(self, part, tuple(map(float, getattr(self, part))))
        self._check_stages()
        _check_lengths(self)
        self._check_sums()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, order={self.order})"

    @functools.cached_property
    def nodes(self) -> Row:
        """`c`, the row sums of `a`; those that end the step are exactly one."""
        sums = [float(sum(row)) for row in self.stages]
        return tuple(1.0 if abs(total - 1) < 1e-12 else total for total in sums)

    @property
    def implicit(self) -> bool:
        """Whether equations have to be solved in every step."""
        return False

    @property
    def error_order(self) -> int:
        """The power of the step size that the error estimate falls with."""
        return self.order

    @property
    def adaptive(self) -> bool:
        """Whether the method can choose its own steps."""
        return self.error is not None

    @property
    def reuses_last_stage(self) -> bool:
        """Whether the last stage is the first one of the next step."""
        return (
            len(self.stages) > 1 and self.stages[-1] == self.weights[:-1] and not self.weights[-1]
        )

    @property
    def is_coarse(self) -> bool:
        """Whether dense output, of much lower order than the steps, would spoil their accuracy."""
        return self.dense_order < self.order - 1

    def dense_weights(self, theta: float) -> Row:
        """`p_i(θ)` for all stages."""
        powers = [theta ** (k + 1) for k in range(len(self.dense[0]))]
        return tuple(sum(c * p for c, p in zip(row, powers, strict=True)) for row in self.dense)

    def with_end_stage(self) -> Tableau:
        """The same method with a stage at the end of the step, and cubic Hermite output."""
        stages = (*self.stages, self.weights)
        weights = (*self.weights, 0.0)
        error = None if self.error is None else (*self.error, 0.0)
        return replace(
            self,
            stages=stages,
            weights=weights,
            error=error,
            dense=hermite_output(weights),
            dense_order=min(3, self.order),
        )

    @functools.cached_property
    def without_end_stage(self) -> Tableau:
        """The same method without a stage that only its error estimate and the next step need."""
        if not self.reuses_last_stage:
            return self
        stages, weights = self.stages[:-1], self.weights[:-1]
        dense = linear_output(weights)
        return replace(self, stages=stages, weights=weights, error=None, dense=dense, dense_order=1)

    def _check_stages(self) -> None:
        """Refuse implicit stages."""
        for index, row in enumerate(self.stages):
            if len(row) != index:
                entries = "1 entry" if index == 1 else f"{index} entries"
                raise ValueError(
                    f"row {index} of stages of tableau {self.name!r} must have {entries}, got "
                    f"{len(row)}; a Tableau is explicit: a stage depends on those before it; use "
                    "bfno.ode.ImplicitTableau for others"
                )

    def _check_sums(self) -> None:
        """Refuse numbers that are wrong even for a constant slope."""
        check_sum(self.name, "weights", self.weights, 1)
        check_sum(self.name, "error", self.error or (), 0)
        check_dense(self)


def _check_lengths(tableau: Tableau) -> None:
    """Refuse rows that do not fit the number of stages."""
    name, count = tableau.name, len(tableau.stages)
    for part in ("weights", "error", "dense"):
        row = getattr(tableau, part)
        if row is not None and len(row) != count:
            raise ValueError(
                f"{part} of tableau {name!r} must have one entry per stage, which are {count}, got "
                f"{len(row)}"
            )
    degrees = sorted({len(row) for row in tableau.dense})
    if len(degrees) > 1:
        got = ", ".join(map(str, degrees))
        raise ValueError(f"rows of dense of tableau {name!r} must have one length, got {got}")


def check_sum(name: str, part: str, row: Sequence[float], right: float) -> None:
    """Refuse a row of coefficients with a wrong sum."""
    if not abs(sum(row) - right) <= _CLOSE:
        raise ValueError(f"{part} of tableau {name!r} must sum to {right}, got {sum(row):.12g}")


def check_dense(tableau: Tableau) -> None:
    """Refuse dense output that does not lead to the end of the step."""
    for stage, (row, weight) in enumerate(zip(tableau.dense, tableau.weights, strict=True)):
        if not abs(sum(row) - weight) <= _CLOSE:
            raise ValueError(
                f"dense of tableau {tableau.name!r} must give the weights at the end of the step: "
                f"row {stage} must sum to {weight:.12g}, got {sum(row):.12g}"
            )


def linear_output(weights: Sequence[float]) -> tuple[Row, ...]:
    """A straight line between the ends of the step."""
    return tuple((weight,) for weight in weights)


def hermite_output(weights: Sequence[float]) -> tuple[Row, ...]:
    """The cubic through both ends with the slopes of the first and the last stage."""
    rows = np.outer(weights, [0.0, 3.0, -2.0])
    rows[0] += [1.0, -2.0, 1.0]
    rows[-1] += [0.0, -1.0, 1.0]
    return tuple(map(tuple, rows.tolist()))
