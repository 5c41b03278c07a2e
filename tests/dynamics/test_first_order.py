"""Plain and augmented neural ODEs."""

import math

import pytest
import torch

from bfno.dynamics import FirstOrder
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
