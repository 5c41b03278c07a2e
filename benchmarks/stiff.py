"""Stiff problems beside SciPy's BDF and Radau and diffrax's Kvaerno5.

Every problem has one parameter. The errors of solutions are held against SciPy's Radau at a tight
tolerance, those of gradients with respect to the parameter against central differences of it.
"""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.timing import Line, peer_library
from bfno.ode import solve

__all__ = ["PROBLEMS", "StiffProblem", "stiff"]

RTOL = 1e-6
OURS = "kvaerno5"
Lines = Iterator[Line]


@dataclass(frozen=True)
class StiffProblem:
    """An equation on components, which may be numbers, tensors or arrays of any library.

    Attributes:
        rates: The derivatives of the components, given a parameter.
        start: The state at time zero.
        end: The last time.
        parameter: The parameter.
        atol: Absolute tolerance at the relative tolerance of the benchmark.
        known: The last state in the literature, if it is known there.
    """

    rates: Callable[[Sequence[Any], Any], Sequence[Any]]
    start: tuple[float, ...]
    end: float
    parameter: float
    atol: float
    known: tuple[float, ...] | None = None

    def reference(self, parameter: float) -> np.ndarray:
        """The last state, nearly exact."""
        return self._scipy("Radau", parameter, 1e-10, self.atol * 1e-4).y[:, -1]

    @functools.cached_property
    def slope(self) -> float:
        """The derivative of the last state's sum by the parameter.

        Components are divided by their size, so that small ones count as much as large ones.
        """
        shift = 1e-3 * self.parameter  # an error of 1e-6 at most, and rounding of 1e-9
        ends = [self.reference(self.parameter + sign * shift) for sign in (1, -1)]
        scales = np.abs(self.exact) + self.atol / RTOL
        return float(((ends[0] - ends[1]) / scales).sum() / (2 * shift))

    @functools.cached_property
    def exact(self) -> np.ndarray:
        """The last state."""
        return self.reference(self.parameter)

    def error(self, state: np.ndarray) -> float:
        """Root mean square of a last state's error, relative to what a tolerance of one allows."""
        scaled = (state - self.exact) / (np.abs(self.exact) + self.atol / RTOL)
        return float(np.sqrt(np.mean(scaled**2)))

    def by_scipy(self, method: str) -> tuple[float, int]:
        """Error and evaluations of one of SciPy's methods."""
        found = self._scipy(method, self.parameter, RTOL, self.atol)
        return self.error(found.y[:, -1]), found.nfev

    def _scipy(self, method: str, parameter: float, rtol: float, atol: float) -> Any:
        integrate = peer_library("scipy.integrate")

        def field(_: float, y: np.ndarray) -> np.ndarray:
            return np.array(self.rates(list(y), parameter))

        span, settings = (0.0, self.end), {"rtol": rtol, "atol": atol}
        return integrate.solve_ivp(field, span, self.start, method=method, **settings)

    def by_bfno(self, method: str, *, gradient: bool = False) -> tuple[float, int]:
        """Error of the state, or of the gradient, and evaluations."""
        parameter = torch.tensor(self.parameter, dtype=torch.float64, requires_grad=gradient)
        start = torch.tensor(self.start, dtype=torch.float64)
        times = torch.tensor([0.0, self.end], dtype=torch.float64)

        def field(_: Tensor, y: Tensor) -> Tensor:
            return torch.stack(list(self.rates(y.unbind(-1), parameter)), dim=-1)

        settings = {"method": method, "rtol": RTOL, "atol": self.atol, "max_steps": 100_000}
        with torch.set_grad_enabled(gradient):
            solution = solve(field, start, times, **settings)
        if not gradient:
            return self.error(solution.ys[-1].numpy()), solution.stats.forward_evaluations
        scales = torch.from_numpy(np.abs(self.exact) + self.atol / RTOL)
        (solution.ys[-1] / scales).sum().backward()
        wrong = abs(float(parameter.grad) / self.slope - 1)  # pyright: ignore[reportArgumentType]
        stats = solution.stats
        return wrong, stats.forward_evaluations + stats.backward_evaluations

    def by_diffrax(self) -> Callable[[], tuple[float, int]]:
        """Error and steps of diffrax's Kvaerno5, compiled."""
        diffrax, jax = peer_library("diffrax"), peer_library("jax")
        jax.config.update("jax_enable_x64", True)
        jnp = jax.numpy

        def field(_: Any, y: Any, parameter: Any) -> Any:
            return jnp.stack(self.rates(list(y), parameter))

        control = diffrax.PIDController(rtol=RTOL, atol=self.atol)

        @jax.jit
        def solved(parameter: Any) -> Any:
            return diffrax.diffeqsolve(
                diffrax.ODETerm(field), diffrax.Kvaerno5(), 0.0, self.end, None,
                jnp.array(self.start), parameter, stepsize_controller=control, max_steps=100_000,
            )  # fmt: skip

        def run() -> tuple[float, int]:
            solution = solved(self.parameter)
            state = np.asarray(jax.block_until_ready(solution.ys))[-1]
            return self.error(state), int(solution.stats["num_steps"])

        run()  # compiles
        return run


def _robertson(y: Sequence[Any], rate: Any) -> Sequence[Any]:
    slow, fast, pair = rate * y[0], 3e7 * y[1] * y[1], 1e4 * y[1] * y[2]
    return -slow + pair, slow - pair - fast, fast


def _van_der_pol(y: Sequence[Any], stiffness: Any) -> Sequence[Any]:
    return y[1], stiffness * (1 - y[0] * y[0]) * y[1] - y[0]


def _hires(y: Sequence[Any], rate: Any) -> Sequence[Any]:
    a, b, c, d, e, f, g, h = y
    pair = 280 * f * h
    return (
        -rate * a + 0.43 * b + 8.32 * c + 0.0007,
        rate * a - 8.75 * b,
        -10.03 * c + 0.43 * d + 0.035 * e,
        8.32 * b + 1.71 * c - 1.12 * d,
        -1.745 * e + 0.43 * f + 0.43 * g,
        -pair + 0.69 * d + 1.71 * e - 0.43 * f + 0.69 * g,
        pair - 1.81 * g,
        -pair + 1.81 * g,
    )


def _oregonator(y: Sequence[Any], rate: Any) -> Sequence[Any]:
    a, b, c = y
    return (
        rate * (b + a * (1 - 8.375e-6 * a - b)),
        (c - (1 + a) * b) / rate,
        0.161 * (a - c),
    )


def _pollution(y: Sequence[Any], light: Any) -> Sequence[Any]:
    """20 species and 25 reactions (Verwer 1994)."""
    y1, y2, y3, y4, y5, y6, y7, _, y9, y10, y11, _, y13, y14, _, y16, y17, _, y19, y20 = y
    r1, r2, r3, r4, r5 = light * y1, 26.6 * y2 * y4, 1.23e4 * y5 * y2, 8.6e-4 * y7, 8.2e-4 * y7
    r6, r7, r8, r9 = 1.5e4 * y7 * y6, 1.3e-4 * y9, 2.4e4 * y9 * y6, 1.65e4 * y11 * y2
    r10, r11, r12, r13 = 9e3 * y11 * y1, 0.022 * y13, 1.2e4 * y10 * y2, 1.88 * y14
    r14, r15, r16, r17 = 1.63e4 * y1 * y6, 4.8e6 * y3, 3.5e-4 * y4, 0.0175 * y4
    r18, r19, r20, r21 = 1e8 * y16, 4.44e11 * y16, 1.24e3 * y17 * y6, 2.1 * y19
    r22, r23, r24, r25 = 5.78 * y19, 0.0474 * y1 * y4, 1.78e3 * y19 * y1, 3.12 * y20
    return (
        -r1 - r10 - r14 - r23 - r24 + r2 + r3 + r9 + r11 + r12 + r22 + r25,
        -r2 - r3 - r9 - r12 + r1 + r21,
        -r15 + r1 + r17 + r19 + r22,
        -r2 - r16 - r17 - r23 + r15,
        -r3 + 2 * r4 + r6 + r7 + r13 + r20,
        -r6 - r8 - r14 - r20 + r3 + 2 * r18,
        -r4 - r5 - r6 + r13,
        r4 + r5 + r6 + r7,
        -r7 - r8,
        -r12 + r7 + r9,
        -r9 - r10 + r8 + r11,
        r9,
        -r11 + r10,
        -r13 + r12,
        r14,
        -r18 - r19 + r16,
        -r20,
        r20,
        -r21 - r22 - r24 + r23 + r25,
        -r25 + r24,
    )


_AIR = (0, 0.2, 0, 0.04, 0, 0, 0.1, 0.3, 0.01, 0, 0, 0, 0, 0, 0, 0, 0.007, 0, 0, 0)
PROBLEMS = {
    "Robertson": StiffProblem(_robertson, (1.0, 0.0, 0.0), 1e5, 0.04, 1e-10),
    "Van der Pol": StiffProblem(_van_der_pol, (2.0, 0.0), 2000.0, 1000.0, 1e-8),
    "HIRES": StiffProblem(
        _hires, (1.0, 0, 0, 0, 0, 0, 0, 0.0057), 321.8122, 1.71, 1e-8,
        (0.7371312573325668e-3, 0.1442485726316185e-3, 0.5888729740967575e-4,
         0.1175651343283149e-2, 0.2386356198831331e-2, 0.6238968252742796e-2,
         0.2849998395185769e-2, 0.2850001604814231e-2),
    ),
    "Oregonator": StiffProblem(_oregonator, (1.0, 2.0, 3.0), 360.0, 77.27, 1e-6),
    "POLLU": StiffProblem(_pollution, tuple(map(float, _AIR)), 60.0, 0.35, 1e-9),
}  # fmt: skip


def stiff(repeats: int, notes: dict[str, Any]) -> Lines:
    """Error, evaluations and seconds of one solve, and the error of a gradient."""
    repeats = min(repeats, 3)  # a solve takes seconds, not milliseconds
    for name, problem in PROBLEMS.items():
        ours, found = _timed(lambda problem=problem: problem.by_bfno(OURS), repeats)
        wrong = problem.by_bfno(OURS, gradient=True)[0]
        more = {"error": found[0], "nfe": found[1], "gradient_error": wrong, **notes}
        for peer, run in _peers(problem):
            theirs, (error, count) = _timed(run, repeats)
            kind = "peer_steps" if "diffrax" in peer else "peer_nfe"
            row = {**more, "peer_error": error, kind: count}
            if "bfno" in peer:
                row["peer_gradient_error"] = problem.by_bfno(peer.split()[1], gradient=True)[0]
            yield Line("stiff", name, peer, ours, theirs, theirs / ours, (0.0, 0.0), row)


def _peers(problem: StiffProblem) -> Iterator[tuple[str, Callable[[], tuple[float, int]]]]:
    for method in ("rodas5p", "kvaerno3"):
        yield f"bfno {method}", functools.partial(problem.by_bfno, method)
    for method in ("BDF", "Radau"):
        yield f"SciPy {method}", functools.partial(problem.by_scipy, method)
    if importlib.util.find_spec("diffrax") is not None:
        yield "diffrax Kvaerno5", problem.by_diffrax()


def _timed(run: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """The shortest of some runs in seconds of the processor, and what it returned."""
    seconds, found = [], None
    for _ in range(repeats):
        began = time.process_time()
        found = run()
        seconds.append(time.process_time() - began)
    return min(seconds), found
