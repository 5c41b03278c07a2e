"""Rules for the step size: I, PI and PID, against diffrax and against their purpose."""

import math
from typing import Any

import pytest
import torch

import bfno
from bfno.ode import METHODS, odeint, solve
from bfno.ode.control import FIRST_RATIOS, Control
from bfno.ode.inputs import CONTROLLERS
from tests.ode.problems import NONLINEAR, Problem

PROBLEMS = {
    "lotka-volterra": NONLINEAR["lotka-volterra"]._replace(end=10.0),
    "van der pol": Problem(
        lambda t, y: torch.stack((y[1], 5 * (1 - y[0] ** 2) * y[1] - y[0])), [2.0, 0.0], 20.0
    ),
}
# Accepted and rejected steps of diffrax 0.7.2 at a tolerance of 1e-5, which the slow test counts.
COUNTED = {
    ("lotka-volterra", "dopri5"): {"I": (24, 7), "PI": (36, 3), "PID": (27, 4)},
    ("lotka-volterra", "tsit5"): {"I": (23, 4), "PI": (35, 3), "PID": (28, 4)},
    ("lotka-volterra", "bosh3"): {"I": (103, 12), "PI": (131, 6), "PID": (115, 9)},
    ("van der pol", "dopri5"): {"I": (145, 32), "PI": (180, 23), "PID": (159, 32)},
    ("van der pol", "tsit5"): {"I": (140, 34), "PI": (171, 21), "PID": (153, 31)},
    ("van der pol", "bosh3"): {"I": (452, 103), "PI": (514, 69), "PID": (479, 91)},
}
SETTINGS: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5, "first_step": 1e-3}


def solved(problem, **settings):
    ts = torch.tensor([0.0, problem.end])
    return solve(problem.field, torch.tensor(problem.start), ts, **settings)


@pytest.mark.parametrize(("name", "method"), COUNTED)
@pytest.mark.parametrize("controller", CONTROLLERS)
def test_steps_are_those_of_diffrax(name, method, controller):
    found = solved(PROBLEMS[name], method=method, controller=controller, **SETTINGS).stats
    assert (found.accepted, found.rejected) == COUNTED[name, method][controller]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_diffrax_counts_what_it_is_said_to():
    diffrax, jax = pytest.importorskip("diffrax"), pytest.importorskip("jax")
    solvers = {"dopri5": diffrax.Dopri5, "tsit5": diffrax.Tsit5, "bosh3": diffrax.Bosh3}
    fields = {
        "lotka-volterra": lambda t, y, _: jax.numpy.stack((y[0] * (1 - y[1]), y[1] * (y[0] - 1))),
        "van der pol": lambda t, y, _: jax.numpy.stack((y[1], 5 * (1 - y[0] ** 2) * y[1] - y[0])),
    }
    jax.config.update("jax_enable_x64", True)
    for (name, method), counts in COUNTED.items():
        problem = PROBLEMS[name]
        for controller, expected in counts.items():
            coefficients = dict(
                zip(("pcoeff", "icoeff", "dcoeff"), CONTROLLERS[controller], strict=True)
            )
            rule = diffrax.PIDController(
                rtol=1e-5, atol=1e-5, error_order=METHODS[method].order, **coefficients
            )
            found = diffrax.diffeqsolve(
                diffrax.ODETerm(fields[name]), solvers[method](), 0.0, problem.end, 1e-3,
                jax.numpy.array(problem.start), stepsize_controller=rule,
            ).stats  # fmt: skip
            steps = int(found["num_accepted_steps"]), int(found["num_rejected_steps"])
            assert steps == expected, (name, method, controller)


def test_the_rule_by_coefficients_is_the_rule_by_name():
    problem = PROBLEMS["van der pol"]
    for name, coefficients in CONTROLLERS.items():
        by_name = solved(problem, controller=name, **SETTINGS)
        by_numbers = solved(problem, controller=list(coefficients), **SETTINGS)
        assert torch.equal(by_name.ys, by_numbers.ys)
    assert torch.equal(
        solved(problem, **SETTINGS).ys, solved(problem, controller="I", **SETTINGS).ys
    )


def test_factors_follow_the_formula_and_its_bounds():
    control = Control(1e-3, 1e-3, coefficients=(0.4, 0.3, 0.1))
    # 0.9 · 0.5^(-0.8/5) · 0.25^(0.6/5) · 0.1^(-0.1/5), by hand
    expected = 0.9 * 0.5**-0.16 * 0.25**0.12 * 0.1**-0.02
    assert expected < 1  # so an accepted step keeps its size
    assert control.next_size(1.0, 0.5, 5, (0.25, 0.1)) == 1.0
    assert control.next_size(1.0, 0.01, 5, (0.25, 0.1)) == pytest.approx(
        0.9 * 0.01**-0.16 * 0.25**0.12 * 0.1**-0.02
    )
    # Rejected steps shrink by a tenth at least and to a fifth at most, whatever the past says.
    assert control.next_size(1.0, 1.001, 5, (1.0, 1e-300)) == 0.9
    assert control.next_size(1.0, 1e300, 5) == 0.2
    assert control.next_size(-1.0, math.inf, 5) == -0.2
    assert control.next_size(1.0, 0.0, 5, (1e-5, 1e-5)) == 10.0
    assert control.next_size(1.0, 1e-320, 1, (1e-320, 1e-320)) == 10.0


def test_a_ratio_of_zero_is_forgotten():
    assert Control.remember(0.0, (0.5, 0.25)) == (1.0, 0.5)
    assert Control.remember(0.3, FIRST_RATIOS) == (0.3, 1.0)


def test_pi_saves_rejected_steps_where_stability_limits_them():
    """There an I rule overshoots again and again (Hairer and Wanner, Solving ODEs II, IV.2)."""

    def stiff(t, y):
        return -1000 * (y - torch.cos(t)) - torch.sin(t)

    rejected = {
        name: solved(Problem(stiff, [1.0], 1.0), controller=name, rtol=1e-3, atol=1e-3)
        .stats.rejected
        for name in CONTROLLERS
    }  # fmt: skip
    assert rejected["PI"] < 0.25 * rejected["I"]  # 13 and 74, by our count


@pytest.mark.parametrize("gradient", ["checkpoint", "direct", "adjoint"])
def test_gradients_and_rows_of_times_know_the_rule(gradient):
    y0 = torch.tensor([[2.0], [1.0]], requires_grad=True)
    ts = torch.tensor([0.0, 1.0])
    settings: dict[str, Any] = {"controller": "PID", "rtol": 1e-8, "atol": 1e-8}
    ys = solve(lambda t, y: -y * y, y0, ts, gradient=gradient, **settings).ys
    (found,) = torch.autograd.grad(ys[-1].sum(), y0)
    # y = y0 / (1 + y0 t); the tolerance, with room for how errors add up
    torch.testing.assert_close(found, (1 + y0).pow(-2).detach(), rtol=0, atol=1e-7)
    rows = solve(lambda t, y: -y * y, y0, ts.expand(2, 2), **settings).ys
    torch.testing.assert_close(rows[:, -1], ys[-1], rtol=0, atol=1e-7)


def test_odeint_and_modules_take_a_controller():
    problem = PROBLEMS["van der pol"]
    y0, ts = torch.tensor(problem.start), torch.tensor([0.0, 5.0])
    plain, smooth = (
        odeint(problem.field, y0, ts, rtol=1e-5, atol=1e-5, options=options)
        for options in ({}, {"controller": "PI"})
    )
    assert not torch.equal(plain, smooth)
    torch.testing.assert_close(plain, smooth, rtol=0, atol=1e-3)
    field = bfno.FirstOrder(bfno.MLPField(2, 4))
    block = bfno.NeuralODE(field, controller="PI")
    assert "controller=(0.4, 0.3, 0.0)" in repr(block)
    assert block(torch.ones(3, 2)).shape == (3, 2)


@pytest.mark.parametrize(
    "wrong", ["pi", "H211", (0.4, 0.3), (0.4, 0.3, math.nan), (0.4, True, 0.0), 3, None, (0, 0, 0)]
)
def test_other_controllers_are_refused(wrong):
    with pytest.raises(ValueError, match="controller must"):
        solved(PROBLEMS["van der pol"], controller=wrong)
    with pytest.raises(ValueError, match="controller must"):
        bfno.NeuralODE(bfno.FirstOrder(bfno.MLPField(2, 4)), controller=wrong)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("controller", CONTROLLERS)
def test_compiled_solves_follow_the_rule(controller):
    problem = PROBLEMS["van der pol"]
    plain, compiled = (
        solved(problem, controller=controller, compile=one, **SETTINGS) for one in (False, True)
    )
    assert compiled.stats.compiled == "solve"
    assert compiled.stats.accepted == plain.stats.accepted
    assert compiled.stats.rejected == plain.stats.rejected
    # Rounding of error estimates moves steps a little.
    torch.testing.assert_close(compiled.ys, plain.ys, rtol=0, atol=1e-8)
