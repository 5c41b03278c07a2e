import pytest
import torch

from bfno.layers import spectral

GRIDS = [(1,), (2,), (7,), (8,), (1, 1), (6, 5), (5, 8), (4, 6, 5), (3, 2, 4)]
FOLDED = [(24, 5), (26, 28), (24, 3, 4), (3, 24, 5), (26, 24, 3)]  # all axes but the last may fold


def reverse(x):
    return x.permute(0, *range(x.dim() - 1, 0, -1))


@pytest.fixture(params=[64, 0], ids=["matrices", "fft"])
def route(request, monkeypatch):
    monkeypatch.setattr(spectral, "DFT_LIMIT", request.param)


@pytest.mark.parametrize("grid", GRIDS)
def test_analysis_is_the_orthonormal_half_spectrum(grid, route):
    x = torch.randn(2, 3, *grid)
    spectrum = spectral.analyse(reverse(x).contiguous())
    planes = torch.complex(spectrum[..., :3], spectrum[..., 3:])
    expected = torch.fft.rfftn(x, dim=tuple(range(2, x.dim())), norm="ortho")
    torch.testing.assert_close(reverse(planes), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("grid", GRIDS)
def test_synthesis_inverts_analysis(grid, route):
    x = reverse(torch.randn(2, 3, *grid)).contiguous()
    back = spectral.synthesise(spectral.analyse(x), grid[-1])
    torch.testing.assert_close(back, x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("grid", GRIDS)
def test_adjoints_satisfy_the_inner_product_identity(grid, route):
    x = reverse(torch.randn(2, 3, *grid)).contiguous()
    spectrum = torch.randn_like(spectral.analyse(x))  # not Hermitian
    left = (spectral.analyse(x) * spectrum).sum()
    right = (x * spectral.synthesise(spectrum, grid[-1], adjoint=True)).sum()
    torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    left = (spectral.synthesise(spectrum, grid[-1]) * x).sum()
    right = (spectrum * spectral.analyse(x, adjoint=True)).sum()
    torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [6, 7])
def test_imaginary_parts_without_a_sine_are_ignored(size, route):
    spectrum = torch.randn(1, spectral.frequencies(size), 4, 2)
    changed = spectrum.clone()
    ends = [0, -1] if size % 2 == 0 else [0]
    # Along the other axis a shift by a constant imaginary part is a spectrum at frequency zero.
    for end in ends:
        changed[:, end, 0, 1] += 3.0
    torch.testing.assert_close(
        spectral.synthesise(changed, size), spectral.synthesise(spectrum, size), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("grid", GRIDS + FOLDED)
@pytest.mark.parametrize("adjoint", [False, True])
def test_rows_hold_the_same_frequencies_in_some_order(grid, adjoint, route):
    x = reverse(torch.randn(2, 3, *grid)).contiguous()
    expected = spectral.analyse(x, adjoint=adjoint).flatten(0, -2)
    torch.testing.assert_close(
        spectral.analyse_rows(x, adjoint=adjoint, ordered=True), expected, rtol=0, atol=1e-13
    )
    rows = spectral.analyse_rows(x, adjoint=adjoint)
    column = torch.randn(6)  # a number that tells rows apart, but for conjugates
    found, wanted = ((values @ column).sort().values for values in (rows, expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("grid", GRIDS + FOLDED)
@pytest.mark.parametrize("ordered", [False, True])
def test_transforms_of_rows_are_adjoint_to_each_other(grid, ordered, route):
    x = reverse(torch.randn(2, 3, *grid)).contiguous()
    rows = spectral.analyse_rows(x, ordered=ordered)
    back = spectral.synthesise_rows(rows.clone(), torch.empty_like(x), ordered=ordered)
    torch.testing.assert_close(back, x, rtol=0, atol=1e-13)
    other = torch.randn_like(rows)  # not Hermitian
    for adjoint in (False, True):
        signal = torch.empty_like(x)
        spectral.synthesise_rows(other.clone(), signal, adjoint=adjoint, ordered=ordered)
        left = (signal * x).sum()
        right = (other * spectral.analyse_rows(x, adjoint=not adjoint, ordered=ordered)).sum()
        torch.testing.assert_close(left, right, rtol=0, atol=1e-11)
