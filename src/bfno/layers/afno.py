"""The adaptive Fourier neural operator layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfno.layers.fourier import inverse_last_axis, other_axes
from bfno.layers.pointwise import channels_first, channels_last
from bfno.layers.spectral import analyse, synthesise

__all__ = ["AFNO"]


class AFNO(nn.Module):
    """Mixes blocks of channels by a small complex network that all frequencies share.

    In every block and at every frequency the spectrum passes two complex affine maps with a ReLU
    between them and a soft shrinkage after them; both act on real and imaginary parts separately.
    The inverse transform is added to the input.

    Args:
        channels: Width of input and output.
        blocks: Number of blocks; the network never mixes channels of two blocks.
        expansion: Hidden width of the network in units of a block.
        shrink: By how much the shrinkage reduces the magnitude of every real and imaginary part.
        kept: Fraction of frequencies that pass; the others are set to zero.

    Shape:
        `(batch, channels, *space)` to the same, for one to three space axes.

    Note:
        As in the published code, `kept` is a fraction of half the number of *grid points*, applied
        along the last axis. With more than one space axis it therefore cuts nothing until it is
        about as small as one over the product of the other axes.

    References:
        Guibas et al., Adaptive Fourier Neural Operators: Efficient Token Mixers for Transformers,
        2022.

    Example:
        >>> layer = AFNO(channels=8, blocks=4)
        >>> layer(torch.zeros(1, 8, 6, 6)).shape
        torch.Size([1, 8, 6, 6])
    """

    def __init__(
        self,
        channels: int,
        blocks: int = 8,
        expansion: int = 1,
        shrink: float = 0.01,
        kept: float = 1.0,
    ) -> None:
        super().__init__()
        _check(channels, blocks, shrink, kept)
        self.blocks, self.shrink, self.kept = blocks, shrink, kept
        size = channels // blocks
        # Pairs of reals (real, imaginary): an adjoint over complex parameters breaks.
        self.weight_in = nn.Parameter(0.02 * torch.randn(blocks, size, size * expansion, 2))
        self.bias_in = nn.Parameter(0.02 * torch.randn(blocks, size * expansion, 2))
        self.weight_out = nn.Parameter(0.02 * torch.randn(blocks, size * expansion, size, 2))
        self.bias_out = nn.Parameter(0.02 * torch.randn(blocks, size, 2))

    def forward(self, x: Tensor) -> Tensor:
        others = other_axes(x)
        if torch.compiler.is_compiling():
            return self._in_reals(x)
        spectrum = torch.fft.rfftn(x, dim=(*others, -1), norm="ortho")
        spectrum = self._mix(spectrum[..., : self._frequencies(x)])
        if others:
            spectrum = torch.fft.ifftn(spectrum, dim=others, norm="ortho")
        return inverse_last_axis(spectrum, x.shape[-1], norm="ortho") + x

    def _in_reals(self, x: Tensor) -> Tensor:
        """The same without complex numbers, for compilers and exporters, which lack them."""
        spectrum = analyse(channels_last(x).contiguous())
        low = spectrum[:, : self._frequencies(x)]
        batch, *kept = low.shape  # not len(), which would fix the number of samples
        rows = low.reshape(batch, -1, 2, self.blocks, x.shape[1] // self.blocks)
        points = rows.shape[1]
        rows = rows.permute(0, 3, 2, 4, 1).reshape(batch, self.blocks, -1, points)
        rows = self._network(rows).reshape(batch, self.blocks, 2, -1, points)
        low = rows.permute(0, 4, 2, 1, 3).reshape(batch, *kept)
        missing = low.new_zeros(batch, spectrum.shape[1] - kept[0], *kept[1:])
        return channels_first(synthesise(torch.cat((low, missing), dim=1), x.shape[-1])) + x

    def _frequencies(self, x: Tensor) -> int:
        """Number of frequencies that pass, at least one, along the last axis."""
        points = x[0, 0].numel()
        return max(1, int((points // 2 + 1) * self.kept))

    def _mix(self, spectrum: Tensor) -> Tensor:
        """Apply the network in real arithmetic, on blocks of stacked real and imaginary rows."""
        batch, channels, *grid = spectrum.shape
        size = channels // self.blocks
        rows = torch.view_as_real(spectrum).reshape(batch, self.blocks, size, -1, 2)
        rows = rows.movedim(-1, 2).reshape(batch, self.blocks, 2 * size, -1)
        rows = self._network(rows)
        real, imaginary = rows.view(batch, self.blocks, 2, size, -1).unbind(2)
        return torch.complex(real, imaginary).reshape(batch, channels, *grid)

    def _network(self, rows: Tensor) -> Tensor:
        """The network of all blocks: `(batch, blocks, planes * channels, points)` to the same."""
        hidden = _affine(rows, self.weight_in, self.bias_in).relu_()
        return F.softshrink(_affine(hidden, self.weight_out, self.bias_out), self.shrink)


def _affine(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Complex affine map of stacked real and imaginary rows, one real matrix product per block."""
    real, imaginary = weight.transpose(1, 2).unbind(-1)
    matrix = torch.cat(
        (torch.cat((real, -imaginary), dim=2), torch.cat((imaginary, real), dim=2)), dim=1
    )
    return matrix @ rows + torch.cat(bias.unbind(-1), dim=1)[..., None]


def _check(channels: int, blocks: int, shrink: float, kept: float) -> None:
    if blocks < 1 or channels % blocks:
        raise ValueError(
            f"channels must be a multiple of blocks, got channels={channels} and blocks={blocks}; "
            f"change one of them"
        )
    if shrink < 0:
        raise ValueError(f"shrink must not be negative, got {shrink}; pass 0 to switch it off")
    if not 0 < kept <= 1:
        raise ValueError(f"kept must lie in (0, 1], got {kept}; pass 1 to keep all frequencies")
