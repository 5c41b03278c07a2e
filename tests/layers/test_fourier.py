"""The inverse transform of spectra that belong to no real signal."""

import math

import pytest
import torch

from bfno.layers.fourier import inverse_last_axis


@pytest.mark.parametrize("size", [1, 2, 5, 6])
@pytest.mark.parametrize("norm", ["backward", "ortho"])
def test_inverse_is_the_sum_of_its_waves(size, norm):
    frequencies = torch.arange(size // 2 + 1)
    spectrum = torch.view_as_complex(torch.randn(3, len(frequencies), 2))
    points = torch.arange(size)
    angle = 2 * math.pi * frequencies[:, None] * points / size
    twice = torch.where((frequencies > 0) & (2 * frequencies < size), 2.0, 1.0)
    waves = spectrum.real @ (twice[:, None] * angle.cos())
    waves = waves - spectrum.imag @ (twice[:, None] * angle.sin())
    scale = size if norm == "backward" else math.sqrt(size)
    # A few float64 operations on values of order one.
    torch.testing.assert_close(
        inverse_last_axis(spectrum, size, norm), waves / scale, rtol=0, atol=1e-13
    )


@pytest.mark.parametrize(("size", "real_only"), [(6, [0, 3]), (7, [0])])
def test_libraries_never_see_what_they_would_treat_differently(monkeypatch, size, real_only):
    """The CPU ignores those imaginary parts and so cannot show the difference; others may not."""
    seen = []
    library = torch.fft.irfft

    def recorder(spectrum, **options):
        seen.append(spectrum)
        return library(spectrum, **options)

    monkeypatch.setattr(torch.fft, "irfft", recorder)
    spectrum = torch.view_as_complex(torch.randn(2, 4, 2))
    inverse_last_axis(spectrum, size, "ortho")
    kept = [index for index in range(4) if index not in real_only]
    assert not seen[0].imag[:, real_only].any()
    assert torch.equal(seen[0].imag[:, kept], spectrum.imag[:, kept])
    assert torch.equal(seen[0].real, spectrum.real)
