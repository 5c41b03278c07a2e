"""Points in the plane lie where their shape says, as densely as it says."""

import math

import pytest
import torch

from bfno.lab.data import TOYS, toy_points
from bfno.lab.errors import ConfigError

COUNT = 40_000


def _drawn(name: str) -> torch.Tensor:
    return toy_points(name, COUNT, seed=1).double()


@pytest.mark.parametrize("name", TOYS)
def test_points_are_centred_and_of_moderate_size(name):
    points = _drawn(name)
    assert points.shape == (COUNT, 2) and points.isfinite().all()
    # Five standard errors of a mean.
    assert (points.mean(0).abs() < 5 * points.std(0) / math.sqrt(COUNT)).all()
    assert ((points.std(0) > 0.9) & (points.std(0) < 2)).all()


@pytest.mark.parametrize("name", TOYS)
def test_a_seed_fixes_the_points_and_another_gives_others(name):
    points = toy_points(name, 100, seed=3)
    assert points.dtype == torch.float32
    assert torch.equal(points, toy_points(name, 100, seed=3))
    assert not torch.equal(points, toy_points(name, 100, seed=4))


def test_moons_are_two_noisy_half_circles():
    points = _drawn("moons")
    # Each point minus the centre of its own circle; the circles are images through the origin.
    upper = points - torch.tensor((-1.0, -0.5))
    lower = -points - torch.tensor((-1.0, -0.5))
    offsets = torch.stack([part.norm(dim=1) - 2 for part in (upper, lower)]).abs().min(0).values
    assert (offsets < 1.0).all()  # five deviations of the noise
    in_upper = (upper.norm(dim=1) - 2).abs() < (lower.norm(dim=1) - 2).abs()
    assert in_upper.double().mean().item() == pytest.approx(0.5, abs=0.02)
    # Its top, outside the end of the other moon: a circle plus noise of 0.2 across it.
    is_top = (torch.atan2(upper[:, 1], upper[:, 0]) - math.pi / 2).abs() < 0.5
    top = upper[is_top & (upper.norm(dim=1) > 1.4)]
    assert (top.norm(dim=1) - 2).std().item() == pytest.approx(0.2, rel=0.05)
    assert (top.norm(dim=1) - 2).mean().item() == pytest.approx(0.01, abs=0.01)


def test_spirals_are_two_arms_evenly_filled():
    points = _drawn("spirals")
    radius = points.norm(dim=1)
    assert radius.max() < math.pi + 0.6
    # The angle at a radius r is 3 r, turned by half a turn on the other arm.
    angle = torch.atan2(points[:, 1], -points[:, 0])
    outer = radius > 1
    phase = torch.remainder(angle - 3 * radius, math.pi)
    away = torch.minimum(phase, math.pi - phase) * radius / torch.sqrt(1 + (3 * radius) ** 2)
    assert (away[outer] < 0.55).all()
    first = torch.remainder(angle - 3 * radius + math.pi / 2, 2 * math.pi) < math.pi
    assert first[outer].double().mean().item() == pytest.approx(0.5, abs=0.02)
    # The square of the radius is uniform, so half the points lie within its root of a half.
    within = (radius < math.pi * math.sqrt(0.5)).double().mean().item()
    assert within == pytest.approx(0.5, abs=0.02)


def test_the_checkerboard_is_uniform_on_every_other_cell():
    points = _drawn("checkerboard")
    assert (points.abs() <= 3).all()
    cells = torch.floor((points + 3) / 1.5).clamp(max=3).long()
    assert (cells.sum(1) % 2 == 0).all()
    counts = torch.bincount(4 * cells[:, 0] + cells[:, 1], minlength=16)
    filled = counts[counts > 0]
    assert len(filled) == 8
    # Chi-square of 7 degrees of freedom; beyond 25 with a probability below 0.001.
    expected = COUNT / 8
    assert ((filled - expected) ** 2 / expected).sum() < 25
    inside = (points + 3) / 1.5 - cells
    assert inside.mean(0).tolist() == pytest.approx([0.5, 0.5], abs=0.01)
    assert inside.var(0).tolist() == pytest.approx([1 / 12, 1 / 12], rel=0.03)


def test_the_pinwheel_has_five_equal_blades():
    points = _drawn("pinwheel")
    # Turned back by the twist at its distance, each blade is a normal cloud about (1, 0).
    angle, radius = torch.atan2(points[:, 1], points[:, 0]), points.norm(dim=1) / 2
    straight = torch.remainder(angle - 0.25 * (radius - 1).exp(), 2 * math.pi)
    blade = torch.round(straight / (2 * math.pi / 5)).long() % 5
    shares = torch.bincount(blade, minlength=5) / COUNT
    assert shares.tolist() == pytest.approx([0.2] * 5, abs=0.02)
    assert radius.mean().item() == pytest.approx(1, abs=0.02)
    across = torch.remainder(straight + math.pi / 5, 2 * math.pi / 5) - math.pi / 5
    assert (across * radius).std().item() == pytest.approx(0.1, rel=0.1)
    a_fifth = torch.tensor(2 * math.pi / 5)
    turn = torch.stack(
        (torch.stack((a_fifth.cos(), -a_fifth.sin())), torch.stack((a_fifth.sin(), a_fifth.cos())))
    )
    # A fifth of a turn changes nothing: second moments of a shape with that symmetry are round.
    moments = points.T @ points / COUNT
    torch.testing.assert_close(turn @ moments @ turn.T, moments, atol=0.06, rtol=0)


def test_unknown_shapes_and_no_points_are_refused():
    with pytest.raises(ConfigError, match=r"moon: is not a set of points.*moons, spirals"):
        toy_points("moon", 10, 0)
    with pytest.raises(ConfigError, match="0 points are too few"):
        toy_points("moons", 0, 0)
