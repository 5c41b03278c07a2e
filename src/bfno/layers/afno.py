"""The adaptive Fourier neural operator layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfno.layers.fourier import check_input, in_full_precision, is_empty
from bfno.layers.pointwise import channels_first, channels_last
from bfno.layers.spectral import analyse, synthesise

__all__ = ["AFNO"]


class AFNO(nn.Module):
    """Mixes blocks of channels with a small complex network that all frequencies share.

    In every block and at every frequency, the spectrum goes through two complex affine maps with a
    ReLU between them and a soft shrinkage after them; both act on real and imaginary parts
    separately. The inverse transform is added to the input.

    Args:
        channels: Width of input and output.
        blocks: Number of blocks; the network never mixes channels of two blocks.
        expansion: Hidden width of the network in units of a block.
        shrink: Amount by which the shrinkage reduces the magnitude of every real and imaginary
            part.
        kept: Fraction of frequencies that pass; the others are set to zero.

    Shape:
        `(batch, channels, *space)` to the same, for one to three space axes.

    Note:
        As in the published code, `kept` is a fraction of half the number of *grid points*, applied
        along the last axis. With more than one space axis it therefore has no effect until it is
        about as small as one over the product of the other axes.

    References:
        Guibas et al., Adaptive Fourier Neural Operators: Efficient Token Mixers for Transformers,
        2022.

    Example:
        >>> layer = AFNO(channels=8, blocks=4)
        >>> layer(torch.zeros(1, 8, 6, 6)).shape
        torch.Size([1, 8, 6, 6])
    """

    result_may_be_overwritten = True  # no derivative needs it

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
        self.channels, self.blocks, self.shrink, self.kept = channels, blocks, shrink, kept
        size = channels // blocks
        # Pairs of reals (real, imaginary): an adjoint over complex parameters breaks.
        self.weight_in = nn.Parameter(0.02 * torch.randn(blocks, size, size * expansion, 2))
        self.bias_in = nn.Parameter(0.02 * torch.randn(blocks, size * expansion, 2))
        self.weight_out = nn.Parameter(0.02 * torch.randn(blocks, size * expansion, size, 2))
        self.bias_out = nn.Parameter(0.02 * torch.randn(blocks, size, 2))

    def forward(self, x: Tensor) -> Tensor:
        dtype = self.weight_in.dtype
        check_input(x, self.channels, dtype)
        return x.clone() if is_empty(x) else in_full_precision(self._mixed, x, dtype)

    def _mixed(self, x: Tensor) -> Tensor:
        spectrum = analyse(channels_last(x).contiguous())
        low = spectrum[:, : self._frequencies(x)]
        mixed = self._mix(low.reshape(-1, 2, self.blocks, x.shape[1] // self.blocks)).view_as(low)
        missing = spectrum.shape[1] - low.shape[1]
        if missing:
            mixed = F.pad(mixed, (*[0, 0] * (low.dim() - 2), 0, missing))
        return channels_first(synthesise(mixed, x.shape[-1])) + x

    def _frequencies(self, x: Tensor) -> int:
        """Number of frequencies that pass, at least one, along the last axis."""
        points = x[0, 0].numel()
        return max(1, int((points // 2 + 1) * self.kept))

    def _mix(self, rows: Tensor) -> Tensor:
        """The network of all blocks: `(points, planes, blocks, channels)` to the same."""
        points = rows.permute(2, 0, 1, 3).reshape(self.blocks, -1, 2 * rows.shape[-1])
        hidden = _affine(points, self.weight_in, self.bias_in).relu_()
        found = F.softshrink(_affine(hidden, self.weight_out, self.bias_out), self.shrink)
        return found.view(self.blocks, -1, *rows.shape[1::2]).permute(1, 2, 0, 3).contiguous()


def _affine(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Complex affine map of rows `[real | imaginary]`, one real matrix product per block."""
    real, imaginary = weight.unbind(-1)
    upper, lower = torch.cat((real, imaginary), dim=2), torch.cat((-imaginary, real), dim=2)
    return torch.baddbmm(bias.mT.flatten(1)[:, None], rows, torch.cat((upper, lower), dim=1))


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
