"""The error of a gradient is estimated as large as it is."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import bfno
from bfno import check_gradient, solve
from bfno.ode import SolverError
from tests.ode.problems import NONLINEAR, Network

ONE = torch.tensor([0.0, 1.0], dtype=torch.float64)


def decay(rate):
    return lambda t, y: -rate * y


def is_about(estimate, truth):
    """Within a factor of three: the solve it is compared with has a tenth of the error or so."""
    return truth / 3 < estimate < truth * 3


def errors_of(field, y0, ts, wanted, **settings):
    """Relative errors of a gradient, held against one of a tight solve: state and parameters."""
    found = []
    for tight in (False, True):
        chosen = {**settings, "rtol": 1e-12, "atol": 1e-12, "method": "dopri8", "step": None}
        y = y0.clone().requires_grad_()
        ys = solve(field, y, ts, **(chosen if tight else settings)).ys
        generator = torch.Generator().manual_seed(0)
        later = ys[1:]
        weights = torch.randn(later.shape, generator=generator, dtype=torch.float64)
        gradients = torch.autograd.grad((later * weights).sum(), (y, *wanted))
        found.append((gradients[0], torch.cat([one.flatten() for one in gradients[1:]])))
    return [((one - exact).norm() / exact.norm()).item() for one, exact in zip(*found, strict=True)]


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-7])
@pytest.mark.parametrize("method", ["dopri5", "tsit5", "bosh3"])
def test_errors_of_a_decay_are_those_of_its_formula(method, tolerance):
    rate = torch.tensor(2.0, requires_grad=True)
    settings: dict[str, Any] = {"method": method, "rtol": tolerance, "atol": tolerance}
    found = check_gradient(decay(rate), torch.ones(1), ONE, **settings)
    y0 = torch.ones(1, requires_grad=True)
    ys = solve(decay(rate), y0, ONE, **settings).ys
    by_state, by_rate = torch.autograd.grad(ys[-1].sum(), (y0, rate))
    exact = math.exp(-2)  # of the state; with respect to the rate it is the same times -1
    assert is_about(found.state_error, abs(by_state.item() / exact - 1))
    assert is_about(found.parameter_error, abs(by_rate.item() / -exact - 1))
    assert is_about(found.solution_error, abs(ys[-1].item() / exact - 1))
    assert found.state_error <= found.error <= found.parameter_error
    assert found.adjoint_error is None


@pytest.mark.parametrize(("method", "step"), [("euler", 0.05), ("midpoint", 0.1), ("rk4", 0.25)])
def test_errors_of_fixed_steps_are_those_of_their_formula(method, step):
    rate = torch.tensor(2.0, requires_grad=True)
    found = check_gradient(decay(rate), torch.ones(1), ONE, method=method, step=step)
    # A step multiplies by the first terms of the exponential series.
    order, steps = bfno.METHODS[method].order, round(1 / step)
    factor = sum((-2 * step) ** k / math.factorial(k) for k in range(order + 1))
    assert found.state_error == pytest.approx(abs(factor**steps / math.exp(-2) - 1), rel=0.3)
    # The same steps, which end on the requested times.
    several = check_gradient(
        decay(rate), torch.ones(1), torch.linspace(0, 1, steps + 1), method=method,
        loss=lambda ys: ys[-1].sum(),
    )  # fmt: skip
    assert several.state_error == pytest.approx(found.state_error, rel=1e-6)


@pytest.mark.parametrize("name", NONLINEAR)
def test_errors_of_nonlinear_fields_are_those_of_a_tight_solve(name):
    problem = NONLINEAR[name]
    gain = torch.tensor(1.0, requires_grad=True)

    def field(t, y):
        return gain * problem.field(t, y)

    y0, ts = torch.tensor(problem.start), torch.linspace(0, problem.end, 4)
    settings: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
    found = check_gradient(field, y0, ts, **settings)
    by_state, by_gain = errors_of(field, y0, ts, [gain], **settings)
    assert is_about(found.state_error, by_state)
    assert is_about(found.parameter_error, by_gain)


def test_modules_batches_and_samples():
    field, y0 = Network(), torch.randn(40, 3)
    settings: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3, "method": "bosh3"}
    found = check_gradient(field, y0, ONE * 3, **settings)
    by_state, by_weights = errors_of(field, y0, ONE * 3, list(field.parameters()), **settings)
    assert is_about(found.state_error, by_state)
    assert is_about(found.parameter_error, by_weights)
    assert all(one.grad is None for one in field.parameters())
    few = check_gradient(field, y0, ONE * 3, samples=8, **settings)
    assert is_about(few.error, found.error)
    rows = check_gradient(field, y0, (ONE * 3).expand(40, 2), samples=100, **settings)
    assert is_about(rows.error, found.error)


def test_nests_arguments_and_a_loss_of_ones_own():
    gain = torch.tensor(0.7, requires_grad=True)

    def field(t, y, gain):
        return {"a": -gain * y["a"], "b": (y["a"] + 1j * y["b"])}

    y0 = {"a": torch.ones(2), "b": torch.ones(2, dtype=torch.complex128)}
    found = check_gradient(field, y0, ONE, args=(gain,), rtol=1e-3, atol=1e-3)
    assert 0 < found.parameter_error < 0.01
    only = check_gradient(
        field, y0, ONE, args=(gain,), rtol=1e-3, atol=1e-3, loss=lambda ys: ys["a"][-1].sum()
    )
    # exp(-gain) with respect to its logarithm's rate
    ys = solve(field, y0, ONE, args=(gain,), rtol=1e-3, atol=1e-3).ys
    (slope,) = torch.autograd.grad(ys["a"][-1].sum(), gain)
    assert is_about(only.parameter_error, abs(slope.item() / (-2 * math.exp(-0.7)) - 1))
    none = check_gradient(field, y0, ONE, args=(gain,), parameters=())
    assert none.parameter_error == 0
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert check_gradient(field, y0, ONE, args=(gain,)).error > 0


def test_the_adjoint_is_named_where_it_is_the_culprit():
    torch.manual_seed(1)
    net, y0 = nn.Linear(3, 3), torch.randn(4, 3)

    def field(t, y):
        return -6 * y + torch.tanh(net(y))  # backward in time its state runs away

    settings: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6, "gradient": "adjoint"}
    loose = check_gradient(field, y0, ONE, **settings, adjoint={"rtol": 0.1, "atol": 0.1})
    assert loose.adjoint_error is not None
    assert loose.adjoint_error > 0.05
    assert is_about(loose.error, loose.adjoint_error)
    assert "gradient='adjoint' alone makes" in loose.sentence
    assert "use gradient='checkpoint'" in loose.remedy
    tight = check_gradient(field, y0, ONE, **settings, adjoint={"rtol": 1e-8, "atol": 1e-10})
    assert tight.adjoint_error is not None
    # What is left are the errors of the forward solve, which the adjoint equation starts from.
    assert tight.adjoint_error < 1e-4
    assert tight.is_enough


def test_remedies_are_enough():
    rate = torch.tensor(2.0, requires_grad=True)
    rough: dict[str, Any] = {"rtol": 1e-2, "atol": 1e-2}
    found = check_gradient(decay(rate), torch.ones(1), ONE, **rough)
    assert not found.is_enough
    assert found.remedy == "use rtol=0.0001, atol=0.0001"
    assert str(found) == f"{found.sentence}; {found.remedy}"
    better = check_gradient(decay(rate), torch.ones(1), ONE, rtol=1e-4, atol=1e-4)
    assert better.is_enough
    assert str(better) == better.sentence
    coarse = check_gradient(decay(rate), torch.ones(1), ONE, method="euler", step=0.25)
    step = float(coarse.remedy.removeprefix("use step="))
    # An error as far from its limit as this one is only about proportional to the step.
    fine = check_gradient(decay(rate), torch.ones(1), ONE, method="euler", step=step, target=0.02)
    assert fine.is_enough
    single = torch.ones(1, dtype=torch.float32)
    exact = check_gradient(lambda t, y: -y * 2, single, ONE.float(), rtol=1e-5, target=1e-9)
    assert "double precision" in exact.remedy
    loose: dict[str, Any] = {"rtol": torch.tensor([0.01]), "atol": 0.01}
    each = check_gradient(decay(rate), torch.ones(1), ONE, **loose)
    assert each.remedy == "make rtol and atol 100 times smaller"


def test_bad_input_is_refused():
    y0 = torch.ones(2)
    with pytest.raises(ValueError, match="field must be a function"):
        check_gradient(3, y0, ONE)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="samples needs a state"):
        check_gradient(decay(1), torch.tensor(1.0), ONE, samples=1)
    with pytest.raises(ValueError, match="loss must return one number"):
        check_gradient(decay(1), y0, ONE, loss=lambda ys: ys)
    with pytest.raises(ValueError, match="target must be positive"):
        check_gradient(decay(1), y0, ONE, target=0)
    with pytest.raises(ValueError, match="option 'tolerance' does not exist"):
        check_gradient(decay(1), y0, ONE, tolerance=1)
    with pytest.raises(ValueError, match="needs a step"):
        check_gradient(decay(1), y0, ONE.expand(2, 2), method="rk4")
    with pytest.raises(SolverError):
        check_gradient(lambda t, y: y**2, y0, ONE * 2)
    assert check_gradient(decay(1), torch.ones(0, 3), ONE).error == 0
    assert check_gradient(lambda t, y: torch.ones_like(y), y0, ONE).error < 1e-12


def test_a_gradient_that_cannot_be_judged_is_described_in_words():
    def burst(ys: torch.Tensor) -> torch.Tensor:
        return (ys[-1] * math.inf).sum()

    found = check_gradient(decay(1), torch.ones(2), ONE, loss=burst)
    assert not found.is_enough
    assert str(found) == (
        "the gradient is not finite, or vanishes with smaller steps; check the field and the loss"
    )
