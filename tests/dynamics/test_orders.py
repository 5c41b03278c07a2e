"""First- and second-order dynamics: closed forms, starts and shapes."""

import math

import pytest
import torch

from bfno.dynamics import FirstOrder, InitialVelocity, SecondOrder, ZeroStart
from tests.dynamics.oracle import TOLERANCE, trajectory


def test_a_linear_field_decays_exponentially():
    dynamics = FirstOrder(lambda t, y: -2 * y)
    x = torch.randn(3, 2, 4)
    end = dynamics.read_out(trajectory(dynamics, x, dynamics.interval)[-1])
    torch.testing.assert_close(end, math.exp(-2) * x, rtol=0, atol=TOLERANCE)


def test_augmentation_starts_at_zero_and_reaches_the_read_out():
    def drive(t, y):
        position, extra = y.split((2, 1), dim=1)
        return torch.cat((extra.expand_as(position), torch.ones_like(extra)), dim=1)

    dynamics = FirstOrder(drive, augment=1)
    x = torch.randn(3, 2, 4)
    y0 = dynamics.initial(x)
    assert torch.equal(y0[:, :2], x) and not y0[:, 2:].any()
    # The extra channel is the time s, and the position collects its integral s²/2.
    end = dynamics.read_out(trajectory(dynamics, x, (0.0, 1.0))[-1])
    expected = torch.cat((x + 0.5, torch.ones(3, 1, 4)), dim=1)
    torch.testing.assert_close(end, expected, rtol=0, atol=TOLERANCE)


def test_negative_augmentation_is_refused():
    with pytest.raises(ValueError, match="augment"):
        FirstOrder(lambda t, y: y, augment=-1)


def spring(t, y):
    position, _ = y.chunk(2, dim=1)
    return -((math.pi / 2) ** 2) * position


def test_a_spring_swings_like_a_cosine():
    dynamics = SecondOrder(spring)
    x = torch.randn(3, 2, 4)
    times = torch.linspace(0, 1, 6)
    states = trajectory(dynamics, x, times)
    for t, state in zip(times, states, strict=True):
        expected = math.cos(math.pi / 2 * t) * x
        torch.testing.assert_close(dynamics.read_out(state), expected, rtol=0, atol=TOLERANCE)


def test_the_start_gives_the_velocity():
    dynamics = SecondOrder(spring, start=lambda x: math.pi / 2 * x.flip(0))
    x = torch.randn(2, 3)
    end = dynamics.read_out(trajectory(dynamics, x, (0.0, 1.0))[-1])
    torch.testing.assert_close(end, x.flip(0), rtol=0, atol=TOLERANCE)


def test_the_field_sees_friction_through_the_velocity():
    dynamics = SecondOrder(lambda t, y: -y.chunk(2, dim=1)[1], start=torch.ones_like)
    x = torch.zeros(1, 2)
    end = dynamics.read_out(trajectory(dynamics, x, (0.0, 1.0))[-1])
    torch.testing.assert_close(end, torch.full((1, 2), 1 - math.exp(-1)), rtol=0, atol=TOLERANCE)


def test_only_the_position_is_read_out():
    dynamics = SecondOrder(spring)
    y = torch.randn(2, 6, 5)
    changed = y.clone()
    changed[:, 3:] = 7.0
    assert torch.equal(dynamics.read_out(y), y[:, :3])
    assert torch.equal(dynamics.read_out(changed), dynamics.read_out(y))


def test_an_image_is_completed_to_position_and_velocity():
    start = InitialVelocity(channels=3, hidden=4, out_channels=2 * 5 - 3)
    dynamics = SecondOrder(spring, start)
    x = torch.randn(2, 3, 6, 6)
    position, velocity = dynamics.initial(x).chunk(2, dim=1)
    rest = start(x)
    assert torch.equal(position, torch.cat((x, rest[:, :2]), dim=1))
    assert torch.equal(velocity, rest[:, 2:])


def test_the_initial_velocity_is_three_convolutions_with_leaky_relus():
    start = InitialVelocity(channels=2, hidden=4, out_channels=3)
    first, _, second, _, third = start.layers
    x = torch.randn(2, 2, 5, 5)
    hidden = first(x)
    hidden = torch.where(hidden > 0, hidden, 0.3 * hidden)
    hidden = second(hidden)
    hidden = torch.where(hidden > 0, hidden, 0.3 * hidden)
    torch.testing.assert_close(start(x), third(hidden), rtol=0, atol=1e-14)


def test_zeros_complete_a_state_of_several_augmented_components():
    dynamics = SecondOrder(spring, ZeroStart(components=2, augment=3))
    x = torch.randn(2, 2, 4)
    y0 = dynamics.initial(x)
    assert torch.equal(y0[:, :2], x) and not y0[:, 2:].any()
    assert dynamics.read_out(y0).shape[1] == 5


def test_a_start_that_does_not_divide_into_components_is_refused():
    with pytest.raises(ValueError, match="multiple of 2"):
        SecondOrder(spring, start=lambda x: x[:, :1]).initial(torch.zeros(1, 2))
