"""Pictures that other commands have left in the folders of runs, as figures beside the rest."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bfno.lab.errors import DataError
from bfno.lab.runs.record import Record as RunResult
from bfno.lab.views.figures.curves import task_title
from bfno.lab.views.figures.style import Drawn, drawn, short_name
from bfno.lab.views.tasks import task_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "kept_reconstruction", "samples_figure"]

PICTURES = "figures"
"""The folder of pictures in that of a run."""
_LARGEST = 8 * 2**20  # bytes
_WIDTH = 4.0  # inches of a picture of images
_WIDE = 2.5  # times as wide as high: such a picture has a row for itself


def samples_figure(places: Sequence[tuple[RunResult, Path]]) -> Drawn | None:
    """What was drawn from densities, a panel for each run; none if no run has such a picture.

    Args:
        places: Runs of one task, each with its folder.

    Raises:
        DataError: If a picture cannot be read.
    """
    found = [(run, _pixels(folder / PICTURES / "samples.png")) for run, folder in places]
    panels = [(run, pixels) for run, pixels in found if pixels is not None]
    if not panels:
        return None
    high, wide = panels[0][1].shape[:2]
    columns = 1 if wide > _WIDE * high else min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = _WIDTH * 2 if columns == 1 and wide > _WIDE * high else _WIDTH

    def paint(figure: Figure) -> None:
        figure.set_size_inches(width * columns, (width * high / wide + 0.35) * rows)
        grid = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, (run, pixels) in zip(grid, panels, strict=False):
            axes.imshow(pixels, interpolation="antialiased")
            axes.set_title(short_name(run.method))
        for axes in grid:
            axes.set_axis_off()

    names = ", ".join(run.method for run, _ in panels)
    return drawn(f"Samples of {names} on {task_title(task_of(panels[0][0]))}", paint)


def kept_reconstruction(run: RunResult, folder: Path) -> Drawn | None:
    """The series that `bfno reconstruct` drew of a run; none if it did not.

    Args:
        run: The run.
        folder: Its folder.

    Raises:
        DataError: If the picture cannot be read.
    """
    svg = _content(folder / PICTURES / "reconstruction.svg")
    png = _content(folder / PICTURES / "reconstruction.png")
    if svg is None and png is None:
        return None
    alt = f"Reconstructed series of {run.method} on {task_title(task_of(run))}"
    if svg is None:  # it may be too large to be kept
        return _painted(alt, _pixels(folder / PICTURES / "reconstruction.png"), png)
    return Drawn(alt, svg.decode("utf-8", errors="replace"), png)


def _painted(alt: str, pixels: np.ndarray | None, png: bytes | None) -> Drawn:
    """A picture as a figure that holds nothing else."""
    assert pixels is not None

    def paint(figure: Figure) -> None:
        high, wide = pixels.shape[:2]
        figure.set_size_inches(2 * _WIDTH, 2 * _WIDTH * high / wide)
        axes = figure.subplots()
        axes.imshow(pixels, interpolation="antialiased")
        axes.set_axis_off()

    return replace(drawn(alt, paint), png=png)


def _content(file: Path) -> bytes | None:
    try:
        if not file.is_file():
            return None
        if file.stat().st_size > _LARGEST:
            raise DataError(file, f"has more than {_LARGEST >> 20} MB", "remove it")
        return file.read_bytes()
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
        raise DataError(file, why, "check the file's permissions") from None


def _pixels(file: Path) -> np.ndarray | None:
    from PIL import Image

    content = _content(file)
    if content is None:
        return None
    try:
        with Image.open(io.BytesIO(content)) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, Image.DecompressionBombError):
        raise DataError(file, "is no picture", "remove it, and draw it again") from None
