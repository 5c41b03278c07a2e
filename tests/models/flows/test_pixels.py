"""Bytes under a density: dequantisation, bounds, bits."""

import pytest
import torch
from torch import nn

from bfno.models.flows import Encoding, Flow, PixelFlow, bits_per_dim, dequantise
from bfno.models.flows.factoring import squeeze, unsqueeze
from tests.models.flows.jacobians import full_jacobians

BYTES = torch.arange(256, dtype=torch.uint8)


class Identity(Flow):
    def __init__(self, event_shape):
        super().__init__(event_shape)
        self.unused = nn.Parameter(torch.zeros(()))

    def encode(self, x):
        return Encoding(x.flatten(1), x.new_zeros(len(x)))

    def decode(self, latent):
        return latent.view(-1, *self.event_shape)


class UniformCube(Identity):
    """Maps the unit cube to a standard normal by the inverse of its distribution function."""

    def encode(self, x):
        latent = torch.special.ndtri(x.flatten(1))
        return Encoding(latent, -torch.distributions.Normal(0, 1).log_prob(latent).sum(1))


def test_a_uniform_density_takes_exactly_eight_bits_for_a_byte():
    pixels = torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8)
    for how in ("uniform", "center"):
        x = dequantise(pixels, how, torch.float64)
        bits = bits_per_dim(UniformCube((3, 4, 4)).log_prob(x), 48)
        torch.testing.assert_close(bits, torch.full((5,), 8.0), rtol=1e-12, atol=1e-12)


def test_every_byte_stays_in_its_own_interval_in_single_precision_too():
    pixels = torch.full((200_000,), 255, dtype=torch.uint8)
    x = dequantise(pixels, "uniform", torch.float32)
    assert x.max() < 1 and x.min() >= 255 / 256
    back = (x * 256).floor()
    assert torch.equal(back, torch.full_like(back, 255))


def test_noise_follows_its_generator_and_fills_the_interval_evenly():
    pixels = torch.zeros(100_000, dtype=torch.uint8)
    one, two = (
        dequantise(pixels, "uniform", torch.float64, torch.Generator().manual_seed(4))
        for _ in range(2)
    )
    assert torch.equal(one, two)
    shares = torch.histc(one, 10, 0, 1 / 256) / len(one)
    # Ten bins of 10,000 expected points each have a deviation of one per cent.
    torch.testing.assert_close(shares, torch.full((10,), 0.1), rtol=0.05, atol=0)
    assert torch.equal(dequantise(pixels[:1], "center", torch.float64), torch.tensor([0.5 / 256]))


@pytest.mark.parametrize("alpha", [1e-5, 0.05, None])
def test_the_way_off_the_bounds_gains_the_volume_that_autograd_finds(alpha):
    flow, x = PixelFlow(Identity((1, 2, 2)), alpha), torch.rand(3, 1, 2, 2)
    jacobians = full_jacobians(lambda sample: flow.encode(sample).latent, x)
    expected = torch.linalg.slogdet(jacobians)[1]
    torch.testing.assert_close(flow.encode(x).log_det, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(flow.decode(flow.encode(x).latent), x, rtol=1e-10, atol=1e-10)


def test_the_logit_is_the_published_formula():
    alpha, x = 0.05, torch.rand(2, 1, 2, 2)
    s = alpha + (1 - 2 * alpha) * x
    found = PixelFlow(Identity((1, 2, 2)), alpha).encode(x)
    expected = (torch.log(torch.tensor(1 - 2 * alpha)) - torch.log(s - s**2)).sum((1, 2, 3))
    torch.testing.assert_close(found.log_det, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.latent, (s.log() - (1 - s).log()).flatten(1))


def test_samples_are_images_however_far_the_latent_variables_are():
    flow = PixelFlow(Identity((1, 2, 2)), 1e-5)
    images = flow.decode(1e6 * torch.randn(4, 4))
    assert images.min() >= 0 and images.max() <= 1


def test_squeezing_lays_blocks_side_by_side_and_is_undone():
    x = torch.arange(2 * 3 * 4 * 6.0).view(2, 3, 4, 6)
    y = squeeze(x)
    assert y.shape == (2, 12, 2, 3)
    assert torch.equal(y[0, 4:8, 1, 2], x[0, 1, 2:4, 4:6].flatten())
    assert torch.equal(unsqueeze(y), x)


@pytest.mark.parametrize("alpha", [0.05, None])
@pytest.mark.parametrize(
    ("images", "says"),
    [
        (torch.full((2, 1, 2, 2), 9, dtype=torch.uint8), "torch.uint8; dequantise turns bytes"),
        (torch.full((2, 1, 2, 2), 1.01), "numbers from 1.01 to 1.01"),
        (torch.full((2, 1, 2, 2), -0.01), "numbers from -0.01 to -0.01"),
        (torch.full((2, 1, 2, 2), float("nan")), "numbers from nan to nan"),
    ],
)
def test_what_is_no_image_is_not_blamed_on_the_flow(images, says, alpha):
    with pytest.raises(ValueError, match=f"images must be .* between 0 and 1, got {says}"):
        PixelFlow(Identity((1, 2, 2)), alpha).log_prob(images)


@pytest.mark.parametrize("alpha", [1.2e-7, 1e-5, 0.05, None])
def test_black_and_white_have_a_finite_density_in_single_precision(alpha):
    images = torch.tensor([0.0, 1.0], dtype=torch.float32)[:, None, None, None].expand(2, 1, 2, 2)
    assert PixelFlow(Identity((1, 2, 2)), alpha).float().log_prob(images).isfinite().all()


def test_no_images_have_no_density():
    assert PixelFlow(Identity((1, 2, 2)), 0.05).log_prob(torch.zeros(0, 1, 2, 2)).shape == (0,)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: dequantise(torch.zeros(1), "center", torch.float32), "bytes"),
        (lambda: dequantise(torch.zeros(1, dtype=torch.uint8), "x", torch.float32), "center"),  # pyright: ignore
        (lambda: dequantise(BYTES, "uniform", torch.bfloat16), "32 bits or more, got torch.bfl"),
        (lambda: dequantise(BYTES, "center", torch.float16), "32 bits or more, got torch.float16"),
        (lambda: dequantise(BYTES, "center", torch.int32), "32 bits or more, got torch.int32"),
        (lambda: PixelFlow(Identity((1, 2, 2)), 0.5), "alpha"),
        (lambda: PixelFlow(Identity((1, 2, 2)), 0.0), "alpha"),
        (lambda: PixelFlow(Identity((1, 2, 2)), 1e-8), "alpha"),
        (lambda: PixelFlow(Identity((1, 2, 2)), None).encode(torch.zeros(1, 1, 2, 3)), "shape"),
        (lambda: squeeze(torch.zeros(1, 1, 3, 4)), "even"),
        (lambda: unsqueeze(torch.zeros(1, 3, 2, 2)), "channels"),
    ],
)
def test_wrong_input_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()
