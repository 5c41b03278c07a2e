"""Pictures of densities: grids of images, columns of runs side by side, and points in the plane."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bfno.lab.errors import ConfigError
from bfno.lab.files import existing_folder, write_atomically
from bfno.lab.views.figures.series import check_new
from bfno.lab.views.figures.style import (
    DOTS_PER_INCH,
    INK,
    PALETTE,
    drawing,
    short_name,
    svg_element,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "MOST_IMAGES",
    "PlanePicture",
    "check_picture",
    "density_figure",
    "image_columns",
    "image_grid",
    "write_picture",
]

KINDS = ("png", "svg")
# Pixels: about the width of a grid and of a grid in a column, the space around, that of a name.
_GRID_WIDTH, _COLUMN_WIDTH, _MARGIN, _TITLE = 800, 420, 20, 48
_WHITE = 255
MOST_IMAGES = 4096
"""Largest number of images in a picture."""
_PANEL = 2.6  # inches
_MOST_DOTS, _MOST_PATHS = 2000, 60


@dataclass(frozen=True)
class PlanePicture:
    """The data of a picture of a density in the plane.

    Attributes:
        window: Least and greatest value of x, then of y, that the grid reaches.
        density: Density on the grid, `(rows, columns)`; rows go up with y.
        data: Points of the data, `(points, 2)`.
        samples: Points drawn from the model, `(points, 2)`.
        paths: Paths of points from noise to data, `(times, points, 2)`; None if a model has none.
    """

    window: tuple[float, float, float, float]
    density: np.ndarray
    data: np.ndarray
    samples: np.ndarray
    paths: np.ndarray | None = None


def check_picture(out: Path, kinds: tuple[str, ...] = KINDS, *, force: bool = False) -> Path:
    """Make sure that a picture can be written, before computing it.

    Args:
        out: The file; its folder may be missing.
        kinds: Endings that its name may have, without the dot.
        force: Whether an existing file may be replaced.

    Raises:
        ConfigError: If it is a folder, exists already, has another ending, or lies below something
            that is not a folder.
    """
    check_new(out, kinds, force=force)
    existing_folder(out)
    return out


def write_picture(content: bytes, out: Path, *, force: bool = False) -> Path:
    """Write a picture.

    Args:
        content: The content of the file.
        out: The file.
        force: Whether to overwrite an existing file.

    Raises:
        ConfigError: If the file exists already, or its ending is unknown.
        DataError: If it cannot be written.
    """
    check_picture(out, force=force)
    write_atomically(out, content)
    return out


def image_grid(images: np.ndarray, columns: int | None = None) -> bytes:
    """Images in rows, as a PNG: every pixel a square of one size, a thin gap between images.

    Args:
        images: Bytes `(images, channels, height, width)` with one channel or three.
        columns: Images per row; None makes the grid about as wide as high.

    Raises:
        ConfigError: If there are too many.
    """
    from PIL import Image

    canvas = _mosaic(images, columns, _GRID_WIDTH)
    written = io.BytesIO()
    Image.fromarray(canvas.squeeze(-1) if canvas.shape[-1] == 1 else canvas).save(written, "PNG")
    return written.getvalue()


def image_columns(columns: Mapping[str, np.ndarray], kind: str = "png") -> bytes:
    """Grids of images side by side, each below its name.

    Args:
        columns: Bytes `(images, channels, height, width)` by name: real images, or a model's
            samples.
        kind: `png` or `svg`.

    Raises:
        ConfigError: If there are too many images, or matplotlib is missing.
    """
    across = math.ceil(math.sqrt(max(map(len, columns.values()))))
    mosaics = {name: _mosaic(images, across, _COLUMN_WIDTH) for name, images in columns.items()}
    width = sum(mosaic.shape[1] + _MARGIN for mosaic in mosaics.values()) + _MARGIN
    height = max(mosaic.shape[0] for mosaic in mosaics.values()) + _MARGIN + _TITLE
    alt = f"Images: {', '.join(columns)}"
    with drawing(alt, kind) as (figure, written):
        # Placed by hand: where a pixel of the mosaic is one of the figure, none is blurred.
        figure.set_layout_engine("none")
        figure.set_size_inches(width / DOTS_PER_INCH, height / DOTS_PER_INCH)
        left = _MARGIN
        for name, mosaic in mosaics.items():
            high, wide, channels = mosaic.shape
            below = height - _TITLE - high
            place = (left / width, below / height, wide / width, high / height)
            axes = figure.add_axes(place)
            shown = mosaic.repeat(3, axis=-1) if channels == 1 else mosaic
            axes.imshow(shown, interpolation="none", aspect="auto")
            axes.set_title(short_name(name), loc="center")
            axes.set_axis_off()
            left += wide + _MARGIN
    return _content(written, kind, alt)


def density_figure(picture: PlanePicture, kind: str = "png") -> bytes:
    """A row of panels: the data, the density, samples, and the paths to some of them.

    Args:
        picture: What to draw.
        kind: `png` or `svg`.
    """
    alt = "Points of the data, the density of the model, points drawn from it"
    panels = [("data", _draw_data), ("density", _draw_density), ("samples", _draw_samples)]
    if picture.paths is not None:
        alt += ", and their paths from noise"
        panels.append(("paths from noise", _draw_paths))
    low_x, high_x, low_y, high_y = picture.window
    shape = (high_y - low_y) / (high_x - low_x)
    with drawing(alt, kind) as (figure, written):
        figure.set_size_inches(_PANEL * len(panels) + 0.3, _PANEL * shape + 0.4)
        row = figure.subplots(1, len(panels), sharex=True, sharey=True)
        for axes, (title, draw) in zip(row, panels, strict=True):
            draw(axes, picture)
            axes.set_title(title)
            axes.set(xlim=(low_x, high_x), ylim=(low_y, high_y), aspect="equal")
            axes.grid(visible=False)
    return _content(written, kind, alt)


def _mosaic(images: np.ndarray, columns: int | None, width: int) -> np.ndarray:
    """Images enlarged and laid out in rows on white, with about a given width in pixels.

    Returns:
        Bytes `(height, width, channels)`.
    """
    count, channels, *size = images.shape
    if count > MOST_IMAGES:
        why = f"{count:,} images do not fit into a picture; at most {MOST_IMAGES:,} do"
        raise ConfigError("the grid", why, "ask for fewer")
    columns = columns or math.ceil(math.sqrt(count))
    factor = max(1, round((width / columns - 2) / size[1]))
    gap = max(2, factor // 3)
    high, wide = (factor * side for side in size)
    rows = math.ceil(count / columns)
    shape = (rows * (high + gap) - gap, columns * (wide + gap) - gap, channels)
    canvas = np.full(shape, _WHITE, np.uint8)
    for number, image in enumerate(images.repeat(factor, axis=2).repeat(factor, axis=3)):
        top, left = (high + gap) * (number // columns), (wide + gap) * (number % columns)
        canvas[top : top + high, left : left + wide] = image.transpose(1, 2, 0)
    return canvas


def _content(written: io.BytesIO, kind: str, alt: str) -> bytes:
    if kind == "png":
        return written.getvalue()
    return svg_element(written.getvalue().decode(), alt, themed=False).encode() + b"\n"


def _draw_data(axes: Axes, picture: PlanePicture) -> None:
    _draw_points(axes, picture.data, PALETTE[1])


def _draw_samples(axes: Axes, picture: PlanePicture) -> None:
    _draw_points(axes, picture.samples, PALETTE[0])


def _draw_points(axes: Axes, points: np.ndarray, colour: str) -> None:
    # As pixels also in an SVG: thousands of circles make a large file that draws slowly.
    dots: dict[str, Any] = {"s": 5, "alpha": 0.45, "linewidths": 0, "rasterized": True}
    axes.scatter(*points[:_MOST_DOTS].T, color=colour, **dots)


def _draw_density(axes: Axes, picture: PlanePicture) -> None:
    extent = picture.window
    axes.imshow(picture.density, "cividis", extent=extent, origin="lower", vmin=0.0)


def _draw_paths(axes: Axes, picture: PlanePicture) -> None:
    paths = picture.paths
    if paths is None:
        return
    shown = paths[:, :_MOST_PATHS]
    axes.plot(shown[..., 0], shown[..., 1], color=INK, alpha=0.25, linewidth=0.8)
    ends: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 2.8}
    (noise,) = axes.plot(
        *shown[0].T, color=INK, markerfacecolor="none", markeredgewidth=0.6, **ends
    )
    (sample,) = axes.plot(*shown[-1].T, color=PALETTE[0], markeredgewidth=0, **ends)
    legend = {"loc": "lower right", "borderaxespad": 0.2, "handletextpad": 0.1}
    axes.legend([noise, sample], ["noise", "sample"], ncols=2, columnspacing=0.8, **legend)
