"""What a trained classifier has to show: features, errors, its state over time, its spectra."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfno.fields.operator import OperatorField
from bfno.lab.data import Split, resized
from bfno.lab.experiments.experiment import TrainedRun, explained_failure
from bfno.lab.experiments.images.data import held_out_images
from bfno.models import ImageClassifier
from bfno.ode.tableaus import find_method

__all__ = ["exhibit_of"]

_IMAGES, _SCATTERED = 1000, 500  # of the test split: looked at, and shown as points
_MISTAKES, _FLOWING, _FRAMES, _ANALYSED = 12, 4, 41, 64
_FEWEST_POINTS = 8  # neighbourhoods of fewer say nothing


def exhibit_of(run: TrainedRun) -> dict[str, Any]:
    """Ask a classifier about test images, and return its answers ready for JSON.

    Args:
        run: The trained classifier.

    Returns:
        `scatter`, `mistakes`, `flow` and `spectra`, as `bfno.lab.views.exhibit` describes them.

    Raises:
        DataError: If the run's data are not there any more.
        NumericalError: If the solver gives up.
    """
    split = _test_images(run, _IMAGES)
    with torch.inference_mode(), explained_failure("exhibit"):
        features, scores = _answers(run, split)
        return {
            "scatter": _scatter(features[:_SCATTERED], split.labels, scores.argmax(1)),
            "mistakes": _mistakes(split, scores.softmax(1)),
            "flow": _flow(run.model, split),
            "spectra": _spectra(run.model, _inputs(split.images[:_ANALYSED])),
        }


def _test_images(run: TrainedRun, most: int) -> Split:
    """Some test images of a run as its model sees them."""
    count = min(most, run.config.data.test_limit or most)
    found, _ = held_out_images(run.config.data, run.config.seed, count)
    return resized(found, run.model.in_shape[-1])


def _inputs(images: Tensor) -> Tensor:
    return images.float().div(255)


def _answers(run: TrainedRun, split: Split) -> tuple[Tensor, Tensor]:
    """What enters the head for each image, and what the head says."""
    batches = _inputs(split.images).split(run.config.train.eval_batch)
    features = torch.cat([run.model.block(batch).flatten(1) for batch in batches])
    return features, run.model.head(features)


def _scatter(features: Tensor, labels: Tensor, predicted: Tensor) -> dict[str, Any]:
    count = len(features) if len(features) >= _FEWEST_POINTS else 0
    points = _in_the_plane(features.numpy()) if count else np.zeros((0, 2))
    return {
        "points": np.round(points, 3).tolist(),
        "labels": labels[:count].tolist(),
        "predicted": predicted[:count].tolist(),
    }


def _in_the_plane(features: np.ndarray) -> np.ndarray:
    """Points of which neighbours were neighbours before: t-SNE, from the same start every time."""
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(features) - 1) / 3)
    return (
        TSNE(perplexity=perplexity, init="pca", random_state=0)
        .fit_transform(features)
        .astype(np.float64)
    )


def _mistakes(split: Split, probabilities: Tensor) -> list[dict[str, Any]]:
    """The errors that the model is surest of."""
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


def _flow(model: ImageClassifier, split: Split) -> dict[str, Any]:
    """States of one image each of the first few classes, from the first time to the last."""
    labels = split.labels.tolist()
    chosen = [labels.index(label) for label in sorted(set(labels))[:_FLOWING]]
    images = _inputs(split.images[chosen])
    steps = _steps(model, images)
    times = _times(model, steps)
    states = model.block.trajectory(images, torch.tensor(times, dtype=torch.float64)).ys
    positions = torch.stack(
        [
            model.block.dynamics.position(time, state)
            for time, state in zip(times, states, strict=True)
        ]
    )
    said = torch.stack([model.head(position.flatten(1)).softmax(1) for position in positions])
    channels, height, width = images.shape[1:]
    return {
        "times": [round(time, 6) for time in times],
        "steps": [round(time, 6) for time in steps],
        "height": height,
        "width": width,
        "images": [
            {
                "frames": _png(_strip(positions[:, place, :channels])),
                "label": labels[index],
                "probabilities": [
                    [round(share, 4) for share in row] for row in said[:, place].tolist()
                ],
            }
            for place, index in enumerate(chosen)
        ],
    }


def _steps(model: ImageClassifier, images: Tensor) -> list[float]:
    """Where the solver's steps begin and end."""
    first, last = model.block.dynamics.interval
    model.block.trajectory(images, torch.tensor([first, last], dtype=torch.float64))
    return [first, *model.block.stats.step_ends]


def _times(model: ImageClassifier, steps: list[float]) -> list[float]:
    """Times to look at: many where the solver interpolates, else only those of its steps."""
    settings = model.block.settings
    method = find_method(settings["method"])
    if method.adaptive and settings.get("step") is None and method.dense_order >= method.order - 1:
        return np.linspace(steps[0], steps[-1], _FRAMES).tolist()
    spacing = -(-len(steps) // _FRAMES)
    return [*steps[:-1:spacing], steps[-1]]


def _strip(frames: Tensor) -> Tensor:
    """Frames side by side as bytes, each from its darkest to its brightest point.

    States may grow tenfold on their way; on one scale, the image at the start would be all grey.
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


def _spectra(model: ImageClassifier, images: Tensor) -> list[dict[str, Any]]:
    """Energy at each frequency before and after every operator layer, at the first time."""
    dynamics = model.block.dynamics
    if not isinstance(dynamics.field, OperatorField):
        return []
    first = dynamics.interval[0]
    energies: list[list[tuple[Tensor, Tensor]]] = [[] for _ in dynamics.field.layers]

    def listener(found: list[tuple[Tensor, Tensor]]) -> Any:
        # A field may pass the images on in several parts.
        return lambda _, given, result: found.append((_energy(given[0]), _energy(result)))

    hooks = [
        layer.register_forward_hook(listener(found))
        for layer, found in zip(dynamics.field.layers, energies, strict=True)
    ]
    try:
        dynamics.field(first, dynamics.position(first, dynamics.initial(images)))
    finally:
        for hook in hooks:
            hook.remove()
    return [_spectrum(number, found) for number, found in enumerate(energies, 1)]


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
