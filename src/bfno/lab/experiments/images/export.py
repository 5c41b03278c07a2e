"""A classifier of images as a standalone program: bytes in, probabilities out, fixed steps."""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
from torch import Tensor, nn

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.experiment import ExportRequest, Portable, TrainedRun, explained_failure
from bfno.lab.experiments.images.calibration import temperature_of
from bfno.lab.experiments.images.data import divided_images, other_images
from bfno.ode import METHODS, NeuralODE, SolverError
from bfno.ode.block import solver_settings

__all__ = ["portable_classifier"]

_logger = logging.getLogger(__name__)

_METHOD = "rk4"
_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_SAMPLES = 256  # images on which fixed steps are compared with the run's own
_FINER = 100  # factor by which the tolerance of the reference solution is smaller
_FINEST = 1e-6  # its lower bound, below which single precision sees no difference


class ImageProgram(nn.Module):
    """Normalises bytes, classifies them and scales the scores.

    Args:
        model: Maps images between 0 and 1 to scores.
        temperature: Divisor of the scores that calibrates probabilities.

    Shape:
        Bytes `(batch, channels, height, width)` to probabilities `(batch, classes)`.
    """

    def __init__(self, model: nn.Module, temperature: float) -> None:
        super().__init__()
        self.model, self.temperature = model, temperature

    def forward(self, images: Tensor) -> Tensor:
        return (self.model(images.float() / 255) / self.temperature).softmax(1)


def portable_classifier(run: TrainedRun, request: ExportRequest) -> Portable:
    """The classifier of a run with fixed steps, and how much these change its answers.

    Args:
        run: The run.
        request: The number of steps, if given, and the folder of the data.

    Raises:
        ConfigError: If no allowed number of steps keeps the run's tolerance, or one is given for
            a model that solves no equation.
    """
    images, origin = _images_to_compare(run, request)
    with torch.no_grad(), explained_failure():
        own = _scores(run.model, images)
        model, solver, scores = _with_fixed_steps(run, request.steps, images, own)
    temperature = temperature_of(run) or 1.0
    probabilities = [(one / temperature).softmax(1) for one in (scores, own)]
    changed = scores.argmax(1) != own.argmax(1)
    facts = {
        "experiment": run.config.experiment,
        "classes": list(run.model.class_names),
        "input": {"dtype": "uint8", "shape": ["batch", *images.shape[1:]]},
        "normalisation": "divided by 255, in the graph",
        "temperature": temperature,
        "solver": solver,
        "difference": {
            "samples": len(images),
            "of": origin,
            "scores": (scores - own).abs().max().item(),
            "probabilities": (probabilities[0] - probabilities[1]).abs().max().item(),
            "changed_classes": changed.float().mean().item(),
        },
    }
    return Portable(ImageProgram(model, temperature).eval(), images[:8], "probabilities", facts)


def _images_to_compare(run: TrainedRun, request: ExportRequest) -> tuple[Tensor, str]:
    """Images that were not trained on, if there are any; noise if the data are gone."""
    config = run.config
    try:
        splits = divided_images(other_images(config.data, None, request.data_dir), config.seed)
    except (ConfigError, DataError) as error:
        _logger.warning("%s: %s; the steps are compared on random images", error.what, error.why)
        noise = torch.Generator().manual_seed(0)
        shape = (64, *run.model.in_shape)
        return torch.randint(256, shape, generator=noise, dtype=torch.uint8), "random images"
    split = splits.train if splits.validation is None else splits.validation
    origin = "training images" if splits.validation is None else "validation images"
    every = max(1, len(split) // _SAMPLES)  # a folder's images may be sorted by class
    return split.images[::every][:_SAMPLES], origin


def _scores(model: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([model(part.float() / 255) for part in images.split(64)])


def _with_fixed_steps(
    run: TrainedRun, steps: int | None, images: Tensor, own: Tensor
) -> tuple[nn.Module, dict[str, Any] | None, Tensor]:
    """The model, how its equations are solved, and its scores."""
    settings = run.config.solver
    if not run.model.blocks:
        if steps is not None:
            why = f"has no effect: {run.config.experiment} solves no equation"
            raise ConfigError("--steps", why, "leave it out")
        return run.model, None, own
    method = METHODS[settings.method]
    is_fixed = settings.step is not None or not method.adaptive
    # A graph solves no equations, as implicit methods do in every step.
    if is_fixed and not method.implicit and steps is None:
        return run.model, {"method": settings.method, "step": settings.step}, own
    tolerance = settings.rtol * own.abs().amax(1) + settings.atol
    exact = own if steps is not None else _scores(_solving_finely(run), images)
    nearest = float("inf")
    for count in _COUNTS if steps is None else (steps,):
        model = _stepping(run.model, count)
        try:
            scores = _scores(model, images)
        except SolverError as error:  # so few steps blow up
            if steps is not None:
                why = f"{steps} steps give numbers that are not finite"
                raise ConfigError("--steps", why, "give more, or leave it out") from error
            continue
        # A run's own solve has an error, too: being close to either solution is enough.
        excess = [((scores - one).abs().amax(1) / tolerance).max().item() for one in (own, exact)]
        nearest = min(nearest, *excess)
        if steps is not None or min(excess) <= 1:
            return model, {"method": _METHOD, "steps": count}, scores
    why = f"{_COUNTS[-1]} fixed steps miss the run's answers by {nearest:.2g} times its tolerance"
    raise ConfigError(run.config.experiment, why, "set the number yourself with --steps")


def _stepping(model: nn.Module, count: int) -> nn.Module:
    """A copy of a model that solves each of its equations with a number of fixed steps."""
    model = copy.deepcopy(model)
    for block in _blocks(model):
        begin, end = block.dynamics.interval
        block.settings = solver_settings(_METHOD, "direct", step=abs(end - begin) / count)
    return model


def _solving_finely(run: TrainedRun) -> nn.Module:
    """A copy of a run's model that solves finely enough to serve as exact."""
    model, settings = copy.deepcopy(run.model), run.config.solver
    finer = {name: max(getattr(settings, name) / _FINER, _FINEST) for name in ("rtol", "atol")}
    for block in _blocks(model):
        block.settings = {**block.settings, **finer}
    return model


def _blocks(model: nn.Module) -> list[NeuralODE]:
    return [part for part in model.modules() if isinstance(part, NeuralODE)]
