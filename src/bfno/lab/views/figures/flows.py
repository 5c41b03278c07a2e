"""The hidden state of a few images on its way through the ODE, as a figure."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from bfno.lab.errors import DataError
from bfno.lab.runs.record import Record as RunResult
from bfno.lab.views.exhibit import EXHIBIT, Exhibit, Flow, FlowImage
from bfno.lab.views.figures.curves import task_title
from bfno.lab.views.figures.exhibits import class_name
from bfno.lab.views.figures.style import FAINT, INK, PALETTE, Drawn, drawn, short_name
from bfno.lab.views.tasks import task_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["flow_figure"]

_FRAMES = 6
# Inches: a frame's side, the space between frames, under one, left of all, and of the time axis.
_SIDE, _GAP, _UNDER, _LEFT, _AXIS, _EDGE = 1.05, 0.12, 0.3, 0.95, 0.95, 0.12


def flow_figure(run: RunResult, exhibit: Exhibit) -> Drawn | None:
    """States of a few images from the first time to the last; none if the run shows no image.

    Below each stands how sure the head would be of the true class; above is the time, with the
    solver's steps.

    Args:
        run: A classifier.
        exhibit: What it shows.

    Raises:
        DataError: If the pictures do not hold the frames.
    """
    flow = exhibit.flow
    if not flow.images or not flow.times:
        return None
    chosen = _chosen(len(flow.times))
    strips = [_frames(image, flow) for image in flow.images]
    wide = _LEFT + len(chosen) * (_SIDE + _GAP)
    high = _AXIS + len(strips) * (_SIDE + _UNDER) + _EDGE

    def paint(figure: Figure) -> None:
        # Placed by hand: a frame stands under its time.
        figure.set_layout_engine("none")
        figure.set_size_inches(wide, high)
        for row, (image, frames) in enumerate(zip(flow.images, strips, strict=True)):
            bottom = high - _AXIS - (row + 1) * (_SIDE + _UNDER) + _UNDER
            for column, index in enumerate(chosen):
                left = _LEFT + column * (_SIDE + _GAP)
                place = (left / wide, bottom / high, _SIDE / wide, _SIDE / high)
                _draw_frame(figure.add_axes(place), frames[index], image, index)
            middle = (bottom + _SIDE / 2) / high
            name = class_name(run, image.label)
            figure.text((_LEFT - 0.12) / wide, middle, name, ha="right", va="center")
        centres = (_LEFT + _SIDE / 2, (len(chosen) - 1) * (_SIDE + _GAP))
        place = (centres[0] / wide, (high - 0.7) / high, centres[1] / wide, 0.12 / high)
        _draw_times(figure.add_axes(place), flow, chosen)
        title = f"{short_name(run.method)} on {task_title(task_of(run))}"
        figure.text(_EDGE / wide, 1 - 0.24 / high, title, fontweight="bold", fontsize=11)
        figure.text((_LEFT - 0.12) / wide, place[1], "time t", ha="right", va="center")
        _add_legend(figure)

    return drawn(f"Hidden states over time of {run.method} on {task_title(task_of(run))}", paint)


def _chosen(times: int) -> list[int]:
    """Which of so many times to show: the first, the last, and some between."""
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
    """A frame, and below it how sure the head would be of the true class, as a bar too."""
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


def _add_legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D

    step = Line2D([], [], color=PALETTE[1], marker="|", markeredgewidth=1.6, linestyle="none")
    sure = Line2D([], [], color=PALETTE[0], linewidth=4)
    names = ["step of the solver", "probability of the true class"]
    corner: dict[str, Any] = {"loc": "upper right", "borderaxespad": 0.3, "handlelength": 1.4}
    figure.legend([step, sure], names, ncols=2, columnspacing=1.2, **corner)
