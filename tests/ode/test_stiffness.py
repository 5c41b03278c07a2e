"""Stiffness is noticed where it is, nowhere else, at no cost; and hopeless solves end early."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from bfno.ode import METHODS, SolverError, Status, Tableau, odeint, odeint_event, solve
from bfno.ode.solution import Stats
from bfno.ode.stiffness import Detector, probe_of
from tests.ode.problems import NONLINEAR, Network

ADAPTIVE = [name for name, one in METHODS.items() if one.adaptive and not one.implicit]
ONE = torch.tensor([0.0, 1.0], dtype=torch.float64)


def _slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


def robertson(t, y):
    slow, fast = -0.04 * y[0] + 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
    return torch.stack((slow, -slow - fast, fast))


def relaxing(rate: Any):
    """A field that pulls towards a cosine at a rate that may depend on time."""

    def field(t, y):
        now: Any = rate(float(t)) if callable(rate) else rate
        return -now * (y - torch.cos(t)) - torch.sin(t)

    return field


def van_der_pol(mu):
    return lambda t, y: torch.stack((y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]))


def heat(points):
    def field(t, y):
        wide = nn.functional.pad(y, (1, 1))
        return (wide[2:] - 2 * wide[1:-1] + wide[:-2]) * (points + 1) ** 2

    return field


# The detector


@pytest.mark.parametrize("method", ADAPTIVE)
def test_the_probe_of_a_method_finds_an_eigenvalue(method):
    """For a linear field with one eigenvalue the combinations of slopes are multiples of it."""
    tableau, rate, size = METHODS[method], -7.0, 0.1
    probe = probe_of(tableau)
    points, slopes = [], []
    for row in tableau.stages:
        points.append(1 + size * sum(a * k for a, k in zip(row, slopes, strict=True)))
        slopes.append(rate * points[-1])
    pull = sum(w * k for w, k in zip(probe.slopes, slopes, strict=True))
    gap = size * sum(w * k for w, k in zip(probe.states, slopes, strict=True))
    assert pull / gap == pytest.approx(rate, rel=1e-9)  # rounding of small differences
    cancelled = sum(w * p for w, p in zip(probe.slopes, points, strict=True))
    assert gap == pytest.approx(cancelled, rel=1e-6)


# From Hairer and Wanner, Solving ODEs II, IV.2, where it has them; to the grid of the search.
BOUNDS = {"adaptive_heun": 2.0, "bosh3": 2.51, "dopri5": 3.31, "tsit5": 3.51}


@pytest.mark.parametrize("method", BOUNDS)
def test_the_stability_bound_of_a_method_is_known(method):
    assert probe_of(METHODS[method]).bound == pytest.approx(BOUNDS[method], abs=0.015)


STIFF = {
    "decay": (relaxing(2000.0), torch.ones(1), 1.0),
    "heat": (heat(40), torch.linspace(0, 1, 40), 0.2),
    "van der pol": (van_der_pol(100.0), torch.tensor([2.0, 0.0]), 5.0),
}
SMOOTH = {
    **{name: (one.field, torch.tensor(one.start), 5 * one.end) for name, one in NONLINEAR.items()},
    "oscillator": (
        lambda t, y: torch.stack((y[1], -y[0])), torch.tensor([1.0, 0.0]), 60.0
    ),
    "lorenz": (
        lambda t, y: torch.stack(
            (10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2])
        ),
        torch.tensor([1.0, 0.0, 0.0]),
        6.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "method", ["bosh3", "dopri5", *map(_slow, ["tsit5", "dopri8", "adaptive_heun"])]
)
@pytest.mark.parametrize("name", STIFF)
def test_stiff_fields_are_noticed_in_time(name, method):
    field, y0, end = STIFF[name]
    solution = solve(
        field, y0.double(), ONE * end, method=method, rtol=1e-3, atol=1e-3, throw=False
    )
    assert solution.status is Status.SUCCESS
    ((begin, last),) = solution.stats.stiff
    # All the way but for the start, which is accurate first, and the last 64 steps.
    assert begin < 0.35 * end
    assert last > 0.6 * end


@pytest.mark.parametrize("method", ADAPTIVE)
@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_fields_are_not_called_stiff(name, method):
    field, y0, end = SMOOTH[name]
    tolerance = {"adaptive_heun": 1e-3, "fehlberg2": 1e-4, "bosh3": 1e-5}.get(method, 1e-8)
    stats = solve(
        field, y0.double(), ONE * end, method=method, rtol=tolerance, atol=tolerance, throw=False
    ).stats
    assert stats.accepted > 32  # so that there was something to look at
    assert stats.stiff == []


def test_rounding_is_not_called_stiff():
    # Steps far smaller than necessary, whose slopes differ only by rounding.
    y0 = torch.linspace(0, 1, 5, dtype=torch.float32)
    settings: dict[str, Any] = {"max_step": 1e-3, "first_step": 1e-3, "rtol": 1e-2, "atol": 1e-2}
    for field in (lambda t, y: -y, lambda t, y: torch.sin(1000 * y) * 1e-3 + 1, lambda t, y: 0 * y):
        assert solve(field, y0, torch.tensor([0.0, 0.2]), **settings).stats.stiff == []


@pytest.mark.parametrize("name", ["dopri8", "fehlberg2", "auto"])
def test_autocast_does_not_blur_the_look(name):
    # Nothing in this field is for autocast, so that what changes would be the engine's own doing.
    found = []
    for cast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            y0, ts = torch.ones(3, 1).float(), torch.tensor([0.0, 20.0])
            field = relaxing(torch.tensor(100.0).float())
            found.append(solve(field, y0, ts, method=name, rtol=1e-3, atol=1e-3).stats)
    assert found[0].stiff
    assert found[1] == found[0]


def test_stiffness_that_ends_is_reported_with_its_end():
    field = relaxing(lambda t: 3000.0 if t < 0.4 else 1.0)
    stats = solve(field, torch.ones(1), ONE, jumps=(0.4,)).stats
    ((begin, end),) = stats.stiff
    assert begin < 0.1
    assert 0.2 < end <= 0.4
    later = relaxing(lambda t: 1.0 if t < 0.5 else 3000.0)
    ((begin, end),) = solve(later, torch.ones(1), ONE, jumps=(0.5,)).stats.stiff
    assert begin >= 0.5
    assert end > 0.8


def test_backward_in_time_and_with_gradients_it_looks_too():
    y0 = torch.ones(1, requires_grad=True)
    field, seen = relaxing(600.0), []
    for gradient in ("direct", "checkpoint", "adjoint"):
        seen += solve(field, y0, ONE, method="bosh3", gradient=gradient).stats.stiff
    seen += solve(lambda t, y: -field(-t, y), y0, -ONE, method="bosh3").stats.stiff
    assert seen[3][1] < seen[3][0] < 0
    # To rounding, which differs between the ways to sum up a step.
    torch.testing.assert_close(
        torch.tensor(seen).abs(), torch.tensor(seen[:1] * 4), rtol=1e-6, atol=0
    )


def test_nothing_is_changed_by_looking(monkeypatch):
    y0 = torch.ones(2, requires_grad=True)
    settings: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4, "gradient": "direct"}

    def solved():
        solution = solve(relaxing(600.0), y0, ONE, method="bosh3", **settings)
        return solution, torch.autograd.grad(solution.ys.sum(), y0)[0]

    (looked, slope), _ = solved(), monkeypatch.setattr(Detector, "look", lambda *_: False)
    blind, expected = solved()
    assert looked.stats.stiff and not blind.stats.stiff
    assert torch.equal(looked.ys, blind.ys) and torch.equal(slope, expected)
    assert looked.stats.step_ends == blind.stats.step_ends
    assert looked.stats.forward_evaluations == blind.stats.forward_evaluations


def test_it_holds_no_graph_and_reads_once_in_a_row(monkeypatch):
    reads, seen = [], []
    read, norms = torch.Tensor.tolist, Detector._norms
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: reads.append(1) or read(self))
    monkeypatch.setattr(
        Detector, "_norms", lambda self, slopes: seen.append(norms(self, slopes)) or seen[-1]
    )
    slopes = [torch.ones(3, requires_grad=True) * k for k in range(7)]
    stats, detector = Stats(), Detector(METHODS["dopri5"], (1.0,), Stats())
    for step in range(32 + 9 * 64):
        stats.accepted += 1
        detector.look(step * 1e-4, (step + 1) * 1e-4, slopes)
    assert len(seen) == 80  # eight after twenty-four, and eight in sixty-four
    assert len(reads) == 10
    assert not any(one.requires_grad for one in seen)


def test_short_solves_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(Detector, "_norms", lambda *_: pytest.fail("looked"))
    solve(Network(), torch.randn(4, 3), ONE * 5, rtol=1e-5, atol=1e-5)


def test_a_method_of_ones_own_is_probed_too():
    heun = Tableau(
        "own", 2, ((), (1.0,)), (0.5, 0.5), (0.5, -0.5), ((1.0, -0.5), (0.0, 0.5)), 2
    )  # fmt: skip
    solution = solve(relaxing(2000.0), torch.ones(1), ONE, method=heun, rtol=1e-3, atol=1e-3)
    assert solution.stats.stiff


# Words


def test_failures_tell_when_the_field_was_stiff():
    words = r"looks stiff between t = 0\.\d+ and 0\.\d+; try method='kvaerno5'"
    with pytest.raises(SolverError, match=f"step limit.*{words}") as raised:
        solve(relaxing(5000.0), torch.ones(1), ONE, max_steps=300)
    assert raised.value.status is Status.STEP_LIMIT
    # Explicit steps make a concentration negative, and it blows up; rounding decides when.
    words = words.replace("0\\.", "\\d\\.")
    with pytest.raises(SolverError, match=f"resolution of time.*{words}") as raised:
        solve(robertson, torch.tensor([1.0, 0, 0]), ONE * 40, rtol=1e-3, atol=1e-6)
    assert raised.value.status is Status.STEP_UNDERFLOW
    with pytest.raises(SolverError) as raised:
        solve(lambda t, y: y**2, torch.ones(1), ONE * 2)
    assert "looks stiff" not in str(raised.value)


def test_the_adjoint_equation_tells_too():
    y0 = torch.ones(1, requires_grad=True)
    # Its adjoint is as stiff, and bosh3 needs more steps for it than dopri8 for the field.
    ys = solve(
        relaxing(1200.0), y0, ONE, gradient="adjoint", method="dopri8", max_steps=400,
        adjoint={"method": "bosh3"},
    ).ys  # fmt: skip
    with pytest.raises(SolverError, match=r"adjoint equation.*looks stiff"):
        ys.sum().backward()


# Giving up


@pytest.mark.parametrize("method", ["dopri5", "bosh3", *map(_slow, ["tsit5", "dopri8"])])
def test_robertson_is_given_up_within_some_hundred_steps(method):
    with pytest.raises(SolverError, match=r"stiff: .*kvaerno5") as raised:
        solve(robertson, torch.tensor([1.0, 0, 0]), ONE * 1e5, method=method, rtol=1e-5, atol=1e-9)
    assert raised.value.status is Status.STIFF
    assert raised.value.stats.accepted + raised.value.stats.rejected < 600


def test_odeint_gives_up_too_but_not_on_the_way_to_an_event():
    y0 = torch.tensor([1.0, 0, 0])
    settings: dict[str, Any] = {
        "rtol": 1e-5,
        "atol": 1e-9,
        "method": "bosh3",
        "options": {"max_num_steps": 1000},
    }
    with pytest.raises(SolverError) as raised:
        odeint(robertson, y0, torch.tensor([0.0, 1e4, 1e5]), **settings)
    assert raised.value.status is Status.STIFF
    # The next requested time is near, and the count restarts there.
    near = odeint(robertson, y0, torch.tensor([0.0, 0.4, 0.8]), **settings)
    assert near.isfinite().all()
    time, _ = odeint_event(
        robertson, y0, torch.tensor(0.0), event_fn=lambda t, y: y[0] - 0.99, **settings
    )
    assert 0.1 < time < 1
    solution = solve(
        robertson,
        y0,
        ONE * 1e9,
        method="bosh3",
        rtol=1e-5,
        atol=1e-9,
        event=lambda t, y: y[0] - 0.99,
    )
    assert solution.event_times is not None
    assert torch.allclose(solution.event_times, time, rtol=1e-3)  # tolerance of both solves


@pytest.mark.parametrize("name", ["heat", *map(_slow, ["decay", "van der pol"])])
def test_what_finishes_within_the_limit_is_not_given_up(name):
    field, y0, end = STIFF[name]
    settings: dict[str, Any] = {"method": "bosh3", "rtol": 1e-3, "atol": 1e-3}
    stats = solve(field, y0.double(), ONE * end, **settings).stats
    needed = stats.accepted + stats.rejected
    solve(field, y0.double(), ONE * end, max_steps=needed, **settings)
    short = solve(field, y0.double(), ONE * end, max_steps=needed - 1, throw=False, **settings)
    assert short.status is Status.STEP_LIMIT


# Rates that change, each of which leaves time for the rest of the interval.
CHANGING = {
    "decaying": lambda t: 5e5 * math.exp(-t / 2e-3),
    "decaying slowly": lambda t: 3e5 / (1 + t / 1e-3),
    "a pulse": lambda t: 5e5 * math.exp(-min(700.0, ((t - 6e-3) / 2e-3) ** 2)),
    "a wave": lambda t: 4000 * math.sin(40 * t) ** 2,
}


@pytest.mark.parametrize("name", ["a pulse", *map(_slow, CHANGING)])
def test_stiffness_that_will_pass_is_waited_for(name):
    settings: dict[str, Any] = {"method": "bosh3", "rtol": 1e-2, "atol": 1e-2, "throw": False}
    field = relaxing(CHANGING[name])
    patient = solve(field, torch.ones(1), ONE, **settings)
    assert patient.status is Status.SUCCESS
    needed = patient.stats.accepted + patient.stats.rejected
    assert solve(field, torch.ones(1), ONE, max_steps=needed, **settings).status is Status.SUCCESS


@pytest.mark.parametrize("seed", [0, *map(_slow, range(1, 8))])
def test_random_linear_systems_finish_if_they_can(seed):
    """Eigenvalues from slow to stiff in random directions: the limit alone decides."""
    torch.manual_seed(seed)
    rates = -(10 ** (torch.rand(6) * 3.5))
    basis = torch.linalg.qr(torch.randn(6, 6)).Q + 0.2 * torch.randn(6, 6)
    matrix = basis @ torch.diag(rates) @ torch.linalg.inv(basis)
    y0, settings = torch.randn(6), {"method": "bosh3", "rtol": 1e-4, "atol": 1e-4, "throw": False}
    solution = solve(lambda t, y: matrix @ y, y0, ONE, **settings)
    assert solution.status is Status.SUCCESS
    exact = torch.matrix_exp(matrix) @ y0
    # A tolerance per step, of some hundred steps that all damp the errors before.
    torch.testing.assert_close(solution.ys[-1], exact, rtol=0, atol=1e-3)
    needed = solution.stats.accepted + solution.stats.rejected
    again = solve(lambda t, y: matrix @ y, y0, ONE, max_steps=needed, **settings)
    assert torch.equal(again.ys, solution.ys)


def test_jumps_ahead_are_waited_for():
    # Stiff until the field jumps, which is soon, though the end is far away.
    def field(t, y):
        return relaxing(1e6)(t, y) if float(t) < 1e-3 else -y

    settings: dict[str, Any] = {"method": "bosh3", "max_steps": 1000}
    ts = torch.tensor([0.0, 100.0])
    assert solve(field, torch.ones(1), ts, jumps=(1e-3,), **settings).status is Status.SUCCESS
    with pytest.raises(SolverError, match="stiff"):
        solve(field, torch.ones(1), ts, **settings)
