"""How a page marks a method: with the colour, the marker and the dashes that figures give it."""

from __future__ import annotations

from typing import Any

from bfno.lab.views.figures.style import PALETTE, Look

__all__ = ["MARKERS", "mark"]

MARKERS = {
    "o": "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0",
    "s": "M-2.9-2.9h5.8v5.8h-5.8z",
    "^": "M0-3.9L3.7 2.7H-3.7z",
    "D": "M0-4.2L4.2 0L0 4.2L-4.2 0z",
    "v": "M0 3.9L3.7-2.7H-3.7z",
    "P": "M-1.3-4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
    "X": "M-2-4L0-2L2-4L4-2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0L-4-2z",
    "<": "M-3.9 0L2.7-3.7V3.7z",
    ">": "M3.9 0L-2.7-3.7V3.7z",
    "p": "M0-4L3.8-1.2L2.4 3.2H-2.4L-3.8-1.2z",
}
"""The outline of each marker of the figures, around its middle."""
_LINE_WIDTH = 2


def mark(look: Look, anchor: str) -> dict[str, Any]:
    """What the template needs to mark a method.

    Args:
        look: How figures draw it.
        anchor: Where on the page its run is.
    """
    return {
        "hue": PALETTE.index(look.colour),
        "marker": MARKERS[look.marker],
        "dashes": _dashes(look.dashes),
        "anchor": anchor,
    }


def _dashes(dashes: Any) -> str:
    """Dashes in units of the drawing; matplotlib has them in widths of the line."""
    if isinstance(dashes, str):
        return "none"
    return " ".join(f"{_LINE_WIDTH * part:g}" for part in dashes[1])
