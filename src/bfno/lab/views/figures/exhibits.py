"""Figures of classifiers' exhibits: features in the plane, spectra of layers, states over time."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bfno.lab.errors import DataError
from bfno.lab.runs.record import Record, task_of
from bfno.lab.views.exhibit import (
    EXHIBIT,
    Exhibit,
    Flow,
    FlowImage,
    Placed,
    Spectrum,
    class_name,
)
from bfno.lab.views.figures.curves import PANEL_HEIGHT, logarithmic, panel_grid, task_title
from bfno.lab.views.figures.style import (
    CLASS_COLOURS,
    FAINT,
    INK,
    PALETTE,
    Drawn,
    drawn,
    short_name,
)
from bfno.lab.views.methods import replicates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Shown", "flow_figure", "spectra_figure", "tsne_figure"]

Shown = Sequence[tuple[Record, Exhibit]]
"""Runs of one task, each with its exhibit."""

_SIDE, _LONE_SIDE = 2.6, 4.0  # inches of a panel, and of one that is alone
# With more classes than this, names would cover the points.
_MOST_NAMED_CLASSES = 20
_LONGEST_CLASS = 12
# None is a cross, which marks an error.
_CLASS_MARKERS = ("o", "s", "^", "D", "v", "P", "p", "<", ">", "h")
_LEGEND = 0.3  # inches below the panels
_NEAR = 0.07  # of a panel's side: names nearer to each other would overlap
_BEFORE, _AFTER = PALETTE[1], PALETTE[0]
_FRAMES = 6
# Inches of the states: a frame's side, the space between frames, under one, left of all, and of the
# time axis.
_FRAME, _GAP, _UNDER, _LEFT, _AXIS, _EDGE = 1.05, 0.12, 0.3, 0.95, 0.95, 0.12


def tsne_figure(shown: Shown) -> Drawn | None:
    """Features that enter the head in the plane, a panel for each run; None if no run has any.

    Args:
        shown: Runs of one task, with their exhibits.
    """
    scatters = [(run, exhibit.scatter.placed()) for run, exhibit in shown]
    panels = [(run, placed) for run, placed in scatters if placed]
    if not panels:
        return None
    names = _titles([run for run, _ in panels])
    legend = {"correct": "o", "taken for another class": "x"}
    side = _SIDE if len(panels) > 1 else _LONE_SIDE

    def paint(figure: Figure) -> None:
        places = panel_grid(figure, len(panels), (side, side + 0.25), (0, _LEGEND))
        for axes, (run, placed), name in zip(places, panels, names, strict=True):
            _draw_scatter(axes, run, placed)
            axes.set_title(name)
        _add_mark_legend(figure, legend)

    return drawn(f"Features in the plane of {', '.join(names)} on {_task(panels[0][0])}", paint)


def spectra_figure(shown: Shown) -> Drawn | None:
    """Energy at each frequency before and after each operator layer; None if there is no layer.

    Args:
        shown: Runs of one task, with their exhibits: a row of panels for each.
    """
    rows = [(run, exhibit.spectra) for run, exhibit in shown if exhibit.spectra]
    if not rows:
        return None
    names = _titles([run for run, _ in rows])
    columns = max(len(spectra) for _, spectra in rows)

    def paint(figure: Figure) -> None:
        figure.set_size_inches(2.7 * columns, 0.85 * PANEL_HEIGHT * len(rows) + 0.4)
        grid = figure.subplots(len(rows), columns, squeeze=False, sharex=True, sharey="row")
        for places, (_, spectra), name in zip(grid, rows, names, strict=True):
            for axes, spectrum in zip(places, spectra, strict=False):
                _draw_spectrum(axes, spectrum)
                axes.set_title(f"{name}, layer {spectrum.layer}")
            for spare in places[len(spectra) :]:
                spare.set_axis_off()
            places[0].set_ylabel("mean energy")
        for axes in grid[-1]:
            axes.set_xlabel("cycles an image")
        lines = grid[0][0].get_lines()
        legend = ["before the layer", "after the layer"]
        figure.legend(lines, legend, loc="outside lower center", ncols=2, handlelength=2.8)

    alt = f"Energy at each frequency before and after the layers of {', '.join(names)}"
    return drawn(f"{alt} on {_task(rows[0][0])}", paint)


def flow_figure(run: Record, exhibit: Exhibit) -> Drawn | None:
    """States of a few images from the first time to the last; None if the run shows no image.

    Below each is the head's probability of the true class; above is the time, with the solver's
    steps.

    Args:
        run: A classifier.
        exhibit: Its exhibit.

    Raises:
        DataError: If the pictures do not hold the frames.
    """
    flow = exhibit.flow
    if flow is None or not flow.images or not flow.times:
        return None
    chosen = _chosen(len(flow.times))
    strips = [_frames(image, flow) for image in flow.images]
    wide = _LEFT + len(chosen) * (_FRAME + _GAP)
    high = _AXIS + len(strips) * (_FRAME + _UNDER) + _EDGE

    def paint(figure: Figure) -> None:
        # Placed by hand: a frame is below its time.
        figure.set_layout_engine("none")
        figure.set_size_inches(wide, high)
        for row, (image, frames) in enumerate(zip(flow.images, strips, strict=True)):
            bottom = high - _AXIS - (row + 1) * (_FRAME + _UNDER) + _UNDER
            for column, index in enumerate(chosen):
                left = _LEFT + column * (_FRAME + _GAP)
                place = (left / wide, bottom / high, _FRAME / wide, _FRAME / high)
                _draw_frame(figure.add_axes(place), frames[index], image, index)
            middle = (bottom + _FRAME / 2) / high
            name = _short_class(run, image.label)
            figure.text((_LEFT - 0.12) / wide, middle, name, ha="right", va="center")
        centres = (_LEFT + _FRAME / 2, (len(chosen) - 1) * (_FRAME + _GAP))
        place = (centres[0] / wide, (high - 0.7) / high, centres[1] / wide, 0.12 / high)
        _draw_times(figure.add_axes(place), flow, chosen)
        title = f"{short_name(run.method)} on {task_title(task_of(run))}"
        figure.text(_EDGE / wide, 1 - 0.24 / high, title, fontweight="bold", fontsize=11)
        figure.text((_LEFT - 0.12) / wide, place[1], "time t", ha="right", va="center")
        _add_flow_legend(figure)

    return drawn(f"Hidden states over time of {run.method} on {task_title(task_of(run))}", paint)


def _task(run: Record) -> str:
    return task_title(task_of(run))


def _short_class(run: Record, label: int) -> str:
    name = class_name(run, label)
    return name if len(name) <= _LONGEST_CLASS else name[: _LONGEST_CLASS - 1] + "…"


def _titles(runs: Sequence[Record]) -> list[str]:
    """A title for each run: its method, and what distinguishes it from similar runs."""
    labels = {id(run): group.label for group in replicates(runs) for run in group.runs}
    return [short_name(labels[id(run)]) for run in runs]


def _draw_scatter(axes: Axes, run: Record, placed: Sequence[Placed]) -> None:
    """A dot for each image, in the colour and shape of its class; errors are crossed out."""
    places: dict[int, list[tuple[float, float]]] = {}
    for image in placed:
        places.setdefault(image.label, []).append((image.x, image.y))
    for label, points in sorted(places.items()):
        # As pixels also in an SVG: thousands of dots make a large file that draws slowly.
        dots: dict[str, Any] = {"s": 9, "linewidths": 0, "alpha": 0.75, "rasterized": True}
        colour = CLASS_COLOURS[label % len(CLASS_COLOURS)]
        marker = _CLASS_MARKERS[label % len(_CLASS_MARKERS)]
        axes.scatter(*zip(*points, strict=True), color=colour, marker=marker, **dots)
    wrong = [(image.x, image.y) for image in placed if image.is_wrong]
    if wrong:
        cross: dict[str, Any] = {"s": 16, "linewidths": 0.9, "rasterized": True}
        axes.scatter(*zip(*wrong, strict=True), color=INK, marker="x", **cross)
    if len(places) <= _MOST_NAMED_CLASSES:
        _name_classes(axes, run, places)
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.set_adjustable("datalim")
    axes.spines[:].set_visible(True)


def _name_classes(
    axes: Axes, run: Record, places: Mapping[int, Sequence[tuple[float, float]]]
) -> None:
    """The name of each class in the middle of its points."""
    centres = {label: _centre(points) for label, points in sorted(places.items())}
    _spread(list(centres.values()), _NEAR * _extent(places))
    for label, (x, y) in centres.items():
        letters: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9}
        ground = {"boxstyle": "round,pad=0.1", "facecolor": "white", "alpha": 0.7, "linewidth": 0}
        axes.text(x, y, _short_class(run, label), fontweight="bold", bbox=ground, **letters)


def _centre(points: Sequence[tuple[float, float]]) -> list[float]:
    """The point nearest to the medians: between two clouds of a class there may be another one."""
    medians = [sorted(values)[len(values) // 2] for values in zip(*points, strict=True)]
    return list(min(points, key=lambda point: math.dist(point, medians)))


def _extent(places: Mapping[int, Sequence[tuple[float, float]]]) -> float:
    heights = [y for points in places.values() for _, y in points]
    return max(heights) - min(heights)


def _spread(centres: list[list[float]], apart: float) -> None:
    """Move overlapping names apart, in place."""
    centres.sort(key=lambda place: place[1])
    for index, (x, _) in enumerate(centres):
        for other in centres[:index]:
            if abs(x - other[0]) < apart and centres[index][1] - other[1] < apart:
                centres[index][1] = other[1] + apart


def _add_mark_legend(figure: Figure, marks: Mapping[str, str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=INK, linestyle="none", marker=mark, markersize=5, markeredgewidth=0.9)
        for mark in marks.values()
    ]
    figure.legend(handles, list(marks), loc="outside lower center", ncols=2, handlelength=1.0)


def _draw_spectrum(axes: Axes, spectrum: Spectrum) -> None:
    from matplotlib.ticker import MaxNLocator

    lines = {"linewidth": 1.6, "markersize": 4, "markeredgewidth": 0}
    before, after = spectrum.energies()
    axes.plot(spectrum.frequencies, before, color=_BEFORE, marker="s", linestyle="--", **lines)
    axes.plot(spectrum.frequencies, after, color=_AFTER, marker="o", **lines)
    if any(math.isfinite(value) for value in before + after):
        logarithmic(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _chosen(times: int) -> list[int]:
    """Choose which times to show: the first, the last, and some in between."""
    return sorted({round(place) for place in np.linspace(0, times - 1, min(_FRAMES, times))})


def _frames(image: FlowImage, flow: Flow) -> list[np.ndarray]:
    """The frames of a strip."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(base64.b64decode(image.frames))) as strip:
            if strip.size != (flow.width * len(flow.times), flow.height):
                raise ValueError("other frames than it says")
            pixels = np.asarray(strip.convert("RGB"))
    except (OSError, ValueError):
        why, fix = "its frames cannot be read", "remove it; the next report makes it again"
        raise DataError(EXHIBIT, why, fix) from None
    return np.split(pixels, len(flow.times), axis=1)


def _draw_frame(axes: Axes, frame: np.ndarray, image: FlowImage, index: int) -> None:
    """A frame, and below it the head's probability of the true class, also as a bar."""
    from matplotlib.patches import Rectangle

    axes.imshow(frame, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    sure = image.probabilities[index][image.label]
    bar: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False, "linewidth": 0}
    axes.add_patch(Rectangle((0, -0.1), 1, 0.06, facecolor=FAINT, **bar))
    axes.add_patch(Rectangle((0, -0.1), sure, 0.06, facecolor=PALETTE[0], **bar))
    text = {"ha": "right", "va": "top", "fontsize": 7.5, "transform": axes.transAxes}
    axes.text(1, -0.11, f"{sure:.0%}", **text)


def _draw_times(axes: Axes, flow: Flow, chosen: list[int]) -> None:
    """The time from left to right: a tick for each step of the solver, a number for each frame."""
    times = [flow.times[index] for index in chosen]
    axes.set(xlim=(times[0], times[-1]), ylim=(0, 1), yticks=[])
    axes.vlines(flow.steps, 0.1, 0.9, color=PALETTE[1], linewidth=1.6, clip_on=False)
    axes.axhline(0.5, color=INK, linewidth=0.9)
    axes.set_xticks(times, [f"{time:.2g}" for time in times])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=1)


def _add_flow_legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D

    step = Line2D([], [], color=PALETTE[1], marker="|", markeredgewidth=1.6, linestyle="none")
    sure = Line2D([], [], color=PALETTE[0], linewidth=4)
    names = ["step of the solver", "probability of the true class"]
    corner: dict[str, Any] = {"loc": "upper right", "borderaxespad": 0.3, "handlelength": 1.4}
    figure.legend([step, sure], names, ncols=2, columnspacing=1.2, **corner)
