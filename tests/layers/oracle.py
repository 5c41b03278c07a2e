"""The BFNO layer written out plainly: branches in a loop, complex numbers, one step at a time."""

import torch
from torch.nn import functional as F

ACTIVATIONS = {"relu": F.relu, "softplus": F.softplus, "tanh": torch.tanh}


def inverse(spectrum, grid):
    """Complex inverse steps along all axes but the last, then a real one along the last."""
    for axis in range(2, spectrum.dim() - 1):
        spectrum = torch.fft.ifft(spectrum, dim=axis, norm="ortho")
    imaginary = spectrum.imag.clone()
    imaginary[..., 0] = 0
    if grid[-1] % 2 == 0:
        imaginary[..., -1] = 0
    return torch.fft.irfft(torch.complex(spectrum.real, imaginary), n=grid[-1], norm="ortho")


def branch(layer, index, spectrum):
    """Spectrum of one branch, channels last."""
    if layer.kernel == "filter":
        real, imaginary = layer.weight[index]
        filtered = torch.complex(real, imaginary) * spectrum.movedim(-1, 1)
        return filtered.movedim(1, -1)
    real, imaginary = layer.weight[index]
    affine = spectrum @ torch.complex(real, imaginary) + torch.complex(*layer.bias[index])
    sigma = ACTIVATIONS[layer.activation]
    squashed = torch.complex(sigma(affine.real), sigma(affine.imag))
    return squashed * spectrum if layer.kernel == "gate" else squashed


def skip(layer, x):
    if layer.skip_kind == "identity":
        return x
    if layer.skip_kind == "linear":
        weight, bias = layer.skip.weight, layer.skip.bias
        return torch.einsum("oc,bc...->bo...", weight, x) + bias.view(-1, *[1] * (x.dim() - 2))
    convolve = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
    return convolve(x, layer.skip.conv.weight, layer.skip.conv.bias, padding=1)


def plain_bfno(layer, x):
    """What `layer(x)` has to be."""
    grid = x.shape[2:]
    axes = tuple(range(2, x.dim()))
    spectrum = torch.fft.rfftn(x, dim=axes, norm="ortho").movedim(1, -1)
    parts = [branch(layer, index, spectrum) for index in range(layer.branches)]
    real = layer.merge_real(torch.cat([part.real for part in parts], dim=-1))
    imaginary = layer.merge_imag(torch.cat([part.imag for part in parts], dim=-1))
    merged = torch.complex(real, imaginary).movedim(-1, 1)
    return inverse(merged, grid) + skip(layer, x)
