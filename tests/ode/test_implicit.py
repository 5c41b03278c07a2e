"""Implicit and Rosenbrock methods: their numbers, their steps, their equations, their gradients."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

import bfno
from bfno.ode import METHODS, GradientError, ImplicitTableau, RosenbrockTableau, Status, linearise
from bfno.ode.linearise import Linearizer, gmres
from tests.cotangents import AT_ONCE, one_by_one
from tests.ode.test_tableaus import density, stage_vector, trees

# Not "auto", whose numbers are those of an explicit method.
IMPLICIT = [name for name, one in METHODS.items() if one.implicit and name != "auto"]
ADAPTIVE = [name for name in IMPLICIT if METHODS[name].adaptive]
TIGHT: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-8}


# Numbers


def conditions(tableau):
    """Weights of slopes, and what they are multiplied with in the order condition of a tree."""
    if isinstance(tableau, RosenbrockTableau):
        alpha, gammas = tableau.slope_weights()

        def vector(tree):
            # A node with one branch also meets the Jacobian (Hairer and Wanner, IV.7).
            matrix, product = alpha + gammas if len(tree) == 1 else alpha, np.ones(len(alpha))
            for branch in tree:
                product = product * (matrix @ vector(branch))
            return product

        return (lambda row: np.array(row) @ gammas), vector
    stages = np.array(tableau.stages)
    return np.array, lambda tree: stage_vector(tree, stages)


@pytest.mark.parametrize("name", IMPLICIT)
def test_every_order_condition_holds_and_one_of_the_next_order_does_not(name):
    tableau = METHODS[name]
    weights, vector = conditions(tableau)
    b = weights(tableau.weights)
    for order in range(1, tableau.order + 1):
        for tree in trees(order):
            # Coefficients of rodas5p are rounded to 16 digits and as large as 200.
            assert b @ vector(tree) == pytest.approx(1 / density(tree), abs=1e-13)
    missed = [abs(b @ vector(tree) - 1 / density(tree)) for tree in trees(tableau.order + 1)]
    assert max(missed) > 1e-4


@pytest.mark.parametrize("name", IMPLICIT)
def test_dense_output_meets_its_order_conditions_and_the_error_estimate_its_own(name):
    tableau = METHODS[name]
    weights, vector = conditions(tableau)
    extended = tableau.with_end_stage()
    for method in {tableau, extended}:
        weights, vector = conditions(method)
        for theta in (0.3, 0.8, 1.0):
            row = weights(method.dense_weights(theta))
            for tree in (
                tree for order in range(1, method.dense_order + 1) for tree in trees(order)
            ):
                expected = theta ** sum(1 for _ in nodes_of(tree)) / density(tree)
                assert row @ vector(tree) == pytest.approx(expected, abs=1e-13)
    assert extended.dense_order >= min(3, tableau.order)
    if tableau.adaptive:
        weights, vector = conditions(tableau)
        error = weights(tableau.error)
        for tree in (tree for order in range(1, tableau.error_order) for tree in trees(order)):
            assert error @ vector(tree) == pytest.approx(0, abs=1e-13)
        assert max(abs(error @ vector(tree)) for tree in trees(tableau.error_order)) > 1e-3


def nodes_of(tree):
    yield tree
    for branch in tree:
        yield from nodes_of(branch)


def amplification(tableau, z):
    """What a step makes of y' = λy, with z = hλ."""
    weights, _ = conditions(tableau)
    if isinstance(tableau, RosenbrockTableau):
        alpha, gammas = tableau.slope_weights()
        a = alpha + gammas
    else:
        a = np.array(tableau.stages)
    ones = np.ones(len(a))
    return 1 + z * weights(tableau.weights) @ np.linalg.solve(np.eye(len(a)) - z * a, ones)


@pytest.mark.parametrize("name", IMPLICIT)
def test_methods_are_a_stable(name):
    # It is enough to look at the imaginary axis, for the poles lie to the right of it.
    heights = np.concatenate(([0.0], np.geomspace(1e-3, 1e6, 200)))
    assert max(abs(amplification(METHODS[name], 1j * y)) for y in heights) <= 1 + 1e-9
    assert max(abs(amplification(METHODS[name], -x)) for x in np.geomspace(1e-3, 1e6, 60)) <= 1


@pytest.mark.parametrize(
    "name",
    [name for name in IMPLICIT if name not in ("implicit_midpoint", "trapezoid", "gl4", "gl6")],
)
def test_all_but_gauss_and_the_trapezoid_damp_the_stiffest_parts_to_nothing(name):
    tableau = METHODS[name]
    assert abs(amplification(tableau, -1e9)) < 1e-6  # falls with 1/z
    if isinstance(tableau, ImplicitTableau):
        assert tableau.ends_with_stage
    ys = bfno.solve(
        lambda t, y: -1e6 * (y - 2), torch.ones(2), torch.tensor([0.0, 1.0]), method=name, step=0.25
    ).ys
    torch.testing.assert_close(ys[-1], torch.full((2,), 2.0), rtol=0, atol=1e-5)


def test_gl4_has_the_nodes_of_gauss():
    """torchdiffeq's master branch has the first one twice."""
    assert METHODS["gl4"].nodes == pytest.approx((0.5 - 3**0.5 / 6, 0.5 + 3**0.5 / 6), abs=1e-15)


def test_malformed_methods_are_refused():
    euler = {"name": "mine", "order": 1, "weights": (1.0,), "error": None, "dense_order": 1}
    assert ImplicitTableau(**euler, stages=((1.0,),), dense=((1.0,),)).implicit
    with pytest.raises(ValueError, match="row 0 of stages of tableau 'mine' must have one entry"):
        ImplicitTableau(**euler, stages=((1.0, 2.0),), dense=((1.0,),))
    with pytest.raises(ValueError, match="couplings and time_weights of tableau 'mine'"):
        RosenbrockTableau(
            **euler, stages=((),), dense=((1.0,),), gamma=1.0, couplings=(), time_weights=(1.0,)
        )
    with pytest.raises(ValueError, match="gamma of tableau 'mine' must be positive, got 0"):
        RosenbrockTableau(
            **euler, stages=((),), dense=((1.0,),), gamma=0.0, couplings=((),), time_weights=(0.0,)
        )


# Steps


def pendulum(t, y):
    return torch.stack((y[1], -torch.sin(y[0]) + torch.cos(2 * t) / 5))


@pytest.fixture(scope="module")
def swung():
    start = torch.tensor([1.0, 0.0], dtype=torch.float64)
    ts = torch.tensor([0.0, 2.0], dtype=torch.float64)
    return bfno.solve(pendulum, start, ts, method="dopri8", rtol=1e-13, atol=1e-13).ys[-1]


@pytest.mark.parametrize("name", IMPLICIT)
def test_observed_order_is_the_declared_one(name, swung):
    order = METHODS[name].order
    counts = {1: (40, 160), 2: (20, 80), 3: (16, 64), 4: (8, 32), 5: (6, 20), 6: (5, 12)}[order]
    errors = []
    for count in counts:
        start, ts = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])
        with torch.no_grad():
            found = bfno.solve(pendulum, start, ts, method=name, step=2.0 / count).ys[-1]
        errors.append(float(torch.linalg.vector_norm(found - swung)))
    slope = math.log(errors[0] / errors[1]) / math.log(counts[1] / counts[0])
    assert slope == pytest.approx(order, abs=0.45)  # few and large steps are not yet asymptotic


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_stiff_linear_systems_are_solved_to_the_tolerance(name, seed):
    """y' = A y has the solution exp(tA) y0; eigenvalues lie between -1e4 and -0.1, or turn."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(4, 4, generator=generator))[0]
    rates = torch.diag(-torch.logspace(-1, 4, 4))
    rates[0, 1], rates[1, 0] = 2.0, -2.0
    matrix = basis @ rates @ basis.T
    y0 = torch.randn(3, 4, generator=generator)
    ts = torch.tensor([0.0, 0.4, 1.5])
    settings = {"method": name, "rtol": 1e-5, "atol": 1e-5}
    with torch.no_grad():
        solution = bfno.solve(lambda t, y: y @ matrix.T, y0, ts, **settings)
    expected = torch.stack([y0 @ torch.linalg.matrix_exp(t * matrix).T for t in ts])
    # Errors of single steps add up; those of trbdf2, of order two, over the most steps.
    assert float((solution.ys - expected).abs().max()) < 3e-4
    assert solution.stats.forward_evaluations < 3000  # dopri5 would need 60,000


@pytest.mark.parametrize("name", ADAPTIVE)
def test_the_stiff_example_takes_fewer_than_a_hundred_evaluations(name):
    def field(t, y):
        return -1000 * (y - torch.cos(t)) - torch.sin(t)

    ts = torch.tensor([0.0, 1.0])
    solution = bfno.solve(field, torch.ones(1), ts, method=name, rtol=1e-3, atol=1e-3)
    assert solution.stats.forward_evaluations < 100
    assert not solution.ys.requires_grad
    assert float((solution.ys[-1] - torch.cos(ts[-1])).abs()) < 1e-3


@pytest.mark.parametrize("name", ADAPTIVE)
def test_single_precision_reaches_its_own_tolerance(name):
    def field(t, y):
        return torch.stack((-500 * (y[0] - torch.cos(t)), y[0] - y[1]))

    ts = torch.tensor([0.0, 1.0])
    exact = bfno.solve(field, torch.zeros(2), ts, method="kvaerno5", rtol=1e-9, atol=1e-9).ys[-1]
    start = torch.zeros(2, dtype=torch.float32)
    found = bfno.solve(field, start, ts, method=name, rtol=1e-4, atol=1e-5)
    assert found.ys.dtype == torch.float32
    torch.testing.assert_close(found.ys[-1], exact.float(), rtol=0, atol=5e-4)


@pytest.mark.parametrize("name", ["kvaerno5", "rodas5p", "gl4"])
def test_states_of_any_kind_and_directions_of_time(name):
    def field(t, y):
        return {"z": 1j * 3 * y["z"] - y["z"], "x": (-50 * y["x"][0] + y["z"].real.sum(),)}

    y0 = {"z": torch.tensor([[1 + 1j, 2.0]]), "x": (torch.ones(3),)}
    settings = {"method": name, "rtol": 1e-9, "atol": 1e-9}
    if not METHODS[name].adaptive:
        settings["step"] = 0.01
    forth = bfno.solve(field, y0, torch.tensor([0.0, 0.5]), **settings).ys
    expected = y0["z"] * torch.exp(torch.tensor((3j - 1) * 0.5))
    torch.testing.assert_close(forth["z"][-1], expected, rtol=0, atol=1e-6)  # gl4: 0.03⁴/180·50
    last = {"z": forth["z"][-1], "x": (forth["x"][0][-1],)}
    back = bfno.solve(field, last, torch.tensor([0.5, 0.4]), **settings).ys
    turned = y0["z"] * torch.exp(torch.tensor((3j - 1) * 0.4))
    torch.testing.assert_close(back["z"][-1], turned, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["trbdf2", "kvaerno5", "rodas5p", "radauIIA5"])
def test_jumps_are_met_exactly(name):
    """The solution has a kink at 0.3, where the field jumps."""

    def field(t, y):
        return torch.where(t < 0.3, 1.0, -2.0) - 0 * y

    ts, settings = torch.tensor([0.0, 1.0]), {"jumps": (0.3,), "method": name}
    if not METHODS[name].adaptive:
        settings["step"] = 0.25
    solution = bfno.solve(field, torch.zeros(1), ts, **settings)
    assert float(solution.ys[-1]) == pytest.approx(0.3 - 1.4, abs=1e-12)
    assert solution.stats.rejected == 0


@pytest.mark.parametrize("name", ["kvaerno3", "kvaerno5", "rodas5p", "implicit_midpoint"])
def test_events_and_dense_output(name):
    def field(t, y):
        return -y

    start = torch.tensor([[1.0], [4.0]], requires_grad=True)
    settings = {"method": name, "rtol": 1e-8, "atol": 1e-8}
    if not METHODS[name].adaptive:
        settings["step"] = 0.01
    solution = bfno.solve(
        field, start, torch.tensor([0.0, 3.0]), event=lambda t, y: y[:, 0] - 0.5, **settings
    )
    expected = torch.log(2 * start[:, 0])
    # The midpoint rule has an error of h²/12 per unit of time.
    atol = 1e-5 if METHODS[name].adaptive else 3e-5
    assert solution.event_times is not None
    torch.testing.assert_close(solution.event_times, expected, rtol=0, atol=atol)
    (found,) = torch.autograd.grad(solution.event_times.sum(), start)
    torch.testing.assert_close(found, 1 / start.detach(), rtol=0, atol=1e-4)
    path = bfno.solve(field, start, torch.tensor([0.0, 3.0]), dense=True, **settings)
    times = torch.linspace(0, 3, 31)
    exact = start * torch.exp(-times)[:, None, None]
    torch.testing.assert_close(path.evaluate(times), exact, rtol=0, atol=1e-4)


def test_a_method_works_as_an_object_in_a_block_and_under_torchdiffeqs_names():
    field = bfno.FirstOrder(bfno.MLPField(2, 4))
    x = torch.randn(3, 2)
    blocks = [bfno.NeuralODE(field, method=m) for m in ("kvaerno3", METHODS["kvaerno3"])]
    assert torch.equal(blocks[0](x), blocks[1](x))
    ts = torch.tensor([0.0, 1.0])
    for name in ("implicit_euler", "trbdf2", "radauIIA5"):
        found = bfno.odeint(lambda t, y: -y, x, ts, method=name, options={"step_size": 0.05})
        torch.testing.assert_close(found[-1], x * math.exp(-1), rtol=0.03, atol=0)
    dense = bfno.odeint(lambda t, y: -y, x, ts, method="kvaerno5")
    torch.testing.assert_close(dense[-1], x * math.exp(-1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("method", IMPLICIT)
def test_inference_mode_changes_nothing(method):
    # Models are evaluated in it, and its tensors do not count their changes.
    torch.manual_seed(0)
    field, y0 = bfno.MLPField(2, 4).double(), torch.randn(3, 2).double()
    block = bfno.NeuralODE(bfno.FirstOrder(field), method=method, step=0.5)
    with torch.no_grad():
        expected = block(y0)
    with torch.inference_mode():
        assert torch.equal(block(y0), expected)


def test_where_equations_cannot_be_solved_implicit_methods_are_refused_in_one_line():
    ts = torch.tensor([0.0, 1.0])
    call = {"method": "kvaerno5", "step": 0.5}
    with pytest.raises(ValueError, match="compile=True needs an explicit method") as caught:
        bfno.solve(lambda t, y: -y, torch.ones(1), ts, compile=True, **call)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="'kvaerno5' solves equations and needs numbers"):
        torch.func.vmap(lambda y: bfno.solve(lambda t, y: -y, y, ts, **call).ys)(torch.ones(2, 1))
    with pytest.raises(ValueError, match="advance needs an explicit method"):
        bfno.ode.advance(lambda t, y: -y, torch.ones(1, 1), ts[:1], ts[1:], method="kvaerno5")


# Equations


def test_a_batch_has_one_jacobian_per_sample_only_if_samples_are_apart():
    y = torch.randn(5, 3)
    kinds = {"apart": lambda t, y: torch.sin(y), "mixed": lambda t, y: y - y.mean(0) ** 2}
    shapes = {}
    for kind, field in kinds.items():
        around = Linearizer(y, bfno.Stats()).at(field, torch.tensor(0.0), y)
        assert around.matrix is not None
        shapes[kind] = tuple(around.matrix.shape)
        whole = torch.autograd.functional.jacobian(lambda y, f=field: f(None, y), y).view(15, 15)
        blocks = torch.block_diag(*around.matrix)
        torch.testing.assert_close(blocks, whole, rtol=0, atol=1e-14)
    assert shapes == {"apart": (5, 3, 3), "mixed": (1, 15, 15)}


@pytest.mark.parametrize("name", ["implicit_euler", "kvaerno5", "rodas5p"])
def test_a_weak_dependence_of_samples_counts_beside_a_stiff_one(name):
    """Samples on a ring feel each other by far less than one of them its own stiffness."""
    pull = torch.tensor([[1e5], [1.0], [1.0], [1.0]])
    ts, found = torch.tensor([0.0, 1.0]), []
    for dtype in (torch.float32, torch.float64):
        weight = torch.tensor(1.5, dtype=dtype, requires_grad=True)
        field = lambda t, y, w=weight: w * y.roll(-1, 0) - pull.to(y) * y  # noqa: E731
        y0 = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=dtype, requires_grad=True)
        settings: Any = {"method": name, "rtol": 1e-4, "atol": 1e-4}
        settings |= {} if METHODS[name].adaptive else {"step": 0.1}
        ys = bfno.solve(field, y0, ts, **settings).ys[-1]
        found.append(torch.autograd.grad((ys * y0.detach()).sum(), (weight, y0)))
    for single, double in zip(*found, strict=True):
        # Both are the gradients of steps at the same tolerance.
        torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", IMPLICIT)
def test_states_without_axes_without_numbers_and_in_inference_mode(name):
    ts = torch.tensor([0.0, 0.5])
    settings: Any = {"method": name} | ({} if METHODS[name].adaptive else {"step": 0.05})
    y0 = torch.tensor(2.0, requires_grad=True)
    ys = bfno.solve(lambda t, y: -y, y0, ts, **settings).ys
    row = bfno.solve(lambda t, y: -y, y0.detach()[None], ts, **settings).ys
    torch.testing.assert_close(ys, row[:, 0], rtol=1e-14, atol=0)
    assert torch.autograd.grad(ys[-1], y0)[0].item() == pytest.approx(ys[-1].item() / 2)  # linear
    for shape in ((0,), (0, 3), (3, 0)):
        empty = bfno.solve(lambda t, y: -y, torch.ones(shape), ts, **settings).ys
        assert empty.shape == (2, *shape)
    with torch.inference_mode():
        again = bfno.solve(lambda t, y: -y, y0.detach()[None].clone(), ts, **settings).ys
    torch.testing.assert_close(again.clone(), row, rtol=1e-14, atol=0)


class Opaque(torch.autograd.Function):
    """A cubic that autograd can neither vectorise nor differentiate twice."""

    @staticmethod
    def forward(ctx, y):
        ctx.save_for_backward(y)
        return -(y**3)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):  # pyright: ignore[reportIncompatibleMethodOverride]
        (y,) = ctx.saved_tensors
        assert gradient.norm().item() >= 0  # needs numbers, which vmap has none of
        return -3 * y**2 * gradient


FIELDS = {
    "opaque": lambda t, y: 50 * Opaque.apply(y),
    "numpy": lambda t, y: torch.from_numpy(-50 * y.detach().numpy() ** 3),
    "constant": lambda t, y: torch.full_like(y, -0.25),
}


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("most", [512, 0])
def test_fields_that_autograd_cannot_vectorise_or_see_are_solved_too(kind, most, monkeypatch):
    monkeypatch.setattr(linearise, "MOST_NUMBERS", most)
    monkeypatch.setattr(linearise, "MOST_DIFFERENCES", most)
    y0, ts = torch.tensor([[1.0, 0.5], [0.2, 2.0]]), torch.tensor([0.0, 1.0])
    found = bfno.solve(FIELDS[kind], y0, ts, method="kvaerno3", rtol=1e-6, atol=1e-6).ys[-1]
    expected = y0 - 0.25 if kind == "constant" else y0 / torch.sqrt(1 + 100 * y0**2)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_rosenbrock_method_names_what_it_needs():
    y0, ts = torch.ones(2), torch.tensor([0.0, 1.0])
    with pytest.raises(ValueError, match="differentiated twice; use kvaerno5"):
        bfno.solve(
            lambda t, y: Opaque.apply(y) * t, y0.requires_grad_(), ts, method="rodas5p", step=0.5
        )


def test_gmres_solves_what_lu_solves():
    matrix = torch.eye(40) * 3 + torch.randn(40, 40) / 4
    right = torch.randn(40)
    found, left = gmres(lambda v: matrix @ v, right, 1e-12, basis=15, restarts=20)
    assert left < 1e-12
    torch.testing.assert_close(found, torch.linalg.solve(matrix, right), rtol=0, atol=1e-10)


def heat(t, y):
    """The heat equation on 2,000 points of (0, 1), cold at both ends."""
    inner = torch.nn.functional.pad(y, (1, 1))
    return (inner[2:] - 2 * y + inner[:-2]) * (len(y) + 1) ** 2


def test_a_large_state_is_solved_by_gmres():
    points = torch.arange(1, 2001) / 2001
    start = torch.sin(math.pi * points)
    ts = torch.tensor([0.0, 0.02])
    with torch.no_grad():
        solution = bfno.solve(heat, start, ts, method="kvaerno3", rtol=1e-3, atol=1e-4)
    # The slowest mode of the discrete equation falls with this rate.
    rate = 4 * 2001**2 * math.sin(math.pi / (2 * 2001)) ** 2
    expected = start * math.exp(-0.02 * rate)
    torch.testing.assert_close(solution.ys[-1], expected, rtol=0, atol=1e-3)
    assert solution.stats.factorisations == 0
    assert solution.stats.forward_evaluations < 300  # an explicit method needs 1e5


def test_rows_that_are_stiff_and_rows_that_are_not_share_a_batch():
    rates = torch.tensor([[1.0], [1e3], [1e6]])
    ts, y0 = torch.tensor([0.0, 1.0]), torch.ones(3, 1)
    with torch.no_grad():
        solution = bfno.solve(lambda t, y: -rates * (y - t), y0, ts, method="kvaerno5")
    expected = ts[-1] - 1 / rates + (1 + 1 / rates) * torch.exp(-rates)
    torch.testing.assert_close(solution.ys[-1], expected, rtol=0, atol=1e-4)
    assert solution.stats.forward_evaluations < 1000


@pytest.mark.parametrize("name", ["kvaerno5", "implicit_euler"])
def test_equations_without_a_solution_end_in_a_status_with_its_remedy(name):
    """Where the slope points back at once, no stage has a slope that leads to where it is."""
    field = lambda t, y: torch.where(y > 1e-6, -1e14, 1e14)  # noqa: E731
    settings: dict[str, Any] = {"method": name, "step": None if name == "kvaerno5" else 0.1}
    ts = torch.tensor([1.0, 2.0])  # where time has no steps below 2e-16
    solution = bfno.solve(field, torch.zeros(2), ts, throw=False, **settings)
    assert solution.status is Status.NEWTON_FAILURE
    assert bool(solution.ys[-1].isnan().all())
    with pytest.raises(bfno.SolverError, match=r"of an implicit step .* explicit method"):
        bfno.solve(field, torch.zeros(2), ts, **settings)


@pytest.mark.parametrize("name", ["kvaerno3", "rodas5p"])
def test_a_singular_jacobian_only_makes_the_step_smaller(name):
    """With a first step of 1/γ the matrix 1 - hγJ of y' = y is exactly zero."""
    method = METHODS[name]
    gamma = method.gamma if isinstance(method, RosenbrockTableau) else method.stages[1][1]
    ts = torch.tensor([0.0, 4.0])
    solution = bfno.solve(
        lambda t, y: y, torch.ones(1), ts, method=name, first_step=1 / gamma, **TIGHT
    )
    torch.testing.assert_close(solution.ys[-1], torch.exp(ts[-1:]), rtol=1e-5, atol=0)
    assert solution.stats.rejected > 0


def test_a_singular_fixed_step_is_a_status():
    ts = torch.tensor([0.0, 1.0])
    solution = bfno.solve(
        lambda t, y: y, torch.ones(1), ts, method="implicit_euler", step=1.0, throw=False
    )
    assert solution.status is Status.NEWTON_FAILURE


def test_a_field_of_another_shape_is_refused_in_its_own_words():
    for name in ("kvaerno5", "rodas5p", "gl6"):
        with pytest.raises(ValueError, match="must return the state's shape"):
            bfno.solve(lambda t, y: y[:1], torch.ones(2), torch.tensor([0.0, 1.0]), method=name)


@pytest.mark.parametrize("name", ["kvaerno5", "rodas5p", "gl4"])
def test_random_numbers_and_half_precision_are_refused(name):
    ts, y0 = torch.tensor([0.0, 1.0]), torch.ones(2, 3)
    call: Any = {"method": name, "rtol": 1e-2, "atol": 1e-2}
    for noise in (1.0, 1e-6):
        with pytest.raises(ValueError, match=r"random numbers .*eval\(\)"):
            bfno.solve(lambda t, y, e=noise: e * torch.randn_like(y) - y, y0, ts, **call)
    # What is drawn may not matter, or another thread may have drawn it.
    bfno.solve(lambda t, y: 0 * torch.rand_like(y) - y, y0, ts, **call)
    for dtype in (torch.float16, torch.bfloat16):
        with pytest.raises(ValueError, match="single or double precision"):
            bfno.solve(lambda t, y: -y, y0.to(dtype), ts, **call)


def test_jacobians_and_factorisations_are_counted():
    ts = torch.tensor([0.0, 1.0])
    with torch.no_grad():
        stats = bfno.solve(lambda t, y: -y, torch.ones(2), ts, method="kvaerno5").stats
        each = bfno.solve(lambda t, y: -y, torch.ones(2), ts, method="rodas5p").stats
    assert stats.jacobians == 1  # a linear field never outdates it
    assert stats.factorisations == stats.accepted + stats.rejected
    assert each.jacobians == each.accepted


# Gradients


class Coupled(torch.nn.Module):
    """A small field that depends on time and, on request, couples samples."""

    def __init__(self, coupled):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2, 2))
        self.coupled = coupled

    def forward(self, t, y):
        slope = torch.tanh(y @ self.weight) - 2 * y**3 + torch.sin(3 * t)
        return slope + y.mean(0) if self.coupled else slope


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("name", ["radauIIA3", "trbdf2", "kvaerno5", "rodas5p"])
def test_gradients_are_those_of_finite_differences(name, coupled):
    field = Coupled(coupled)
    y0 = torch.randn(2, 2, requires_grad=True)
    ts = torch.tensor([0.0, 0.25, 0.5], requires_grad=True)

    def solved(y0, ts, *_):
        return bfno.solve(field, y0, ts, method=name, step=0.3, memory=0).ys

    # Rounding of one evaluation over twice the shift: 1e-15 / 1e-6.
    assert gradcheck(solved, (y0, ts, *field.parameters()), atol=1e-6, rtol=1e-6, fast_mode=True)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_gradients_by_gmres_are_those_by_lu(name, monkeypatch):
    field, y0 = Coupled(True), torch.randn(3, 2, requires_grad=True)
    found = []
    for most in (512, 0):
        monkeypatch.setattr(linearise, "MOST_NUMBERS", most)
        monkeypatch.setattr(linearise, "MOST_DIFFERENCES", most)
        ys = bfno.solve(field, y0, torch.tensor([0.0, 0.5]), method=name, step=0.25).ys
        found.append(torch.autograd.grad(ys[-1].sin().sum(), (y0, field.weight)))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-9)  # GMRES solves to 1e-12


@pytest.mark.parametrize("name", ADAPTIVE)
def test_the_gradient_of_a_stiff_decay_is_exact_through_adaptive_steps(name):
    """Onto the curve c cos t, whatever the start: dy/dc = cos t, dy/dy0 = 0."""
    scale = torch.tensor(1.5, requires_grad=True)
    y0 = torch.tensor([[3.0], [0.0]], requires_grad=True)

    def field(t, y):
        return -1e4 * (y - scale * torch.cos(t)) - scale * torch.sin(t)

    ts = torch.tensor([0.0, 1.0])
    ys = bfno.solve(field, y0, ts, method=name, rtol=1e-6, atol=1e-6).ys[-1]
    by_scale, by_start = torch.autograd.grad(ys[0, 0], (scale, y0))
    assert float(by_scale) == pytest.approx(math.cos(1), abs=1e-5)
    assert float(by_start.abs().max()) < 1e-5


def test_the_adjoint_works_where_the_state_can_be_solved_for_backward():
    rate = torch.tensor(5.0, requires_grad=True)
    y0, ts = torch.ones(1, requires_grad=True), torch.tensor([0.0, 0.5])
    settings = {"method": "kvaerno5", "rtol": 1e-7, "atol": 1e-7}
    grads = []
    for gradient in ("checkpoint", "adjoint"):
        ys = bfno.solve(
            lambda t, y: -rate * (y - torch.cos(t)) - y**3, y0, ts, gradient=gradient, **settings
        ).ys
        grads.append(torch.autograd.grad(ys[-1].sum(), (y0, rate)))
    # The adjoint's error is about its tolerance.
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["trapezoid", "trbdf2", "kvaerno5", "rodas5p"])
def test_a_weight_that_only_the_very_first_slope_uses_gets_its_gradient(name):
    weight = torch.tensor(2.0, requires_grad=True)

    def solved(w):
        begin = lambda t, y: -w * y if t == 0 else -2 * y  # noqa: E731
        ts = torch.tensor([0.0, 1.0])
        return bfno.solve(begin, torch.ones(1), ts, method=name, step=0.5).ys[-1]

    (found,) = torch.autograd.grad(solved(weight), weight)
    with torch.no_grad():
        shifted = (solved(weight + 1e-6) - solved(weight - 1e-6)) / 2e-6
    assert found.item() == pytest.approx(shifted.item(), rel=1e-6)  # of differences
    assert found.item() != 0


def test_a_second_derivative_is_refused():
    y0, ts = torch.ones(2, requires_grad=True), torch.tensor([0.0, 1.0])
    for name in ("kvaerno3", "rodas5p"):
        ys = bfno.solve(lambda t, y: -(y**2), y0, ts, method=name, step=0.5).ys
        with pytest.raises(GradientError, match="once, not twice"):
            torch.autograd.grad(ys.sum(), y0, create_graph=True)


@pytest.mark.parametrize("way", AT_ONCE)
@pytest.mark.parametrize("name", ["kvaerno5", "rodas5p"])
def test_several_gradients_are_found_at_once_or_refused(name, way):
    net, ts = Coupled(False), torch.tensor([0.0, 0.4, 1.0])
    y0 = torch.randn(2, 2, requires_grad=True)
    ys = bfno.solve(net, y0, ts, method=name).ys
    pair = torch.randn(2, *ys.shape)
    expected = one_by_one(ys, y0, pair)
    if (name, way) == ("rodas5p", "is_grads_batched"):
        with pytest.raises(GradientError, match=r"Rosenbrock .*is_grads_batched=True.*kvaerno5"):
            AT_ONCE[way](ys, y0, pair)
    else:
        torch.testing.assert_close(AT_ONCE[way](ys, y0, pair), expected, rtol=1e-11, atol=1e-11)
    assert torch.equal(one_by_one(ys, y0, pair), expected)


def test_weights_lent_by_functional_call_get_their_gradients():
    net, y0, ts = Coupled(False), torch.randn(2, 2), torch.tensor([0.0, 0.5])
    lent = {"weight": (2 * net.weight.detach()).requires_grad_()}
    own = Coupled(False)
    own.load_state_dict({"weight": lent["weight"].detach()})

    class Solving(torch.nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, y0):
            return bfno.solve(self.net, y0, ts, method="kvaerno3", step=0.25).ys[-1]

    found = torch.func.functional_call(Solving(net), {"net.weight": lent["weight"]}, (y0,))
    expected = Solving(own)(y0)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), lent["weight"])[0],
        torch.autograd.grad(expected.sum(), own.weight)[0],
        rtol=0,
        atol=1e-12,
    )


def test_a_field_that_changed_before_the_backward_pass_is_noticed():
    net, ts = Coupled(False), torch.tensor([0.0, 1.0])
    y0 = torch.randn(2, 2, requires_grad=True)
    for name in ("kvaerno3", "rodas5p"):
        ys = bfno.solve(net, y0, ts, method=name, step=0.2, memory=0).ys
        with torch.no_grad():
            net.weight.mul_(1.5)
        with pytest.raises(GradientError):
            ys.sum().backward()


@pytest.mark.parametrize("method", ["rodas5p", "kvaerno5"])
@pytest.mark.parametrize("way", AT_ONCE)
def test_gradients_at_once_through_steps_of_large_states_are_refused(monkeypatch, method, way):
    """GMRES looks at the numbers of one gradient: the tangent of a dual one was wrong."""
    monkeypatch.setattr(linearise, "MOST_NUMBERS", 0)
    weight = 0.3 * torch.randn(3, 3)
    x = torch.randn(4, 3, requires_grad=True)
    ts = torch.tensor([0.0, 1.0])
    y = bfno.solve(lambda t, y: torch.tanh(y @ weight), x, ts, method=method).ys
    pair = torch.randn(2, *y.shape)
    with pytest.raises(GradientError, match=r"one gradient at a time|is_grads_batched"):
        AT_ONCE[way](y, x, pair)
    assert one_by_one(y, x, pair).isfinite().all()


@pytest.mark.parametrize("size", [3, 600])  # with a Jacobian, and without one
@pytest.mark.parametrize("name", ["kvaerno3", "rodas5p", "radauIIA3"])
def test_autocast_leaves_equations_their_digits(name, size):
    # Nothing in this field is for autocast, so that what changes would be the engine's own doing.
    found = []
    for cast in (False, True):
        y0 = torch.linspace(-1, 1, size).float()[None].requires_grad_()
        ts = torch.tensor([0.0, 1.0])
        settings: dict[str, Any] = {"method": name, "rtol": 1e-6, "atol": 1e-6}
        if not METHODS[name].adaptive:
            settings["step"] = 0.1
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            solution = bfno.solve(
                lambda t, y: torch.sin(y) - 3 * y + y.roll(1, -1), y0, ts, **settings
            )
            (gradient,) = torch.autograd.grad(solution.ys[-1].square().sum(), y0)
        found.append((solution.ys, gradient, solution.stats.forward_evaluations))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
