"""The adaptive Fourier neural operator layer against its definition in complex arithmetic."""

import pytest
import torch

from bfno.layers.afno import AFNO
from tests.layers.differences import gradients_are_finite_differences

# Both sides do the same float64 arithmetic in different orders.
TOLERANCE = 1e-10


def split_relu(z):
    return torch.complex(z.real.relu(), z.imag.relu())


def split_shrink(z, amount):
    def shrink(part):
        return part.sign() * (part.abs() - amount).clamp(min=0)

    return torch.complex(shrink(z.real), shrink(z.imag))


def reference(layer, x):
    """Complex weights, one block and one frequency at a time, and library transforms."""
    dim = tuple(range(2, x.dim()))
    spectrum = torch.fft.rfftn(x, dim=dim, norm="ortho")
    kept = int((x[0, 0].numel() // 2 + 1) * layer.kept)
    result = torch.zeros_like(spectrum)
    weights = (layer.weight_in, layer.bias_in, layer.weight_out, layer.bias_out)
    w1, b1, w2, b2 = (torch.view_as_complex(part.detach()) for part in weights)
    size = x.shape[1] // layer.blocks
    for block in range(layer.blocks):
        part = slice(block * size, (block + 1) * size)
        for index in torch.cartesian_prod(*[torch.arange(n) for n in spectrum.shape[2:]]).view(
            -1, len(dim)
        ):
            place = tuple(index.tolist())
            if place[-1] >= kept:
                continue
            hidden = split_relu(spectrum[(slice(None), part, *place)] @ w1[block] + b1[block])
            out = split_shrink(hidden @ w2[block] + b2[block], layer.shrink)
            result[(slice(None), part, *place)] = out
    # On the CPU the library drops what cannot belong to a real signal, as the layer does itself.
    return torch.fft.irfftn(result, s=x.shape[2:], dim=dim, norm="ortho") + x


def lively(layer):
    """Weights large enough for the shrinkage not to remove everything."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(50)
    return layer


@pytest.mark.parametrize("grid", [(7,), (8,), (5, 6), (6, 5), (3, 4, 5)])
@pytest.mark.parametrize("options", [{"blocks": 2}, {"blocks": 1, "expansion": 3, "shrink": 0.3}])
def test_output_is_the_shared_complex_network_at_every_frequency(grid, options):
    layer = lively(AFNO(channels=4, **options))
    x = torch.randn(2, 4, *grid)
    torch.testing.assert_close(layer(x), reference(layer, x), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("grid", "kept", "columns"), [((9,), 0.5, 2), ((4, 6), 0.2, 2)])
def test_frequencies_that_are_not_kept_pass_unchanged_to_the_output(grid, kept, columns):
    layer = lively(AFNO(channels=4, blocks=2, kept=kept))
    x = torch.randn(2, 4, *grid)
    result = layer(x)
    torch.testing.assert_close(result, reference(layer, x), rtol=0, atol=TOLERANCE)
    change = torch.fft.rfft(result - x)
    assert change[..., :columns].abs().max() > 0.1
    assert change[..., columns:].abs().max() < TOLERANCE


def test_blocks_do_not_mix():
    layer = lively(AFNO(channels=4, blocks=2))
    x = torch.randn(1, 4, 6, 6)
    changed = x.clone()
    changed[:, 2:] = torch.randn(1, 2, 6, 6)
    torch.testing.assert_close(layer(x)[:, :2], layer(changed)[:, :2], rtol=0, atol=TOLERANCE)
    assert not torch.allclose(layer(x)[:, 2:], layer(changed)[:, 2:])


def test_a_strong_shrinkage_leaves_the_input():
    x = torch.randn(1, 8, 6, 6)
    torch.testing.assert_close(AFNO(channels=8, shrink=10.0)(x), x, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("grid", [(5,), (4, 3), (2, 3, 4)])
def test_gradients_match_finite_differences(grid):
    layer = lively(AFNO(channels=2, blocks=1, expansion=2))
    assert gradients_are_finite_differences(layer, torch.randn(2, 2, *grid))


def test_weights_start_normal_with_deviation_a_fiftieth():
    for parameter in AFNO(channels=64, blocks=1, expansion=2).parameters():
        # The smallest has 128 entries: its deviation is known to 6 %, its mean to 0.0018.
        assert abs(parameter.std() - 0.02) < 0.005 and abs(parameter.mean()) < 0.008


def test_single_precision_agrees():
    layer = lively(AFNO(channels=4, blocks=2))
    x = torch.randn(2, 4, 6, 7)
    expected = layer(x)
    result = layer.float()(x.float())
    assert result.dtype == torch.float32
    # A hundred float32 operations on values of order one.
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "options",
    [{"blocks": 3}, {"blocks": 0}, {"blocks": 2, "kept": 0.0}, {"blocks": 2, "shrink": -1}],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match="must"):
        AFNO(channels=4, **options)


def test_an_input_without_space_is_refused():
    with pytest.raises(ValueError, match="space axes"):
        AFNO(channels=4, blocks=2)(torch.zeros(2, 4))


def test_autocast_keeps_the_spectrum_in_full_precision():
    layer, x = AFNO(8, blocks=2).float(), torch.randn(2, 8, 12, 12, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, half = layer(x), layer(x.bfloat16())
    assert torch.equal(inside, layer(x))
    assert torch.equal(half, layer(x.bfloat16().float()).bfloat16())


def test_another_precision_is_refused_outside_autocast():
    with pytest.raises(ValueError, match="dtype"):
        AFNO(8, blocks=2)(torch.randn(2, 8, 6, 6, dtype=torch.float32))
