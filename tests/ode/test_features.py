"""Events, dense output, callbacks, arguments, nested and complex states, function transforms."""

import gc
import math
import warnings
import weakref
from typing import Any

import pytest
import torch
from scipy.integrate import solve_ivp
from torch.autograd import gradcheck

import bfno
from bfno import METHODS, Status
from bfno.ode import SolverError, Tableau, odeint_adjoint, replay
from tests.ode.problems import NONLINEAR, oscillator

with warnings.catch_warnings():
    # The first use of forward mode makes PyTorch itself use something that it has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    torch.func.jvp(torch.sin, (torch.zeros(()),), (torch.ones(()),))

solve: Any = bfno.solve  # whose event times may be None, but not in these tests
TIGHT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}
# Solutions with these tolerances keep errors of 1e-9 at most over the short intervals below.
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-8}
EXACT = ["direct", "checkpoint"]
FIXED = [name for name in sorted(METHODS) if not METHODS[name].adaptive]
ADAPTIVE = [name for name in sorted(METHODS) if METHODS[name].adaptive]


@pytest.fixture(autouse=True)
def repeat_everything(monkeypatch):
    """Checkpoint keeps small graphs as direct does; here its backward pass repeats them."""
    monkeypatch.setattr(replay, "KEPT_BYTES", 0)


def decay(t, y):
    return -y


def leaf(values):
    return torch.tensor(values, requires_grad=True)


# Arguments of the field


@pytest.mark.parametrize("gradient", ["direct", "checkpoint", "adjoint"])
def test_arguments_reach_the_field_and_get_the_gradients_of_closed_forms(gradient):
    rate, push = leaf(0.7), leaf([1.0, 2.0])
    solution = solve(
        lambda t, y, rate, push, sign: sign * rate * y + push,
        torch.ones(2), torch.tensor([0.0, 2.0]),
        args=(rate, push, -1.0), gradient=gradient, **TIGHT,
    )  # fmt: skip
    shrunk = torch.exp(-2 * rate)
    expected = shrunk + push * (1 - shrunk) / rate
    torch.testing.assert_close(solution.ys[-1], expected, **CLOSE)
    found = torch.autograd.grad(solution.ys[-1].square().sum(), (rate, push))
    right = torch.autograd.grad(expected.square().sum(), (rate, push))
    torch.testing.assert_close(found, right, rtol=1e-7, atol=0)


# Events


@pytest.mark.parametrize("gradient", EXACT)
def test_a_falling_ball_lands_when_and_how_physics_says(gradient):
    height, gravity = leaf(3.0), leaf(9.81)
    ts = torch.tensor([0.0, 0.2, 0.5, 2.0])
    solution = solve(
        lambda t, y: torch.stack((y[1], -gravity)),
        torch.stack((height, torch.zeros(()))), ts, gradient=gradient, event=lambda t, y: y[0],
    )  # fmt: skip
    landing = torch.sqrt(2 * height / gravity)
    # Dense output is exact for parabolas, up to rounding.
    torch.testing.assert_close(solution.event_times, landing, rtol=1e-12, atol=0)
    impact = torch.stack((torch.zeros(()), -torch.sqrt(2 * height * gravity)))
    torch.testing.assert_close(solution.ys[-1], impact, rtol=1e-12, atol=1e-12)
    for found, right in ((solution.event_times, landing), (solution.ys[-1, 1], impact[1])):
        found = torch.autograd.grad(found, (height, gravity), retain_graph=True)
        right = torch.autograd.grad(right, (height, gravity), retain_graph=True)
        torch.testing.assert_close(found, right, rtol=1e-10, atol=0)


@pytest.mark.parametrize("direction", [1.0, -1.0])
@pytest.mark.parametrize("gradient", EXACT)
def test_each_sample_ends_at_its_own_event_with_the_gradients_of_its_closed_form(
    gradient, direction
):
    y0, rates, limit = leaf([2.0, 3.0, 1.1]), leaf([1.0, 0.8, 1.3]), leaf(0.9)
    ts = leaf([0.5, 0.5 + 0.7 * direction, 0.5 + 3 * direction])
    solution = solve(
        lambda t, y: -direction * rates[:, None] * y, y0[:, None], ts,
        gradient=gradient, event=lambda t, y: y[:, 0] - limit, **TIGHT,
    )  # fmt: skip
    expected = ts[0] + direction * torch.log(y0 / limit) / rates
    torch.testing.assert_close(solution.event_times, expected, **CLOSE)
    leaves = (y0, rates, limit, ts)
    weight = torch.tensor([1.0, 2.0, 3.0])
    found = torch.autograd.grad(weight @ solution.event_times, leaves, retain_graph=True)
    right = torch.autograd.grad(weight @ expected, leaves)
    torch.testing.assert_close(found, right, rtol=0, atol=1e-7)
    # All ended on the limit, wherever they came from.
    torch.testing.assert_close(solution.ys[-1, :, 0], limit.expand(3), **CLOSE)
    moved = torch.autograd.grad(weight @ solution.ys[-1, :, 0], leaves)
    torch.testing.assert_close(moved[2], weight.sum(), **CLOSE)
    assert all(float(one.abs().max()) < 1e-7 for one in (moved[0], moved[1], moved[3]))


@pytest.mark.parametrize("gradient", EXACT)
@pytest.mark.parametrize("samples", [True, False])
@pytest.mark.parametrize("name", ["euler", "rk4", "dopri5"])
def test_gradients_of_events_are_finite_differences_of_the_discrete_solution(
    name, samples, gradient
):
    def ended(y0, ts, limit, rate):
        def event(t, y):
            value = y[:, 0] - limit * (1 + 0.1 * torch.sin(t))
            return value if samples else value[1]

        solution = solve(
            lambda t, y: -rate * y * (1 + t), y0, ts,
            method=name, step=0.13, gradient=gradient, event=event,
        )  # fmt: skip
        happened = torch.isfinite(solution.event_times)
        assert int(happened.sum()) == (2 if samples else 1)
        return solution.event_times[happened], solution.ys

    start = leaf([[2.0, 1.0], [1.5, -1.0], [30.0, 0.5]])
    assert gradcheck(ended, (start, leaf([0.0, 0.4, 0.9, 1.0]), leaf(1.0), leaf(1.1)))


def test_second_derivatives_of_event_times_are_exact_as_well():
    rate = leaf(0.7)
    solution = solve(
        lambda t, y: -rate * y, torch.tensor([2.0]), torch.tensor([0.0, 2.0]),
        event=lambda t, y: y[0] - 1, **TIGHT,
    )  # fmt: skip
    (first,) = torch.autograd.grad(solution.event_times, rate, create_graph=True)
    (second,) = torch.autograd.grad(first, rate)
    # Dense output, of order four, is differentiated twice with respect to time.
    assert float(second) == pytest.approx(2 * math.log(2) / 0.7**3, rel=1e-5)


def test_events_happen_where_those_of_scipy_do():
    problem = NONLINEAR["pendulum"]

    def turning(t, y):
        return y[1] - 0.3 * y[0] + 0.1 * t

    turning.__dict__["terminal"] = True
    right = solve_ivp(
        lambda t, y: problem.field(t, torch.as_tensor(y)).numpy(), (0.1, 8.0), [2.0, 0.5],
        rtol=1e-11, atol=1e-11, events=turning,
    )  # fmt: skip
    solution = solve(
        problem.field, torch.tensor([2.0, 0.5]), torch.tensor([0.1, 8.0]), event=turning, **TIGHT
    )
    assert solution.event_times.item() == pytest.approx(right.t_events[0][0], abs=1e-8)
    torch.testing.assert_close(solution.ys[-1], torch.as_tensor(right.y_events[0][0]), **CLOSE)


@pytest.mark.parametrize("end", [3.0, -3.0])
def test_samples_without_an_event_continue_as_if_there_were_none(end):
    y0, ts = torch.tensor([[2.0], [-1.0], [0.5]]), torch.linspace(0.0, end, 7)

    def field(t, y):
        return -math.copysign(1, end) * y + 0.1 * torch.sin(t)

    solution = solve(field, y0, ts, event=lambda t, y: y[:, 0] - 1, **TIGHT)
    plain = solve(field, y0, ts, **TIGHT)
    assert solution.event_times[1:].tolist() == [math.copysign(math.inf, end)] * 2
    torch.testing.assert_close(solution.ys[:, 1:], plain.ys[:, 1:], **CLOSE)
    before = ts.abs() < solution.event_times[0].abs()
    torch.testing.assert_close(solution.ys[before, 0], plain.ys[before, 0], **CLOSE)
    assert 0 < int(before.sum()) < len(ts)
    torch.testing.assert_close(
        solution.ys[~before, 0], torch.ones(int((~before).sum()), 1), **CLOSE
    )


def test_many_samples_may_have_their_events_in_one_step():
    y0 = torch.tensor([0.3, 0.9, 1.5, 0.1])
    solution = solve(
        lambda t, y: -torch.ones_like(y), y0, torch.tensor([0.0, 0.5, 1.0]),
        method="rk4", step=1.0, event=lambda t, y: y,
    )  # fmt: skip
    expected = torch.tensor([0.3, 0.9, math.inf, 0.1])
    torch.testing.assert_close(solution.event_times, expected, rtol=1e-12, atol=0)
    after = (y0 - torch.tensor([0.0, 0.5, 1.0])[:, None]).clamp(min=0)
    torch.testing.assert_close(solution.ys, after, rtol=0, atol=1e-12)


@pytest.mark.parametrize("step", [0.5, 0.25, 0.15])
def test_a_requested_time_may_be_that_of_the_event(step):
    ts = torch.tensor([0.0, 0.5, 0.75])
    solution = solve(
        lambda t, y: torch.ones_like(y), torch.zeros(2), ts,
        method="rk4", step=step, event=lambda t, y: y[0] - 0.5,
    )  # fmt: skip
    assert solution.event_times.item() == pytest.approx(0.5, abs=1e-12)
    torch.testing.assert_close(solution.ys[:, 0], torch.tensor([0.0, 0.5, 0.5]), **CLOSE)
    final = solve(
        lambda t, y: torch.ones_like(y), torch.zeros(2), ts[:2],
        method="rk4", step=step, event=lambda t, y: y[0] - 0.5,
    )  # fmt: skip
    torch.testing.assert_close(final.ys, solution.ys[:2], **CLOSE)


@pytest.mark.parametrize("end", [1.0, -1.0])
def test_steps_past_the_last_requested_time_find_no_events_there(end):
    # A step of 0.75 ends at 1.5; the first sample's event is at 0.9, the second's at 1.2.
    solution = solve(
        lambda t, y: -math.copysign(1, end) * torch.ones_like(y), torch.tensor([0.9, 1.2]),
        torch.tensor([0.0, end]), first_step=0.75, max_step=0.75, land=False, dense=True,
        event=lambda t, y: y,
    )  # fmt: skip
    assert abs(solution.stats.step_ends[-1]) == 1.5
    expected = torch.tensor([0.9 * end, math.inf * end])
    torch.testing.assert_close(solution.event_times, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(solution.ys[-1], torch.tensor([0.0, 0.2]), rtol=0, atol=1e-12)
    torch.testing.assert_close(solution.evaluate(end), solution.ys[-1], rtol=0, atol=1e-12)


def test_samples_that_begin_with_their_event_never_move():
    ts = torch.tensor([0.0, 0.5, 1.0])
    solution = solve(
        decay, torch.tensor([1.0, 2.0]), ts, event=lambda t, y: y - 1, dense=True, **TIGHT
    )
    assert solution.event_times[0] == 0
    assert bool((solution.ys[:, 0] == 1).all())
    assert bool((solution.evaluate(torch.tensor([0.1, 0.9]))[:, 0] == 1).all())
    assert solution.event_times[1].item() == pytest.approx(math.log(2), abs=1e-8)
    whole = solve(decay, torch.tensor([1.0, 2.0]), ts, event=lambda t, y: y[0] - 1, dense=True)
    assert whole.stats.accepted == 0
    assert torch.equal(whole.ys, torch.tensor([1.0, 2.0]).expand(3, 2))
    assert torch.equal(whole.evaluate(0.7), torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("samples", [True, False])
def test_what_has_ended_cannot_make_the_solve_fail(samples):
    def event(t, y):
        return y - 4 if samples else y.max() - 4

    # y' = y² blows up at 1 / y0; standing still, it does not.
    y0, ts = torch.tensor([1.0, 0.5]), torch.tensor([0.0, 0.5, 10.0])
    solution = solve(lambda t, y: y**2, y0, ts, event=event, **TIGHT)
    assert solution.status is Status.SUCCESS
    expected = 1 / y0 - 0.25 if samples else torch.tensor(0.75)
    torch.testing.assert_close(solution.event_times, expected, **CLOSE)
    end = torch.full((2,), 4.0) if samples else 1 / (1 / y0 - 0.75)
    torch.testing.assert_close(solution.ys[-1], end, **CLOSE)


def test_loose_absolute_tolerances_do_not_blur_events_of_large_states():
    solution = solve(
        oscillator, torch.tensor([1e6, 0.0]), torch.tensor([0.0, 3.0]),
        rtol=1e-9, atol=1.0, event=lambda t, y: y[0],
    )  # fmt: skip
    # An error of 1 in 1e6, a few times over.
    assert solution.event_times.item() == pytest.approx(math.pi / 2, abs=5e-6)


@pytest.mark.parametrize("name", [*FIXED, "dopri5"])
def test_events_are_found_with_the_order_of_the_steps(name):
    errors = []
    for step in (0.1, 0.05):
        solution = solve(
            oscillator, torch.tensor([1.0, 0.0]), torch.tensor([0.0, 3.0]),
            method=name, step=step, event=lambda t, y: y[0] - 0.2 * y[1],
        )  # fmt: skip
        time = math.pi - math.atan(5.0)  # cos t + 0.2 sin t = 0
        state = torch.tensor([math.cos(time), -math.sin(time)])
        error = max(
            abs(float(solution.event_times) - time), float((solution.ys[-1] - state).abs().max())
        )
        errors.append(error)
    order = min(METHODS[name].order, 4)
    # Half a step makes the error 2^order times smaller; half of that where the event lies in its
    # step differs.
    assert errors[0] / errors[1] > 0.5 * 2**order


@pytest.mark.parametrize("gradient", EXACT)
def test_events_of_nested_states_see_the_nest(gradient):
    gravity, height = leaf(9.81), leaf([1.0, 2.0, 50.0])
    ts = torch.tensor([0.0, 1.0, 1.5])
    solution = solve(
        lambda t, s: {"h": s["v"][:, 0], "v": -gravity.expand(3, 1)},
        {"h": height, "v": torch.zeros(3, 1)}, ts, gradient=gradient, event=lambda t, s: s["h"],
    )  # fmt: skip
    landing = torch.sqrt(2 * height / gravity)[:2]
    torch.testing.assert_close(solution.event_times[:2], landing, rtol=1e-12, atol=0)
    assert solution.event_times[2] == math.inf
    torch.testing.assert_close(solution.ys["v"][-1, :2, 0], -gravity * landing)
    found = torch.autograd.grad(solution.event_times[:2].sum(), (gravity, height))
    right = torch.autograd.grad(landing.sum(), (gravity, height))
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-12)


def test_events_of_states_without_axes_and_of_complex_states():
    ts = torch.tensor([0.0, 2.0])
    lone = solve(decay, torch.tensor(2.0), ts, event=lambda t, y: y - 1, **TIGHT)
    assert lone.event_times.item() == pytest.approx(math.log(2), abs=1e-8)
    speed = leaf(1.5)
    wheel = solve(
        lambda t, y: 1j * speed * y, torch.ones(2) + 0j, ts, event=lambda t, y: y.real, **TIGHT
    )
    torch.testing.assert_close(wheel.event_times, (math.pi / 2 / speed).expand(2), **CLOSE)
    (found,) = torch.autograd.grad(wheel.event_times.sum(), speed)
    assert float(found) == pytest.approx(-math.pi / 1.5**2, abs=1e-7)


def test_events_in_single_precision_are_as_exact_as_it_is():
    y0 = torch.tensor([2.0, 3.0], dtype=torch.float32, requires_grad=True)
    ts = torch.tensor([0.0, 0.7, 3.0], dtype=torch.float32)
    solution = solve(decay, y0, ts, rtol=1e-6, atol=1e-7, event=lambda t, y: y - 1)
    assert solution.ys.dtype == torch.float32
    expected = torch.log(y0.detach().double())
    torch.testing.assert_close(solution.event_times.detach(), expected, rtol=0, atol=1e-5)
    (found,) = torch.autograd.grad(solution.event_times.sum(), y0)
    torch.testing.assert_close(found, 1 / y0.detach(), rtol=0, atol=1e-4)


def test_events_after_a_jump_of_the_field_are_exact():
    solution = solve(
        lambda t, y: -y if t < 0.5 else -4 * y,
        torch.tensor([2.0, 1.0]), torch.tensor([0.0, 1.5]),
        jumps=(0.5,), event=lambda t, y: y - 0.5, **TIGHT,
    )  # fmt: skip
    expected = 0.5 + (torch.log(torch.tensor([4.0, 2.0])) - 0.5) / 4
    torch.testing.assert_close(solution.event_times, expected, **CLOSE)


def test_checkpoint_repeats_large_states_as_they_were_before_their_events():
    y0, rate = (1 + torch.rand(41, 400)).requires_grad_(), leaf(0.9)
    assert y0.numel() > 1 << 14  # those are repeated evaluation by evaluation
    found = []
    for gradient in EXACT:
        solution = solve(
            lambda t, y: -rate * y * (1 + torch.sin(t)), y0, torch.tensor([0.0, 0.5, 1.0]),
            gradient=gradient, event=lambda t, y: y.mean(1) - 0.7 - 0.01 * t,
        )  # fmt: skip
        assert bool(torch.isfinite(solution.event_times).all())
        loss = solution.event_times.sum() + solution.ys.sum()
        found.append(torch.autograd.grad(loss, (y0, rate)))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


def test_a_failed_solve_keeps_what_it_reached_and_the_events_until_then():
    ts = torch.tensor([0.0, 0.5, 2.0])
    settings: dict[str, Any] = {
        "event": lambda t, y: y[:, 0] - torch.tensor([math.inf, 0.75]),
        "dense": True,
        "rtol": 1e-6,
        "atol": 1e-8,
    }
    y0 = torch.tensor([[1.0], [0.6]])  # the first sample blows up at 1
    with pytest.raises(SolverError, match=r"solve stopped at t = 1\S*: "):
        solve(lambda t, y: y**2, y0, ts, **settings)
    solution = solve(lambda t, y: y**2, y0, ts, throw=False, **settings)
    assert solution.status is not Status.SUCCESS
    assert solution.event_times[0] == math.inf
    assert solution.event_times[1].item() == pytest.approx(1 / 0.6 - 1 / 0.75, abs=1e-6)
    # The second sample has ended before 0.5.
    expected = torch.tensor([[2.0], [0.75]])
    torch.testing.assert_close(solution.ys[1], expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(solution.evaluate(0.5), expected, rtol=0, atol=1e-4)
    assert bool(solution.ys[2].isnan().all())
    with pytest.raises(ValueError, match=r"t must lie between 0 and \S+, got 2"):
        solution.evaluate(2.0)


BAD_EVENTS = [
    ({"event": lambda t, y: float(y[0, 0])}, "a tensor of real numbers, got float"),
    ({"event": lambda t, y: y[:, 0] * 1j}, "a tensor of real numbers, got torch.complex128"),
    ({"event": lambda t, y: y}, r"one value, or one per sample .* got shape \(3, 3\)"),
    # One time per sample would be spread over features here, without an error.
    ({"event": lambda t, y: (y - torch.cos(t)).sum(1)}, r"t of shape \(3,\), .*t\.view\(-1, 1\)"),
    ({"event": lambda t, y: y[:, 0] - t.item()}, "must also take one time per sample"),
    ({"ts": torch.tensor([[0.0, 1.0]] * 3)}, "event needs times that all samples share"),
    ({"gradient": "adjoint"}, "event needs .*gradient='checkpoint' or 'direct'"),
    ({"compile": True}, "event needs .*no compile=True"),
    ({"event": None, "dense": True, "gradient": "adjoint"}, "dense needs times"),
    ({"event": None, "dense": True, "compile": True}, "dense needs times"),
    (
        {"event": None, "dense": True, "ts": torch.tensor([[0.0, 1.0]] * 3)},
        "dense needs times that all samples share",
    ),
]


@pytest.mark.parametrize(("change", "message"), BAD_EVENTS)
def test_events_that_cannot_be_found_are_refused_in_one_sentence(change, message):
    call: dict[str, Any] = {"event": lambda t, y: y[:, 0], "ts": torch.tensor([0.0, 1.0])}
    with pytest.raises(ValueError, match=message) as caught:
        solve(decay, torch.ones(3, 3), **{**call, **change})
    assert "\n" not in str(caught.value)


def test_transforms_refuse_events_instead_of_losing_their_derivatives():
    def time(rate):
        ts = torch.tensor([0.0, 2.0])
        return solve(
            lambda t, y: -rate * y, torch.ones(1), ts,
            method="rk4", event=lambda t, y: y[0] - 0.5,
        ).event_times  # fmt: skip

    with pytest.raises(ValueError, match=r"event cannot be found under torch\.func"):
        torch.func.jvp(time, (torch.tensor(1.0),), (torch.tensor(1.0),))


# Dense output


@pytest.mark.parametrize("name", sorted(METHODS))
def test_dense_output_is_as_good_between_the_requested_times_as_at_them(name):
    settings: dict[str, Any] = {"rtol": 1e-7, "atol": 1e-7} if name in ADAPTIVE else {"step": 0.05}
    ts = torch.tensor([0.0, 1.0, 2.0])
    y0 = torch.tensor([1.0, 0.0])
    solution = solve(oscillator, y0, ts, method=name, dense=True, max_steps=100_000, **settings)
    plain = solve(oscillator, y0, ts, method=name, max_steps=100_000, **settings)
    torch.testing.assert_close(solution.ys, plain.ys, rtol=0, atol=1e-13)
    torch.testing.assert_close(solution.evaluate(ts), solution.ys, rtol=0, atol=1e-13)
    times = torch.linspace(0, 2, 101)[torch.randperm(101)]
    exact = torch.stack((torch.cos(times), -torch.sin(times)), dim=1)
    between = float((solution.evaluate(times) - exact).abs().max())
    at = float((solution.ys[:, 0] - torch.cos(ts)).abs().max())
    # The dense output of dopri8, of order five, and of kvaerno5, of order three, lags behind.
    assert between < (1e-5 if name in ("dopri8", "kvaerno5") else 4 * at + 1e-7)


def test_dense_output_is_that_of_times_however_they_are_asked_for():
    ts = torch.tensor([0.5, 2.0])
    solution = solve(decay, torch.ones(2, 3), ts, dense=True, **TIGHT)
    row = torch.tensor([1.7, 0.5, 1.1, 2.0, 1.1])
    states = solution.evaluate(row)
    exact = torch.exp(0.5 - row)[:, None, None].expand(5, 2, 3)
    torch.testing.assert_close(states, exact, **CLOSE)
    for time, state in zip(row, states, strict=True):
        torch.testing.assert_close(solution.evaluate(time), state, rtol=0, atol=1e-14)
        torch.testing.assert_close(solution.evaluate(time.item()), state, rtol=0, atol=1e-14)
    assert solution.evaluate(torch.zeros(0)).shape == (0, 2, 3)


@pytest.mark.parametrize("gradient", EXACT)
@pytest.mark.parametrize("name", ["euler", "rk4", "dopri5"])
def test_gradients_of_dense_output_are_finite_differences(name, gradient):
    def evaluated(times, y0, ts, rate):
        solution = solve(
            lambda t, y: -rate * y * (1 + t), y0, ts,
            method=name, step=0.21, gradient=gradient, dense=True,
        )  # fmt: skip
        return solution.evaluate(times)

    times = leaf([0.31, 0.9, 0.05, 1.2])
    assert gradcheck(evaluated, (times, leaf([2.0, 3.0]), leaf([0.0, 0.4, 1.3]), leaf(1.1)))


def test_the_derivative_of_dense_output_with_respect_to_time_is_the_field():
    y0, ts = torch.tensor([2.0, 1.0]), torch.tensor([3.0, 0.0])
    field = NONLINEAR["lotka-volterra"].field
    solution = solve(field, y0, ts, dense=True, **TIGHT)
    for time in (2.9, 1.234, 0.05):
        time = leaf(time)
        state = solution.evaluate(time)
        slope = torch.stack([torch.autograd.grad(one, time, retain_graph=True)[0] for one in state])
        # One order less than the state, whose error is 1e-9.
        torch.testing.assert_close(slope, field(time, state), rtol=0, atol=1e-6)


def test_dense_output_of_a_field_that_jumps_is_exact_on_both_sides():
    solution = solve(
        lambda t, y: -y if t < 0.5 else -4 * y,
        torch.ones(1), torch.tensor([0.0, 1.5]), jumps=(0.5,), dense=True, **TIGHT,
    )  # fmt: skip
    times = torch.tensor([1.3, 0.2, 0.49999, 0.5, 0.50001])
    exact = torch.exp(-times.clamp(max=0.5) - 4 * (times - 0.5).clamp(min=0))
    torch.testing.assert_close(solution.evaluate(times)[:, 0], exact, **CLOSE)


def test_autocast_leaves_events_and_dense_output_their_digits():
    # Nothing in this field is for autocast, so that what changes would be the engine's own doing.
    y0, ts = torch.full((3, 4), 1.5).float(), torch.tensor([0.0, 1.0])
    level, found = torch.tensor(1.0), []
    for cast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            path = solve(decay, y0, ts, dense=True)
            one = solve(decay, y0, ts, event=lambda t, y: y[0, 0] - level)
            each = solve(decay, y0, ts, event=lambda t, y: y[:, 0] - level)
            states = path.evaluate(torch.tensor([0.3, 0.7])), one.ys, each.ys
        found.append((*states, one.event_times, each.event_times))
    assert found[1][0].dtype == torch.float32
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


class Tracked(torch.nn.Module):
    """A state and how far it has come, side by side."""

    interval = (0.0, 1.0)

    def __init__(self):
        super().__init__()
        self.turn = torch.nn.Linear(2, 2)

    def initial(self, x):
        return {"place": x, "way": x.new_zeros(len(x))}

    def forward(self, t, y):
        speed = self.turn(y["place"])
        return {"place": speed, "way": speed.norm(dim=1)}

    def read_out(self, y):
        return torch.cat((y["place"], y["way"][:, None]), dim=1)


@pytest.mark.parametrize(
    "options", [{}, {"independent": True}, {"gradient": "adjoint"}, {"ignore": (1,)}]
)
def test_a_block_takes_nested_states(options):
    tracked, x = Tracked(), torch.randn(3, 2)
    block = bfno.NeuralODE(tracked, **TIGHT, **options)
    y0, ts = tracked.initial(x), torch.tensor([0.0, 1.0])
    ys = solve(tracked, y0, ts, **TIGHT, **options).ys
    found = block(x)
    torch.testing.assert_close(found[:, :2], ys["place"][-1], rtol=0, atol=0)
    torch.testing.assert_close(found[:, 2], ys["way"][-1], rtol=0, atol=0)
    found.sum().backward()
    assert tracked.turn.weight.grad is not None


@pytest.mark.parametrize("end", [2.0, -2.0])
@pytest.mark.parametrize("samples", [True, False])
def test_dense_output_stands_still_behind_an_event(samples, end):
    sign, limit = math.copysign(1, end), leaf(1.0)
    y0, ts = torch.tensor([2.0, 3.0, 0.5]), torch.tensor([0.0, end / 2, end])
    solution = solve(
        lambda t, y: -sign * y, y0, ts, dense=True,
        event=lambda t, y: y - limit if samples else y[0] - limit, **TIGHT,
    )  # fmt: skip
    torch.testing.assert_close(solution.evaluate(ts), solution.ys, rtol=0, atol=1e-13)
    times = sign * torch.tensor([1.9, 0.3, 2.0, 0.69, 0.70, 1.2])
    stop = solution.event_times.detach().abs()
    exact = y0 * torch.exp(-torch.minimum(times.abs()[:, None], stop))
    torch.testing.assert_close(solution.evaluate(times), exact, **CLOSE)
    (found,) = torch.autograd.grad(solution.evaluate(times)[0].sum(), limit)
    # Ended samples are the limit; where all end with the first, they are a multiple of it.
    assert float(found) == pytest.approx(2.0 if samples else 5.5 / 2, abs=1e-7)


def test_dense_output_knows_ends_in_single_precision():
    ts = torch.tensor([0.0, 0.7], dtype=torch.float32)  # a little less than 0.7
    solution = solve(decay, torch.ones(1), ts, dense=True, **TIGHT)
    assert solution.evaluate(0.7).item() == pytest.approx(math.exp(-0.7), abs=1e-7)
    with pytest.raises(ValueError, match=r"between 0 and 0\.69999\d+, got 0\.70001"):
        solution.evaluate(0.70001)


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 0)])
def test_dense_output_of_lone_and_of_empty_states(shape):
    solution = solve(decay, torch.ones(shape), torch.tensor([0.0, 1.0]), dense=True, **TIGHT)
    row = torch.tensor([0.7, 0.2])
    exact = torch.exp(-row).view(2, *[1] * len(shape)).expand(2, *shape)
    torch.testing.assert_close(solution.evaluate(row), exact, **CLOSE)
    assert solution.evaluate(0.3).shape == shape


def test_dense_output_of_a_nest_is_a_nest():
    solution = solve(
        lambda t, s: {"x": s["p"][0], "p": [-s["x"]]},
        {"x": torch.ones(2, 1), "p": [torch.zeros(2, 1)]}, torch.tensor([0.0, 2.0]),
        dense=True, **TIGHT,
    )  # fmt: skip
    state = solution.evaluate(torch.tensor([1.5, 0.2]))
    exact = torch.tensor([1.5, 0.2])[:, None, None].expand(2, 2, 1)
    torch.testing.assert_close(state["x"], torch.cos(exact), **CLOSE)
    torch.testing.assert_close(state["p"][0], -torch.sin(exact), **CLOSE)


def test_dense_output_is_refused_outside_its_interval_and_where_there_is_none():
    ts = torch.tensor([0.0, 1.0])
    solution = solve(decay, torch.ones(2), ts, dense=True)
    for time in (1.1, -0.1, math.nan, torch.tensor([0.5, 2.0])):
        with pytest.raises(ValueError, match="t must lie between 0 and 1, got"):
            solution.evaluate(time)
    with pytest.raises(ValueError, match=r"one row of times, got shape \(2, 2\)"):
        solution.evaluate(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="evaluate needs a solve with dense=True"):
        solve(decay, torch.ones(2), ts).evaluate(0.5)
    broken = solve(lambda t, y: y * math.nan, torch.ones(2), ts, dense=True, throw=False)
    assert torch.equal(broken.evaluate(0.0), torch.ones(2))
    with pytest.raises(ValueError, match="t must lie between 0 and 0, got"):
        broken.evaluate(0.5)


# Callbacks


@pytest.mark.parametrize("gradient", ["direct", "checkpoint", "adjoint"])
@pytest.mark.parametrize("settings", [{}, {"method": "rk4", "step": 0.3}])
def test_callbacks_see_every_accepted_step_once_and_none_of_the_backward_pass(settings, gradient):
    seen, rate = [], leaf(1.3)
    ts = torch.tensor([0.0, 0.7, 2.0])
    solution = solve(
        lambda t, s: (-rate * s[0],), (torch.ones(2),), ts, gradient=gradient,
        on_step=lambda *told: seen.append((told[0], told[1][0], told[2].accepted)), **settings,
    )  # fmt: skip
    solution.ys[0].sum().backward()
    times, states, counts = zip(*seen, strict=True)
    assert list(times) == solution.stats.step_ends
    assert list(counts) == list(range(1, len(seen) + 1))
    assert not any(state.requires_grad for state in states)
    exact = torch.exp(-1.3 * torch.tensor(times))
    torch.testing.assert_close(torch.stack(states)[:, 0], exact, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(states[-1], solution.ys[0][-1].detach())


def test_an_error_in_a_callback_ends_the_solve_and_reaches_the_caller():
    def stop(time, state, stats):
        if stats.accepted == 3:
            raise KeyboardInterrupt(f"{time:g}")

    with pytest.raises(KeyboardInterrupt, match=r"0\.3"):
        solve(decay, torch.ones(1), torch.tensor([0.0, 1.0]), method="rk4", step=0.1, on_step=stop)


@pytest.mark.parametrize("memory", [0, None, "log"])
@pytest.mark.parametrize("inference", [False, True])
def test_a_callback_that_changes_the_state_in_place_is_refused(memory, inference):
    y0, ts = torch.ones(2), torch.tensor([0.0, 1.0])
    call: Any = {"memory": memory, "on_step": lambda t, y, stats: y["a"].mul_(1.01)}
    with torch.inference_mode(inference), pytest.raises(ValueError, match="on_step must not"):
        solve(lambda t, y: {"a": -y["a"]}, {"a": y0}, ts, **call)


# States


def turn(t, y):
    """A spiral for every pair of rows."""
    return torch.cat((y[1:], -y[:1])) - 0.1 * y


NESTS = {
    "tuple": (lambda a, b: (a, b), lambda s: s),
    "list": (lambda a, b: [a, b], lambda s: s),
    "dict": (lambda a, b: {"b": b, "a": a}, lambda s: (s["a"], s["b"])),
    "nest": (lambda a, b: {"x": (a, [b])}, lambda s: (s["x"][0], s["x"][1][0])),
}


@pytest.mark.parametrize("gradient", ["direct", "checkpoint", "adjoint"])
@pytest.mark.parametrize("kind", sorted(NESTS))
def test_nests_of_tensors_are_solved_like_one_tensor(kind, gradient):
    join, part = NESTS[kind]

    def field(t, state):
        slope = turn(t, torch.stack(part(state)))
        return join(slope[0], slope[1])

    y0 = torch.randn(2, 3, requires_grad=True)
    ts = torch.tensor([0.0, 0.5, 1.0])
    ys = torch.stack(part(solve(field, join(*y0), ts, gradient=gradient, **TIGHT).ys), dim=1)
    right = solve(turn, y0, ts, **TIGHT).ys
    torch.testing.assert_close(ys, right, **CLOSE)
    weight = torch.randn(3, 2, 3)
    (one,) = torch.autograd.grad((ys * weight).sum(), y0)
    (other,) = torch.autograd.grad((right * weight).sum(), y0)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


def test_the_order_of_keys_in_a_derivative_does_not_matter():
    y0 = {"x": torch.ones(2), "v": torch.zeros(2)}
    ts = torch.tensor([0.0, 1.0])
    ys = solve(lambda t, s: {"v": -s["x"], "x": s["v"]}, y0, ts, **TIGHT).ys
    torch.testing.assert_close(ys["x"][-1], torch.full((2,), math.cos(1)), **CLOSE)
    torch.testing.assert_close(ys["v"][-1], torch.full((2,), -math.sin(1)), **CLOSE)


def test_components_keep_their_dtypes_and_their_mathematics():
    y0 = (torch.ones(2, dtype=torch.float32), torch.ones(3) + 0j, torch.tensor(2.0))
    ts = torch.tensor([0.0, 1.0])
    ys = solve(lambda t, s: (-s[0], 1j * s[1] * s[2], -s[2]), y0, ts, **TIGHT).ys
    assert [one.dtype for one in ys] == [torch.float32, torch.complex128, torch.float64]
    angle = torch.tensor(2 * (1 - math.exp(-1)))
    torch.testing.assert_close(ys[1][-1], torch.polar(torch.ones(3), angle.expand(3)), **CLOSE)
    torch.testing.assert_close(ys[0][-1], torch.full((2,), math.exp(-1)).float())


@pytest.mark.parametrize("gradient", ["direct", "checkpoint", "adjoint"])
def test_complex_states_and_weights_have_the_gradients_of_their_real_and_imaginary_parts(gradient):
    weight = torch.randn(2, 2, dtype=torch.complex128, requires_grad=True)
    y0 = torch.randn(3, 2, dtype=torch.complex128, requires_grad=True)
    scale, ts = leaf(0.3), torch.tensor([0.0, 0.4, 0.9])
    cotangent = torch.randn(3, 3, 2, dtype=torch.complex128)

    def complex_field(t, y):
        return torch.sin(y) @ weight * t + scale * y.conj()

    def real_field(t, pair):
        y = torch.view_as_complex(pair)
        return torch.view_as_real(torch.sin(y) @ weight * t + scale * y.conj())

    leaves = (y0, weight, scale)
    ys = solve(complex_field, y0, ts, gradient=gradient, **TIGHT).ys
    found = torch.autograd.grad((ys * cotangent).real.sum(), leaves)
    pairs = solve(real_field, torch.view_as_real(y0), ts, gradient="direct", **TIGHT).ys
    torch.testing.assert_close(ys, torch.view_as_complex(pairs), **CLOSE)
    right = torch.autograd.grad((torch.view_as_complex(pairs) * cotangent).real.sum(), leaves)
    torch.testing.assert_close(found, right, rtol=0, atol=1e-6)


def test_empty_batches_of_nests_are_solved():
    y0, ts = (torch.ones(0, 3), torch.ones(0)), torch.tensor([0.0, 1.0])

    def field(t, state):
        return tuple(-part for part in state)

    solution = solve(field, y0, ts, event=lambda t, s: s[1] - 0.5)
    assert solution.event_times.shape == (0,)
    assert solution.ys[0].shape == (2, 0, 3)
    rows = solve(field, y0, torch.zeros(0, 2)).ys
    assert rows[0].shape == (0, 2, 3)


# Methods


def test_a_tableau_of_ones_own_is_a_method():
    # Ralston's third-order method.
    weights = (2 / 9, 1 / 3, 4 / 9)
    ralston = Tableau(
        "ralston3", 3, ((), (0.5,), (0.0, 0.75)), weights, None, tuple((w,) for w in weights), 1
    )
    y0, ts = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])
    exact = torch.tensor([math.cos(2), -math.sin(2)])
    errors = [
        float((solve(oscillator, y0, ts, method=ralston, step=step).ys[-1] - exact).norm())
        for step in (0.1, 0.05)
    ]
    assert errors[0] / errors[1] == pytest.approx(8, rel=0.1)  # the third order
    dense = solve(oscillator, y0, ts, method=ralston, step=0.05, dense=True)
    assert dense.evaluate(0.975)[0].item() == pytest.approx(math.cos(0.975), abs=1e-5)
    named = solve(oscillator, y0, ts, method=METHODS["dopri5"], **TIGHT)
    assert torch.equal(named.ys, solve(oscillator, y0, ts, method="dopri5", **TIGHT).ys)


# Function transforms


def ended(y0, rate, ts=(0.0, 0.7, 2.0)):
    ts = torch.tensor(ts) if isinstance(ts, tuple) else ts
    return solve(lambda t, y: -rate * y * t, y0, ts, method="rk4", step=0.25).ys[-1]


def test_transforms_of_fixed_steps_are_the_derivatives_of_autograd():
    y0, rate = torch.tensor([1.0, 2.0]), torch.tensor(0.5)
    right = torch.autograd.functional.jacobian(ended, (y0, rate))
    torch.testing.assert_close(torch.func.jacrev(ended, argnums=(0, 1))(y0, rate), right)
    torch.testing.assert_close(torch.func.jacfwd(ended, argnums=(0, 1))(y0, rate), right)
    tangents = (torch.tensor([0.3, -1.0]), torch.tensor(2.0))
    pushed = torch.func.jvp(ended, (y0, rate), tangents)[1]
    torch.testing.assert_close(pushed, right[0] @ tangents[0] + right[1] * tangents[1])
    back = torch.func.vjp(ended, y0, rate)[1](torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(back[0], torch.tensor([1.0, 3.0]) @ right[0])
    torch.testing.assert_close(back[1], torch.tensor([1.0, 3.0]) @ right[1])
    by_rate = torch.func.grad(lambda rate: ended(y0, rate).sum())(rate)
    torch.testing.assert_close(by_rate, right[1].sum())
    # d²/dr² of y0 exp(-2 r) is four times itself, up to the error of the steps.
    curved = torch.func.hessian(lambda rate: ended(y0, rate).sum())(rate)
    assert float(curved) == pytest.approx(4 * 3 * math.exp(-1), rel=1e-3)


def test_vmap_solves_many_at_once_as_it_would_one_by_one():
    y0, rates = torch.randn(3, 2), torch.tensor([0.5, 1.0, -0.2])
    together = torch.func.vmap(ended)(y0, rates)
    alone = torch.stack([ended(y, rate) for y, rate in zip(y0, rates, strict=True)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-14)
    per_sample = torch.func.vmap(torch.func.grad(lambda y, rate: ended(y, rate).sum(), argnums=1))
    found = per_sample(y0, rates)
    exact = -2 * torch.exp(-2 * rates) * y0.sum(1)
    torch.testing.assert_close(found, exact, rtol=1e-2, atol=0)


def test_transforms_see_fields_that_write_into_their_input_as_if_they_did_not():
    def end(y, field):
        return solve(field, y, torch.tensor([0.0, 1.0]), method="rk4", step=0.1).ys[-1].sum()

    x, tangent = torch.ones(2), torch.tensor([1.0, 2.0])
    for transform in (
        lambda f: torch.func.vmap(f)(torch.ones(3, 2)),
        lambda f: torch.func.jvp(f, (x,), (tangent,))[1],
    ):
        written = transform(lambda y: end(y, lambda t, y: y.neg_()))
        torch.testing.assert_close(written, transform(lambda y: end(y, lambda t, y: -y)))


def test_forward_derivatives_reach_requested_times():
    ts, y0, rate = torch.tensor([0.0, 0.7, 2.0]), torch.tensor([1.0, 2.0]), torch.tensor(0.5)
    tangent = torch.tensor([0.0, 0.0, 1.0])
    slope = torch.func.jvp(lambda ts: ended(y0, rate, ts), (ts,), (tangent,))[1]
    # The last time moves along the field, up to the error of the steps.
    torch.testing.assert_close(slope, -rate * ended(y0, rate) * 2, rtol=1e-2, atol=0)
    backward = torch.func.jacrev(lambda ts: ended(y0, rate, ts))(ts)
    torch.testing.assert_close(slope, backward @ tangent)


# Times


@pytest.mark.parametrize("moving", [False, True])
def test_single_precision_times_are_solved_for_in_double_precision(moving):
    ts = torch.tensor([0.1, 0.7, 1.3], dtype=torch.float32)
    settings: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}

    def field(t, y):
        return torch.cos(3 * t) * y

    right = solve(field, torch.ones(1), ts.double(), **settings)
    found = solve(field, torch.ones(1), ts.clone().requires_grad_(moving), **settings)
    assert found.stats.accepted == right.stats.accepted
    torch.testing.assert_close(found.ys, right.ys, rtol=0, atol=1e-13)


# Refusals


def swapped(t, state):
    return state[1], state[0]


def shrinking():
    """A field whose later stages return another shape."""
    calls = []

    def field(t, y):
        calls.append(t)
        return -y if len(calls) < 4 else -y[:1]

    return field


def batch_norm_in_a_lambda():
    layer = torch.nn.BatchNorm1d(2)
    return lambda t, y: layer(y)


PAIR = (torch.ones(2, 3), torch.ones(3, 2))
REFUSED = {
    "swapped components": (swapped, PAIR, r"shape \(2, 3\) as its component 0, got \(3, 2\)"),
    "transposed component": (
        lambda t, s: (s[0].T, s[1]), PAIR, r"shape \(2, 3\) as its component 0, got \(3, 2\)",
    ),
    "too few components": (lambda t, s: (s[0],), PAIR, "must return 2 components"),
    "tensor for a tuple": (lambda t, s: s[0], PAIR, "must return 2 tensors, .*got Tensor"),
    "other keys": (lambda t, s: {"b": s["a"]}, {"a": torch.ones(2)}, r"keys \['a'\], got .*'b'"),
    "other keys inside": (
        lambda t, s: ({"b": s[0]["a"]},), ({"a": torch.ones(2)},), r"keys \['a'\], got .*'b'",
    ),
    "tuple for a dict": (lambda t, s: (s["a"],), {"a": torch.ones(2)}, r"\['a'\], got tuple"),
    "complex for real": (
        lambda t, s: (1j * s[0], s[1]), (torch.ones(2), torch.ones(2) + 0j), "must return real",
    ),
    "later shapes": (None, torch.ones(3, 2), r"the state's shape \(3, 2\), got \(1, 2\)"),
    "batch norm": (None, torch.ones(4, 2).double(), "BatchNorm in training mode, .*GroupNorm"),
    "in place": (lambda t, y: y.mul_(-1), torch.ones(2), "must not change its state in place"),
    "in place inside": (
        lambda t, s: (s[0].mul_(-1), s[1]), PAIR, "must not change its state in place",
    ),
}  # fmt: skip
MAKERS = {"later shapes": shrinking, "batch norm": batch_norm_in_a_lambda}


@pytest.mark.parametrize("gradient", ["direct", "checkpoint", "adjoint"])
@pytest.mark.parametrize("case", sorted(REFUSED))
def test_fields_that_cannot_be_right_are_refused_in_one_sentence(case, gradient):
    field, y0, message = REFUSED[case]
    field = MAKERS[case]() if field is None else field
    with pytest.raises(ValueError, match=message) as caught:
        solve(field, y0, torch.tensor([0.0, 1.0]), gradient=gradient)
    assert "\n" not in str(caught.value)


def test_batch_norm_is_refused_in_the_other_interface_as_well():
    class Field(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(2)

        def forward(self, t, y):
            return self.norm(y)

    y0, ts = torch.randn(4, 2), torch.tensor([0.0, 1.0])
    with pytest.raises(ValueError, match="BatchNorm in training mode, got norm"):
        odeint_adjoint(Field(), y0, ts)
    assert bool(odeint_adjoint(Field().eval(), y0, ts).isfinite().all())


# Memory


@pytest.mark.parametrize(
    "settings",
    [
        {}, {"gradient": "direct"}, {"gradient": "adjoint"}, {"method": "rk4"}, {"dense": True},
        {"event": lambda t, y: y[:, 0] - 0.5}, {"on_step": lambda *told: None},
    ],
    ids=lambda settings: " ".join(settings) or "plain",
)  # fmt: skip
@pytest.mark.parametrize("backward", [True, False])
def test_a_solve_that_is_let_go_holds_no_memory_until_python_looks_for_cycles(settings, backward):
    gc.collect()
    gc.disable()
    try:
        rate = leaf(1.0)
        y0 = torch.ones(4, 1) * rate
        held = weakref.ref(y0)
        solution = solve(lambda t, y: -rate * y, y0, torch.tensor([0.0, 1.0]), **settings)
        if backward:
            solution.ys.sum().backward()
        del solution, y0
        assert held() is None
    finally:
        gc.enable()


# What a reader found


@pytest.mark.parametrize("gradient", ["direct", "adjoint"])
@pytest.mark.parametrize("steps", [{"method": "euler", "step": 0.5}, {"method": "rk4"}, {}])
def test_a_field_may_jump_where_the_solve_starts(steps, gradient):
    ys = solve(
        lambda t, y: torch.where(t <= 0, 1.0, 0.0) * torch.ones_like(y), torch.zeros(1),
        torch.tensor([0.0, 1.0]), jumps=(0.0,), gradient=gradient, **steps,
    ).ys  # fmt: skip
    assert ys[-1].item() == 0


@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_jumps_at_large_times_have_two_sides(method):
    time = float(2**25)  # beyond which single precision knows every second number at best
    ys = solve(
        lambda t, y: (t > time).to(y.dtype) * torch.ones_like(y),
        torch.zeros(1, dtype=torch.float32), torch.tensor([time - 1000, time + 1000]),
        method=method, step=100.0, jumps=(time,),
    ).ys  # fmt: skip
    assert ys[-1].item() == 1000


def test_samples_that_have_ended_do_not_loosen_the_tolerance_of_the_others():
    def error(others):
        y0 = torch.tensor([[1.0, 0.0]]).expand(1 + others, 2)
        rest = torch.arange(1 + others) > 0
        solution = solve(
            lambda t, y: torch.stack((y[:, 1], -100 * y[:, 0]), dim=-1), y0,
            torch.tensor([0.0, 10.0]), rtol=1e-5, atol=1e-5,
            event=lambda t, y: torch.where(rest, 0.01 - t, 1.0),
        )  # fmt: skip
        return abs(solution.ys[-1, 0, 0].item() - math.cos(100))

    assert error(99) == pytest.approx(error(0), rel=1e-3)


def test_a_component_that_does_not_count_may_not_become_nonsense():
    solution = solve(
        lambda t, s: (-s[0], torch.where(t > 0.5, math.nan, 1.0) * torch.ones(1)),
        (torch.ones(1), torch.ones(1)), torch.tensor([0.0, 1.0]), ignore=(1,), throw=False,
    )  # fmt: skip
    assert solution.status is Status.NON_FINITE


def test_an_event_that_is_defined_on_one_side_only_is_refused():
    def event(t, y):
        return torch.sqrt(y[0] - 0.5)

    with pytest.raises(ValueError, match=r"not-a-number at t = .*both sides"):
        solve(decay, torch.ones(1), torch.tensor([0.0, 2.0]), event=event)
    with pytest.raises(ValueError, match=r"not-a-number at t = .*both sides"):
        bfno.odeint_event(decay, torch.ones(1), torch.tensor(0.0), event_fn=event)


def test_rows_of_times_are_as_exact_as_shared_times_with_coarse_dense_output():
    ts = torch.linspace(0, 2, 7)
    exact = torch.exp(-torch.sin(ts))
    settings: dict[str, Any] = {"method": "dopri8", "rtol": 1e-11, "atol": 1e-11}
    found = solve(
        lambda t, y: -torch.cos(t)[:, None] * y, torch.ones(2, 1), ts.expand(2, 7), **settings
    ).ys
    torch.testing.assert_close(found[0, :, 0], exact, rtol=0, atol=1e-10)
