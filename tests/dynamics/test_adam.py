"""Neural ODEs that follow the Adam optimiser."""

import math

import pytest
import torch

from bfno.dynamics import AdamODE, InitialMoments
from tests.dynamics.oracle import TOLERANCE, trajectory

POSITIVE = {
    "sigmoid": lambda v: 1 / (1 + math.exp(-v)),
    "softplus": lambda v: math.log1p(math.exp(v)),
}


@pytest.mark.parametrize("positive", POSITIVE)
def test_a_constant_field_is_followed_at_its_root_mean_square(positive):
    q = torch.tensor([[0.8, -1.3]])
    dynamics = AdamODE(lambda t, h: q.expand_as(h), positive=positive)
    # Slowest rate: sigmoid(3) = 0.95; after 40 units e^-38 of the start is left.
    state = trajectory(dynamics, torch.zeros(1, 2), (0.0, 40.0))[-1]
    _, mean, square = state.chunk(3, dim=1)
    torch.testing.assert_close(mean, -q, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(square, q.square(), rtol=0, atol=TOLERANCE)
    velocity = dynamics(40.0, state)[:, :2]
    expected = [v / (math.sqrt(POSITIVE[positive](v * v)) + 1e-8) for v in q[0].tolist()]
    torch.testing.assert_close(velocity, torch.tensor([expected]), rtol=0, atol=TOLERANCE)


def test_moments_relax_at_the_trained_rates():
    q = 0.7
    dynamics = AdamODE(lambda t, h: torch.full_like(h, q), rate_logits=(-5.0, 5.0))
    _, mean, square = trajectory(dynamics, torch.zeros(1, 1), (0.0, 1.0))[-1].chunk(3, dim=1)
    slow, fast = (1 / (1 + math.exp(-logit)) for logit in (-5.0, 5.0))
    assert mean.item() == pytest.approx(-q * (1 - math.exp(-slow)), abs=TOLERANCE)
    assert square.item() == pytest.approx(q * q * (1 - math.exp(-fast)), abs=TOLERANCE)


def test_learned_moments_start_with_a_second_moment_that_is_not_negative():
    start = InitialMoments(channels=3, hidden=4, state_channels=5)
    dynamics = AdamODE(lambda t, h: h, start)
    x = torch.randn(2, 3, 6, 6)
    state = dynamics.initial(x)
    moments = start.network(x)
    assert torch.equal(state, torch.cat((x, moments, moments**2), dim=1))
    _, _, square = state.chunk(3, dim=1)
    assert square.min() >= 0 and square.max() > 0


def test_only_the_position_is_read_out():
    y = torch.randn(2, 6, 4)
    assert torch.equal(AdamODE(lambda t, h: h).read_out(y), y[:, :2])


@pytest.mark.parametrize(("channels", "state_channels"), [(3, 4), (3, 1)])
def test_channels_that_cannot_be_split_into_moments_are_refused(channels, state_channels):
    with pytest.raises(ValueError, match="state_channels"):
        InitialMoments(channels, 4, state_channels)


def test_an_unknown_positive_function_is_refused():
    with pytest.raises(ValueError, match="positive"):
        AdamODE(lambda t, h: h, positive="exp")
