"""Synthetic series that need no download: irregularly observed spirals and damped oscillators."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bfno.lab.data.series import Series
from bfno.lab.errors import ConfigError

__all__ = ["MOTIONS", "SPIRAL_FEATURES", "Motions", "draw_motions", "observe", "synthetic_series"]

MOTIONS = ("anticlockwise spiral", "clockwise spiral", "fast oscillator", "slow oscillator")
"""Name of each class: the kind of motion."""

SPIRAL_FEATURES = ("x", "y")
"""Name of each feature: a coordinate in the plane."""

_SPAN = 5.0
_SHORTEST, _LONGEST = 15, 40
_NOISE, _MISSING = 0.05, 0.2
_OSCILLATOR = 2  # this class and the later ones oscillate


@dataclass(frozen=True)
class Motions:
    """Motions in the plane, known without noise at every time.

    A spiral is `r exp(-d t) (cos(w t + p), sin(w t + p))` with a turn w of either sign; d below
    zero winds outwards. An oscillator is `r exp(-d t) cos(w t + p)` along a line of some direction.

    Attributes:
        kinds: Place of each motion's name in `MOTIONS`, `(count,)`.
        size: The numbers r.
        decay: The numbers d.
        turn: The numbers w.
        phase: The numbers p.
        direction: Angle of each oscillator's line.
    """

    kinds: Tensor
    size: Tensor
    decay: Tensor
    turn: Tensor
    phase: Tensor
    direction: Tensor

    def at(self, times: Tensor) -> Tensor:
        """Return the positions of the motions, without noise.

        Args:
            times: `(count, time)`, or `(time,)` for all motions.

        Returns:
            Places of shape `(count, time, 2)`.
        """
        times = times.to(torch.float64).expand(len(self.kinds), times.shape[-1])
        angle = self.turn[:, None] * times + self.phase[:, None]
        radius = self.size[:, None] * (-self.decay[:, None] * times).exp()
        line = self.direction[:, None]
        spiral = torch.stack((angle.cos(), angle.sin()), -1)
        swing = angle.cos()[..., None] * torch.stack((line.cos(), line.sin()), -1)
        swings = (self.kinds >= _OSCILLATOR)[:, None, None]
        return radius[..., None] * torch.where(swings, swing, spiral)


def draw_motions(count: int, generator: torch.Generator) -> Motions:
    """Draw motions, with the same number of each kind, up to one.

    Raises:
        ConfigError: If there are none to draw.
    """
    if count < 1:
        raise ConfigError("count", f"{count} series are too few", "use 1 or more")

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)

    kinds = torch.arange(count)[torch.randperm(count, generator=generator)] % len(MOTIONS)
    # Fast and slow do not overlap, nor do the two senses: the kind is a fact, not a matter of luck.
    spiral, fast, slow = uniform(0.6, 1.4), uniform(2.2, 3.0), uniform(0.8, 1.4)
    turn = torch.where(kinds == 0, spiral, torch.where(kinds == 1, -spiral, slow))
    turn = torch.where(kinds == 2, fast, turn)
    decay = torch.where(kinds < _OSCILLATOR, uniform(-0.08, 0.12), uniform(0.05, 0.15))
    return Motions(
        kinds, uniform(0.7, 1.5), decay, turn, uniform(0, 2 * math.pi), uniform(0, math.pi)
    )


def observe(motions: Motions, generator: torch.Generator) -> Series:
    """Observe each motion 15 to 40 times at random moments.

    Every coordinate has noise of deviation 0.05 and is missing with probability 0.2. Each series is
    labelled with its kind of motion.
    """
    count = len(motions.kinds)
    lengths = torch.randint(_SHORTEST, _LONGEST + 1, (count,), generator=generator)
    shape = (count, _LONGEST)
    times = _SPAN * torch.rand(shape, generator=generator, dtype=torch.float64)
    within = torch.arange(_LONGEST) < lengths[:, None]
    times = times.where(within, math.inf).sort(-1).values
    places = motions.at(times.where(within, 0.0))
    noise = torch.randn(places.shape, generator=generator, dtype=torch.float64)
    seen = torch.rand(places.shape, generator=generator, dtype=torch.float64) >= _MISSING
    values = (places + _NOISE * noise).float().where(seen, 0.0)
    starts = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
    names = tuple(f"{number:04}" for number in range(count))
    return Series(
        times[within], values[within], seen[within], motions.kinds, starts, names, by_row=False
    )


def synthetic_series(count: int = 600, seed: int = 0) -> tuple[Series, Motions]:
    """Return synthetic series and the noise-free motions behind them.

    Both depend on the seed alone. `motions.at(times)` judges interpolation and extrapolation.

    Example:
        >>> series, motions = synthetic_series(8)
        >>> len(series), motions.at(torch.linspace(0, 20, 5)).shape
        (8, torch.Size([8, 5, 2]))
    """
    generator = torch.Generator().manual_seed(seed)
    motions = draw_motions(count, generator)
    return observe(motions, generator), motions
