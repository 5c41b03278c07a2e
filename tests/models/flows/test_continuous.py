"""Continuous flows: density, regularisers, inverse and gradients."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from bfno.fields import MLPField
from bfno.fields.flow import FlowConvField
from bfno.models.flows import ContinuousFlow
from bfno.ode import SolverError, solve
from tests.models.flows.jacobians import assert_log_det_is_true, disturb, full_jacobians

FINE = {"method": "dopri8", "rtol": 1e-10, "atol": 1e-10, "gradient": "direct"}
STEPS = {"method": "rk4", "step": 0.25}
BOTH = ("kinetic", "jacobian")


class Constant(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = nn.Parameter(value)

    def forward(self, t, y):
        return self.value.expand_as(y)


class Linear(nn.Module):
    def __init__(self, matrix):
        super().__init__()
        self.matrix = nn.Parameter(matrix)

    def forward(self, t, y):
        return y @ self.matrix.T


def make_flow(dimensions=3, **options: Any):
    field = disturb(MLPField(dimensions, 8), 0.3)
    settings = {"solver": FINE, "test_solver": FINE, **options}
    return ContinuousFlow(field, (dimensions,), **settings)


def make_conv_flow(shape=(1, 3, 2), **options: Any):
    field = disturb(FlowConvField(shape[0], 3, hidden_layers=2), 0.3)
    return ContinuousFlow(field, shape, **{"solver": FINE, "test_solver": FINE, **options})


@pytest.mark.parametrize("make", [make_flow, make_conv_flow])
@pytest.mark.parametrize("end_time", [1.0, 0.6])
def test_the_density_gains_the_volume_that_the_full_jacobian_says(make, end_time):
    flow = make(trace="exact", end_time=end_time)
    assert_log_det_is_true(flow, torch.randn(2, *flow.event_shape))


def test_a_linear_field_gains_the_trace_of_its_matrix():
    matrix = 0.3 * torch.randn(3, 3)
    flow = ContinuousFlow(Linear(matrix), (3,), trace="exact", solver=FINE)
    x = torch.randn(4, 3)
    found = flow.encode(x)
    torch.testing.assert_close(found.log_det, matrix.trace().expand(4), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.latent, x @ torch.matrix_exp(matrix).T, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("noise", ["gaussian", "rademacher"])
def test_the_mean_over_many_noises_is_the_exact_trace(noise):
    exact = make_conv_flow(trace="exact", solver=STEPS)
    estimate = make_conv_flow(trace=noise, solver=STEPS, penalties=BOTH)
    estimate.load_state_dict(exact.state_dict())
    exact.penalties = BOTH
    x = torch.randn(1, 1, 3, 2)
    count = 4_000
    with torch.no_grad():
        # Each copy of the sample has a noise of its own.
        many, one = estimate.encode(x.expand(count, -1, -1, -1)), exact.encode(x)
    for found, expected in (
        (many.log_det, one.log_det),
        (many.penalties["jacobian"], one.penalties["jacobian"]),
        (many.penalties["kinetic"], one.penalties["kinetic"]),
    ):
        # Four deviations of the mean: one draw in 16,000 lies outside.
        bound = 4 * found.std() / math.sqrt(count) + 1e-12
        assert (found.mean() - expected).abs() < bound
    assert many.log_det.std() > 1e-3


def test_signs_are_signs_and_noise_is_drawn_again_for_every_call():
    flow = make_flow(trace="rademacher", solver=STEPS)
    noise = flow._noise(torch.zeros(50, 3))
    assert noise is not None and set(noise.unique().tolist()) == {-1.0, 1.0}
    x = torch.randn(2, 3)
    assert (flow.encode(x).log_det != flow.encode(x).log_det).any()


def test_a_constant_field_has_half_its_squared_speed_and_no_jacobian():
    value = torch.randn(5)
    flow = ContinuousFlow(Constant(value), (5,), penalties=BOTH, solver=STEPS)
    found = flow.encode(torch.randn(3, 5))
    expected = 0.5 * value.square().mean().expand(3)
    torch.testing.assert_close(found.penalties["kinetic"], expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(found.penalties["jacobian"], torch.zeros(3))
    assert torch.equal(found.log_det, torch.zeros(3))


def test_a_linear_field_has_the_jacobian_penalty_of_its_matrix():
    matrix = torch.diag(torch.tensor([0.5, -1.0, 2.0]))
    flow = ContinuousFlow(Linear(matrix), (3,), trace="exact", penalties=BOTH, solver=STEPS)
    found = flow.encode(torch.randn(2, 3)).penalties["jacobian"]
    torch.testing.assert_close(found, (matrix.square().sum() / 3).expand(2).detach())


def test_regularisers_do_not_change_the_accepted_steps():
    # Far from the origin the speed, and with it the kinetic integral, is large and rough.
    plain = make_flow(solver={"rtol": 1e-6, "atol": 1e-6}, trace="exact")
    watched = make_flow(solver={"rtol": 1e-6, "atol": 1e-6}, trace="exact", penalties=BOTH)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(3)
    watched.load_state_dict(plain.state_dict())
    x = 3 * torch.randn(6, 3)
    one, two = plain.encode(x), watched.encode(x)
    assert plain.stats.accepted == watched.stats.accepted > 3
    assert plain.stats.rejected == watched.stats.rejected
    assert torch.equal(one.latent, two.latent) and torch.equal(one.log_det, two.log_det)


def test_regularisers_exist_in_training_only():
    flow = make_flow(penalties=("kinetic",))
    x = torch.randn(2, 3)
    assert list(flow.encode(x).penalties) == ["kinetic"]
    assert not flow.eval().encode(x).penalties


def test_training_and_testing_use_their_own_solvers():
    flow = make_flow(solver=STEPS, test_solver={"method": "rk4", "step": 0.1})
    x = torch.randn(2, 3)
    flow.encode(x)
    assert flow.stats.forward_evaluations == 16
    flow.eval().encode(x)
    assert flow.stats.forward_evaluations == 40


@pytest.mark.parametrize("tolerance", [1e-3, 1e-5, 1e-7])
def test_the_inverse_comes_back_within_ten_tolerances(tolerance):
    settings = {"rtol": tolerance, "atol": tolerance}
    flow = make_conv_flow(test_solver=settings).eval()
    x = torch.randn(4, 1, 3, 2)
    with torch.no_grad():
        error = (flow.decode(flow.encode(x).latent) - x).abs().max()
    assert error < 10 * tolerance


def test_a_density_of_points_integrates_to_one():
    coarse = {"rtol": 1e-6, "atol": 1e-6}
    flow = make_flow(2, trace="exact", test_solver=coarse).eval()
    side = torch.linspace(-9, 9, 121)
    grid = torch.cartesian_prod(side, side)
    with torch.no_grad():
        mass = flow.log_prob(grid).exp().sum() * (side[1] - side[0]) ** 2
    assert abs(mass - 1) < 1e-3


@pytest.mark.parametrize("make", [make_flow, make_conv_flow])
def test_all_three_gradients_agree(make):
    found = []
    for gradient in ("direct", "checkpoint", "adjoint"):
        torch.manual_seed(3)
        solver = {**STEPS, "step": 0.05 if gradient == "adjoint" else 0.25, "gradient": gradient}
        flow = make(solver=solver, penalties=BOTH, learn_end_time=True)
        x = torch.randn(2, *flow.event_shape, requires_grad=True)
        encoding = flow.encode(x)
        loss = encoding.log_prob.sum() + sum(value.sum() for value in encoding.penalties.values())
        found.append(torch.autograd.grad(loss, [x, *flow.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-10)
    # The continuous adjoint is exact only in the limit of small steps; so is the gradient of four
    # steps of size 0.25.
    torch.testing.assert_close(found[2], found[0], rtol=2e-3, atol=2e-3)


def test_the_gradient_is_that_of_finite_differences():
    flow = make_conv_flow(solver=STEPS, penalties=BOTH, learn_end_time=True, trace="exact")
    x = torch.randn(1, 1, 3, 2)
    parameters = list(flow.parameters())
    encoding = flow.encode(x)
    total = encoding.log_prob.sum() + encoding.penalties["jacobian"].sum()
    for parameter, gradient in zip(parameters, torch.autograd.grad(total, parameters), strict=True):
        direction = torch.randn_like(parameter)
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign * 1e-5)
                moved = flow.encode(x)
                ends.append(moved.log_prob.sum() + moved.penalties["jacobian"].sum())
                parameter.add_(direction, alpha=-sign * 1e-5)
        slope = (ends[0] - ends[1]) / 2e-5
        torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-5, atol=1e-6)


def test_a_longer_interval_is_learned_where_it_helps():
    flow = ContinuousFlow(Linear(-torch.eye(2)), (2,), trace="exact", learn_end_time=True)
    # The data are wide, the latent variable is not: more time shrinks them further.
    flow.log_prob(4 * torch.randn(50, 2)).mean().backward()
    end = flow.sqrt_end_time
    assert isinstance(end, nn.Parameter) and end.grad is not None and end.grad > 0


def test_a_trajectory_runs_from_the_latent_variable_to_the_sample():
    flow = make_flow().eval()
    latent = torch.randn(4, 3)
    with torch.no_grad():
        way = flow.trajectory(latent, torch.linspace(0, 1, 5))
        assert torch.equal(way[0], latent)
        torch.testing.assert_close(way[-1], flow.decode(latent), rtol=1e-8, atol=1e-8)
        # Half way back is where the second half of the way forward starts.
        middle = solve(flow.field, way[-1], torch.tensor([0.0, 0.5]), **FINE).ys[-1]
    torch.testing.assert_close(way[2], middle, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("shares", [[0.5], [0.25, 1.0], [1.0]])
def test_a_trajectory_may_be_looked_at_late(shares):
    flow, latent = make_flow().eval(), torch.randn(4, 3)
    with torch.no_grad():
        found = flow.trajectory(latent, torch.tensor(shares))
        whole = flow.trajectory(latent, torch.tensor([0.0, *shares]))
    torch.testing.assert_close(found, whole[1:], rtol=0, atol=0)


@pytest.mark.parametrize("shares", [[0.0], []])
def test_the_start_of_a_trajectory_alone_is_the_latent_variable(shares):
    flow, latent = make_flow().eval(), torch.randn(4, 3, requires_grad=True)
    way = flow.trajectory(latent, torch.tensor(shares))
    assert torch.equal(way, latent.expand(len(shares), 4, 3))
    assert flow.stats.forward_evaluations == 0
    (gradient,) = torch.autograd.grad(way.sum(), latent)
    assert torch.equal(gradient, torch.full_like(latent, len(shares)))


def test_the_map_is_that_of_the_jacobian_on_the_way_back():
    flow = make_flow().eval()
    latent = torch.randn(2, 3)
    back = full_jacobians(flow.decode, latent)
    forth = full_jacobians(lambda x: flow.encode(x).latent, flow.decode(latent).detach())
    torch.testing.assert_close(back @ forth, torch.eye(3).expand(2, 3, 3), rtol=1e-6, atol=1e-6)


def test_samples_can_be_drawn_where_there_is_nothing_to_learn():
    flow = ContinuousFlow(lambda t, y: -y, (2,)).eval()  # type: ignore[arg-type]
    drawn = flow.sample(3, generator=torch.Generator().manual_seed(0))
    latent = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    # y(0) = e y(1), at the tolerance of evaluation.
    torch.testing.assert_close(drawn, math.e * latent, rtol=1e-4, atol=1e-4)
    buffered = ContinuousFlow(Still(), (2,)).eval()
    assert (
        buffered.sample(1).dtype == torch.float64
        and buffered.float().sample(1).dtype == torch.float32
    )


class Still(nn.Module):
    """A field at rest, with a buffer and no parameter."""

    rest: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("rest", torch.zeros((), dtype=torch.float64))

    def forward(self, t, y):
        return self.rest * y


def test_a_field_that_explodes_gives_the_solvers_status():
    flow = make_flow(solver={"rtol": 1e-3, "atol": 1e-3}, trace="exact")
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.fill_(math.inf)
    with pytest.raises(SolverError, match="not a number"):
        flow.encode(torch.randn(2, 3))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"trace": "hutchinson"}, "trace must be one of"),
        ({"penalties": ("speed",)}, "penalty must be one of"),
        ({"end_time": 0.0}, "end_time must be positive"),
        ({"solver": {"method": "rk5"}}, "rk5"),
        ({"test_solver": {"tolerance": 1}}, "tolerance"),
    ],
)
def test_wrong_settings_are_named(options, says):
    with pytest.raises(ValueError, match=says):
        ContinuousFlow(MLPField(2, 3), (2,), **options)


def test_samples_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"shape \(batch, 3\)"):
        make_flow().encode(torch.zeros(1, 2))


@pytest.mark.parametrize("trace", ["exact", "gaussian"])
def test_no_samples_have_no_density_and_none_can_be_drawn(trace):
    flow = make_flow(trace=trace, penalties=BOTH)
    for is_training in (True, False):
        found = flow.train(is_training)(torch.zeros(0, 3))
        assert found.latent.shape == (0, 3) and found.log_prob.shape == (0,)
        assert set(found.penalties) == (set(BOTH) if is_training else set())
        assert all(penalty.shape == (0,) for penalty in found.penalties.values())
        assert flow.sample(0).shape == (0, 3) and flow.stats.forward_evaluations == 0
    assert flow.trajectory(torch.zeros(0, 3), torch.linspace(0, 1, 4)).shape == (4, 0, 3)
