"""Drawing from a trained flow: samples, paths between them, and a density in the plane."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bfno.lab.errors import ConfigError, NumericalError
from bfno.lab.experiments.density.data import held_out_samples, require_images
from bfno.lab.experiments.density.task import as_input, is_images, preserved_generators
from bfno.lab.experiments.experiment import TrainedRun, explained_failure
from bfno.lab.experiments.images.data import read_image_file
from bfno.models.flows import ContinuousFlow

__all__ = [
    "Plane",
    "decode",
    "draw",
    "encode",
    "interpolate",
    "picture_plane",
    "read_files",
    "test_images",
]

LEVELS = 256
_MOST_ROUNDS = 10
_CELLS = 120  # of the grid, each way
_PATHS, _STOPS = 60, 30
_BATCH = 4800  # cells of the grid at a time
_ROOM = 1.25  # the window's size, relative to that of the data
_logger = logging.getLogger(__name__)


def draw(
    run: TrainedRun, count: int, temperature: float = 1.0, seed: int = 0, batch: int = 64
) -> Tensor:
    """Draw samples from a trained flow.

    Flows of layers may turn a rare latent variable into numbers that overflow. Such samples are
    drawn again, and a warning says how many and what helps.

    Args:
        run: The trained flow.
        count: Number of samples.
        temperature: Factor of the latent variables; below 1, samples are likelier and vary less.
        seed: Seed of the latent variables, which do not depend on the batch.
        batch: Samples at a time.

    Returns:
        Images as bytes, `(count, channels, height, width)`, or points, `(count, coordinates)`.

    Raises:
        ConfigError: If a number is out of range.
        NumericalError: If the flow cannot be inverted, or hardly any sample is finite.
    """
    if count < 1:
        raise ConfigError("count", f"{count} samples are too few", "use 1 or more")
    if not 0 <= temperature < float("inf"):
        raise ConfigError(
            "temperature", f"{temperature} is not a temperature", "use 1 or, for example, 0.7"
        )
    generator = torch.Generator().manual_seed(seed)
    latent = torch.randn(count, run.model.dimensions, generator=generator)
    samples = _decoded(run, temperature * latent, batch)
    wrong = _not_finite(samples)
    if wrong.any():
        _logger.warning(
            "%d of %d samples were not finite numbers and are drawn again, so the picture shows "
            "only what the flow can draw. Fix: %s",
            int(wrong.sum()),
            count,
            _remedy(run),
        )
    for _ in range(_MOST_ROUNDS):
        if not wrong.any():
            break
        latent = torch.randn(int(wrong.sum()), run.model.dimensions, generator=generator)
        samples[wrong] = _decoded(run, temperature * latent, batch)
        wrong = _not_finite(samples)
    if wrong.any():
        why = f"{int(wrong.sum())} of {count} samples are not finite numbers"
        raise _no_numbers(run, f"{why} after {_MOST_ROUNDS} further draws")
    return _as_samples(run, samples)


def decode(run: TrainedRun, latent: Tensor, batch: int = 64) -> Tensor:
    """Turn latent variables, `(count, dimensions)`, into images as bytes or into points.

    Raises:
        NumericalError: If the flow cannot be inverted.
    """
    samples = _decoded(run, latent, batch)
    wrong = _not_finite(samples)
    if wrong.any():
        why = f"{int(wrong.sum())} of {len(samples)} decoded images are not finite numbers"
        raise _no_numbers(run, why)
    return _as_samples(run, samples)


def _decoded(run: TrainedRun, latent: Tensor, batch: int) -> Tensor:
    like = next(run.model.parameters())
    with torch.no_grad(), explained_failure("evaluation"):
        return torch.cat([run.model.decode(part.to(like)).cpu() for part in latent.split(batch)])


def _not_finite(samples: Tensor) -> Tensor:
    return ~samples.isfinite().flatten(1).all(1)


def _no_numbers(run: TrainedRun, why: str) -> NumericalError:
    return NumericalError(run.config.experiment, why, _remedy(run))


def _remedy(run: TrainedRun) -> str:
    """Name a remedy for a flow whose samples overflow."""
    model = getattr(run.config, "model", None)
    if getattr(model, "kind", "") == "glow" and getattr(model, "bound", None) is None:
        return "train it again with --set model.bound=1, or draw with --temperature 0.7"
    return "draw with --temperature 0.7, or train it again with half its train.lr"


def _as_samples(run: TrainedRun, samples: Tensor) -> Tensor:
    """Points as they are, images as bytes."""
    if len(run.model.event_shape) != 3:
        return samples
    return (LEVELS * samples).floor().clamp_(0, LEVELS - 1).to(torch.uint8)


def encode(run: TrainedRun, samples: Tensor, batch: int = 64) -> Tensor:
    """Turn images as bytes, at the middle of each byte, or points into latent variables.

    Raises:
        ConfigError: If the samples are not of the shape that the flow takes.
        NumericalError: If the solver gives up.
    """
    like, shape = next(run.model.parameters()), run.model.event_shape
    if tuple(samples.shape[1:]) != shape or is_images(samples) != (len(shape) == 3):
        raise ConfigError(
            "samples", f"have shape {tuple(samples.shape[1:])} instead of {shape}", "resize them"
        )
    with torch.no_grad(), explained_failure("evaluation"), preserved_generators(like.device):
        parts = [
            run.model.encode(as_input(part.to(like.device), "center", like.dtype)).latent.cpu()
            for part in samples.split(batch)
        ]
    return torch.cat(parts)


def interpolate(
    run: TrainedRun, first: Tensor, second: Tensor, steps: int, batch: int = 64
) -> Tensor:
    """Interpolate between samples along great circles in latent space.

    Latent variables of many dimensions all lie near a sphere: a straight line would leave it, but
    the great circle between two of them stays on it. The distance from the origin changes evenly.

    Args:
        run: The trained flow.
        first: Where to start: images as bytes or points, batch first.
        second: Where to end, as many.
        steps: Samples on each path, both ends included.
        batch: Samples at a time.

    Returns:
        Samples `(count, steps, *event_shape)`; the ends are decoded like all others.

    Raises:
        ConfigError: If the samples do not match, or there are fewer than two steps.
        NumericalError: If the flow cannot be evaluated or inverted.
    """
    if steps < 2:
        raise ConfigError("steps", f"{steps} are too few for both ends", "use 2 or more")
    if len(first) != len(second):
        why = f"{len(first)} to start from but {len(second)} to end at"
        raise ConfigError("samples", why, "give pairs")
    start, end = encode(run, first, batch), encode(run, second, batch)
    path = _great_circle(start, end, torch.linspace(0, 1, steps, dtype=start.dtype))
    return decode(run, path.flatten(0, 1), batch).view(len(first), steps, *run.model.event_shape)


def test_images(run: TrainedRun, count: int, data_dir: Path | None = None) -> Tensor:
    """Some test samples of a run's own data: images as bytes, or points.

    Args:
        run: The trained flow.
        count: How many at most.
        data_dir: Where the files of data sets are; None is where the run found them.

    Raises:
        DataError: If files are missing or wrong.
    """
    most = getattr(run.config.data, "test_limit", None) or count
    return held_out_samples(run, data_dir=data_dir, limit=min(count, most))


def read_files(run: TrainedRun, files: Iterable[Path]) -> Tensor:
    """Read image files as in a flow's training: bytes `(count, channels, height, width)`.

    Raises:
        ConfigError: If the run models points.
        DataError: If a file cannot be read.
    """
    require_images(run)
    return torch.cat([read_image_file(run.config.data, file) for file in files])


def _great_circle(start: Tensor, end: Tensor, shares: Tensor) -> Tensor:
    """Points between rows of two tensors, `(rows, shares, dimensions)`."""
    lengths = [row.norm(dim=1, keepdim=True).clamp(min=1e-12) for row in (start, end)]
    one, other = start / lengths[0], end / lengths[1]
    # Unlike the arc cosine, this is exact for directions that nearly agree.
    angle = 2 * torch.atan2((one - other).norm(dim=1), (one + other).norm(dim=1))[:, None, None]
    shares = shares[None, :, None]
    sine = angle.sin()
    is_flat = sine < 1e-6
    divisor = torch.where(is_flat, torch.ones_like(sine), sine)
    weights = [((1 - shares) * angle).sin() / divisor, (shares * angle).sin() / divisor]
    weights = [
        torch.where(is_flat, plain, weight)
        for plain, weight in zip((1 - shares, shares), weights, strict=True)
    ]
    direction = weights[0] * one[:, None] + weights[1] * other[:, None]
    return direction * ((1 - shares) * lengths[0][:, None] + shares * lengths[1][:, None])


@dataclass(frozen=True)
class Plane:
    """The density that a model of points in the plane has learned.

    Attributes:
        window: Least and greatest value of x, then of y, that the grid reaches.
        density: Density at the centres of the grid's cells, `(rows, columns)`; rows go up with y.
        data: Points that the model was not trained on, `(points, 2)`.
        samples: Points drawn from the model, `(points, 2)`.
        paths: Paths of points from noise to samples, `(times, points, 2)`.
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
        count: Number of points to draw.
        temperature: Factor of the noise; below 1, samples are likelier and vary less.
        seed: Seed of all random numbers.

    Raises:
        ConfigError: If the run models something else.
        NumericalError: If the solver gives up.
    """
    flow = run.model
    if not isinstance(flow, ContinuousFlow) or flow.event_shape != (2,):
        what, why = run.config.experiment, "models no points in the plane"
        raise ConfigError(what, why, "name a run of points, for example moons/ffjord-rnode")
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
