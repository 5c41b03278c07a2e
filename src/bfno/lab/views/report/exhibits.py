"""A classifier's exhibit, as data for a page's template and script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from bfno.lab.runs.record import Record
from bfno.lab.views.exhibit import (
    Flow,
    FlowImage,
    Mistake,
    Scatter,
    Spectrum,
    class_name,
)
from bfno.lab.views.figures.style import CLASS_INKS

__all__ = ["ShownFlow", "flow_data", "flow_view", "mistakes_view", "scatter_view", "spectra_view"]

# Classes whose probability is shown under an image; more would not be read.
_MOST_BARS = 4
# Units of the plane that points are drawn into, and the margin that their glyphs need.
_PLANE, _MARGIN = 400, 12
_SHORT_NAME = 2
# By this much a step that ends at a time may seem to end after it.
_ROUNDING = 1e-9
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_SPECTRUM_WIDTH, _SPECTRUM_HEIGHT = 240, 120


@dataclass(frozen=True)
class ShownFlow:
    """A run whose hidden states a page shows.

    Attributes:
        label: Its method.
        mark: Its colour and its place on the page.
        run: The run.
        flow: The states.
    """

    label: str
    mark: dict[str, Any]
    run: Record
    flow: Flow


def flow_view(shown: Sequence[ShownFlow]) -> dict[str, Any] | None:
    """The slider of a task and everything it moves, as shown before the script runs.

    Args:
        shown: One run of each method.

    Returns:
        Its times and methods; None if there is nothing to show.
    """
    watched = _watched(shown)
    if not watched:
        return None
    return {
        "times": _finest_times(watched),
        "methods": [_method_view(one) for one in watched],
        "shown": sorted({one.flow.shown for one in watched}),
    }


def flow_data(shown: Sequence[ShownFlow]) -> dict[str, Any] | None:
    """The script's data for the slider: times, and the frame of each method at each time."""
    watched = _watched(shown)
    if not watched:
        return None
    times = _finest_times(watched)
    moments = [[_moment(one.flow, time) for time in times] for one in watched]
    return {"times": times, "methods": moments}


def mistakes_view(mistakes: Sequence[Mistake], run: Record) -> list[dict[str, str]]:
    """Errors with a caption each."""
    return [
        {
            "image": mistake.image,
            "caption": f"{class_name(run, mistake.label)} taken for "
            f"{class_name(run, mistake.predicted)}, {_percent(mistake.probability)} sure",
        }
        for mistake in mistakes
    ]


def scatter_view(scatter: Scatter, run: Record) -> dict[str, Any] | None:
    """Points in a square, each a glyph of its class; errors are ringed."""
    placed = scatter.placed()
    if not placed:
        return None
    across = _fitted([image.x for image in placed])
    down = _fitted([-image.y for image in placed])
    classes = sorted({image.label for image in placed})
    points = [
        {"x": x, "y": y, "class": _class_mark(run, image.label), "wrong": image.is_wrong}
        | {"title": _taken(run, image.label, image.predicted)}
        for x, y, image in zip(across, down, placed, strict=True)
    ]
    legend = [_class_mark(run, label) | {"name": class_name(run, label)} for label in classes]
    wrong = sum(image.is_wrong for image in placed)
    return {"side": _PLANE, "points": points, "legend": legend, "wrong": wrong}


def spectra_view(spectra: Sequence[Spectrum]) -> list[dict[str, Any]]:
    """Curves of the logarithm of energy against frequency, with both axes fitted."""
    return [view for spectrum in spectra if (view := _spectrum_view(spectrum))]


def _spectrum_view(spectrum: Spectrum) -> dict[str, Any] | None:
    before, after = spectrum.energies()
    energies = _finite([*before, *after])
    widest = max(spectrum.frequencies, default=0.0)
    if not energies or widest <= 0:
        return None
    low, high = math.floor(math.log10(min(energies))), math.ceil(math.log10(max(energies)))
    high = max(high, low + 1)

    def path(values: list[float]) -> str:
        drawn = zip(spectrum.frequencies, values, strict=True)
        return " ".join(
            f"{_SPECTRUM_WIDTH * frequency / widest:.1f},"
            f"{_SPECTRUM_HEIGHT * (high - math.log10(energy)) / (high - low):.1f}"
            for frequency, energy in drawn
            if math.isfinite(energy)
        )

    return {
        "layer": spectrum.layer,
        "width": _SPECTRUM_WIDTH,
        "height": _SPECTRUM_HEIGHT,
        "low": _power(low),
        "high": _power(high),
        "widest": f"{widest:g}",
        "before": path(before),
        "after": path(after),
    }


def _watched(shown: Sequence[ShownFlow]) -> list[ShownFlow]:
    # A time that is not a number has no place on a slider.
    return [
        one
        for one in shown
        if one.flow.images and 0 < len(_finite(one.flow.times)) == len(one.flow.times)
    ]


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _finest_times(shown: Sequence[ShownFlow]) -> list[float]:
    return max((one.flow.times for one in shown), key=len)


def _moment(flow: Flow, time: float) -> dict[str, Any]:
    """The place of a time in the strip of frames, its step, and the head's output there."""
    frame = min(range(len(flow.times)), key=lambda place: abs(flow.times[place] - time))
    begun = sum(start <= time + _ROUNDING for start in _finite(flow.steps))
    count = _step_count(flow)
    return {
        "at": frame / max(len(flow.times) - 1, 1),
        "step": f"step {min(max(begun, 1), count)} of {count}",
        "shares": [
            [_share(image.probabilities[frame][place]) for place in _bars(image)]
            for image in flow.images
        ],
    }


def _step_count(flow: Flow) -> int:
    return max(len(_finite(flow.steps)) - 1, 1)


def _method_view(shown: ShownFlow) -> dict[str, Any]:
    flow, steps = shown.flow, _finite(shown.flow.steps)
    first, last = flow.times[0], flow.times[-1]
    span = (last - first) or 1.0
    return {
        "label": shown.label,
        "seed": shown.run.seed,
        "mark": shown.mark,
        "ticks": [round(100 * (step - first) / span, 3) for step in steps],
        "steps": _step_count(flow),
        "frames": len(flow.times),
        "aspect": f"{flow.width} / {flow.height}",
        "images": [_image_view(image, shown.run) for image in flow.images],
        "narrow": all(len(name) <= _SHORT_NAME for name in shown.run.classes),
    }


def _image_view(image: FlowImage, run: Record) -> dict[str, Any]:
    bars = [
        {
            "name": class_name(run, place),
            "true": place == image.label,
            "last": _share(image.probabilities[-1][place]),
        }
        for place in _bars(image)
    ]
    return {"frames": image.frames, "label": class_name(run, image.label), "bars": bars}


def _bars(image: FlowImage) -> list[int]:
    """The classes to show: the true one, and those that are likely at some time."""
    rows = image.probabilities
    known = range(min(map(len, rows)))
    likely = sorted(
        known, key=lambda place: (place != image.label, -max(row[place] for row in rows))
    )
    return sorted(likely[:_MOST_BARS], key=lambda place: -rows[-1][place])


def _share(value: float) -> float | None:
    return round(min(max(value, 0.0), 1.0), 4) if math.isfinite(value) else None


def _fitted(values: list[float]) -> list[float]:
    low, span = min(values), (max(values) - min(values)) or 1.0
    inner = _PLANE - 2 * _MARGIN
    return [round(_MARGIN + inner * (value - low) / span, 1) for value in values]


def _class_mark(run: Record, label: int) -> dict[str, Any]:
    """A glyph and a colour; a name of one letter is its own glyph."""
    names = run.classes
    short = bool(names) and all(len(name) == 1 for name in names)
    glyph = class_name(run, label) if short else ascii_uppercase[label % len(ascii_uppercase)]
    return {"glyph": glyph, "hue": label % len(CLASS_INKS)}


def _taken(run: Record, label: int, predicted: int) -> str:
    name = class_name(run, label)
    return name if label == predicted else f"{name} taken for {class_name(run, predicted)}"


def _power(exponent: int) -> str:
    return "10" + str(exponent).translate(_RAISED)


def _percent(share: float) -> str:
    number = f"{100 * share:.0f}" if math.isfinite(share) else "–"
    return f"{number}\N{NO-BREAK SPACE}%"
