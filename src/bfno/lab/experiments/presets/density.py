"""Densities of images and points: which data and which methods there are.

This module imports no torch, so that a program can list the presets at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from bfno.lab.experiments.presets.images import IMAGE_DATA

__all__ = ["DENSITY_DATA", "DENSITY_METHODS", "POINT_DATA", "POINT_METHODS", "density_group"]

POINT_DATA = ("moons", "spirals", "checkerboard", "pinwheel")
"""Shapes of points in the plane."""

DENSITY_DATA: Mapping[str, str] = {
    **{f"{name}-density": name for name in (*IMAGE_DATA, "folder")},
    **{name: name for name in POINT_DATA},
}
"""What may stand before the slash of an experiment, and the name of its data set."""

DENSITY_METHODS: Mapping[str, str] = {
    "ffjord": "FFJORD",
    "ffjord-rnode": "FFJORD-RNODE",
    "ffjord-bfno-rnode": "FFJORD-BFNO-RNODE",
    "realnvp": "RealNVP",
    "glow": "Glow",
    "i-resnet": "i-ResNet",
}
"""The methods, each with its name in the paper."""

POINT_METHODS = ("ffjord", "ffjord-rnode", "ffjord-bfno-rnode")
"""Those of the methods that model points."""


def density_group(data: str, colour: bool = True) -> str:
    """What kind of samples a data set has: `points`, `grey` or `colour`.

    Args:
        data: Name of the data set.
        colour: Whether a folder is read in colour.

    Example:
        >>> density_group("mnist"), density_group("cifar10"), density_group("moons")
        ('grey', 'colour', 'points')
    """
    if data in POINT_DATA:
        return "points"
    is_colour = colour if data == "folder" else IMAGE_DATA[data].shape[0] == 3
    return "colour" if is_colour else "grey"
