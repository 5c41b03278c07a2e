"""Blocks of pixels as channels, and back."""

from __future__ import annotations

from torch import Tensor

__all__ = ["squeeze", "unsqueeze"]


def squeeze(x: Tensor) -> Tensor:
    """Lay every block of 2×2 pixels into four channels.

    Shape:
        `(batch, channels, height, width)` to `(batch, 4 * channels, height / 2, width / 2)`; the
        four channels of a channel lie side by side.
    """
    batch, channels, height, width = x.shape
    if height % 2 or width % 2:
        raise ValueError(f"images to squeeze must have even sides, got {height}×{width}")
    blocks = x.reshape(batch, channels, height // 2, 2, width // 2, 2)
    return blocks.permute(0, 1, 3, 5, 2, 4).reshape(batch, 4 * channels, height // 2, width // 2)


def unsqueeze(x: Tensor) -> Tensor:
    """Undo `squeeze`."""
    batch, channels, height, width = x.shape
    if channels % 4:
        raise ValueError(f"images to unsqueeze must have 4n channels, got {channels}")
    blocks = x.reshape(batch, channels // 4, 2, 2, height, width)
    return blocks.permute(0, 1, 4, 2, 5, 3).reshape(batch, channels // 4, 2 * height, 2 * width)
