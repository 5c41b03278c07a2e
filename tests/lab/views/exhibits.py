"""Writes what a classifier shows, with pictures of a few pixels and numbers made by a rule."""

import base64
import io
import json
import math
from pathlib import Path
from typing import Any

from PIL import Image

TIMES = [0.0, 0.25, 0.5, 0.75, 1.0]
SIDE = 4


def write_exhibit(folder: Path, classes: int = 2, **changes: Any) -> dict[str, Any]:
    """Write `exhibit.json` into the folder of a run; `changes` replace its keys."""
    content = {**exhibit(classes), **changes}
    (folder / "exhibit.json").write_text(json.dumps(content))
    return content


def exhibit(classes: int = 2, points: int = 30, images: int = 2) -> dict[str, Any]:
    """What a classifier shows; every seventh point of the plane is taken for the next class."""
    labels = [index % classes for index in range(points)]
    taken = [(label + (index % 7 == 6)) % classes for index, label in enumerate(labels)]
    return {
        "format": 1,
        "step": 69,
        "scatter": {
            "points": [_place(index, label, classes) for index, label in enumerate(labels)],
            "labels": labels,
            "predicted": taken,
        },
        "mistakes": [
            {"image": png(SIDE, SIDE), "label": 0, "predicted": 1, "probability": 0.9},
            {"image": png(SIDE, SIDE), "label": 1, "predicted": 0, "probability": 0.8},
        ],
        "flow": {
            "times": TIMES,
            "steps": [0.0, 0.1, 0.4, 1.0],
            "height": SIDE,
            "width": SIDE,
            "images": [_flow_image(index % classes, classes) for index in range(images)],
        },
        "spectra": [_spectrum(1), _spectrum(2)],
    }


def png(width: int, height: int) -> str:
    """A grey ramp from left to right, a PNG in base64."""
    ramp = bytes(255 * column // (width - 1) for _ in range(height) for column in range(width))
    written = io.BytesIO()
    Image.frombytes("L", (width, height), ramp).save(written, "PNG")
    return base64.b64encode(written.getvalue()).decode()


def _place(index: int, label: int, classes: int) -> list[float]:
    """On a small circle around its class, whose centre is on a large one."""
    angle, turn = 2 * math.pi * label / classes, 2.4 * index
    return [10 * math.cos(angle) + math.cos(turn), 10 * math.sin(angle) + math.sin(turn)]


def _flow_image(label: int, classes: int) -> dict[str, Any]:
    """Surer of its class with each frame."""
    rows = [[(1 - time) / classes] * classes for time in TIMES]
    for row, time in zip(rows, TIMES, strict=True):
        row[label] += time
    return {"frames": png(SIDE * len(TIMES), SIDE), "label": label, "probabilities": rows}


def _spectrum(layer: int) -> dict[str, Any]:
    frequencies = [0.0, 1.0, 2.0]
    before = [100.0, 10.0, 1.0]
    return {
        "layer": layer,
        "frequencies": frequencies,
        "before": before,
        "after": [value / layer / 2 for value in before],
    }
