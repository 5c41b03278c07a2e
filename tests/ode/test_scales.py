"""The unit of the state makes no difference, as long as its numbers are numbers.

Units are powers of two, which round nothing: results have to be the same to the last bit. Squares
of such states are beyond single precision, above or below.
"""

import math
from typing import Any

import pytest
import torch

from bfno.ode import linearise, odeint, solve
from bfno.ode.linearise import gmres
from bfno.ode.sizes import euclidean_norm, power_of_two

UNITS = [2.0**53, 2.0**80, 2.0**-80]
KIND: dict[str, Any] = {"dtype": torch.float32}


# Norms


@pytest.mark.parametrize("unit", [1.0, *UNITS, 2.0**126, 2.0**-140])
def test_norms_are_those_of_double_precision(unit):
    values = unit * torch.tensor([3.0, -4.0, 0.0], **KIND)
    values = values.clamp(-3e38, 3e38)
    assert euclidean_norm(values) == pytest.approx(float(values.double().norm()), rel=1e-6)
    assert float((values / power_of_two(values)).abs().max()) < 2


def test_norms_of_nothing_of_zeros_and_of_no_numbers():
    assert euclidean_norm(torch.zeros(0)) == euclidean_norm(torch.zeros(3)) == 0
    for wrong in (torch.inf, torch.nan):
        assert not euclidean_norm(torch.tensor([1.0, wrong])) < torch.inf


# Linear equations


def diffusion(numbers=12, rate=1000.0):
    """A stiff linear field, and a state."""
    line = torch.ones(numbers - 1, **KIND)
    matrix = rate * (line.diag(1) + line.diag(-1) - 2 * torch.eye(numbers, **KIND))
    return matrix, torch.sin(torch.arange(numbers, **KIND) / 5)


@pytest.mark.parametrize("unit", UNITS)
def test_gmres_solves_equations_of_any_size(unit):
    matrix, right = diffusion(rate=0.3)
    matrix = torch.eye(len(right), **KIND) - matrix
    expected, share = gmres(lambda v: matrix @ v, right, 1e-5)
    found, left = gmres(lambda v: matrix @ v, unit * right, 1e-5)
    assert left == share <= 1e-5
    assert torch.equal(found / unit, expected)


@pytest.mark.parametrize("wrong", [torch.inf, torch.nan])
def test_gmres_does_not_call_what_it_cannot_solve_solved(wrong):
    found, left = gmres(lambda v: v, torch.tensor([1.0, wrong]), 1e-5)
    assert found.isnan().all() and left != left


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("method", "step"),
    [("kvaerno5", None), ("trbdf2", None), ("rodas5p", None), ("implicit_euler", 0.005),
     ("implicit_midpoint", 0.005), ("trapezoid", 0.005), ("radauIIA3", 0.005)],
)  # fmt: skip
@pytest.mark.parametrize("most", [0, 512], ids=["gmres", "lu"])
def test_implicit_steps_know_no_unit(method, step, most, unit, monkeypatch):
    monkeypatch.setattr(linearise, "MOST_NUMBERS", most)
    matrix, start = diffusion()
    found = []
    for scale in (1.0, unit):
        y0 = (scale * start).requires_grad_()
        settings: dict[str, Any] = {"method": method, "step": step, "atol": 1e-2 * scale}
        ys = solve(lambda t, y: matrix @ y, y0, torch.tensor([0.0, 0.01]), **settings).ys[-1]
        gradient = torch.autograd.grad(ys, y0, scale * start)[0]  # of the size of the state
        found.append((ys / scale, gradient / scale))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("most", [0, 64], ids=["products", "matrix"])
def test_jacobians_from_differences_know_no_unit(unit, most, monkeypatch):
    monkeypatch.setattr(linearise, "MOST_DIFFERENCES", most)

    def field(t, y):
        return torch.from_numpy(-1000 * y.detach().numpy())

    ends = [
        solve(field, scale * torch.tensor([1.0, 2.0], **KIND), torch.tensor([0.0, 1.0]),
              method="kvaerno5", rtol=1e-3, atol=1e-4 * scale).ys[-1] / scale
        for scale in (1.0, unit)
    ]  # fmt: skip
    torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=1e-4)


# Tolerances


@pytest.mark.parametrize(
    ("dtype", "atol", "way"),
    [
        (torch.float16, 1e-8, {}),
        (torch.float16, 1e-8, {"independent": True}),
        (torch.float32, 1e-46, {}),
        (torch.float32, 1e-46, {"independent": True}),
        (torch.float32, 1e-46, {"method": "kvaerno5"}),
        (torch.float64, 0.0, {}),
    ],
    ids=str,
)
def test_a_tolerance_below_all_numbers_of_the_state_is_no_failure(dtype, atol, way):
    y0 = torch.tensor([[0.0, 1.0]], dtype=dtype)
    end = solve(lambda t, y: -y, y0, torch.tensor([0.0, 1.0]), rtol=1e-2, atol=atol, **way).ys[-1]
    assert end[0].tolist() == pytest.approx([0, math.exp(-1)], abs=1e-2)


@pytest.mark.parametrize("way", [{}, {"independent": True}], ids=str)
def test_tolerances_that_leave_a_state_in_bfloat16_where_it_is_are_refused(way):
    y0, ts = torch.ones(2, 2, dtype=torch.bfloat16), torch.tensor([0.0, 1.0])
    with pytest.raises(ValueError, match="to move a state of 1 in bfloat16; use rtol=1e-3"):
        solve(lambda t, y: -y, y0, ts, rtol=1e-7, atol=1e-9, **way)
    end = solve(lambda t, y: -y, y0, ts, rtol=1e-3, atol=1e-3, **way).ys[-1]
    assert end[0].tolist() == pytest.approx(2 * [math.exp(-1)], abs=2e-2)
    with pytest.raises(ValueError, match="bfloat16"):
        odeint(lambda t, y: -y, y0, ts)
    # What counts is how large a state is, at any time.
    for size, tolerances in ((1e4, (0.0, 1e-3)), (500.0, (1e-7, 1e-5))):
        with pytest.raises(ValueError, match=r"a state of (9\.98e\+03|500) in bfloat16"):
            solve(lambda t, y: -y, size * y0, ts, rtol=tolerances[0], atol=tolerances[1], **way)
    with pytest.raises(ValueError, match=r"a state of [1-9]\d\d in bfloat16"):
        solve(lambda t, y: y, y0, 9 * ts, rtol=1e-7, atol=1e-3, **way)
    uneven = torch.tensor([1e-3, 1e-9])
    with pytest.raises(ValueError, match="bfloat16"):
        solve(lambda t, y: -y, y0, ts, rtol=uneven, atol=uneven, **way)


# Stiffness


# In single precision, errors of 2^-100 are below the normal numbers, and no longer exact multiples.
@pytest.mark.parametrize(
    ("unit", "dtype"),
    [(2.0**60, torch.float32), (2.0**-90, torch.float32), (2.0**-100, torch.float64)],
)
def test_stiffness_is_seen_in_any_unit(unit, dtype):
    found = []
    for scale in (1.0, unit):
        y0 = scale * torch.tensor([1.0, 0.0], dtype=dtype)
        found.append(
            solve(lambda t, y, scale=scale: -1e4 * (y - scale * torch.cos(t)), y0,
                  torch.tensor([0.0, 1.0], dtype=dtype), method="auto", rtol=1e-3,
                  atol=1e-5 * scale)
        )  # fmt: skip
    assert found[0].stats.switches
    assert found[1].stats.switches == found[0].stats.switches
    assert torch.equal(found[1].ys / unit, found[0].ys)


def test_an_empty_state_has_no_stiffness():
    empty, ts = torch.zeros(0), torch.tensor([0.0, 1.0])
    assert solve(lambda t, y: -y, empty, ts, max_step=1e-3).ys.shape == (2, 0)
