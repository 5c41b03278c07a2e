"""The Fourier neural operator layer against its definition, frequency by frequency."""

import itertools
import math

import pytest
import torch

from bfno.layers.fno import FNO
from tests.layers.differences import gradients_are_finite_differences

# Both sides sum the same few hundred products in float64, in different orders.
TOLERANCE = 1e-10

GRIDS = [((7,), (3,)), ((8,), (5,)), ((7, 8), (3, 5)), ((8, 7), (4, 2)), ((4, 5, 6), (2, 1, 3))]


def signed_frequencies(modes, weight_axes):
    """Frequency of each entry along each axis of the weights: 0, 1, ..., then up to -1."""
    axes = [[*range(m), *range(-m, 0)] for m in modes[:-1]]
    axes.append(list(range(modes[-1])))
    assert [len(axis) for axis in axes] == list(weight_axes)
    return axes


def reference(layer, x):
    """Sums of waves: every kept frequency multiplied by its matrix, in plain loops.

    A frequency inside the last axis' half spectrum stands for itself and its mirror image, so its
    wave counts twice; the lowest and an even grid's highest count once, without their sine.
    """
    space = x.shape[2:]
    weight = torch.view_as_complex(layer.weight.detach())
    points = torch.cartesian_prod(*[torch.arange(n) for n in space]).view(-1, len(space))
    flat = x.reshape(*x.shape[:2], -1).to(weight.dtype)
    y = torch.zeros(x.shape[0], x.shape[1], len(points))
    axes = signed_frequencies(layer.modes, weight.shape[2:])
    for index in itertools.product(*[range(len(axis)) for axis in axes]):
        k = [axis[i] for axis, i in zip(axes, index, strict=True)]
        phase = sum(2 * math.pi * k[a] * points[:, a] / space[a] for a in range(len(space)))
        assert isinstance(phase, torch.Tensor)
        wave = torch.polar(torch.ones_like(phase), phase)
        coefficient = torch.einsum("bip,p->bi", flat, wave.conj())
        out = coefficient @ weight[(..., *index)]
        once = k[-1] == 0 or 2 * k[-1] == space[-1]
        # At these frequencies the inverse transform along the last axis reads real parts only; the
        # waves along the other axes are complex, and taking the real part of the sum does it.
        y += (out[..., None] * wave).real * (1 if once else 2) / len(points)
    return y.view(x.shape)


@pytest.mark.parametrize(("grid", "modes"), GRIDS)
def test_output_is_the_sum_of_the_kept_waves(grid, modes):
    layer = FNO(channels=3, modes=modes, skip="none")
    x = torch.randn(2, 3, *grid)
    torch.testing.assert_close(layer(x), reference(layer, x), rtol=0, atol=TOLERANCE)


def test_output_is_what_the_classic_two_corner_blocks_give():
    layer = FNO(channels=3, modes=(3, 4), skip="none")
    x = torch.randn(2, 3, 9, 10)
    first, second = torch.view_as_complex(layer.weight.detach()).chunk(2, dim=2)
    spectrum = torch.fft.rfft2(x)
    result = torch.zeros_like(spectrum)
    result[:, :, :3, :4] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :3, :4], first)
    result[:, :, -3:, :4] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -3:, :4], second)
    expected = torch.fft.irfft2(result, s=(9, 10))
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=TOLERANCE)


def test_skip_adds_the_input_or_an_affine_map_of_it():
    x = torch.randn(2, 3, 8, 8)
    plain = FNO(3, 2, skip="none")
    identity, linear = FNO(3, 2), FNO(3, 2, skip="linear")
    for layer in (identity, linear):
        layer.weight.data.copy_(plain.weight.data)
    assert linear.linear is not None
    mapped = torch.einsum("oi,bixy->boxy", linear.linear.weight, x)
    mapped = mapped + linear.linear.bias[:, None, None]
    torch.testing.assert_close(identity(x), plain(x) + x, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(linear(x), plain(x) + mapped, rtol=0, atol=TOLERANCE)


def test_a_band_limited_signal_gives_the_same_function_on_a_finer_grid():
    layer = FNO(channels=2, modes=(3, 3))
    low = torch.view_as_complex(torch.randn(1, 2, 8, 3, 2))
    low[:, :, 3:6] = 0  # frequencies that the layer would discard
    coarse = torch.fft.irfft2(low, s=(8, 8), norm="forward")
    wide = torch.zeros(1, 2, 16, 3, dtype=low.dtype)
    wide[:, :, :3], wide[:, :, -2:] = low[:, :, :3], low[:, :, -2:]
    fine = torch.fft.irfft2(wide, s=(16, 16), norm="forward")
    torch.testing.assert_close(fine[..., ::2, ::2], coarse, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(layer(fine)[..., ::2, ::2], layer(coarse), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("grid", "modes"), [((6,), (4,)), ((4, 5), (2, 3)), ((3, 2, 4), (1, 1, 2))]
)
def test_gradients_match_finite_differences(grid, modes):
    layer = FNO(channels=2, modes=modes, skip="linear")
    assert gradients_are_finite_differences(layer, torch.randn(2, 2, *grid))


def test_weights_start_uniform_between_zero_and_one_over_the_squared_width():
    weight = FNO(channels=8, modes=8).weight.detach() * 64
    assert weight.min() >= 0 and weight.max() < 1
    # 16,384 draws: the mean's standard deviation is 0.0023, that of the variance 0.0006.
    assert abs(weight.mean() - 0.5) < 0.01 and abs(weight.var() - 1 / 12) < 0.003


def test_single_precision_agrees_and_survives_another_memory_format():
    layer = FNO(channels=3, modes=(3, 4))
    x = torch.randn(2, 3, 9, 10)
    expected = layer(x)
    result = layer.float()(x.float())
    assert result.dtype == torch.float32
    # A few hundred float32 operations on values of order one.
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=1e-5)
    line = FNO(channels=3, modes=(3,))
    x = torch.randn(2, 3, 9)
    expected = line(x)
    line.weight.data = line.weight.data.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(line(x), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("shape", [(1, 2, 5, 8), (1, 2, 8, 3), (1, 2, 8), (1, 2, 8, 8, 8)])
def test_a_grid_that_does_not_fit_the_modes_is_refused(shape):
    with pytest.raises(ValueError, match="modes"):
        FNO(channels=2, modes=3)(torch.zeros(shape))


@pytest.mark.parametrize(
    "options", [{"modes": 0}, {"modes": (1, 1, 1, 1)}, {"modes": 2, "skip": "x"}]
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match="must"):
        FNO(2, **options)
