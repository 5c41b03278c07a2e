"""Gradients with respect to state, times and parameters, in three ways."""

import gc
import math
import threading
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck

import bfno
from bfno import METHODS, solve
from bfno.ode import GradientError, problem, replay
from bfno.ode.replay import Recording
from tests.ode.problems import Network

ADAPTIVE = [name for name in sorted(METHODS) if METHODS[name].adaptive]
SHARED = [[0.0, 0.4, 1.0], [1.0, 0.3, 0.2]]


def all_gradients(field, y0, ts, **settings):
    y0, ts = y0.clone().requires_grad_(), ts.clone().requires_grad_()
    ys = solve(field, y0, ts, **settings).ys
    weight = torch.sin(torch.arange(ys.numel(), dtype=ys.dtype)).view(ys.shape)
    return torch.autograd.grad((ys * weight).sum(), (y0, ts, *field.parameters()))


def passes_gradcheck(times, samples=2, fast_mode=False, **settings):
    """Whether gradients of state, times and parameters of a small field are finite differences.

    The fast mode compares along random directions instead of number by number.
    """
    field = Network(features=2, hidden=3)
    y0 = torch.randn(samples, 2, requires_grad=True)
    ts = torch.tensor(times, requires_grad=True)

    def solved(y0, ts, *_):
        return solve(field, y0, ts, **settings).ys

    return gradcheck(solved, (y0, ts, *field.parameters()), fast_mode=fast_mode)


@pytest.mark.parametrize("times", [*SHARED, "rows"])
@pytest.mark.parametrize("land", [True, False])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_checkpoint_gradients_equal_direct_ones(name, land, times):
    field, y0 = Network(), torch.randn(4, 3)
    ts = torch.rand(4, 5).sort(dim=1).values if times == "rows" else torch.tensor(times)
    settings = {"method": name, "rtol": 1e-4, "atol": 1e-4, "land": land}
    direct = all_gradients(field, y0, ts, gradient="direct", **settings)
    checkpoint = all_gradients(field, y0, ts, gradient="checkpoint", **settings)
    for one, other in zip(direct, checkpoint, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


# Direct gradients are the same as those of checkpoints, by the test above.
@pytest.mark.parametrize("gradient", [pytest.param("direct", marks=pytest.mark.slow), "checkpoint"])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_discrete_gradients_pass_gradcheck_on_fixed_steps(name, gradient):
    settings = {"method": name, "step": 0.2, "gradient": gradient}
    assert passes_gradcheck([0.0, 0.3, 0.75], fast_mode=METHODS[name].implicit, **settings)


@pytest.mark.parametrize("gradient", ["direct", "checkpoint", "adjoint"])
@pytest.mark.parametrize("name", ["bosh3", "dopri5", "tsit5", "dopri8"])
def test_gradients_of_adaptive_solves_pass_gradcheck(name, gradient):
    times = [0.0, 0.35, 0.8]
    assert passes_gradcheck(times, method=name, rtol=1e-9, atol=1e-9, gradient=gradient)


@pytest.mark.parametrize("gradient", ["direct", "checkpoint"])
def test_gradients_with_one_row_of_times_a_sample_pass_gradcheck(gradient):
    rows = [[0.0, 0.2, 0.9], [0.5, 0.6, 0.7], [1.0, 0.5, 0.1]]
    assert passes_gradcheck(rows, samples=3, rtol=1e-9, atol=1e-9, gradient=gradient)


def test_the_adjoint_approaches_the_exact_gradient_with_its_tolerance():
    field, y0, ts = Network(), torch.randn(4, 3), torch.tensor([0.0, 0.5, 2.0])
    exact = all_gradients(field, y0, ts, rtol=1e-11, atol=1e-11)
    distances = []
    for tolerance in (1e-3, 1e-5, 1e-7):
        found = all_gradients(
            field, y0, ts, rtol=1e-11, atol=1e-11, gradient="adjoint",
            adjoint={"rtol": tolerance, "atol": tolerance},
        )  # fmt: skip
        pairs = zip(found, exact, strict=True)
        distances.append(max(float((one - other).abs().max()) for one, other in pairs))
        assert distances[-1] < 20 * tolerance
    assert distances[2] < distances[0]


def test_the_seminorm_leaves_parameters_out_of_the_error_and_saves_evaluations():
    class Wiggling(torch.nn.Module):
        """A field whose state is easy and whose parameter's adjoint is not."""

        def __init__(self):
            super().__init__()
            self.size = torch.nn.Parameter(torch.tensor(1e-6))

        def forward(self, t, y):
            return -y + self.size * 1e6 * 1e-4 * torch.sin(300 * t) * y

    field, y0, ts = Wiggling(), torch.ones(2), torch.tensor([0.0, 1.0])
    counts, gradients = [], []
    for seminorm in (False, True):
        solution = solve(
            field, y0, ts, rtol=1e-6, atol=1e-3, gradient="adjoint", adjoint={"seminorm": seminorm}
        )
        gradients.append(torch.autograd.grad(solution.ys[-1].sum(), field.size)[0])
        counts.append(solution.stats.backward_evaluations)
    assert counts[1] < 0.5 * counts[0]


@pytest.mark.parametrize("gradient", ["checkpoint", "adjoint"])
def test_gradients_reach_parameters_that_a_plain_function_captures(gradient):
    network, scale = Network(), torch.tensor(0.5, requires_grad=True)
    y0, ts = torch.randn(2, 3), torch.tensor([0.0, 1.0])
    expected = torch.autograd.grad(
        solve(lambda t, y: scale * network(t, y), y0, ts, gradient="direct", rtol=1e-9).ys.sum(),
        (scale, *network.parameters()),
    )
    found = torch.autograd.grad(
        solve(lambda t, y: scale * network(t, y), y0, ts, gradient=gradient, rtol=1e-9).ys.sum(),
        (scale, *network.parameters()),
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_gradients_flow_into_a_captured_result_of_another_network():
    encoder, x = torch.nn.Linear(2, 3), torch.randn(4, 2)
    y0, ts = torch.randn(4, 3), torch.tensor([0.0, 1.0])

    def loss(gradient):
        context = encoder(x)
        return solve(lambda t, y: torch.tanh(context) - y, y0, ts, gradient=gradient).ys.sum()

    direct = torch.autograd.grad(loss("direct"), tuple(encoder.parameters()))
    checkpoint = torch.autograd.grad(loss("checkpoint"), tuple(encoder.parameters()))
    for one, other in zip(direct, checkpoint, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_an_unused_parameter_gets_no_gradient_and_a_constant_field_works():
    class Constant(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.speed = torch.nn.Parameter(torch.tensor(2.0))
            self.unused = torch.nn.Parameter(torch.tensor(1.0))

        def forward(self, t, y):
            return self.speed.expand(y.shape)

    field = Constant()
    solve(field, torch.zeros(3), torch.tensor([0.0, 1.5])).ys[-1].sum().backward()
    assert field.speed.grad == pytest.approx(4.5)
    assert field.unused.grad is None
    y0 = torch.zeros(3, requires_grad=True)
    solve(lambda t, y: torch.ones(3), y0, torch.tensor([0.0, 1.0])).ys[-1].sum().backward()
    assert y0.grad is not None
    assert torch.equal(y0.grad, torch.ones(3))


def test_a_field_may_call_autograd_inside():
    potential = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def downhill(t, y):
        with torch.enable_grad():
            y = y if y.requires_grad else y.detach().requires_grad_()
            return -torch.autograd.grad(potential(y).sum(), y, create_graph=True)[0]

    results = []
    for gradient in ("direct", "checkpoint", "adjoint"):
        y0 = torch.ones(3, 2, requires_grad=True)
        ys = solve(
            downhill, y0, torch.tensor([0.0, 1.0]), rtol=1e-9, atol=1e-9, gradient=gradient
        ).ys
        results.append(torch.autograd.grad(ys[-1].sum(), (y0, *list(potential.parameters())[:3])))
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


def test_second_derivatives_are_exact_and_the_adjoint_refuses_them():
    y0, ts = torch.tensor([0.7], requires_grad=True), torch.tensor([0.0, 1.0])

    def second(gradient):
        ys = solve(lambda t, y: y**2, y0, ts, gradient=gradient, method="rk4", step=0.1).ys
        (first,) = torch.autograd.grad(ys[-1].sum(), y0, create_graph=True)
        return torch.autograd.grad(first.sum(), y0)[0]

    step = 1e-4
    shifted = [
        solve(lambda t, y: y**2, y0.detach() + d, ts, method="rk4", step=0.1).ys[-1]
        for d in (-step, 0.0, step)
    ]
    expected = (shifted[0] - 2 * shifted[1] + shifted[2]) / step**2
    torch.testing.assert_close(second("direct"), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(second("checkpoint"), second("direct"), rtol=0, atol=1e-12)
    with pytest.raises(GradientError, match="once, not twice; use gradient='direct'"):
        second("adjoint")


def recordings():
    gc.collect()
    return sum(isinstance(one, Recording) for one in gc.get_objects())


@pytest.mark.filterwarnings("ignore")  # of modules whose attributes looking at all objects wakes
@pytest.mark.parametrize("small", [True, False])
def test_recorded_calls_are_gone_with_the_graph(small, monkeypatch):
    monkeypatch.setattr(problem, "SMALL_STATE", 1 << 14 if small else 0)
    field, y0, before = Network(), torch.randn(4, 3), recordings()
    solution = solve(field, y0, torch.tensor([0.0, 1.0]))
    assert recordings() > before
    solution.ys.sum().backward()
    solution.ys = None
    assert recordings() == before
    solution = solve(field, y0, torch.tensor([0.0, 1.0]))  # without a backward pass
    del solution
    assert recordings() == before


def test_backward_may_run_twice_with_a_retained_graph():
    field, y0 = Network(), torch.randn(4, 3, requires_grad=True)
    ys = solve(field, y0, torch.tensor([0.0, 1.0])).ys
    first = torch.autograd.grad(ys.sum(), y0, retain_graph=True)[0]
    second = torch.autograd.grad(ys.sum(), y0)[0]
    assert torch.equal(first, second)


@pytest.mark.parametrize("gradient", ["direct", "checkpoint", "adjoint"])
def test_the_same_seed_gives_the_same_bits(gradient):
    def run():
        torch.manual_seed(3)
        field = bfno.OperatorField("bfno", 2, 6, 2).float()
        y0 = torch.randn(8, 2, 9, 8, dtype=torch.float32, requires_grad=True)
        ys = solve(field, y0, torch.tensor([0.0, 1.0]), gradient=gradient, rtol=1e-3, atol=1e-3).ys
        return ys, *torch.autograd.grad(ys.square().sum(), (y0, *field.parameters()))

    for one, other in zip(run(), run(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_repeating_whole_steps_equals_repeating_evaluations(name, monkeypatch):
    field, y0, ts = Network(), torch.randn(4, 3, requires_grad=True), torch.tensor([0.0, 1.0])
    results = []
    for small in (problem.SMALL_STATE, 0):
        monkeypatch.setattr(problem, "SMALL_STATE", small)
        solution = solve(field, y0, ts, method=name, rtol=1e-4, atol=1e-4)
        found = torch.autograd.grad(solution.ys[-1].square().sum(), (y0, *field.parameters()))
        results.append(found)
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["rk4", "dopri5"])
def test_a_backward_pass_repeats_nearly_as_many_evaluations_as_there_were(name, monkeypatch):
    monkeypatch.setattr(replay, "KEPT_BYTES", 0)
    # The first evaluation is kept where the second one shows another picture, as a step does.
    field, y0, ts = Network(), torch.randn(4, 3, requires_grad=True), torch.tensor([0.0, 1.0])
    solution = solve(field, y0, ts, method=name, first_step=0.2)
    solution.ys.sum().backward()
    stats = solution.stats
    assert 0 <= stats.forward_evaluations - stats.backward_evaluations <= 4


@pytest.mark.parametrize("repeated", ["steps", "evaluations", "nothing"])
def test_events_and_dense_output_have_the_gradients_of_direct(repeated, monkeypatch):
    monkeypatch.setattr(replay, "KEPT_BYTES", replay.KEPT_BYTES if repeated == "nothing" else 0)
    monkeypatch.setattr(problem, "SMALL_STATE", 1 << 14 if repeated == "steps" else 0)
    network, level = Network(features=2), torch.tensor(0.3, requires_grad=True)
    y0 = torch.tensor([[1.0, 0.0], [2.0, 0.0], [50.0, 0.0]], requires_grad=True)

    def falling(t, y):
        return torch.stack((y[:, 1], -torch.ones(3)), dim=-1) + 0.1 * network(t, y)

    def gradients(gradient):
        ts = torch.linspace(0, 3, 4)
        fallen: Any = solve(falling, y0, ts, gradient=gradient, event=lambda t, y: y[:, 0] - level)
        assert torch.equal(torch.isinf(fallen.event_times), torch.tensor([False, False, True]))
        moments = torch.tensor([0.3, 2.5, 1.1], requires_grad=True)
        states = solve(falling, y0, ts, gradient=gradient, dense=True).evaluate(moments)
        loss = fallen.ys.sin().sum() + fallen.event_times[:2].sum() + states.cos().sum()
        return torch.autograd.grad(loss, (y0, level, moments, *network.parameters()))

    torch.testing.assert_close(gradients("checkpoint"), gradients("direct"), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (4,), (4, 2, 3)])
@pytest.mark.parametrize("rows", [False, True])
def test_states_of_any_shape_have_gradients_of_dense_output(shape, rows):
    if rows and not shape:
        shape = (4, 1)
    ts = torch.linspace(0, 1, 5)
    ts = ts.expand(4, 5) * torch.tensor([[1.0], [0.5], [2.0], [0.1]]) if rows else ts
    results = []
    for gradient in ("direct", "checkpoint"):
        y0 = torch.ones(shape, requires_grad=True)
        ys = solve(lambda t, y: -(y**2), y0, ts, gradient=gradient).ys
        results.append((ys, *torch.autograd.grad(ys.square().sum(), y0)))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-12)


# What an attack found, each as it was found.


def jumping(t, y):
    return torch.where(t < 0.5, 1.0, 3.0) * torch.ones_like(y)


@pytest.mark.parametrize("gradient", ["direct", "checkpoint", "adjoint"])
@pytest.mark.parametrize("steps", [{}, {"method": "rk4", "step": 0.3}, {"method": "euler"}])
def test_requested_times_do_not_move_the_jumps_of_a_field(gradient, steps):
    ts = torch.tensor([0.0, 1.0], requires_grad=True)
    ys = solve(jumping, torch.zeros(1), ts, jumps=(0.5,), gradient=gradient, **steps).ys
    # y(t1) = (0.5 - t0) + 3 (t1 - 0.5)
    torch.testing.assert_close(ys[-1], torch.tensor([2.0]))
    (moved,) = torch.autograd.grad(ys[-1].sum(), ts)
    torch.testing.assert_close(moved, torch.tensor([-1.0, 3.0]))


@pytest.mark.parametrize("gradient", ["direct", "checkpoint", "adjoint"])
@pytest.mark.parametrize("method", ["dopri5", "dopri8", "kvaerno5", "auto", "rk4", "gl4"])
def test_a_jump_stays_where_it_is_if_a_requested_time_there_moves(method, gradient):
    ts = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64, requires_grad=True)
    steps = {"step": 0.1} if method in ("rk4", "gl4") else {}
    y0 = torch.zeros(1, dtype=torch.float64)
    ys = solve(jumping, y0, ts, jumps=(0.5,), method=method, gradient=gradient, **steps).ys
    (moved,) = torch.autograd.grad(ys[2].sum(), ts)
    torch.testing.assert_close(moved, torch.tensor([-1.0, 0.0, 3.0], dtype=torch.float64))


@pytest.mark.parametrize("jumps", [(1.0,), (0.4,), (0.4, 1.0)])
def test_jumps_that_are_none_leave_gradients_of_times_as_they_are(jumps):
    def moved(**options):
        ts = torch.tensor([0.0, 0.7, 1.0], requires_grad=True)
        ys = solve(
            lambda t, y: torch.sin(3 * t) * y + t * t, torch.ones(1), ts, rtol=1e-9, atol=1e-9,
            gradient="direct", **options,
        ).ys  # fmt: skip
        return torch.autograd.grad(ys.square().sum(), ts)[0]

    # Other steps, and so other errors of dense output, whose slope is less exact than the steps.
    torch.testing.assert_close(moved(jumps=jumps), moved(), rtol=0, atol=3e-5)


@pytest.mark.parametrize("way", [{"gradient": "direct"}, {}, {"memory": "log"}])
@pytest.mark.parametrize("name", ["bosh3", "dopri5", "tsit5", "rodas5p"])
@pytest.mark.parametrize(
    "met", [{"stops": (0.5,)}, {"jumps": (0.5,)}, {"first_step": 0.125, "max_step": 0.125}]
)
def test_a_requested_time_on_which_a_step_ends_by_chance_moves_alone(met, name, way):
    if name == "rodas5p" and "memory" in way:
        pytest.skip("memory='log' needs an explicit method")
    ts = torch.tensor([0.0, 0.5, 1.0], requires_grad=True)
    settings: dict[str, Any] = {"method": name, "rtol": 1e-3, "atol": 1e-3, **met, **way}
    solution = solve(lambda t, y: -(1 + t) * y, torch.ones(1), ts, **settings)
    assert 0.5 in solution.stats.step_ends
    # y(t) = exp(t0 - t + (t0² - t²) / 2)
    for place, time in ((1, 0.5), (2, 1.0)):
        (moved,) = torch.autograd.grad(solution.ys[place], ts, retain_graph=True)
        exact = torch.zeros(3).index_fill(0, torch.tensor(place), -(1 + time))
        exact[0] = 1.0
        # Ten times the tolerance, and a hundredth of what an error in whose times these are makes.
        torch.testing.assert_close(moved, exact * solution.ys[place].detach(), rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    "way",
    [
        {"gradient": "direct"}, {}, {"memory": "log"}, {"independent": True}, {"method": "rodas5p"},
        {"land": False}, {"independent": True, "method": "rk4", "step": 0.05},
        {"method": "rk4", "step": 0.05},
    ],
)  # fmt: skip
def test_requests_at_the_start_of_a_row_move_along_the_field(way):
    ts = torch.tensor([[0.0, 0.0, 1.0], [0.2, 0.5, 1.0], [0.5, 0.5, 0.5]], requires_grad=True)
    settings: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-8, **way}
    y0 = torch.ones(3, 2, requires_grad=True)
    ys = solve(lambda t, y: -(1 + t[:, None]) * y, y0, ts, **settings).ys
    weights = torch.sin(torch.arange(1.0, 10)).view(3, 3)
    gy0, gts = torch.autograd.grad((ys[..., 0] * weights).sum(), (y0, ts))
    # y(t) = exp(t0 - t + (t0² - t²) / 2)
    times = ts.detach()
    exact = torch.exp(times[:, :1] - times + (times[:, :1] ** 2 - times**2) / 2)
    torch.testing.assert_close(ys.detach(), exact[..., None].expand(3, 3, 2), rtol=0, atol=1e-6)
    torch.testing.assert_close(gy0[:, 0], (weights * exact).sum(1), rtol=0, atol=1e-6)
    moved = -(1 + times) * weights * exact
    moved[:, 0] = (1 + times[:, 0]) * (weights * exact)[:, 1:].sum(1)
    torch.testing.assert_close(gts, moved, rtol=0, atol=1e-5)  # dense output is less exact


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own
@pytest.mark.parametrize("ts", [[0.0, 0.5, 1.0], [[0.0, 0.3, 1.0], [0.2, 0.2, 0.5]]])
@pytest.mark.parametrize("way", [{"method": "dopri5"}, {"method": "rk4", "step": 0.1}])
def test_forward_mode_moves_the_times_of_independent_samples(way, ts):
    def weighted(ts):
        ys = solve(decaying, torch.ones(2, 2), ts, independent=True, gradient="direct", **way).ys
        return (ys * torch.sin(torch.arange(12.0)).view_as(ys)).sum()

    def decaying(t, y):
        return -(1 + t[:, None]) * y

    times = torch.tensor(ts)
    push = torch.cos(torch.arange(1.0, 1 + times.numel())).view_as(times)
    (gradient,) = torch.autograd.grad(weighted(moving := times.clone().requires_grad_()), moving)
    found = torch.func.jvp(weighted, (times,), (push,))[1]
    assert found.abs() > 0.1
    torch.testing.assert_close(found, (gradient * push).sum(), rtol=1e-9, atol=0)


def test_rows_of_times_refuse_jumps_and_keep_to_the_largest_step():
    rows = torch.tensor([[0.0, 10.0], [0.0, 1.0]])
    for name in ("jumps", "stops"):
        with pytest.raises(ValueError, match=f"{name} need times that all samples share"):
            options: dict[str, Any] = {name: (0.5,)}
            solve(lambda t, y: -y, torch.ones(2, 1), rows, **options)
    assert solve(lambda t, y: -y, torch.ones(2, 1), rows, max_step=0.1).stats.accepted >= 100


def test_given_parameters_get_whole_gradients_from_rows_of_times():
    net, rows = torch.nn.Linear(3, 3), torch.tensor([[0.0, 0.4, 1.0]]).expand(4, 3)
    found = []
    for given in (None, net.parameters()):
        ys = solve(
            lambda t, y: net(y).tanh(), torch.ones(4, 3), rows, method="rk4", step=0.02,
            gradient="adjoint", parameters=given,
        ).ys  # fmt: skip
        found.append(torch.autograd.grad(ys.sum(), (net.weight, net.bias)))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-14)


@pytest.mark.parametrize("names", [("W",), ("W", "V"), ("V", "W"), ("W", "W")])
def test_given_parameters_may_be_computed_from_each_other(names):
    W = torch.nn.Parameter(0.3 * torch.eye(3))

    def gradient_of(kind, **options):
        V = 2 * W
        named = [{"W": W, "V": V}[name] for name in names]
        given: dict[str, Any] = {"parameters": named} if options else {}
        ys = solve(
            lambda t, y: (y @ V).tanh() + (y @ W).sin(), torch.ones(2, 3), torch.tensor([0.0, 1.0]),
            gradient=kind, rtol=1e-9, atol=1e-9, **given,
        ).ys  # fmt: skip
        return torch.autograd.grad(ys.square().sum(), W)[0]

    torch.testing.assert_close(gradient_of("adjoint", given=True), gradient_of("direct"))


@pytest.mark.parametrize("given", [False, True])
def test_the_adjoint_refuses_random_numbers_and_changes_that_the_start_hides(given):
    W, gain, ts = torch.nn.Parameter(torch.eye(3)), [1.0], torch.tensor([0.0, 1.0])
    options: dict[str, Any] = {"parameters": [W]} if given else {}
    with pytest.raises(GradientError, match="random numbers"):
        solve(
            lambda t, y: torch.dropout(y @ W, 0.5, True), torch.ones(2, 3), ts, gradient="adjoint",
            **options,
        )  # fmt: skip
    ys = solve(
        lambda t, y: (y @ W).tanh() * (1 + gain[0] * t), torch.ones(2, 3), ts, gradient="adjoint",
        **options,
    ).ys  # fmt: skip
    gain[0] = 5.0
    with pytest.raises(GradientError, match="another result"):
        ys.sum().backward()


@pytest.mark.parametrize("gradient", ["direct", "checkpoint", "adjoint"])
def test_retained_gradients_are_those_of_the_whole_solve(gradient):
    c = torch.ones(2, requires_grad=True).sin()
    c.retain_grad()
    solve(
        lambda t, y: -y * c, torch.ones(2), torch.tensor([0.0, 1.0]), gradient=gradient, rtol=1e-9,
        atol=1e-9,
    ).ys[-1].sum().backward()  # fmt: skip
    torch.testing.assert_close(c.grad, -torch.exp(-c.detach()), rtol=0, atol=1e-7)


def test_batched_gradients_of_the_adjoint_are_refused_by_name():
    y0 = torch.ones(2, requires_grad=True)
    end = solve(lambda t, y: -y, y0, torch.tensor([0.0, 1.0]), gradient="adjoint").ys[-1]
    with pytest.raises(GradientError, match="is_grads_batched"):
        torch.autograd.grad(end, y0, torch.eye(2), is_grads_batched=True)


# By how much a number of the field changes, so little that a coarse comparison would not see it.
CHANGES = [(torch.bfloat16, 1.2), (torch.float16, 1.03), (torch.float32, 1.0003)]


@pytest.mark.parametrize(("dtype", "factor"), CHANGES)
@pytest.mark.parametrize("repeated", ["steps", "evaluations", "adjoint"])
def test_small_changes_are_refused_in_all_precisions(dtype, factor, repeated, monkeypatch):
    monkeypatch.setattr(replay, "KEPT_BYTES", 0)
    monkeypatch.setattr(problem, "SMALL_STATE", 0 if repeated == "evaluations" else 1 << 14)
    net, gain = Network().to(dtype), [1.0]
    ys = solve(
        lambda t, y: torch.sin(4 * gain[0] * net(t, y)), torch.randn(4, 3, dtype=dtype),
        torch.tensor([0.0, 0.3, 1.0]), method="rk4", step=0.02,
        gradient="adjoint" if repeated == "adjoint" else "checkpoint",
    ).ys  # fmt: skip
    gain[0] = factor
    with pytest.raises(GradientError, match="another result"):
        ys.double().square().sum().backward()


def test_several_threads_may_differentiate_one_graph(monkeypatch):
    monkeypatch.setattr(replay, "KEPT_BYTES", 0)
    net, y0 = Network(), torch.randn(4, 3, requires_grad=True)
    loss = solve(net, y0, torch.tensor([0.0, 1.0]), method="rk4", step=0.05).ys.sum()
    right = torch.autograd.grad(loss, y0, retain_graph=True)[0]
    found: list[bool] = []

    def differentiate():
        for _ in range(5):
            one = torch.autograd.grad(loss, y0, retain_graph=True)[0]
            found.append(torch.equal(one, right))

    threads = [threading.Thread(target=differentiate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 20


@pytest.mark.parametrize("kept", [0, replay.KEPT_BYTES])
@pytest.mark.parametrize("small", [0, problem.SMALL_STATE])
def test_a_backward_pass_leaves_nothing_to_the_search_for_cycles(kept, small, monkeypatch):
    monkeypatch.setattr(replay, "KEPT_BYTES", kept)
    monkeypatch.setattr(problem, "SMALL_STATE", small)
    net = Network()

    def living():
        return sum(type(one) is torch.Tensor for one in gc.get_objects())

    def train():
        y0 = torch.randn(4, 3, requires_grad=True)
        solve(net, y0, torch.tensor([0.0, 0.3, 1.0]), method="rk4", step=0.1).ys.sum().backward()

    train()
    gc.collect()
    gc.disable()
    try:
        before = living()
        train()
        assert living() == before
    finally:
        gc.enable()


def test_second_derivatives_of_odeint_event_are_exact():
    start, rate = torch.tensor([2.0], requires_grad=True), torch.tensor(0.7, requires_grad=True)
    time, state = bfno.odeint_event(
        lambda t, y: -rate * y, start, torch.tensor(0.0), event_fn=lambda t, y: (y - 1).sum(),
        rtol=1e-10, atol=1e-10,
    )  # fmt: skip
    # t = log(y0) / rate
    first = torch.autograd.grad(time, (start, rate), create_graph=True)
    (second,) = torch.autograd.grad(first[0].sum(), start, retain_graph=True)
    assert second.item() == pytest.approx(-1 / (0.7 * 4), rel=1e-6)
    (second,) = torch.autograd.grad(first[1], rate)
    assert second.item() == pytest.approx(2 * math.log(2) / 0.7**3, rel=1e-6)
    assert state[-1].item() == pytest.approx(1, abs=1e-8)


def test_adaptive_steps_under_vmap_are_refused_with_the_way_out():
    with pytest.raises(ValueError, match="vmap has none; pass step="):
        torch.func.vmap(lambda y: solve(lambda t, y: -y, y, torch.tensor([0.0, 1.0])).ys)(
            torch.ones(2, 2)
        )


@pytest.mark.parametrize("gradient", ["direct", "checkpoint", "adjoint"])
def test_states_made_in_inference_mode_may_start_a_training(gradient):
    with torch.inference_mode():
        y0 = torch.ones(2)
    rate = torch.ones(2, requires_grad=True)
    ys = solve(
        lambda t, y: -rate * y, y0, torch.tensor([0.0, 1.0]), gradient=gradient, rtol=1e-9,
        atol=1e-9,
    ).ys  # fmt: skip
    (found,) = torch.autograd.grad(ys[-1].sum(), rate)
    torch.testing.assert_close(found, -torch.exp(-torch.ones(2)), rtol=0, atol=1e-7)


def test_the_adjoint_refuses_changes_that_only_later_times_see():
    class Field(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rate, self.gain = torch.nn.Parameter(torch.ones(1)), 1.0

        def forward(self, t, y):
            return -self.rate * y * (self.gain if float(t) > 0.5 else 1.0)

    field = Field()
    ys = solve(field, torch.ones(1), torch.tensor([0.0, 1.0]), gradient="adjoint").ys
    field.gain = 2.0
    with pytest.raises(GradientError, match="another result"):
        ys.sum().backward()


def test_a_fixed_backward_method_needs_a_step_in_units_of_time():
    rate = torch.tensor(1.0, requires_grad=True)

    def solved(ts, **settings):
        return solve(
            lambda t, y: -20 * rate * y, torch.ones(2, 1), ts, gradient="adjoint", **settings
        )

    ts = torch.tensor([0.0, 2.0])
    with pytest.raises(ValueError, match="'rk4'} needs a step"):
        solved(ts, adjoint={"method": "rk4"})
    counts = []
    for times in (ts, ts.expand(2, 2)):
        solution = solved(times, method="rk4", step=0.05, adjoint={"step": 0.01})
        solution.ys.sum().backward()
        counts.append(solution.stats.backward_evaluations)
    assert counts[0] == counts[1] > 4 * 200


def test_a_smallest_step_holds_in_the_backward_solve_as_well():
    rate = torch.tensor(1.0, requires_grad=True)
    solution = solve(
        lambda t, y: -rate * y * torch.sin(200 * t), torch.ones(1), torch.tensor([0.0, 1.0]),
        gradient="adjoint", min_step=0.05, rtol=1e-9, atol=1e-9,
    )  # fmt: skip
    solution.ys.sum().backward()
    assert solution.stats.backward_evaluations < 2 * solution.stats.forward_evaluations + 10


def test_one_solve_keeps_no_more_for_rows_of_times(monkeypatch):
    net, y0 = Network(), torch.randn(4, 3)
    kept = []
    for ts in (torch.linspace(0, 1, 11), torch.linspace(0, 1, 11).expand(4, 11)):
        monkeypatch.setattr(replay, "KEPT_BYTES", 20_000)
        solution = solve(net, y0, ts, method="rk4", step=0.02)
        solution.ys.sum().backward()
        kept.append(solution.stats.forward_evaluations - solution.stats.backward_evaluations)
    assert 0 < kept[1] <= kept[0] + 4 * 10  # but for the first call of each interval


@pytest.mark.parametrize("kind", ["alternating", "detached", "data"])
def test_slopes_in_memory_that_is_used_again_are_copied(kind):
    buffers, calls = [torch.empty(3), torch.empty(3)], []

    def field(t, y):
        calls.append(t)
        buffer = buffers[len(calls) % 2]
        with torch.no_grad():
            buffer.copy_(-y * (1 + t))
        return {"alternating": buffer, "detached": buffer.detach(), "data": buffer.data}[kind]

    settings: dict[str, Any] = {"method": "rk4", "step": 0.1}
    found = solve(field, torch.ones(3), torch.tensor([0.0, 1.0]), **settings).ys
    right = solve(lambda t, y: -y * (1 + t), torch.ones(3), torch.tensor([0.0, 1.0]), **settings).ys
    torch.testing.assert_close(found, right, rtol=0, atol=1e-15)


@pytest.mark.parametrize("size", [3, 17, 40, 57])
@pytest.mark.parametrize("repeated", ["steps", "evaluations", "adjoint"])
def test_slopes_that_begin_anywhere_in_memory_are_recognised(size, repeated, monkeypatch):
    # Sums of many numbers are rounded by where in memory these begin.
    monkeypatch.setattr(replay, "KEPT_BYTES", 0)
    monkeypatch.setattr(problem, "SMALL_STATE", 0 if repeated == "evaluations" else 1 << 14)
    weights = torch.nn.Parameter(torch.randn(size, size) / size)

    def field(t, y):
        return torch.cat([torch.zeros(1), torch.tanh(y @ weights)])[1:]

    gradient = "adjoint" if repeated == "adjoint" else "checkpoint"
    ys = solve(field, torch.randn(size), torch.tensor([0.0, 1.0]), gradient=gradient).ys
    ys.sum().backward()
    assert weights.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("features", [1, 7, 13, 33, 127, 255])
@pytest.mark.parametrize("batch", [1, 3, 33])
def test_the_adjoint_does_not_take_rounding_for_a_change(batch, features, dtype):
    net = torch.nn.Sequential(
        torch.nn.Linear(features, 2 * features + 1), torch.nn.Tanh(),
        torch.nn.Linear(2 * features + 1, features),
    ).to(dtype)  # fmt: skip
    y0, ts = torch.randn(batch, features, dtype=dtype), torch.tensor([0.0, 0.3, 1.0])
    tolerances: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3}
    solve(lambda t, y: net(y), y0, ts, gradient="adjoint", **tolerances).ys.sum().backward()
    assert all(one.grad is not None for one in net.parameters())


def test_an_empty_batch_in_single_precision_has_a_gradient_of_zero():
    torch.set_default_dtype(torch.float32)
    layer, y0 = torch.nn.Linear(3, 3), torch.zeros(0, 3, requires_grad=True)
    solve(lambda t, y: layer(y), y0, torch.tensor([0.0, 1.0])).ys.sum().backward()
    assert y0.grad is not None and y0.grad.shape == (0, 3)
    assert layer.weight.grad is not None and not layer.weight.grad.any()
