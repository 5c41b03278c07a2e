"""Figures of what classifiers show: features in the plane, and spectra of layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bfno.lab.runs.record import Record as RunResult
from bfno.lab.views.exhibit import Exhibit, Scatter, Spectrum
from bfno.lab.views.figures.curves import PANEL_HEIGHT, logarithmic, panel_grid, task_title
from bfno.lab.views.figures.style import INK, PALETTE, Drawn, drawn, short_name
from bfno.lab.views.tables import replicates
from bfno.lab.views.tasks import task_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Shown", "class_name", "spectra_figure", "tsne_figure"]

Shown = Sequence[tuple[RunResult, Exhibit]]
"""Runs of one task, each with what it shows."""

_SIDE, _LONE_SIDE = 2.6, 4.0  # inches of a panel, and of one that is alone
# With more classes than this, names would cover the points.
_MOST_NAMED_CLASSES = 20
_LONGEST_CLASS = 12
# Ten classes tell apart; none is a cross, which marks an error.
_CLASS_COLOURS = (*PALETTE, "#000000")
_CLASS_MARKERS = ("o", "s", "^", "D", "v", "P", "p", "<", ">", "h")
_LEGEND = 0.3  # inches below the panels
_NEAR = 0.07  # of a panel's side: names nearer to each other would overlap
_BEFORE, _AFTER = PALETTE[1], PALETTE[0]


def class_name(run: RunResult, label: int) -> str:
    """The name of a class, or its number where the run names none."""
    name = run.classes[label] if 0 <= label < len(run.classes) else str(label)
    return name if len(name) <= _LONGEST_CLASS else name[: _LONGEST_CLASS - 1] + "…"


def tsne_figure(shown: Shown) -> Drawn | None:
    """Features that enter the head in the plane, a panel for each run; none if nobody has any.

    Args:
        shown: Runs of one task, with what they show.
    """
    panels = [(run, exhibit.scatter) for run, exhibit in shown if exhibit.scatter.points]
    if not panels:
        return None
    names = _titles([run for run, _ in panels])
    legend = {"correct": "o", "taken for another class": "x"}
    side = _SIDE if len(panels) > 1 else _LONE_SIDE

    def paint(figure: Figure) -> None:
        places = panel_grid(figure, len(panels), (side, side + 0.25), (0, _LEGEND))
        for axes, (run, scatter), name in zip(places, panels, names, strict=True):
            _draw_scatter(axes, run, scatter)
            axes.set_title(name)
        _add_mark_legend(figure, legend)

    return drawn(f"Features in the plane of {', '.join(names)} on {_task(panels[0][0])}", paint)


def spectra_figure(shown: Shown) -> Drawn | None:
    """Energy at each frequency before and after each operator layer; none if there is no layer.

    Args:
        shown: Runs of one task, with what they show: a row of panels for each.
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


def _task(run: RunResult) -> str:
    return task_title(task_of(run))


def _titles(runs: Sequence[RunResult]) -> list[str]:
    """What each run is called beside the others: its method, and what tells it from its like."""
    labels = {id(run): group.label for group in replicates(runs) for run in group.runs}
    return [short_name(labels[id(run)]) for run in runs]


def _draw_scatter(axes: Axes, run: RunResult, scatter: Scatter) -> None:
    """A dot for each image, in the colour and shape of its class; errors are crossed out."""
    places: dict[int, list[tuple[float, float]]] = {}
    for point, label in zip(scatter.points, scatter.labels, strict=True):
        places.setdefault(label, []).append(point)
    for label, points in sorted(places.items()):
        # As pixels also in an SVG: thousands of dots make a large file that draws slowly.
        dots: dict[str, Any] = {"s": 9, "linewidths": 0, "alpha": 0.75, "rasterized": True}
        colour = _CLASS_COLOURS[label % len(_CLASS_COLOURS)]
        marker = _CLASS_MARKERS[label % len(_CLASS_MARKERS)]
        axes.scatter(*zip(*points, strict=True), color=colour, marker=marker, **dots)
    triples = zip(scatter.points, scatter.labels, scatter.predicted, strict=True)
    wrong = [point for point, label, predicted in triples if label != predicted]
    if wrong:
        cross: dict[str, Any] = {"s": 16, "linewidths": 0.9, "rasterized": True}
        axes.scatter(*zip(*wrong, strict=True), color=INK, marker="x", **cross)
    if len(places) <= _MOST_NAMED_CLASSES:
        _name_classes(axes, run, places)
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.set_adjustable("datalim")
    axes.spines[:].set_visible(True)


def _name_classes(
    axes: Axes, run: RunResult, places: Mapping[int, Sequence[tuple[float, float]]]
) -> None:
    """The name of each class in the midst of its points."""
    centres = {label: _centre(points) for label, points in sorted(places.items())}
    _spread(list(centres.values()), _NEAR * _extent(places))
    for label, (x, y) in centres.items():
        letters: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9}
        ground = {"boxstyle": "round,pad=0.1", "facecolor": "white", "alpha": 0.7, "linewidth": 0}
        axes.text(x, y, class_name(run, label), fontweight="bold", bbox=ground, **letters)


def _centre(points: Sequence[tuple[float, float]]) -> list[float]:
    """The point nearest to the medians: between two clouds of a class there may be another one."""
    medians = [sorted(values)[len(values) // 2] for values in zip(*points, strict=True)]
    return list(min(points, key=lambda point: math.dist(point, medians)))


def _extent(places: Mapping[int, Sequence[tuple[float, float]]]) -> float:
    heights = [y for points in places.values() for _, y in points]
    return max(heights) - min(heights)


def _spread(centres: list[list[float]], apart: float) -> None:
    """Move names that would cover each other up, in place, until they are apart."""
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
    before, after = (_positive(values) for values in (spectrum.before, spectrum.after))
    axes.plot(spectrum.frequencies, before, color=_BEFORE, marker="s", linestyle="--", **lines)
    axes.plot(spectrum.frequencies, after, color=_AFTER, marker="o", **lines)
    if any(math.isfinite(value) for value in before + after):
        logarithmic(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _positive(values: Sequence[float]) -> list[float]:
    """The values, gaps where a logarithm has none."""
    return [value if value > 0 else math.nan for value in values]
