"""A density in the plane as arrays, ready to be drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bfno.lab.errors import ConfigError
from bfno.lab.experiments.density.samples import held_out_samples
from bfno.lab.experiments.density.sampling import draw
from bfno.lab.experiments.evaluation import explained_failure
from bfno.lab.experiments.family import TrainedRun
from bfno.models.flows import ContinuousFlow

__all__ = ["Plane", "picture_plane"]

_CELLS = 120  # of the grid, each way
_PATHS, _STOPS = 60, 30
_BATCH = 4800  # cells of the grid at a time
_ROOM = 1.25  # the window's size, relative to that of the data


@dataclass(frozen=True)
class Plane:
    """What a model of points in the plane has learned.

    Attributes:
        window: Least and greatest value of x, then of y, that the grid reaches.
        density: Density at the centres of the grid's cells, `(rows, columns)`; rows go up with y.
        data: Points that the model was not trained on, `(points, 2)`.
        samples: Points drawn from the model, `(points, 2)`.
        paths: Way of points from noise to samples, `(times, points, 2)`.
    """

    window: tuple[float, float, float, float]
    density: np.ndarray
    data: np.ndarray
    samples: np.ndarray
    paths: np.ndarray

    @property
    def mass(self) -> float:
        """Integral of the density over the window; close to 1 if the window holds all."""
        low_x, high_x, low_y, high_y = self.window
        return float(self.density.mean()) * (high_x - low_x) * (high_y - low_y)


def picture_plane(run: TrainedRun, count: int, temperature: float, seed: int) -> Plane:
    """Evaluate a density on a grid, draw from it, and follow points from noise to samples.

    Args:
        run: A trained model of points in the plane.
        count: How many points to draw.
        temperature: Factor of the noise; below 1 samples are likelier and less various.
        seed: Number that fixes everything random.

    Raises:
        ConfigError: If the run models something else.
        NumericalError: If the solver gives up.
    """
    flow = run.model
    if not isinstance(flow, ContinuousFlow) or flow.event_shape != (2,):
        what, why = run.config.experiment, "models no points in the plane"
        raise ConfigError(what, why, "name a run of points, moons/ffjord-rnode say")
    data = held_out_samples(run)
    window = _window(data)
    samples = draw(run, count, temperature, seed, run.config.train.eval_batch)
    generator = torch.Generator().manual_seed(seed)
    noise = temperature * torch.randn(_PATHS, 2, generator=generator)
    with torch.no_grad(), torch.random.fork_rng(), explained_failure("evaluation"):
        torch.manual_seed(seed)  # for a trace that is found by noise
        density = torch.cat([flow.log_prob(part) for part in _grid(window).split(_BATCH)]).exp()
        paths = flow.trajectory(noise, torch.linspace(0, 1, _STOPS))
    arrays = (density.view(_CELLS, _CELLS), data, samples, paths)
    return Plane(window, *(array.double().numpy() for array in arrays))


def _window(data: Tensor) -> tuple[float, float, float, float]:
    """A square around the data."""
    low, high = data.amin(0), data.amax(0)
    reach = _ROOM * (high - low).max().item() / 2
    x, y = ((low + high) / 2).tolist()
    return x - reach, x + reach, y - reach, y + reach


def _grid(window: tuple[float, float, float, float]) -> Tensor:
    """Centres of the cells, row by row upwards, `(cells, 2)`."""
    low_x, high_x, low_y, high_y = window
    shares = (torch.arange(_CELLS) + 0.5) / _CELLS
    y, x = torch.meshgrid(
        low_y + (high_y - low_y) * shares, low_x + (high_x - low_x) * shares, indexing="ij"
    )
    return torch.stack((x, y), -1).view(-1, 2)
