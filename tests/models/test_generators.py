"""Attention that moves together with what it attends to."""

import pytest
import torch
from torchdiffeq import odeint

from bfno.models.generators import ACEGenerator, LatentGenerator, correlation
from bfno.models.series import tanh_network
from tests.models.latent_models import make_generator
from tests.models.series_batches import random_batch

SIZE = 4


@pytest.mark.parametrize("kind", ["ace", "public ace"])
def test_states_and_attention_solve_their_equation_for_each_sample(kind):
    made = make_generator(kind, method="dopri5", rtol=1e-9, atol=1e-9)
    z0, times = torch.randn(2, 3, SIZE), random_batch().times

    def rates(t, state):
        """As it is written down, for one sample."""
        z, a = state
        own = kind == "ace"
        weights = torch.exp(a) / torch.exp(a).sum(1, keepdim=True) if own else a
        seen = torch.stack([weights @ row for row in z])
        other = made.attention_field if own else made.field
        mean = sum(torch.outer(row, change) for row, change in zip(seen, other(seen), strict=True))
        return made.field(seen), mean / len(z)

    path = made(z0, times)
    union, place = times.unique(return_inverse=True)
    for sample in range(2):
        start = (z0[sample], torch.corrcoef(z0[sample].T))
        exact = odeint(rates, start, union, rtol=1e-10, atol=1e-10)[0]
        for series in range(3):
            expected = exact[place[series], series]
            # The tolerance of the solve, and 1e-12 that the correlation adds to a variance.
            torch.testing.assert_close(path[sample, series], expected, rtol=0, atol=1e-6)


def test_the_attention_depends_on_its_network():
    made = make_generator("ace")
    z0, times = torch.randn(2, 3, SIZE), random_batch().times
    made(z0, times).sum().backward()
    assert all(one.grad is not None and one.grad.any() for one in made.parameters())


def test_a_batch_of_equal_series_moves_as_one_of_them():
    """The mean over the batch makes the attention's rate independent of the batch's size."""
    made = make_generator("ace")
    z, a = torch.randn(1, 1, SIZE), torch.randn(1, SIZE, SIZE)
    slope, rate = made.rates(z, a)
    many_slope, many_rate = made.rates(z.expand(1, 7, SIZE), a)
    torch.testing.assert_close(many_rate, rate, rtol=0, atol=1e-14)
    torch.testing.assert_close(many_slope, slope.expand(1, 7, SIZE), rtol=0, atol=1e-14)


def test_correlation_is_the_usual_one():
    z = torch.randn(2, 6, SIZE)
    expected = torch.stack([torch.corrcoef(one.T) for one in z])
    torch.testing.assert_close(correlation(z), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("batch", [1, 3])
def test_constant_coordinates_correlate_with_nothing_and_have_finite_gradients(batch):
    z = torch.randn(2, batch, SIZE)
    z[:, :, 1] = 0.7
    z.requires_grad_()
    found = correlation(z)
    found.square().sum().backward()
    # The mean of equal numbers is off by a rounding error.
    assert found[:, 1].abs().max() < 1e-15 and found[:, :, 1].abs().max() < 1e-15
    assert z.grad is not None and torch.isfinite(z.grad).all()


def test_variants_that_do_not_exist_are_refused():
    net = tanh_network(SIZE, SIZE, 1, 5)
    with pytest.raises(ValueError, match="variant must be"):
        ACEGenerator(net, net, variant="other")
    with pytest.raises(ValueError, match="attention_field"):
        ACEGenerator(net)
    with pytest.raises(ValueError, match="attention_field"):
        ACEGenerator(net, net, variant="public_code")


def test_kinetic_is_half_the_mean_squared_rate_at_a_row_of_each_series():
    generator = LatentGenerator(lambda t, y: t[:, None] * y)
    times = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.5, 3.0]])
    path = torch.randn(4, 2, 3, 5)
    rates = (0.5 * (times[None, :, :, None] * path).square()).mean((0, 3))  # (series, rows)
    possible = {round((a + b).item() / 2, 4) for a in rates[0] for b in rates[1]}
    found = {round(generator.kinetic(path, times).item(), 4) for _ in range(200)}
    assert found <= possible and len(found) > 4


def test_states_that_move_together_have_no_rate_of_their_own():
    generator = ACEGenerator(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    with pytest.raises(ValueError, match="depend on each other"):
        generator.kinetic(torch.randn(1, 2, 3, 3), torch.rand(2, 3))
