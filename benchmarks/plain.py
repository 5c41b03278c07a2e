"""The peers: the BFNO field written as its formulas read, and bare transforms and products."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfno.fields import OperatorField
from bfno.layers.mixing import padded_width, samples_at_once
from bfno.layers.spectral import analyse_rows, synthesise_rows

__all__ = ["PlainField", "bare_products", "bare_work"]


class PlainField(nn.Module):
    """The same field with separate products for every branch and part, permutes and copies.

    Args:
        field: A field of BFNO layers on images, whose weights are shared.
    """

    def __init__(self, field: OperatorField) -> None:
        super().__init__()
        self.field = field

    def forward(self, t: Tensor | float, y: Tensor) -> Tensor:
        encoder, decoder = self.field.encoder, self.field.decoder
        time = torch.ones_like(y[:, :1]) * t
        hidden = torch.cat((y, time), dim=1).permute(0, 2, 3, 1)
        hidden = F.linear(hidden, encoder.weight, encoder.bias).permute(0, 3, 1, 2)
        last = len(self.field.layers) - 1
        for index, layer in enumerate(self.field.layers):
            hidden = plain_layer(layer, hidden)
            hidden = F.relu(hidden) if index < last else hidden
        hidden = F.linear(hidden.permute(0, 2, 3, 1), decoder.weight, decoder.bias)
        return hidden.permute(0, 3, 1, 2)


def plain_layer(layer: nn.Module, x: Tensor) -> Tensor:
    """One BFNO layer, a product for each branch and part."""
    weight, bias = layer.get_parameter("weight"), layer.get_parameter("bias")
    spectrum = torch.fft.rfft2(x, norm="ortho")
    a, b = spectrum.real.permute(0, 2, 3, 1), spectrum.imag.permute(0, 2, 3, 1)
    reals, imaginaries = [], []
    for (real, imaginary), (p, q) in zip(weight, bias, strict=True):
        reals.append(F.relu(a @ real - b @ imaginary + p))
        imaginaries.append(F.relu(b @ real + a @ imaginary + q))
    merged = torch.complex(
        layer.get_submodule("merge_real")(torch.cat(reals, dim=-1)).permute(0, 3, 1, 2),
        layer.get_submodule("merge_imag")(torch.cat(imaginaries, dim=-1)).permute(0, 3, 1, 2),
    )
    return torch.fft.irfft2(merged, s=x.shape[-2:], norm="ortho") + x


def bare_work(field: OperatorField, y: Tensor) -> Callable[[], None]:
    """Only the transforms and products of the layers, on arrays that lie ready, nothing else."""
    layer = field.layers[0]
    branches, channels = layer.get_parameter("bias").shape[::2]
    batch, _, height, width = y.shape
    x = torch.randn(batch, channels, height, width)
    spectrum = torch.fft.rfft2(x)
    rows = torch.randn(spectrum[:, 0].numel(), 2 * channels)
    inner, outer = (torch.randn(2 * channels, 2 * branches * channels) for _ in range(2))
    hidden, merged = rows @ inner, torch.empty(len(rows), channels)
    merge = outer[:channels, : branches * channels].T

    def work() -> None:
        for _ in field.layers:
            torch.fft.rfft2(x)
            torch.mm(rows, inner, out=hidden)
            for part in hidden.chunk(2, dim=1):
                torch.mm(part, merge, out=merged)
            torch.fft.irfft2(spectrum, s=(height, width))

    return work


def bare_products(field: OperatorField, y: Tensor) -> Callable[[], None]:
    """Our own transforms and products, in our pieces and widths, on arrays that stay in the cache.

    How long the layers would take if nothing but these had to be done.
    """
    branches, channels = field.layers[0].get_parameter("bias").shape[::2]
    width, batch = padded_width(channels), len(y)
    signals = torch.randn(batch, *y.shape[:1:-1], width)
    count = samples_at_once(signals, 2 * branches * width)
    signal = signals[:count].clone()
    rows = analyse_rows(signal)
    inner = torch.randn(2 * width, 2 * branches * width)
    hidden, merge = rows @ inner, torch.randn(branches * width, width)

    def work() -> None:
        for _ in range(len(field.layers) * -(-batch // count)):
            analyse_rows(signal)
            torch.mm(rows, inner, out=hidden)
            for part, merged in zip(hidden.chunk(2, dim=1), rows.chunk(2, dim=1), strict=True):
                torch.mm(part, merge, out=merged)
            synthesise_rows(rows, signal)

    return work
