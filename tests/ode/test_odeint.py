"""The drop-in functions against torchdiffeq itself."""

import math
from typing import Any

import pytest
import torch
import torchdiffeq

import bfno
from bfno.ode import Tableau
from tests.ode.problems import Network

# Methods whose steps and dense output are the same formulas in both libraries.
SAME = ["euler", "midpoint", "heun2", "heun3", "rk4", "explicit_adams", "implicit_adams", "dopri5"]
CLOSE = ["bosh3", "adaptive_heun", "fehlberg2", "dopri8"]
TIMES = [[0.0, 0.3, 0.7, 2.0], [2.0, 1.4, 0.5]]


class Counted:
    """A field that counts its evaluations."""

    def __init__(self, field):
        self.field, self.evaluations = field, 0

    def __call__(self, t, y):
        self.evaluations += 1
        return self.field(t, y)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("method", SAME)
def test_answers_are_those_of_torchdiffeq_to_rounding(method, times):
    field, y0, t = Network(), torch.randn(4, 3), torch.tensor(times)
    options = {} if method == "dopri5" else {"step_size": 0.13}
    settings = {"method": method, "options": options, "rtol": 1e-5, "atol": 1e-6}
    ours, theirs = Counted(field), Counted(field)
    found = bfno.odeint(ours, y0, t, **settings)
    expected = torchdiffeq.odeint(theirs, y0, t, **settings)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert ours.evaluations == theirs.evaluations


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("method", CLOSE)
def test_answers_are_those_of_torchdiffeq_within_tolerance(method, times):
    field, y0, t = Network(), torch.randn(4, 3), torch.tensor(times)
    found = bfno.odeint(field, y0, t, method=method, rtol=1e-7, atol=1e-8)
    expected = torchdiffeq.odeint(field, y0, t, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


def test_defaults_tuples_and_gradients_are_those_of_torchdiffeq():
    field = Network()

    def coupled(t, state):
        return field(t, state[0]), state[0].sum(1) - state[1]

    results = []
    for library in (bfno, torchdiffeq):
        y0 = (torch.ones(4, 3, requires_grad=True), torch.zeros(4, requires_grad=True))
        a, b = library.odeint(coupled, y0, torch.tensor([0.0, 0.5, 1.0]))
        gradients = torch.autograd.grad(a[-1].sum() + b.square().sum(), (*y0, *field.parameters()))
        results.append((a, b, *gradients))
    for one, other in zip(results[0][:2], results[1][:2], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    for one, other in zip(results[0][2:], results[1][2:], strict=True):
        # torchdiffeq also differentiates its choice of the first step, which is part of the error.
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


@pytest.mark.parametrize("seminorm", [False, True])
def test_adjoint_gradients_are_those_of_torchdiffeq(seminorm):
    field = Network()
    options = {"norm": "seminorm"} if seminorm else {}
    results, counts = [], []
    for library in (bfno, torchdiffeq):
        y0 = torch.ones(4, 3, requires_grad=True)
        t = torch.tensor([0.0, 0.5, 1.0], requires_grad=True)
        call = Counted(field)
        ys = library.odeint_adjoint(
            call, y0, t, rtol=1e-6, atol=1e-6, adjoint_rtol=1e-5, adjoint_options=options,
            adjoint_params=tuple(field.parameters()),
        )  # fmt: skip
        results.append(torch.autograd.grad(ys.square().sum(), (y0, t, *field.parameters())))
        counts.append(call.evaluations)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    assert counts[0] == counts[1] + 3  # bfno looks three times whether the field is the same


def test_adjoint_finds_parameters_without_being_told():
    field, y0, t = Network(), torch.ones(2, 3), torch.tensor([0.0, 1.0])
    parameters = tuple(field.parameters())
    adjoint = bfno.odeint_adjoint(lambda t, y: field(t, y), y0, t)
    found = torch.autograd.grad(adjoint[-1].sum(), parameters)
    expected = torch.autograd.grad(bfno.odeint(field, y0, t)[-1].sum(), parameters)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"first_step": 0.2}, {"max_step": 0.05}, {"min_step": 0.3}])
def test_step_options_act_as_in_torchdiffeq(options):
    field, y0, t = Network(), torch.ones(2, 3), torch.tensor([0.0, 1.0])
    ours, theirs = Counted(field), Counted(field)
    found = bfno.odeint(ours, y0, t, method="dopri5", options=options)
    expected = torchdiffeq.odeint(theirs, y0, t, method="dopri5", options=options)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert ours.evaluations == theirs.evaluations


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("dopri5", {"step_t": torch.tensor([0.5])}),
        ("dopri5", {"jump_t": torch.tensor([0.5])}),
        ("dopri5", {"first_step": torch.tensor(0.125), "max_step": 0.125}),
        ("rk4", {"step_size": 0.125, "interp": "cubic"}),
    ],
)
def test_times_on_which_steps_end_have_the_gradients_of_torchdiffeq(method, options):
    moved = []
    for library in (bfno, torchdiffeq):
        t = torch.tensor([0.0, 0.5, 1.0], requires_grad=True)
        ys = library.odeint(
            lambda t, y: -(1 + t) * y, torch.ones(2), t, method=method, options=options
        )
        weights = torch.tensor([0.0, 3.0, 1.0])[:, None]
        moved.append(torch.autograd.grad((weights * ys).sum(), t)[0])
    # The tolerance of the steps: torchdiffeq lets their sizes depend on the first time.
    torch.testing.assert_close(*moved, rtol=0, atol=1e-7)


def test_one_tolerance_a_component_acts_as_in_torchdiffeq():
    y0, t = (torch.ones(2), torch.ones(3)), torch.tensor([0.0, 3.0])

    def field(t, state):
        return -state[0], torch.cos(9 * t) * state[1]

    settings: dict[str, Any] = {"rtol": (1e-3, 1e-6), "atol": (1e-3, 1e-6)}
    ours, theirs = Counted(field), Counted(field)
    found = bfno.odeint(ours, y0, t, **settings)
    expected = torchdiffeq.odeint(theirs, y0, t, **settings)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert ours.evaluations == theirs.evaluations


@pytest.mark.parametrize("interface", [bfno.odeint, bfno.odeint_adjoint])
def test_the_time_of_an_event_is_differentiable(interface):
    # A ball thrown up with speed v hits the ground after 2 v / g.
    speed = torch.tensor(3.0, requires_grad=True)
    gravity = torch.tensor(9.81, requires_grad=True)

    def fall(t, y):
        return torch.stack((y[1], -gravity))

    time, ys = bfno.odeint_event(
        fall, torch.stack((torch.tensor(1e-9), speed)), torch.tensor(0.0),
        event_fn=lambda t, y: y[0], odeint_interface=interface, atol=1e-10,
    )  # fmt: skip
    assert time.item() == pytest.approx(2 * 3 / 9.81, rel=1e-6)
    assert ys[-1, 1].item() == pytest.approx(-3.0, rel=1e-6)
    by_speed, by_gravity = torch.autograd.grad(time, (speed, gravity), retain_graph=True)
    assert float(by_speed) == pytest.approx(2 / 9.81, rel=1e-5)
    assert float(by_gravity) == pytest.approx(-2 * 3 / 9.81**2, rel=1e-5)
    (impact,) = torch.autograd.grad(ys[-1, 1], speed)
    assert float(impact) == pytest.approx(-1.0, rel=1e-5)


def test_an_event_that_never_comes_ends_with_a_status():
    with pytest.raises(bfno.SolverError, match="no event until"):
        bfno.odeint_event(
            lambda t, y: -y, torch.ones(1), torch.tensor(0.0), event_fn=lambda t, y: y + 1,
            method="dopri5", options={"max_num_steps": 50},
        )  # fmt: skip


def test_one_time_returns_the_start():
    y0 = torch.randn(3)
    for method in ("dopri5", "rk4", "scipy_solver"):
        found = bfno.odeint(lambda t, y: -y, y0, torch.tensor([0.5]), method=method)
        assert torch.equal(found, y0[None])


def test_scipy_solves_a_stiff_problem_with_gradients():
    rate = torch.tensor(1e4, requires_grad=True)
    y0, t = torch.tensor([0.0], requires_grad=True), torch.tensor([0.0, 1.0])
    ys = bfno.odeint(
        lambda t, y: -rate * (y - torch.cos(t)), y0, t,
        method="scipy_solver", options={"solver": "Radau"}, rtol=1e-8, atol=1e-10,
    )  # fmt: skip
    assert ys[-1].item() == pytest.approx(math.cos(1.0), abs=1e-3)
    assert ys.requires_grad


BAD_CALLS = [
    ({"options": {"step_sise": 0.1}, "method": "rk4"}, "option of rk4 'step_sise' .* step_size"),
    ({"options": {"step_size": 0.1}}, "option of dopri5 'step_size' does not exist"),
    ({"options": {"dtype": torch.int32}}, "dtype must be a real floating-point dtype"),
    ({"method": "tsit"}, "method must be a name in .*tsit5"),
    ({"method": "rk4", "options": {"interp": "spline"}}, "interp must be linear or cubic"),
    ({"method": "rk4", "options": {"step_size": -1.0}}, "step_size must be positive"),
    ({"t": torch.tensor([0.0, 1.0, 0.5])}, r"strictly increasing or decreasing, got t\[2\]"),
    ({"rtol": math.inf}, "rtol must be a finite number"),
    ({"y0": torch.zeros(2, dtype=torch.int32)}, "y0 must hold real floating-point or complex"),
]


@pytest.mark.parametrize(("change", "message"), BAD_CALLS)
def test_what_is_not_supported_is_an_error_that_names_it(change, message):
    call = {"func": lambda t, y: -y, "y0": torch.ones(2), "t": torch.tensor([0.0, 1.0])}
    with pytest.raises(ValueError, match=message):
        bfno.odeint(**{**call, **change})


def test_an_unknown_adjoint_argument_is_named():
    with pytest.raises(ValueError, match="argument 'adjoint_tol' does not exist"):
        bfno.odeint_adjoint(
            lambda t, y: -y, torch.ones(2), torch.tensor([0.0, 1.0]), adjoint_tol=1e-3
        )
    with pytest.raises(ValueError, match="adjoint_options must be given"):
        bfno.odeint_adjoint(
            lambda t, y: -y, torch.ones(2), torch.tensor([0.0, 1.0]), method="rk4",
            options={"step_size": 0.1}, adjoint_method="dopri5",
        )  # fmt: skip


def named(name):
    """Ralston's method of order two, under any name."""
    line = ((1 / 4,), (3 / 4,))
    return Tableau(name, 2, ((), (2 / 3,)), (1 / 4, 3 / 4), None, line, 1)


@pytest.mark.parametrize("interface", [bfno.odeint, bfno.odeint_adjoint])
@pytest.mark.parametrize("name", ["ralston", "dopri5", "scipy_solver", "explicit_adams"])
def test_a_tableau_is_a_method_under_any_name(interface, name):
    field, y0, t = Network(), torch.randn(2, 3), torch.tensor([0.0, 1.0])
    settings: dict[str, Any] = {"method": named(name), "options": {"step_size": 0.25}}
    found = interface(field, y0, t, **settings)
    expected = bfno.solve(field, y0, t, method=named("ralston"), step=0.25).ys
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    gradients = torch.autograd.grad(found[-1].sum(), tuple(field.parameters()))
    assert all(bool(torch.isfinite(one).all()) for one in gradients)


def test_a_tableau_serves_the_backward_solve_and_dense_output():
    field, y0, t = Network(), torch.randn(2, 3), torch.tensor([0.0, 1.0])
    tsit5 = bfno.METHODS["tsit5"]
    results = []
    for method in ("tsit5", tsit5):
        ys = bfno.odeint_adjoint(field, y0, t, adjoint_method=method, adjoint_options={})
        results.append(torch.autograd.grad(ys[-1].sum(), tuple(field.parameters())))
    assert all(map(torch.equal, *results))
    dense = bfno.odeint_dense(field, y0, 0.0, 1.0, method=tsit5)
    assert torch.equal(dense(0.5), bfno.odeint_dense(field, y0, 0.0, 1.0, method="tsit5")(0.5))


@pytest.mark.parametrize(
    ("interface", "change", "message"),
    [
        (bfno.odeint, {"options": {"max_step": 1.0}}, "option of ralston 'max_step'"),
        (bfno.odeint_dense, {}, "adaptive method, got 'ralston'"),
        (bfno.odeint_event, {"event_fn": lambda t, y: y[0]}, "method 'ralston' needs the option"),
        (
            bfno.odeint_adjoint,
            {"options": {"step_size": 0.5}, "adjoint_method": bfno.METHODS["dopri8"]},
            "adjoint_method='dopri8' differs from method='ralston'",
        ),
    ],
)
def test_messages_name_the_tableau(interface, change, message):
    times = {
        bfno.odeint_dense: (0.0, 1.0),
        bfno.odeint_event: (0.0,),
    }.get(interface, (torch.tensor([0.0, 1.0]),))
    with pytest.raises(ValueError, match=message) as caught:
        interface(lambda t, y: -y, torch.ones(2), *times, method=named("ralston"), **change)
    assert len(str(caught.value)) < 200


# Of y' = y², whose solution 1 / (1 - t) ends at t = 1, LSODA never returns.
BLOWING_UP = [("RK45", "blown-up"), ("Radau", "blown-up"), ("BDF", "blown-up")]
NON_FINITE = [
    (solver, kind)
    for solver in ("RK45", "Radau", "BDF", "LSODA")
    for kind in ("not-a-number", "not-a-number-later")
]


@pytest.mark.parametrize(("solver", "kind"), [*BLOWING_UP, *NON_FINITE])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")  # SciPy's own
def test_a_failure_of_scipy_is_one_of_the_solver(solver, kind):
    field = {
        "blown-up": lambda t, y: y * y,
        "not-a-number": lambda t, y: y * math.nan,
        "not-a-number-later": lambda t, y: torch.where(t < 0.5, -y, y * math.nan),
    }[kind]
    start, t = torch.ones(1), torch.tensor([0.0, 2.0])
    with pytest.raises(bfno.SolverError, match="scipy_solver stopped near t = ") as caught:
        bfno.odeint(field, start, t, method="scipy_solver", options={"solver": solver})
    blown_up = kind == "blown-up"
    right = bfno.Status.STEP_UNDERFLOW if blown_up else bfno.Status.NON_FINITE
    assert caught.value.status is right
    assert caught.value.stats.forward_evaluations > 0
