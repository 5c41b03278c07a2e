"""Glow: steps, conditional splits and the density of the whole."""

import math

import pytest
import torch

from bfno.models.flows.factoring import ActNorm
from bfno.models.flows.glow import ConditionalSplit, Glow, GlowStep
from bfno.models.flows.interface import log_normal
from tests.models.flows.jacobians import assert_log_det_is_true, disturb, true_log_det


def make_glow(shape, **options):
    """A small flow in evaluation mode, away from its start."""
    flow = Glow(shape, **{"steps": 2, "width": 4, **options})
    flow.encode(2 + 3 * torch.randn(16, *shape))
    return disturb(flow).eval()


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_actnorm_gains_the_volume_it_says_and_is_undone(channels):
    norm, x = disturb(ActNorm(channels)).eval(), torch.randn(2, channels, 2, 3)
    assert_log_det_is_true(norm, x)
    torch.testing.assert_close(norm.decode(norm.encode(x)[0]), x)


def test_the_first_batch_in_training_is_normalised_and_no_other():
    norm, x = ActNorm(3), 5 + 2 * torch.randn(8, 3, 4, 4) * torch.tensor([1.0, 2, 3]).view(3, 1, 1)
    assert torch.equal(norm.eval().encode(x)[0], x)
    y = norm.train().encode(x)[0]
    torch.testing.assert_close(y.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-12)
    torch.testing.assert_close(y.var((0, 2, 3), correction=0), torch.ones(3))
    loaded = ActNorm(3)
    loaded.load_state_dict(norm.state_dict())
    for other in (norm, loaded):
        assert other.encode(x + 1)[0].mean() > 0.1


def test_a_constant_channel_is_only_shifted():
    norm = ActNorm(2)
    x = torch.stack((torch.full((4, 2, 2), 3.0), torch.randn(4, 2, 2)), dim=1)
    y, gained = norm.encode(x)
    assert torch.equal(y[:, 0], torch.zeros(4, 2, 2)) and gained.isfinite()


def test_the_mixing_of_channels_gains_the_volume_it_says_and_starts_as_a_rotation():
    mixing = GlowStep(4, 2).mixing
    matrix = mixing.W.detach()
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(4))
    disturb(mixing)
    x = torch.randn(2, 4, 2, 3)
    y, gained = mixing.inverse(x)
    expected = true_log_det(lambda sample: mixing.inverse(sample)[0], x)
    torch.testing.assert_close(gained.expand(2), expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(mixing(y)[0], x)


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_a_step_gains_the_volume_it_says_and_is_undone(channels):
    step, x = disturb(GlowStep(channels, 4), 0.3).eval(), torch.randn(2, channels, 2, 3)
    assert_log_det_is_true(step, x)
    torch.testing.assert_close(step.decode(step.encode(x)[0]), x, rtol=1e-10, atol=1e-10)


def test_what_a_split_leaves_has_the_density_of_a_conditional_gaussian():
    split, x = disturb(ConditionalSplit(4), 0.3), torch.randn(3, 4, 2, 2)
    kept, left, gained = split.encode(x)
    mean, log_scale = split.predict(x[:, :2]).chunk(2, dim=1)
    gaussian = torch.distributions.Normal(mean, log_scale.exp())
    expected = gaussian.log_prob(x[:, 2:]).flatten(1).sum(1)
    torch.testing.assert_close(log_normal(left) + gained, expected)
    assert torch.equal(kept, x[:, :2])
    torch.testing.assert_close(split.decode(kept, left), x)


@pytest.mark.parametrize("shape", [(1, 4, 4), (2, 4, 4), (3, 4, 4), (1, 8, 4), (1, 8, 8)])
def test_the_whole_flow_gains_the_volume_it_says(shape):
    assert_log_det_is_true(make_glow(shape), torch.randn(2, *shape))


def test_a_new_flow_makes_a_first_batch_nearly_standard():
    flow, x = Glow((1, 8, 8), steps=2, width=4), 5 + 3 * torch.randn(200, 1, 8, 8)
    latent = flow.encode(x).latent
    assert abs(latent.mean().item()) < 0.1 and 0.5 < latent.std().item() < 1.1


def test_the_density_of_four_pixels_integrates_to_one():
    flow = make_glow((1, 2, 2), steps=1)
    spread, count = 6.0, 200_000
    points = 2 + spread * torch.randn(count, 4)
    proposal = log_normal((points - 2) / spread) - 4 * math.log(spread)
    with torch.no_grad():
        weights = (flow.log_prob(points.view(-1, 1, 2, 2)) - proposal).exp()
    error = weights.std().item() / math.sqrt(count)
    assert error < 0.02
    assert abs(weights.mean().item() - 1) < 4 * error


@pytest.mark.parametrize(
    ("side", "asked", "levels"), [(28, 3, 2), (14, 3, 1), (8, 3, 2), (32, 3, 3), (8, 1, 1)]
)
def test_there_are_no_more_levels_than_sides_can_be_halved(side, asked, levels):
    flow = Glow((1, side, side), levels=asked, steps=1, width=2)
    assert flow.levels == levels == len(flow.stages)


def test_images_with_odd_sides_are_refused():
    with pytest.raises(ValueError, match="Glow needs images with even sides, got 7×7"):
        Glow((1, 7, 7))


@pytest.mark.parametrize("channels", [2, 3])
def test_a_bounded_step_and_split_gain_the_volume_they_say_and_are_undone(channels):
    step, x = disturb(GlowStep(channels, 4, bound=0.5), 0.5).eval(), torch.randn(2, channels, 2, 3)
    assert_log_det_is_true(step, x)
    torch.testing.assert_close(step.decode(step.encode(x)[0]), x, rtol=1e-10, atol=1e-10)
    split, x = disturb(ConditionalSplit(4, bound=0.5), 2.0), torch.randn(3, 4, 2, 2)
    kept, left, gained = split.encode(x)
    assert gained.abs().max() <= 0.5 * left[0].numel()
    torch.testing.assert_close(split.decode(kept, left), x)


def test_bounded_scales_keep_samples_finite_where_published_ones_overflow():
    found = {}
    for bound in (None, 1.0):
        torch.manual_seed(0)
        flow = Glow((3, 16, 16), steps=8, width=8, bound=bound).float()
        flow.encode(torch.randn(16, 3, 16, 16, dtype=torch.float32))
        # As after a few steps of training: weights off their start, networks that answer strongly.
        disturb(flow, 0.15).eval()
        found[bound] = flow.sample(16).isfinite().flatten(1).all(1)
    assert not found[None].all() and found[1.0].all()


def test_a_bound_that_is_none_is_refused():
    with pytest.raises(ValueError, match="bound must be positive, got 0"):
        Glow((1, 4, 4), bound=0)
