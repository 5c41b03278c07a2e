"""The exhibit of a trained classifier: features, errors, states over time.

It is in a run's folder as `exhibit.json`, once a report or a figure has needed it. All pictures are
PNG files in base64.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from bfno.lab.errors import DataError
from bfno.lab.runs.record import Record

__all__ = ["EXHIBIT", "Exhibit", "Flow", "FlowImage", "Mistake", "Placed", "Scatter", "Spectrum"]
__all__ += ["class_name", "read_exhibit"]

EXHIBIT = "exhibit.json"
FORMAT = 1
_PNG = b"\x89PNG\r\n\x1a\n"
_MOST_BYTES = 16 * 2**20


def _png(text: str) -> str:
    """The text itself, after checking that it holds a PNG and cannot break out of an attribute."""
    if not base64.b64decode(text, validate=True).startswith(_PNG):
        raise ValueError("not a PNG")
    return text


Png = Annotated[str, AfterValidator(_png)]
"""A picture as text."""


class Placed(NamedTuple):
    """A test image in the plane.

    Attributes:
        x: Its place from left to right.
        y: Its place from bottom to top.
        label: Its class.
        predicted: The predicted class.
    """

    x: float
    y: float
    label: int
    predicted: int

    @property
    def is_wrong(self) -> bool:
        """Whether the model misclassifies it."""
        return self.label != self.predicted


@dataclass(frozen=True)
class Scatter:
    """Features that enter the head, mapped to the plane by t-SNE.

    Attributes:
        points: Place of each test image, `(x, y)`.
        labels: Its class.
        predicted: The predicted class.
    """

    points: list[tuple[float, float]]
    labels: list[int]
    predicted: list[int]

    @model_validator(mode="after")
    def _check_lengths(self) -> Scatter:
        if not len(self.points) == len(self.labels) == len(self.predicted):
            raise ValueError("points without labels")
        return self

    def placed(self) -> list[Placed]:
        """The images that have a place."""
        images = zip(self.points, self.labels, self.predicted, strict=True)
        return [Placed(x, y, *classes) for (x, y), *classes in images if math.isfinite(x + y)]


@dataclass(frozen=True)
class Mistake:
    """A misclassified test image.

    Attributes:
        image: The image, a PNG in base64.
        label: Its class.
        predicted: The predicted class.
        probability: The model's confidence.
    """

    image: Png
    label: int
    predicted: int
    probability: float


@dataclass(frozen=True)
class FlowImage:
    """One image on its way through the ODE.

    Attributes:
        frames: The state at each time, side by side in one PNG in base64; each frame reaches from
            its own darkest to its own brightest point.
        label: Its class.
        probabilities: The head's probability of each class for the state at each time.
    """

    frames: Png
    label: int
    probabilities: list[list[float]]


@dataclass(frozen=True)
class Flow:
    """How the hidden state of the last ODE moves from h(0) to h(1).

    Attributes:
        times: Times of the frames, from first to last.
        steps: Where the solver's steps begin and end.
        height: Height of a frame in pixels.
        width: Width of a frame in pixels.
        images: The images.
        shown: What a frame shows: the `image` itself, or, if the ODE acts on its features, their
            `strength`, the mean of their absolute values.
    """

    times: list[float]
    steps: list[float]
    height: int
    width: int
    images: list[FlowImage]
    shown: Literal["image", "strength"] = "image"

    @model_validator(mode="after")
    def _check_lengths(self) -> Flow:
        if any(len(image.probabilities) != len(self.times) for image in self.images):
            raise ValueError("not one row of probabilities per time")
        return self


@dataclass(frozen=True)
class Spectrum:
    """Energy at each spatial frequency before and after an operator layer.

    Attributes:
        layer: Which layer, from 1.
        frequencies: Cycles per image, rising.
        before: Mean energy of the layer's input.
        after: Mean energy of its output.
    """

    layer: int
    frequencies: list[float]
    before: list[float]
    after: list[float]

    @model_validator(mode="after")
    def _check_lengths(self) -> Spectrum:
        if not len(self.frequencies) == len(self.before) == len(self.after):
            raise ValueError("curves of several lengths")
        return self

    def energies(self) -> tuple[list[float], list[float]]:
        """Energy before and after, with NaN where a logarithmic axis has no place for it."""
        return _logarithmic(self.before), _logarithmic(self.after)


@dataclass(frozen=True)
class Exhibit:
    """The exhibit of a classifier.

    Attributes:
        step: The training step whose weights it has.
        scatter: Features in the plane.
        mistakes: The most confident errors, the most confident first.
        flow: Hidden states over time; None if the model has no ODE.
        spectra: One for each operator layer; empty if the field has none.
        stands_for: The chosen step of the run when it was made, if known: the weights are others
            where those were damaged and the user asked for any checkpoint.
    """

    step: int
    scatter: Scatter
    mistakes: list[Mistake]
    flow: Flow | None
    spectra: list[Spectrum]
    stands_for: int | None = None


def read_exhibit(folder: Path, step: int | None = None) -> Exhibit | None:
    """Read the exhibit of a run; None if there is none yet, or it shows the weights of before.

    Args:
        folder: Where the run is.
        step: The step that the run has chosen, if known.

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
        exhibit = TypeAdapter(Exhibit).validate_python(found)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        why, fix = "cannot be understood", "remove it; the next report makes it again"
        raise DataError(file, why, fix) from None
    return exhibit if step in (None, exhibit.step, exhibit.stands_for) else None


def class_name(run: Record, label: int) -> str:
    """The name of a class, or its number if the run names no classes."""
    return run.classes[label] if 0 <= label < len(run.classes) else str(label)


def _logarithmic(values: Sequence[float]) -> list[float]:
    return [value if 0 < value < math.inf else math.nan for value in values]
