"""The exhibit of a trained classifier: features, errors, states over time, spectra."""

from __future__ import annotations

import base64
import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bfno.fields import NormedField, OperatorField
from bfno.lab.data import Split, resized
from bfno.lab.experiments.experiment import TrainedRun, explained_failure
from bfno.lab.experiments.images.calibration import temperature_of
from bfno.lab.experiments.images.data import held_out_images, refuse_other_draw
from bfno.lab.experiments.tasks import require_sound
from bfno.ode import NeuralODE
from bfno.ode.tableaus import find_method

__all__ = ["exhibit_of"]

_IMAGES, _SCATTERED = 1000, 500  # of the test split: looked at, and shown as points
_MISTAKES, _FLOWING, _FRAMES, _ANALYSED = 12, 4, 41, 64
_FEWEST_POINTS = 8  # neighbourhoods of fewer say nothing


class _Classifier(Protocol):
    """The interface of a classifier in an exhibit; without ODEs it has no states to show."""

    head: nn.Module

    def __call__(self, x: Tensor) -> Tensor: ...

    def features(self, x: Tensor) -> Tensor:
        """The input of the head."""
        ...

    @property
    def blocks(self) -> Sequence[NeuralODE]:
        """The neural ODEs that an image goes through, in order; there may be none."""
        ...


def exhibit_of(run: TrainedRun) -> dict[str, Any]:
    """Apply a classifier to test images, and return the exhibit, ready for JSON.

    Args:
        run: The trained classifier.

    Returns:
        `scatter`, `mistakes`, `flow` and `spectra`, as `bfno.lab.views.exhibit` describes them; a
        model without an ODE has no `flow`, one without operator layers no `spectra`.

    Raises:
        DataError: If the run's data no longer exist.
        NumericalError: If the solver gives up.
    """
    split = _test_images(run, _IMAGES)
    with torch.inference_mode(), explained_failure("exhibit"):
        features, scores = _answers(run, split)
        temperature = temperature_of(run) or 1.0
        shown = _spread(len(split), _SCATTERED)
        return {
            "scatter": _scatter(features[shown], split.labels[shown], scores[shown].argmax(1)),
            "mistakes": _mistakes(split, (scores / temperature).softmax(1)),
            "flow": _flow(run.model, split, temperature),
            "spectra": _spectra(run.model, _inputs(split.images[_spread(len(split), _ANALYSED)])),
        }


def _test_images(run: TrainedRun, most: int) -> Split:
    """Some test images of a run as its model sees them."""
    count = min(most, run.config.data.test_limit or most)
    refuse_other_draw(run, run.config.data)
    found, _ = held_out_images(run.config.data, run.config.seed, count)
    return resized(found, run.config.data.shape[-1])


def _spread(count: int, most: int) -> Tensor:
    """Places of a number of samples at most, evenly spread, as these may be sorted by class."""
    return torch.arange(min(count, most)) * count // max(min(count, most), 1)


def _inputs(images: Tensor) -> Tensor:
    return images.float().div(255)


def _answers(run: TrainedRun, split: Split) -> tuple[Tensor, Tensor]:
    """Compute the input and the output of the head for each image."""
    batches = _inputs(split.images).split(run.config.train.eval_batch)
    features = torch.cat([run.model.features(batch) for batch in batches])
    scores = run.model.head(features)
    require_sound(scores.isfinite())
    return features, scores


def _scatter(features: Tensor, labels: Tensor, predicted: Tensor) -> dict[str, Any]:
    count = len(features) if len(features) >= _FEWEST_POINTS else 0
    points = _in_the_plane(features.numpy()) if count else np.zeros((0, 2))
    return {
        "points": np.round(points, 3).tolist(),
        "labels": labels[:count].tolist(),
        "predicted": predicted[:count].tolist(),
    }


def _in_the_plane(features: np.ndarray) -> np.ndarray:
    """Points in the plane that keep neighbours together: t-SNE, always from the same start."""
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(features) - 1) / 3)
    return (
        TSNE(perplexity=perplexity, init="pca", random_state=0)
        .fit_transform(features)
        .astype(np.float64)
    )


def _mistakes(split: Split, probabilities: Tensor) -> list[dict[str, Any]]:
    """The errors of which the model is most confident."""
    sureness, predicted = probabilities.max(1)
    wrong = torch.nonzero(predicted != split.labels).flatten()
    surest = wrong[sureness[wrong].argsort(descending=True, stable=True)][:_MISTAKES]
    return [
        {
            "image": _png(split.images[index]),
            "label": int(split.labels[index]),
            "predicted": int(predicted[index]),
            "probability": round(float(sureness[index]), 4),
        }
        for index in surest.tolist()
    ]


def _flow(model: _Classifier, split: Split, temperature: float) -> dict[str, Any] | None:
    """States of one image each of the first few classes in the last ODE, from first to last time.

    The label of a state is what the rest of the model predicts from it.
    """
    if not model.blocks:
        return None
    block, labels = model.blocks[-1], split.labels.tolist()
    chosen = [labels.index(label) for label in sorted(set(labels))[:_FLOWING]]
    images = _inputs(split.images[chosen])
    entering = _entering(model, block, images)
    steps = _steps(block, entering)
    times = _times(block, steps)
    states = block.trajectory(entering, torch.tensor(times, dtype=torch.float64)).ys
    moments = zip(times, states, strict=True)
    positions = torch.stack([block.dynamics.position(time, state) for time, state in moments])
    said = (_said(model, block, images, positions) / temperature).softmax(-1)
    is_image = torch.equal(entering, images)
    frames = positions[:, :, : images.shape[1]] if is_image else positions.abs().mean(2, True)
    return {
        "times": [round(time, 6) for time in times],
        "steps": [round(time, 6) for time in steps],
        "height": frames.shape[-2],
        "width": frames.shape[-1],
        "shown": "image" if is_image else "strength",
        "images": [
            {
                "frames": _png(_strip(frames[:, place])),
                "label": labels[index],
                "probabilities": [
                    [round(share, 4) for share in row] for row in said[:, place].tolist()
                ],
            }
            for place, index in enumerate(chosen)
        ],
    }


def _entering(model: _Classifier, block: NeuralODE, images: Tensor) -> Tensor:
    """Compute the input of one of a model's blocks."""
    found: list[Tensor] = []
    with _listening(block, lambda _, given, __: found.append(given[0])):
        model.features(images)
    return found[0]


def _said(model: _Classifier, block: NeuralODE, images: Tensor, positions: Tensor) -> Tensor:
    """Scores, if a block had ended at each of some positions `(times, images, ...)`."""
    times = len(positions)
    repeated = images.repeat(times, *[1] * (images.ndim - 1))
    with _listening(block, lambda *_: positions.flatten(0, 1)):
        said = model(repeated)
    return said.unflatten(0, (times, len(images)))


@contextlib.contextmanager
def _listening(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    """Call a hook after each call of a module; its return value, if any, replaces the result."""
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _steps(block: NeuralODE, entering: Tensor) -> list[float]:
    """Where the solver's steps begin and end."""
    first, last = block.dynamics.interval
    block.trajectory(entering, torch.tensor([first, last], dtype=torch.float64))
    return [first, *block.stats.step_ends]


def _times(block: NeuralODE, steps: list[float]) -> list[float]:
    """Times to show: many if the solver interpolates, or else only those of its steps."""
    settings = block.settings
    method = find_method(settings["method"])
    if method.adaptive and settings.get("step") is None and not method.is_coarse:
        return np.linspace(steps[0], steps[-1], _FRAMES).tolist()
    spacing = -(-len(steps) // _FRAMES)
    return [*steps[:-1:spacing], steps[-1]]


def _strip(frames: Tensor) -> Tensor:
    """Frames side by side as bytes, each from its darkest to its brightest point.

    States may grow tenfold on the way; on one scale, the first image would be all grey.
    """
    low, high = (bound((1, 2, 3), keepdim=True) for bound in (frames.amin, frames.amax))
    bytes_ = ((frames - low) / (high - low).clamp_min(1e-12) * 255).round().to(torch.uint8)
    return torch.cat(list(bytes_), dim=-1)


def _png(image: Tensor) -> str:
    """Bytes `(channels, height, width)` as a PNG in base64: one channel is grey, three colour."""
    from PIL import Image

    written = io.BytesIO()
    pixels = image[0] if len(image) != 3 else image.permute(1, 2, 0)
    Image.fromarray(pixels.contiguous().numpy()).save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def _spectra(model: _Classifier, images: Tensor) -> list[dict[str, Any]]:
    """Energy at each frequency before and after every operator layer, at the first time."""
    found: list[list[tuple[Tensor, Tensor]]] = []
    for block in model.blocks:
        if _mixes_frequencies(block.dynamics.field):
            found += _energies(block, _entering(model, block, images))
    return [_spectrum(number, energies) for number, energies in enumerate(found, 1)]


def _mixes_frequencies(field: nn.Module) -> bool:
    """Whether a field consists of operator layers."""
    if not isinstance(field, OperatorField | NormedField):
        return False
    return not any(isinstance(layer, nn.Conv2d) for layer in field.layers)


def _energies(block: NeuralODE, entering: Tensor) -> list[list[tuple[Tensor, Tensor]]]:
    """For each operator layer of a block, energy before and after it."""
    dynamics = block.dynamics
    first = dynamics.interval[0]
    energies: list[list[tuple[Tensor, Tensor]]] = [[] for _ in dynamics.field.layers]

    def listener(found: list[tuple[Tensor, Tensor]]) -> Any:
        # A field may pass the images on in several parts.
        return lambda _, given, result: found.append((_energy(given[0]), _energy(result)))

    with contextlib.ExitStack() as hooks:
        for layer, found in zip(dynamics.field.layers, energies, strict=True):
            hooks.enter_context(_listening(layer, listener(found)))
        dynamics.field(first, dynamics.position(first, dynamics.initial(entering)))
    return energies


def _spectrum(number: int, found: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    before, after = (torch.cat(parts).double().mean((0, 1)) for parts in zip(*found, strict=True))
    radius = _radius(*before.shape).flatten()
    counts = torch.bincount(radius)
    curves = [torch.bincount(radius, energy.flatten()) / counts for energy in (before, after)]
    reach = min(before.shape) // 2 + 1  # beyond it, only the corners of the square are left
    return {
        "layer": number,
        "frequencies": list(range(reach)),
        "before": curves[0][:reach].tolist(),
        "after": curves[1][:reach].tolist(),
    }


def _energy(hidden: Tensor) -> Tensor:
    return torch.fft.fft2(hidden.float(), norm="ortho").abs().square()


def _radius(height: int, width: int) -> Tensor:
    """The distance of each frequency from zero in cycles an image, rounded."""
    vertical = torch.fft.fftfreq(height, 1 / height)
    horizontal = torch.fft.fftfreq(width, 1 / width)
    return torch.hypot(vertical[:, None], horizontal[None, :]).round().long()
