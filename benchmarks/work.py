"""Error against evaluations on ten problems, beside SciPy, diffrax and torchode.

`python -m benchmarks.work FILE` draws the figure of docs/solvers.md; `bfno bench work` prints the
numbers. All solve in double precision; a peer that is not installed is left out.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.cases import cifar_case
from benchmarks.timing import Line, peer_library
from bfno.ode import SolverError, solve

__all__ = ["PROBLEMS", "WorkProblem", "draw", "work"]

TOLERANCES = (1e-3, 1e-6, 1e-9)
ENOUGH_STEPS = 1_000_000
Point = tuple[int, float]
"""Evaluations, and the error at the end."""


@dataclass(frozen=True)
class WorkProblem:
    """An equation that several libraries can solve.

    Attributes:
        rates: Derivatives of the components, given the functions of a library of arrays.
        start: The state at time zero.
        end: The last time.
        is_stiff: Whether explicit methods are at their bound of stability.
    """

    rates: Callable[[Sequence[Any], Any], Sequence[Any]]
    start: tuple[float, ...]
    end: float
    is_stiff: bool = False

    def field(self, library: Any) -> Callable[[Any, Any], Any]:
        """The derivative of a state whose last axis has the components."""

        def field(t: Any, y: Any) -> Any:
            parts = [y[..., place] for place in range(len(self.start))]
            return library.stack(list(self.rates(parts, library)), -1)

        return field


def _lorenz(y: Sequence[Any], _: Any) -> Sequence[Any]:
    return 10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]


def _van_der_pol(stiffness: float) -> Callable[[Sequence[Any], Any], Sequence[Any]]:
    return lambda y, _: (y[1], stiffness * (1 - y[0] * y[0]) * y[1] - y[0])


def _pleiades(z: Sequence[Any], _: Any) -> Sequence[Any]:
    """Seven stars in a plane; the mass of each is its number."""
    x, y = z[:7], z[7:14]
    forces = []
    for along in (x, y):
        for one in range(7):
            total = 0.0
            for other in range(7):
                if other != one:
                    apart = (x[one] - x[other]) ** 2 + (y[one] - y[other]) ** 2
                    total = total + (other + 1) * (along[other] - along[one]) / apart**1.5
            forces.append(total)
    return *z[14:], *forces


_STARS = (3, 3, -1, -3, 2, -2, 2, 3, -3, 2, 0, 0, -4, 4)
_SPEEDS = (0, 0, 0, 0, 0, 1.75, -1.5, 0, 0, 0, -1.25, 1, 0, 0)


def _arenstorf(y: Sequence[Any], _: Any) -> Sequence[Any]:
    """A satellite that returns between earth and moon."""
    moon = 0.012277471
    earth = 1 - moon
    near = ((y[0] + moon) ** 2 + y[1] ** 2) ** 1.5
    far = ((y[0] - earth) ** 2 + y[1] ** 2) ** 1.5
    return (
        y[2],
        y[3],
        y[0] + 2 * y[3] - earth * (y[0] + moon) / near - moon * (y[0] - earth) / far,
        y[1] - 2 * y[2] - earth * y[1] / near - moon * y[1] / far,
    )


PROBLEMS = {
    "Lorenz": WorkProblem(_lorenz, (1.0, 1.0, 1.0), 10.0),
    "Van der Pol, μ = 1": WorkProblem(_van_der_pol(1.0), (2.0, 0.0), 20.0),
    "Pleiades": WorkProblem(_pleiades, tuple(map(float, _STARS + _SPEEDS)), 3.0),
    "Arenstorf": WorkProblem(_arenstorf, (0.994, 0.0, 0.0, -2.0015851063790825), 17.06521656015796),
    "Brusselator": WorkProblem(
        lambda y, _: (1 + y[0] ** 2 * y[1] - 4 * y[0], 3 * y[0] - y[0] ** 2 * y[1]),
        (1.5, 3.0),
        20.0,
    ),
    "pendulum": WorkProblem(lambda y, library: (y[1], -library.sin(y[0])), (2.0, 0.0), 20.0),
    "Lotka–Volterra": WorkProblem(
        lambda y, _: (y[0] * (1 - y[1]), y[1] * (y[0] - 1)), (2.0, 1.0), 20.0
    ),
    "Van der Pol, μ = 100": WorkProblem(_van_der_pol(100.0), (2.0, 0.0), 100.0, is_stiff=True),
    "stiff linear": WorkProblem(
        lambda y, _: (-y[0], 100 * (y[0] - y[1]), 2000 * (y[1] - y[2])),
        (1.0, 0.0, 0.0),
        2.0,
        is_stiff=True,
    ),
}


def work(repeats: int, notes: dict[str, Any]) -> Iterator[Line]:
    """A line for every problem, solver and tolerance."""
    for name, (curves, reference) in _measured():
        for solver, points in curves.items():
            for tolerance, point in zip(TOLERANCES, points, strict=True):
                if point is not None:
                    found = {"nfe": point[0], "error": point[1], "reference": reference, **notes}
                    case = f"{name} {tolerance:.0e}"
                    yield Line("work", case, solver, 0.0, 0.0, math.nan, (0.0, 0.0), found)


Curves = dict[str, list[Point | None]]


def _measured() -> Iterator[tuple[str, tuple[Curves, str]]]:
    for name, problem in PROBLEMS.items():
        yield name, _curves(problem)
    yield "BFNO, authors' weights", _bfno_curves()


def _curves(problem: WorkProblem) -> tuple[Curves, str]:
    start = np.array(problem.start)
    method = "Radau" if problem.is_stiff else "DOP853"
    truth = _scipy(problem.field(np), start, problem.end, method, 1e-12)[0]
    solvers: dict[str, Callable[[float], tuple[np.ndarray, int]]] = {}
    names = ("kvaerno5", "rodas5p", "auto", "dopri5") if problem.is_stiff else ("dopri5", "dopri8")
    for name in names:
        solvers[f"bfno {name}"] = _bfno(problem.field(torch), start, problem.end, name)
    rival = "Radau" if problem.is_stiff else "RK45"
    solvers[f"SciPy {rival}"] = lambda tolerance: _scipy(
        problem.field(np), start, problem.end, rival, tolerance
    )
    if _has("diffrax"):
        solvers[f"diffrax {'Kvaerno5' if problem.is_stiff else 'Dopri5'}"] = _diffrax(problem)
    if _has("torchode") and not problem.is_stiff:
        solvers["torchode Dopri5"] = _torchode(problem.field(torch), start, problem.end)
    return _points(solvers, truth), method


def _bfno_curves() -> tuple[Curves, str]:
    """The field of the authors' CIFAR-10 model on a grid of 8×8, where it costs little."""
    case = cifar_case()
    model = case.field.double()
    image = case.images[0, :, ::4, ::4].double()
    start = image.flatten().numpy()

    def field(t: Any, y: Tensor) -> Tensor:
        return model(torch.as_tensor(0.0), y.view(-1, *image.shape)).view_as(y)

    def on_arrays(t: float, y: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return field(t, torch.from_numpy(y)).numpy()

    truth = _scipy(on_arrays, start, 1.0, "DOP853", 1e-10)[0]
    solvers = {
        f"bfno {name}": _bfno(field, start, 1.0, name) for name in ("dopri5", "dopri8", "bosh3")
    }
    solvers["SciPy RK45"] = lambda tolerance: _scipy(on_arrays, start, 1.0, "RK45", tolerance)
    if _has("torchode"):
        solvers["torchode Dopri5"] = _torchode(field, start, 1.0)
    return _points(solvers, truth), case.weights


def _points(solvers: dict[str, Callable[[float], Any]], truth: np.ndarray) -> Curves:
    curves: Curves = {}
    for name, solver in solvers.items():
        curves[name] = []
        for tolerance in TOLERANCES:
            try:
                state, count = solver(tolerance)
            except (SolverError, RuntimeError):
                curves[name].append(None)
                continue
            error = float(np.linalg.norm(state - truth) / np.linalg.norm(truth))
            curves[name].append((count, error))
    return curves


def _scipy(
    field: Callable[[float, np.ndarray], np.ndarray],
    start: np.ndarray,
    end: float,
    method: str,
    tolerance: float,
) -> tuple[np.ndarray, int]:
    integrate = peer_library("scipy.integrate")
    settings = {"method": method, "rtol": tolerance, "atol": tolerance}
    found = integrate.solve_ivp(field, (0.0, end), start, **settings)
    return found.y[:, -1], found.nfev


def _bfno(
    field: Callable[[Any, Tensor], Tensor], start: np.ndarray, end: float, method: str
) -> Callable[[float], tuple[np.ndarray, int]]:
    def run(tolerance: float) -> tuple[np.ndarray, int]:
        times = torch.tensor([0.0, end], dtype=torch.float64)
        tolerances = {"rtol": tolerance, "atol": tolerance}
        with torch.no_grad():
            y0 = torch.from_numpy(start)
            settings: dict[str, Any] = {"method": method, "max_steps": ENOUGH_STEPS, **tolerances}
            solution = solve(field, y0, times, **settings)
        return solution.ys[-1].numpy(), solution.stats.forward_evaluations

    return run


def _diffrax(problem: WorkProblem) -> Callable[[float], tuple[np.ndarray, int]]:
    diffrax, jax = peer_library("diffrax"), peer_library("jax")
    jax.config.update("jax_enable_x64", True)
    field = problem.field(jax.numpy)
    solver = diffrax.Kvaerno5() if problem.is_stiff else diffrax.Dopri5()
    # Seven stages, the first of which is the last one of the step before. It does not count the
    # iterations of implicit stages.
    each = 6

    def run(tolerance: float) -> tuple[np.ndarray, int]:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: field(t, y)),
            solver,
            0.0,
            problem.end,
            None,
            jax.numpy.array(problem.start),
            stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
            max_steps=ENOUGH_STEPS,
        )
        return np.asarray(solution.ys)[-1], each * int(solution.stats["num_steps"]) + 2

    return run


def _torchode(
    field: Callable[[Any, Tensor], Tensor], start: np.ndarray, end: float
) -> Callable[[float], tuple[np.ndarray, int]]:
    torchode = peer_library("torchode")

    def run(tolerance: float) -> tuple[np.ndarray, int]:
        term = torchode.ODETerm(field)
        control = torchode.IntegralController(atol=tolerance, rtol=tolerance, term=term)
        adjoint = torchode.AutoDiffAdjoint(torchode.Dopri5(term=term), control)
        times = torch.tensor([[0.0, end]], dtype=torch.float64)
        y0 = torch.from_numpy(start)[None]
        with torch.no_grad():
            solution = adjoint.solve(torchode.InitialValueProblem(y0=y0, t_eval=times))
        return solution.ys[0, -1].numpy(), int(solution.stats["n_f_evals"].max())

    return run


def _has(name: str) -> bool:
    try:
        peer_library(name)
    except (ImportError, SystemExit):
        return False
    return True


_LOOKS = {  # colours of Okabe and Ito, ours in solid lines
    "bfno dopri5": ("#0072b2", "-", "o"),
    "bfno dopri8": ("#56b4e9", "-", "s"),
    "bfno bosh3": ("#cc79a7", "-", "^"),
    "bfno kvaerno5": ("#d55e00", "-", "o"),
    "bfno rodas5p": ("#e69f00", "-", "s"),
    "bfno auto": ("#009e73", "-", "^"),
    "SciPy RK45": ("#6b6b6b", "--", "x"),
    "SciPy Radau": ("#6b6b6b", "--", "x"),
    "diffrax Dopri5": ("#000000", ":", "+"),
    "diffrax Kvaerno5": ("#000000", ":", "+"),
    "torchode Dopri5": ("#999933", "-.", "d"),
}


def draw(file: Path) -> None:
    """Draw a panel for every problem."""
    import matplotlib

    matplotlib.use("Agg")  # draws to a file; no screen needed
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 5, figsize=(15, 6.4), constrained_layout=True)
    handles: dict[str, Any] = {}
    for axis, (name, (curves, _)) in zip(axes.flat, _measured(), strict=True):
        for solver, points in curves.items():
            known = [point for point in points if point is not None]
            colour, line, marker = _LOOKS[solver]
            (handles[solver],) = axis.loglog(
                *zip(*known, strict=True), color=colour, linestyle=line, marker=marker, markersize=5
            )
        axis.set_title(name, fontsize=10, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("evaluations")
    figure.supylabel("relative error at the end")
    order = [name for name in _LOOKS if name in handles]
    figure.legend(
        [handles[name] for name in order], order, loc="outside lower center", ncols=6, frameon=False
    )
    figure.savefig(file, dpi=110)
    plt.close(figure)


def main() -> None:
    """Draw the figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.work", description=__doc__)
    parser.add_argument("file", type=Path, help="where to draw, .png or .svg")
    draw(parser.parse_args().file)


if __name__ == "__main__":
    main()
