"""Observed orders: the slope of log error over log step size."""

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from bfno import METHODS, solve
from tests.ode.problems import EQUATIONS, FORCED, NONLINEAR

EXPLICIT = [name for name in sorted(METHODS) if not METHODS[name].implicit]  # test_implicit.py
# Numbers of steps, first and last, between the pre-asymptotic range and rounding (1e-14).
STEPS = {1: (4000, 16000), 2: (400, 1600), 3: (200, 800), 4: (100, 400), 5: (300, 600), 8: (20, 50)}
LINEAR_STEPS = {**STEPS, 5: (100, 300)}
# On the pendulum the error terms of order 8 nearly cancel; on the Brusselator an error of order 5
# falls from pre-asymptotic straight into rounding.
UNSUITABLE = {("pendulum", 8), ("brusselator", 5)}


def observed_order(name, field, start, expected, end, steps):
    """Slope of a line through five points of log error over log number of steps."""
    low, high = steps[METHODS[name].order]
    counts = np.unique(np.geomspace(low, high, 5).round().astype(int))
    errors = []
    for count in counts.tolist():
        ts = torch.tensor([0.0, end])
        found = solve(field, start, ts, method=name, step=end / count).ys[-1]
        errors.append(float(torch.linalg.vector_norm(found - expected)))
    return -np.polyfit(np.log(counts), np.log(errors), 1)[0]


@pytest.mark.parametrize("name", EXPLICIT)
def test_order_on_a_linear_oscillator_is_the_declared_one(name):
    end = torch.tensor(FORCED.end)
    start, expected = FORCED.solution(0 * end), FORCED.solution(end)
    found = observed_order(name, FORCED.field, start, expected, FORCED.end, LINEAR_STEPS)
    assert found == pytest.approx(METHODS[name].order, abs=0.1)


@pytest.fixture(scope="module")
def references():
    def solved(problem):
        def flat(t, y):
            return problem.field(torch.tensor(t), torch.tensor(y)).numpy()

        settings = {"method": "DOP853", "rtol": 1e-13, "atol": 1e-15}
        return torch.tensor(solve_ivp(flat, (0, problem.end), problem.start, **settings).y[:, -1])

    return {key: solved(problem) for key, problem in NONLINEAR.items()}


@pytest.mark.parametrize("equation", sorted(NONLINEAR))
@pytest.mark.parametrize("name", EXPLICIT)
def test_order_on_nonlinear_problems_is_the_declared_one(name, equation, references):
    problem, order = NONLINEAR[equation], METHODS[name].order
    if (equation, order) in UNSUITABLE:
        equation, problem = "lotka-volterra", NONLINEAR["lotka-volterra"]
    start = torch.tensor(problem.start)
    found = observed_order(name, problem.field, start, references[equation], problem.end, STEPS)
    assert found == pytest.approx(order, abs=0.3)


@pytest.mark.parametrize("equation", sorted(EQUATIONS))
@pytest.mark.parametrize("name", [name for name in EXPLICIT if METHODS[name].adaptive])
def test_a_tighter_tolerance_gives_a_smaller_error(name, equation):
    problem = EQUATIONS[equation]
    ts = torch.linspace(0, problem.end, 7)
    expected = torch.stack([problem.solution(t) for t in ts])
    # The weights of fehlberg2's two formulas differ by 1/512, so it thinks too well of itself.
    factor = 2000 if name == "fehlberg2" else 300
    errors = []
    for tolerance in (1e-3, 1e-5, 1e-7):
        settings = {"method": name, "rtol": tolerance, "atol": tolerance}
        ys = solve(problem.field, problem.solution(ts[0]), ts, **settings).ys
        errors.append(float((ys - expected).abs().max()))  # dense output included
        assert errors[-1] < factor * tolerance
    # dopri8 lands on every requested time, so its error may be tiny from the start.
    assert errors[2] < max(errors[0], 1e-7)
