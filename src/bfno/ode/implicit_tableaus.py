"""Methods for stiff problems as data: implicit Runge–Kutta and Rosenbrock methods.

An implicit stage depends on its own slope: `k_i = f(t + c_i h, y + h Σ_j a_ij k_j)` with a sum over
all stages is an equation, which Newton's method solves. If `a` is lower triangular, the stages are
solved one after the other; in the methods of Gauss and Radau, all stages of a step are one system.

A Rosenbrock method takes one Newton step per stage, which is built into its coefficients. With the
Jacobian `J` at the start of the step its stages are solutions of linear equations: `(I - hγJ) k_i =
γ (f(t + c_i h, y + h Σ_j a_ij k_j) + Σ_j C_ij k_j + h d_i ∂f/∂t)`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from bfno.ode.runge_kutta import (
    Row,
    Tableau,
    check_dense,
    check_sum,
    hermite_output,
    linear_output,
)

__all__ = ["IMPLICIT_METHODS", "Block", "ImplicitTableau", "RosenbrockTableau"]


class Block(NamedTuple):
    """Stages that have to be solved together.

    Attributes:
        begin: The first one.
        end: The one after the last.
        coupling: Their weights in each other, one row per stage.
        explicit: Whether the stages need no solving.
        guesses: Weights of earlier slopes in the initial guess of each slope.
    """

    begin: int
    end: int
    coupling: tuple[Row, ...]
    explicit: bool
    guesses: tuple[Row, ...]


@dataclass(frozen=True, repr=False)
class ImplicitTableau(Tableau):
    """Coefficients of one implicit Runge–Kutta method, in the order of `Tableau`.

    Rows of `stages` have one entry per stage.

    Attributes:
        estimate_order: Power of the step size that the error estimate falls with; zero is the
            method's order.
        filters_error: Whether the error estimate of a very stiff part, which would be far too
            large, is damped as the step itself damps that part.

    Raises:
        ValueError: If the numbers do not fit each other.
    """

    estimate_order: int = 0
    filters_error: bool = False

    @property
    def implicit(self) -> bool:
        return True

    @property
    def error_order(self) -> int:
        return self.estimate_order or self.order

    @property
    def begins_at_start(self) -> bool:
        """Whether the first slope is that at the start of the step."""
        return not any(self.stages[0])

    @property
    def ends_with_stage(self) -> bool:
        """Whether the last stage is the end of the step, which damps the stiffest parts."""
        return self.stages[-1] == self.weights

    @property
    def reuses_last_stage(self) -> bool:
        return self.begins_at_start and self.ends_with_stage

    @functools.cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The stages in the order in which they are solved for."""
        found, begin = [], 0
        while begin < len(self.stages):
            end = begin + 1
            while (reach := self._reach(begin, end)) > end:
                end = reach
            coupling = tuple(row[begin:end] for row in self.stages[begin:end])
            known, own = self.nodes[:begin], self.nodes[begin:end]
            guesses = tuple(_extrapolation(known, node) for node in own)
            found.append(Block(begin, end, coupling, not any(map(any, coupling)), guesses))
            begin = end
        return tuple(found)

    def _reach(self, begin: int, end: int) -> int:
        """The stage after the last one that some stages depend on."""
        used = [j + 1 for row in self.stages[begin:end] for j, entry in enumerate(row) if entry]
        return max(used, default=end)

    def with_end_stage(self) -> ImplicitTableau:
        stages, weights = np.array(self.stages), np.array(self.weights)
        error = None if self.error is None else np.array(self.error)
        if not self.begins_at_start:
            stages = np.pad(stages, ((1, 0), (1, 0)))
            weights = np.pad(weights, (1, 0))
            error = None if error is None else np.pad(error, (1, 0))
        if not self.ends_with_stage:
            stages = np.pad(np.vstack((stages, weights)), ((0, 0), (0, 1)))
            weights = np.pad(weights, (0, 1))
            error = None if error is None else np.pad(error, (0, 1))
        changed: dict[str, Any] = {"stages": stages, "weights": weights, "error": error}
        dense = hermite_output(weights.tolist())
        return replace(self, **changed, dense=dense, dense_order=min(3, self.order))

    @functools.cached_property
    def without_end_stage(self) -> ImplicitTableau:
        return self  # the last stage is the result

    def without_error(self) -> ImplicitTableau:
        """The same method with fixed steps only."""
        dense = linear_output(self.weights)
        return replace(self, error=None, dense=dense, dense_order=1)

    def _check_stages(self) -> None:
        count = len(self.stages)
        for index, row in enumerate(self.stages):
            if len(row) != count:
                raise ValueError(
                    f"row {index} of stages of tableau {self.name!r} must have one entry per "
                    f"stage, which are {count}, got {len(row)}"
                )


@dataclass(frozen=True, repr=False)
class RosenbrockTableau(Tableau):
    """Coefficients of one Rosenbrock method, in the order of `Tableau`.

    They belong to the stages in the form of the equations above.

    Attributes:
        gamma: `γ`.
        couplings: Rows of `C`, the first one empty.
        time_weights: `d`.

    Raises:
        ValueError: If the numbers do not fit each other.
    """

    gamma: float
    couplings: tuple[Row, ...]
    time_weights: Row

    def __post_init__(self) -> None:
        rows = tuple(tuple(map(float, row)) for row in self.couplings)
        object.__setattr__(self, "couplings", rows)
        object.__setattr__(self, "time_weights", tuple(map(float, self.time_weights)))
        super().__post_init__()

    @property
    def implicit(self) -> bool:
        return True

    @property
    def reuses_last_stage(self) -> bool:
        return False

    @functools.cached_property
    def nodes(self) -> Row:
        sums = self.slope_weights()[0].sum(1).tolist()
        return tuple(1.0 if abs(total - 1) < 1e-12 else total for total in sums)

    def slope_weights(self) -> tuple[np.ndarray, np.ndarray]:
        """`α` and `Γ` of the same method in terms of slopes, for which order conditions are known.

        `k_i = f(y + h Σ_j α_ij k_j) + h J Σ_j Γ_ij k_j`.
        """
        count = len(self.stages)
        a, c = np.zeros((count, count)), np.zeros((count, count))
        for index in range(count):
            a[index, :index] = self.stages[index]
            c[index, :index] = self.couplings[index]
        gammas = np.linalg.inv(np.eye(count) / self.gamma - c)
        return a @ gammas, gammas

    def with_end_stage(self) -> RosenbrockTableau:
        return self

    @functools.cached_property
    def without_end_stage(self) -> RosenbrockTableau:
        return self

    def _check_stages(self) -> None:
        super()._check_stages()
        count = len(self.stages)
        lengths = [len(row) for row in self.couplings]
        if lengths != list(range(count)) or len(self.time_weights) != count:
            raise ValueError(
                f"couplings and time_weights of tableau {self.name!r} must have one row and one "
                f"entry per stage, which are {count}, got {len(lengths)} and "
                f"{len(self.time_weights)}; a row has one entry for every stage before it"
            )
        if not self.gamma > 0:
            raise ValueError(f"gamma of tableau {self.name!r} must be positive, got {self.gamma}")

    def _check_sums(self) -> None:
        gammas = self.slope_weights()[1]
        check_sum(self.name, "weights (of slopes)", (np.array(self.weights) @ gammas).tolist(), 1)
        error = np.array(self.error or (0.0,) * len(self.stages))
        check_sum(self.name, "error (of slopes)", (error @ gammas).tolist(), 0)
        check_dense(self)


def _extrapolation(nodes: Row, node: float) -> Row:
    """Weights that extend a polynomial through values at up to three nodes to another node."""
    chosen: list[int] = []
    for one in sorted(range(len(nodes)), key=lambda j: (abs(nodes[j] - node), -j)):
        if len(chosen) < 3 and all(abs(nodes[one] - nodes[j]) > 1e-3 for j in chosen):
            chosen.append(one)
    weights = [0.0] * len(nodes)
    for one in chosen:
        others = [nodes[j] for j in chosen if j != one]
        weights[one] = math.prod((node - other) / (nodes[one] - other) for other in others)
    return tuple(weights)


def _square(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    return tuple((*row, *(0.0,) * (len(rows) - len(row))) for row in rows)


def _fixed(name: str, order: int, stages: tuple[Row, ...], weights: Row) -> ImplicitTableau:
    dense = linear_output(weights)
    return ImplicitTableau(name, order, _square(stages), weights, None, dense, 1)


def _stiffly_accurate(
    name: str, order: int, stages: tuple[Row, ...], error: Row, **more: Any
) -> ImplicitTableau:
    """A method whose last stage is the end of the step, with cubic Hermite output."""
    stages = _square(stages)
    dense = hermite_output(stages[-1])
    return ImplicitTableau(name, order, stages, stages[-1], error, dense, min(3, order), **more)


_IMPLICIT_EULER = _fixed("implicit_euler", 1, ((1.0,),), (1.0,))
_IMPLICIT_MIDPOINT = _fixed("implicit_midpoint", 2, ((1 / 2,),), (1.0,))
_TRAPEZOID = _fixed("trapezoid", 2, ((), (1 / 2, 1 / 2)), (1 / 2, 1 / 2))

_D = 1 - 2**-0.5
_SDIRK2 = _fixed("sdirk2", 2, ((_D,), (1 - _D, _D)), (1 - _D, _D))

# Bank and others 1985; error estimate of Hosea and Shampine 1996, of order three.
_W = 2**0.5 / 4
_TRBDF2 = _stiffly_accurate(
    "trbdf2",
    2,
    ((), (_D, _D), (_W, _W, _D)),
    (_W - (1 - _W) / 3, _W - (3 * _W + 1) / 3, _D - _D / 3),
    estimate_order=3,
    filters_error=True,
)

# Gauss and Radau.
_R3, _R6, _R15 = 3**0.5, 6**0.5, 15**0.5
_GL4 = _fixed("gl4", 4, ((1 / 4, 1 / 4 - _R3 / 6), (1 / 4 + _R3 / 6, 1 / 4)), (1 / 2, 1 / 2))
_GL6 = _fixed(
    "gl6",
    6,
    (
        (5 / 36, 2 / 9 - _R15 / 15, 5 / 36 - _R15 / 30),
        (5 / 36 + _R15 / 24, 2 / 9, 5 / 36 - _R15 / 24),
        (5 / 36 + _R15 / 30, 2 / 9 + _R15 / 15, 5 / 36),
    ),
    (5 / 18, 4 / 9, 5 / 18),
)
_RADAU_IIA3 = _fixed("radauIIA3", 3, ((5 / 12, -1 / 12), (3 / 4, 1 / 4)), (3 / 4, 1 / 4))
_RADAU_IIA5_WEIGHTS = (4 / 9 - _R6 / 36, 4 / 9 + _R6 / 36, 1 / 9)
_RADAU_IIA5 = _fixed(
    "radauIIA5",
    5,
    (
        (11 / 45 - 7 * _R6 / 360, 37 / 225 - 169 * _R6 / 1800, -2 / 225 + _R6 / 75),
        (37 / 225 + 169 * _R6 / 1800, 11 / 45 + 7 * _R6 / 360, -2 / 225 - _R6 / 75),
        _RADAU_IIA5_WEIGHTS,
    ),
    _RADAU_IIA5_WEIGHTS,
)


def _kvaerno3() -> ImplicitTableau:
    """Kværnø 2004, 3(2): `γ` is a root of `x³ - 3x² + 3x/2 - 1/6`."""
    g = 0.435866521508458999416
    second = ((-4 * g**2 + 6 * g - 1) / (4 * g), (1 - 2 * g) / (4 * g), g)
    last = (
        (6 * g - 1) / (12 * g),
        -1 / ((24 * g - 12) * g),
        (-6 * g**2 + 6 * g - 1) / (6 * g - 3),
        g,
    )
    error = tuple(a - b for a, b in zip(last, (*second, 0.0), strict=True))
    return _stiffly_accurate("kvaerno3", 3, ((), (g, g), second, last), error)


def _kvaerno5() -> ImplicitTableau:
    """Kværnø 2004, 5(4)."""
    g = 0.26
    lower = (0.13855640231268224, 0.0, -0.04245337201752043, 0.02446657898003141,
             0.61943039072480676, g, 0.0)  # fmt: skip
    last = (0.13659751177640291, 0.0, -0.05496908796538376, -0.04118626728321046,
            0.62993304899016403, 0.06962479448202728, g)  # fmt: skip
    stages = (
        (),
        (g, g),
        (0.13, 0.84033320996790809, g),
        (0.22371961478320505, 0.47675532319799699, -0.06470895363112615, g),
        (0.16648564323248321, 0.10450018841591720, 0.03631482272098715, -0.13090704451073998, g),
        lower[:-1],
        last,
    )
    error = tuple(a - b for a, b in zip(last, lower, strict=True))
    return _stiffly_accurate("kvaerno5", 5, stages, error)


def _rodas5p() -> RosenbrockTableau:
    """Steinebach 2023."""
    end = (-7.502846399306121, 2.561846144803919, -11.627539656261098, -0.18268767659942256,
           0.030198172008377946)  # fmt: skip
    weights = (*end, 1.0, 1.0, 1.0)
    bends = np.array((
        (25.948786856663858, -2.5579724845846235, 10.433815404888879, -2.3679251022685204,
         0.524948541321073, 1.1241088310450404, 0.4272876194431874, -0.17202221070155493),
        (-9.91568850695171, -0.9689944594115154, 3.0438037242978453, -24.495224566215796,
         20.176138334709044, 15.98066361424651, -6.789040303419874, -6.710236069923372),
        (11.419903575922262, 2.8879645146136994, 72.92137995996029, 80.12511834622643,
         -52.072871366152654, -59.78993625266729, -0.15582684282751913, 4.883087185713722),
    ))  # fmt: skip
    # θ (weights + (1 - θ) (bends₀ + θ bends₁ + θ² bends₂))
    powers = np.array(((1, 0, 0, 0), (1, -1, 0, 0), (0, 1, -1, 0), (0, 0, 1, -1)), dtype=float)
    return RosenbrockTableau(
        "rodas5p",
        5,
        (
            (),
            (3.0,),
            (2.849394379747939, 0.45842242204463923),
            (-6.954028509809101, 2.489845061869568, -10.358996098473584),
            (2.8029986275628964, 0.5072464736228206, -0.3988312541770524, -0.04721187230404641),
            end,
            (*end, 1.0),
            (*end, 1.0, 1.0),
        ),
        weights,
        (0.0,) * 7 + (1.0,),
        tuple(map(tuple, (np.vstack((weights, bends)).T @ powers).tolist())),
        4,
        0.21193756319429014,
        (
            (),
            (-14.155112264123755,),
            (-17.97296035885952, -2.859693295451294),
            (147.12150275711716, -1.41221402718213, 71.68940251302358),
            (165.43517024871676, -0.4592823456491126, 42.90938336958603, -5.961986721573306),
            (24.854864614690072, -3.0009227002832186, 47.4931110020768, 5.5814197821558125,
             -0.6610691825249471),
            (30.91273214028599, -3.1208243349937974, 77.79954646070892, 34.28646028294783,
             -19.097331116725623, -28.087943162872662),
            (37.80277123390563, -3.2571969029072276, 112.26918849496327, 66.9347231244047,
             -40.06618937091002, -54.66780262877968, -9.48861652309627),
        ),
        (0.21193756319429014, -0.42387512638858027, -0.3384627126235924, 1.8046452872882734,
         2.325825639765069, 0.0, 0.0, 0.0),
    )  # fmt: skip


IMPLICIT_METHODS: tuple[Tableau, ...] = (
    _IMPLICIT_EULER,
    _IMPLICIT_MIDPOINT,
    _TRAPEZOID,
    _SDIRK2,
    _RADAU_IIA3,
    _RADAU_IIA5,
    _GL4,
    _GL6,
    _TRBDF2,
    _kvaerno3(),
    _kvaerno5(),
    _rodas5p(),
)
"""Those with an error estimate last, by order."""
