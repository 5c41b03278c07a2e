"""Points in the plane with known density, generated on the spot."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from bfno.lab.errors import ConfigError

__all__ = ["TOYS", "toy_points"]

_MOON_NOISE, _SPIRAL_NOISE = 0.1, 0.1
_TURNS = 1.5
_HALF_WIDTH, _CELLS = 3.0, 4
_BLADES, _RADIAL, _TANGENTIAL, _TWIST = 5, 0.3, 0.1, 0.25


def toy_points(name: str, count: int, seed: int) -> Tensor:
    """Draw points of one of the known shapes, float32 of shape `(count, 2)`.

    All have mean 0, and coordinates with deviations between 1 and 2:

    - `moons`: two interlocking half circles of radius 2 with noise of deviation 0.2;
    - `spirals`: two arms of one and a half turns up to radius π, with noise of deviation 0.1;
    - `checkerboard`: uniform on every other cell of a 4 × 4 board of side 6, an entropy of log 18;
    - `pinwheel`: five bent blades at a mean distance of 2.

    Args:
        name: The shape.
        count: Number of points.
        seed: Their seed.

    Raises:
        ConfigError: If there is no such shape, or nothing to draw.

    Example:
        >>> toy_points("moons", 100, seed=0).shape
        torch.Size([100, 2])
    """
    if name not in _SHAPES:
        raise ConfigError(name, "is not a set of points", f"use one of {', '.join(_SHAPES)}")
    if count < 1:
        raise ConfigError("count", f"{count} points are too few", "use 1 or more")
    generator = torch.Generator().manual_seed(seed)
    return _SHAPES[name](count, generator).float()


def _moons(count: int, generator: torch.Generator) -> Tensor:
    angle = math.pi * _uniform(count, generator)
    upper = torch.stack((angle.cos(), angle.sin()), 1)
    lower = torch.tensor((1.0, 0.5), dtype=torch.float64) - upper
    points = torch.where(_coins(count, generator), upper, lower)
    points = points + _MOON_NOISE * _normal(count, generator)
    # The two halves are mirror images of each other through this point.
    return 2 * (points - torch.tensor((0.5, 0.25), dtype=torch.float64))


def _spirals(count: int, generator: torch.Generator) -> Tensor:
    # The root spreads the points evenly along the arm, which gets longer with the radius.
    angle = 2 * math.pi * _TURNS * _uniform(count, generator).sqrt()
    arm = torch.stack((-angle.cos(), angle.sin()), 1) * (angle / 3)[:, None]
    points = torch.where(_coins(count, generator), arm, -arm)
    return points + _SPIRAL_NOISE * _normal(count, generator)


def _checkerboard(count: int, generator: torch.Generator) -> Tensor:
    column = torch.randint(_CELLS, (count,), generator=generator)
    # Of every column, the rows whose number is even or odd as that of the column.
    row = 2 * torch.randint(_CELLS // 2, (count,), generator=generator) + column % 2
    place = torch.stack((_uniform(count, generator), _uniform(count, generator)), 1)
    cells = torch.stack((column, row), 1) + place
    return _HALF_WIDTH * (2 * cells / _CELLS - 1)


def _pinwheel(count: int, generator: torch.Generator) -> Tensor:
    blade = torch.randint(_BLADES, (count,), generator=generator)
    along, across = _normal(count, generator).mul(torch.tensor((_RADIAL, _TANGENTIAL))).unbind(1)
    angle = 2 * math.pi * blade / _BLADES + _TWIST * along.exp()
    radius = along + 1
    x = angle.cos() * radius - angle.sin() * across
    y = angle.sin() * radius + angle.cos() * across
    return 2 * torch.stack((x, y), 1)


def _uniform(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, dtype=torch.float64)


def _normal(count: int, generator: torch.Generator) -> Tensor:
    return torch.randn(count, 2, generator=generator, dtype=torch.float64)


def _coins(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, 1, generator=generator, dtype=torch.float64) < 0.5


_SHAPES: Mapping[str, Callable[[int, torch.Generator], Tensor]] = {
    "moons": _moons,
    "spirals": _spirals,
    "checkerboard": _checkerboard,
    "pinwheel": _pinwheel,
}

TOYS = tuple(_SHAPES)
"""Name of each shape."""
