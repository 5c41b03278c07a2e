"""Reads what a trained classifier was asked to show: features, errors, its state over time.

A run's folder holds it as `exhibit.json` once a report or a figure has asked for it. All pictures
are PNG files in base64.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bfno.lab.errors import DataError

__all__ = ["EXHIBIT", "Exhibit", "Mistake", "MovingImage", "Scatter", "Spectrum", "StateMotion"]
__all__ += ["read_exhibit"]

EXHIBIT = "exhibit.json"
FORMAT = 1
_PNG = b"\x89PNG\r\n\x1a\n"
_MOST_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Scatter:
    """Features that enter the head, brought into the plane by t-SNE.

    Attributes:
        points: Place of each test image, `(x, y)`.
        labels: Its class.
        predicted: What the model takes it for.
    """

    points: list[tuple[float, float]]
    labels: list[int]
    predicted: list[int]


@dataclass(frozen=True)
class Mistake:
    """A test image that the model takes for something else.

    Attributes:
        image: The image, a PNG in base64.
        label: Its class.
        predicted: What the model takes it for.
        probability: How sure the model is.
    """

    image: str
    label: int
    predicted: int
    probability: float


@dataclass(frozen=True)
class MovingImage:
    """One image on its way through the ODE.

    Attributes:
        frames: The state at each time, side by side in one PNG in base64; each frame reaches from
            its own darkest to its own brightest point.
        label: Its class.
        probabilities: What the head says of the state at each time, for each class.
    """

    frames: str
    label: int
    probabilities: list[list[float]]


@dataclass(frozen=True)
class StateMotion:
    """How the hidden state moves from h(0) to h(1).

    Attributes:
        times: When it was looked at, from first to last.
        steps: Where the solver's steps begin and end.
        height: Height of a frame in pixels.
        width: Width of a frame in pixels.
        images: The images.
    """

    times: list[float]
    steps: list[float]
    height: int
    width: int
    images: list[MovingImage]


@dataclass(frozen=True)
class Spectrum:
    """Energy at each spatial frequency before and after an operator layer.

    Attributes:
        layer: Which layer, from 1.
        frequencies: Cycles an image, rising.
        before: Mean energy of the layer's input.
        after: Mean energy of its output.
    """

    layer: int
    frequencies: list[float]
    before: list[float]
    after: list[float]


@dataclass(frozen=True)
class Exhibit:
    """What a classifier has to show.

    Attributes:
        step: The training step whose weights it has.
        scatter: Features in the plane.
        mistakes: The surest errors, the surest first.
        flow: Hidden states over time.
        spectra: One for each operator layer; empty where the field has none.
    """

    step: int
    scatter: Scatter
    mistakes: list[Mistake]
    flow: StateMotion
    spectra: list[Spectrum]


def read_exhibit(folder: Path) -> Exhibit | None:
    """Read what a run shows; none if nobody has asked it yet.

    Args:
        folder: Where the run is.

    Raises:
        DataError: If the file cannot be understood.
    """
    file = Path(folder) / EXHIBIT
    if not file.is_file():
        return None
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ValueError
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ValueError
        return _exhibit(found)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        why, fix = "cannot be understood", "remove it; the next report makes it again"
        raise DataError(file, why, fix) from None


def _exhibit(found: dict[str, Any]) -> Exhibit:
    scatter, flow = found["scatter"], found["flow"]
    points = [(float(x), float(y)) for x, y in scatter["points"]]
    times = [float(time) for time in flow["times"]]
    exhibit = Exhibit(
        int(found["step"]),
        Scatter(points, _integers(scatter["labels"]), _integers(scatter["predicted"])),
        [_mistake(one) for one in found["mistakes"]],
        StateMotion(
            times,
            _numbers(flow["steps"]),
            int(flow["height"]),
            int(flow["width"]),
            [_flow_image(one, len(times)) for one in flow["images"]],
        ),
        [_spectrum(one) for one in found["spectra"]],
    )
    if not len(points) == len(exhibit.scatter.labels) == len(exhibit.scatter.predicted):
        raise ValueError("points without labels")
    return exhibit


def _mistake(one: dict[str, Any]) -> Mistake:
    label, predicted = _integers([one["label"], one["predicted"]])
    return Mistake(_png(one["image"]), label, predicted, float(one["probability"]))


def _flow_image(one: dict[str, Any], times: int) -> MovingImage:
    rows = [_numbers(row) for row in one["probabilities"]]
    if len(rows) != times:
        raise ValueError("not one row a time")
    return MovingImage(_png(one["frames"]), int(one["label"]), rows)


def _spectrum(one: dict[str, Any]) -> Spectrum:
    curves = [_numbers(one[key]) for key in ("frequencies", "before", "after")]
    if len({len(curve) for curve in curves}) > 1:
        raise ValueError("curves of several lengths")
    return Spectrum(int(one["layer"]), *curves)


def _numbers(values: Any) -> list[float]:
    return [float(value) for value in values]


def _integers(values: Any) -> list[int]:
    return [int(value) for value in values]


def _png(text: Any) -> str:
    """The text itself, once it is sure to hold a PNG and nothing that could leave an attribute."""
    try:
        content = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if not content.startswith(_PNG):
        raise ValueError("no PNG")
    return str(text)
