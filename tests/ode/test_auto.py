"""`method="auto"`: explicit where that is enough, implicit where the field is stiff."""

from typing import Any

import pytest
import torch
from torch import nn

import bfno
from bfno import odeint, solve
from bfno.ode import GradientError, Status
from tests.ode.problems import NONLINEAR
from tests.ode.test_stiffness import relaxing, robertson, van_der_pol

ONE = torch.tensor([0.0, 1.0], dtype=torch.float64)
TIGHT: dict[str, Any] = {"method": "auto", "rtol": 1e-8, "atol": 1e-10}


def names(solution):
    return [name for _, name in solution.stats.switches]


def follower(p):
    """A slow decay, and a variable that follows it a thousand times as fast."""
    return torch.stack((torch.stack((-p, 0 * p)), torch.stack((1000 + 0 * p, -1000 + 0 * p))))


@pytest.mark.parametrize("settings", [{"gradient": "direct"}, {}, {"memory": 0}])
def test_solution_and_gradient_are_those_of_the_matrix_exponential(settings):
    p, y0 = torch.tensor(0.8, requires_grad=True), torch.tensor([1.0, 2.0], requires_grad=True)
    solution = solve(lambda t, y: follower(p) @ y, y0, ONE * 2, **TIGHT, **settings)
    assert names(solution) == ["kvaerno5"]
    ((begin, end),) = solution.stats.stiff
    assert begin < 0.4  # 64 steps after a first look that saw nothing
    assert end == 2
    exact = torch.matrix_exp(follower(p) * 2) @ y0
    weights = torch.tensor([1.0, -3.0])
    found = torch.autograd.grad(solution.ys[-1] @ weights, (p, y0))
    expected = torch.autograd.grad(exact @ weights, (p, y0))
    # The tolerance is per step; some hundred steps add up.
    torch.testing.assert_close(solution.ys[-1], exact, rtol=0, atol=1e-6)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_checkpoint_and_direct_are_the_same_gradient_across_switches():
    net = nn.Linear(2, 2)

    def field(t, y):
        pulse = 3000 * torch.exp(-(((t - 0.5) / 0.1) ** 2))
        return torch.tanh(net(y)) - pulse * (y - torch.cos(3 * t))

    y0, found = torch.tensor([[1.0, 0.5]], requires_grad=True), []
    ways: list[dict[str, Any]] = [{"gradient": "direct"}, {"memory": 0}]
    for settings in ways:
        solution = solve(field, y0, ONE * 3, method="auto", rtol=1e-5, atol=1e-7, **settings)
        assert names(solution) == ["kvaerno5", "tsit5"]
        gradients = torch.autograd.grad(solution.ys.square().sum(), (y0, *net.parameters()))
        found.append((solution.ys, *gradients))
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-12)  # rounding of sums


def test_it_goes_back_where_the_field_is_no_longer_stiff():
    field = relaxing(lambda t: 1 + 5000 / (1 + (20 * (t - 1)) ** 8))
    solution = solve(field, torch.ones(1), ONE * 4, **{**TIGHT, "rtol": 1e-5, "atol": 1e-7})
    assert names(solution) == ["kvaerno5", "tsit5"]
    (there, _), (back, _) = solution.stats.switches
    assert 0.9 < there < 1.1 < back < 3.0  # after some implicit steps, which are long
    exact = torch.cos(torch.tensor([4.0]))  # it begins on the cosine and stays there
    torch.testing.assert_close(solution.ys[-1], exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", NONLINEAR)
def test_smooth_fields_are_solved_as_by_the_explicit_method(name):
    problem = NONLINEAR[name]
    y0, ts = torch.tensor(problem.start), ONE * 3 * problem.end
    auto, plain = (solve(problem.field, y0, ts, method=one) for one in ("auto", "tsit5"))
    assert auto.stats.switches == []
    assert torch.equal(auto.ys, plain.ys)
    assert auto.stats.forward_evaluations == plain.stats.forward_evaluations


def test_robertson_is_solved_to_the_end():
    y0 = torch.tensor([1.0, 0, 0])
    solution = solve(robertson, y0, ONE * 1e5, method="auto", rtol=1e-5, atol=1e-10)
    # By SciPy's Radau at rtol=1e-10, atol=1e-14.
    expected = torch.tensor([0.01786592114, 7.274751468e-08, 0.98213400611])
    torch.testing.assert_close(solution.ys[-1], expected, rtol=1e-4, atol=0)
    assert solution.stats.accepted + solution.stats.rejected < 200


def test_van_der_pol_switches_at_its_jumps():
    solution = solve(
        van_der_pol(100.0), torch.tensor([2.0, 0.0]), ONE * 200, method="auto", rtol=1e-5, atol=1e-5
    )
    found = names(solution)
    # A jump takes so few implicit steps that one or the other may pass before it is looked at.
    assert len(found) >= 3
    assert found == ["kvaerno5", "tsit5", "kvaerno5", "tsit5", "kvaerno5"][: len(found)]
    switched = [time for time, _ in solution.stats.switches]
    assert switched == sorted(switched)


def test_dense_output_is_that_of_the_step_it_lies_in():
    field = relaxing(lambda t: 1 + 5000 / (1 + (20 * (t - 1)) ** 8))
    solution = solve(field, torch.ones(1), ONE * 4, dense=True, **TIGHT)
    assert names(solution) == ["kvaerno5", "tsit5"]
    times = torch.linspace(0, 4, 301)
    error = (solution.evaluate(times)[:, 0] - torch.cos(times)).abs()
    # Cubic between the ends of implicit steps, which are as long as 0.1: h⁴ / 384.
    assert error.max() < 1e-6
    asked = solve(field, torch.ones(1), times, **TIGHT)
    torch.testing.assert_close(asked.ys[:, 0], torch.cos(times), rtol=0, atol=1e-6)


def test_events_are_found_by_either_method():
    def field(t, y):
        return -1000 * (y - torch.cos(t)) - torch.sin(t)

    y0 = torch.tensor([[1.0], [1.2]])
    level = torch.tensor([0.9999, 0.5])
    loose: dict[str, Any] = {"method": "auto", "rtol": 1e-5, "atol": 1e-7}
    solution = solve(field, y0, ONE * 2, event=lambda t, y: y[:, 0] - level, **loose)
    # One stops while steps are explicit, the other long after the switch.
    assert names(solution) == ["kvaerno5"]
    expected = torch.acos(level)
    assert solution.event_times is not None
    # Of the first, the cosine's slope is 0.014 where it crosses: 1e-5 moves that by 7e-4. Dense
    # output of the long implicit steps, in which the second is found, is cubic.
    torch.testing.assert_close(solution.event_times, expected, rtol=0, atol=2e-3)
    torch.testing.assert_close(solution.ys[-1, :, 0], level, rtol=0, atol=1e-6)


def test_other_ways_to_ask():
    field = relaxing(1000.0)
    loose: dict[str, Any] = {"method": "auto", "rtol": 1e-5, "atol": 1e-7}
    y0 = torch.ones(2, 1, requires_grad=True)
    backward = solve(lambda t, y: -field(-t, y), y0, -ONE, **loose)
    assert names(backward) == ["kvaerno5"]
    torch.testing.assert_close(backward.ys[-1], torch.cos(ONE[1:]).expand(2, 1), rtol=0, atol=1e-4)

    def by_row(t, y):
        return -1000 * (y - torch.cos(t)[:, None]) - torch.sin(t)[:, None]

    rows = solve(by_row, y0, torch.tensor([[0.0, 1.0], [0.0, 0.5]]), **loose)
    expected = torch.cos(torch.tensor([[1.0], [0.5]]))
    torch.testing.assert_close(rows.ys[:, -1], expected, rtol=0, atol=1e-4)
    single = solve(field, torch.ones(1), ONE.float(), method="auto", rtol=1e-4, atol=1e-5)
    assert single.status is Status.SUCCESS
    nest = solve(lambda t, y: (field(t, y[0]), -y[1]), (y0, torch.ones(3)), ONE, **loose)
    torch.testing.assert_close(nest.ys[1][-1], torch.exp(-torch.ones(3)), rtol=0, atol=1e-4)
    ys = odeint(field, y0, ONE, rtol=1e-5, atol=1e-7, method="auto")
    # Its steps run past the last time, whose state is dense output of a long implicit step.
    torch.testing.assert_close(ys[-1], torch.cos(ONE[1:]).expand(2, 1), rtol=0, atol=1e-3)
    steps = solve(field, torch.ones(1), ONE, method="auto", step=0.001)
    assert torch.equal(steps.ys, solve(field, torch.ones(1), ONE, method="tsit5", step=0.001).ys)


def test_a_module_uses_it_and_what_it_cannot_do_is_refused():
    block = bfno.NeuralODE(bfno.FirstOrder(bfno.MLPField(2, 4)), method="auto")
    block(torch.ones(3, 2)).sum().backward()
    assert "method='auto'" in repr(block)
    with pytest.raises(ValueError, match="compile=True needs an explicit method"):
        solve(relaxing(1.0), torch.ones(1), ONE, method="auto", compile=True)
    y0 = torch.ones(1, requires_grad=True)
    ys = solve(relaxing(1000.0), y0, ONE, method="auto").ys
    with pytest.raises(GradientError, match="once, not twice"):
        torch.autograd.grad(ys.sum(), y0, create_graph=True)
