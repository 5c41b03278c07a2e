"""Figures for a page as SVG text: curves over the epochs and confusion matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bfno.lab.runs.record import Record
from bfno.lab.views.curves import Plot, counted_points, plots
from bfno.lab.views.figures.curves import draw_series, scale_epochs
from bfno.lab.views.figures.style import (
    FAINT,
    INK,
    PALETTE,
    Look,
    drawing,
    looks,
    short_name,
    svg_element,
)
from bfno.lab.views.methods import replicates

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["confusion_matrix", "curve_drawings"]

_MOST_CLASSES_WITH_NUMBERS = 20
# Cells with numbers are no darker than this: text can be read on them, on a light and a dark page.
_STRONGEST_BEHIND_NUMBERS = 0.6
_CURVE_WIDTH, _CURVE_HEIGHT, _LEGEND_ROW = 4.2, 3.0, 0.19  # inches


def curve_drawings(runs: Sequence[Record]) -> list[str]:
    """Loss, metric and function evaluations against epochs, as far as the runs have them.

    Args:
        runs: Runs of one task; those that differ in their seed alone become a mean and a band.

    Returns:
        SVG text of each drawing.
    """
    drawn = (_curves(runs, plot) for plot in plots(runs))
    return [svg for svg in drawn if svg is not None]


def confusion_matrix(run: Record) -> str | None:
    """Draw a run's confusion matrix; None if it recorded none."""
    size = len(run.confusion)
    if not size:
        return None
    alt = f"Confusion matrix of {run.method} on {run.data}"
    with drawing(f"{alt}, {run.name}") as (figure, written):
        side = min(7.0, max(3.4, 1.6 + 0.36 * size))
        figure.set_size_inches(side, side)
        axes = figure.subplots()
        _draw_counts(axes, run.confusion)
        numbered = size <= _MOST_CLASSES_WITH_NUMBERS
        names = [short_name(name) for name in run.classes] if numbered else []
        if len(names) == size:
            upright = max(map(len, names)) > 3
            axes.set_xticks(range(size), names, rotation=90 if upright else 0)
            axes.set_yticks(range(size), names)
        axes.set(xlabel="predicted class", ylabel="true class", aspect="equal")
        axes.set_ylim(size - 0.5, -0.5)  # the first class on top
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    return svg_element(written.getvalue().decode(), alt)


def _curves(runs: Sequence[Record], plot: Plot) -> str | None:
    groups, keys = replicates(runs), plot.keys
    series = [
        (group, key, points)
        for group in groups
        for key in keys
        if (points := counted_points(group.runs, key))
    ]
    if not series:
        return None
    given = looks(group.label for group in groups)
    methods = {group.label: given[group.label] for group in groups}
    dashes = dict(zip(keys, ("-", (0, (4, 2))), strict=False))
    alt = f"{plot.title} on {groups[0].task[0]}: {plot.unit} against epochs"
    with drawing(f"{alt}, {groups[0].task}") as (figure, written):
        columns, rows = _legend_shape(list(methods))
        figure.set_size_inches(_CURVE_WIDTH, _CURVE_HEIGHT + _LEGEND_ROW * rows)
        axes = figure.subplots()
        for group, key, points in series:
            draw_series(axes, points, replace(methods[group.label], dashes=dashes[key]))
        scale_epochs(axes, [point for _, _, points in series for point in points])
        axes.set_title(plot.title)
        axes.set(xlabel="epoch", ylabel=plot.unit)
        used = [key for key in keys if any(key == other for _, other, _ in series)]
        _add_legends(axes, methods, {keys[key]: dashes[key] for key in used}, columns)
    return svg_element(written.getvalue().decode(), alt)


def _legend_shape(labels: list[str]) -> tuple[int, int]:
    """Columns and rows: as many columns as fit beside the longest name."""
    columns = max(1, 42 // (max(len(short_name(label)) for label in labels) + 5))
    return columns, math.ceil(len(labels) / columns)


def _add_legends(
    axes: Axes, methods: dict[str, Look], styles: dict[str, Any], columns: int
) -> None:
    """Add legends: colours and markers of the methods below, dashes of the metrics by the title."""
    from matplotlib.lines import Line2D

    dashes = [Line2D([], [], color=INK, linestyle=style) for style in styles.values()]
    corner = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.2}
    axes.legend(dashes, list(styles), ncols=len(styles), **corner)
    lines = [
        Line2D([], [], color=look.colour, marker=look.marker, linewidth=2)
        for look in methods.values()
    ]
    names = [short_name(label) for label in methods]
    axes.figure.legend(lines, names, loc="outside lower left", ncols=columns)


def _draw_counts(axes: Axes, counts: list[list[int]]) -> None:
    """Draw cells as dark as their share of the true class, with their counts if these fit."""
    from matplotlib.colors import to_rgb

    size = len(counts)
    small = size <= _MOST_CLASSES_WITH_NUMBERS
    strongest = _STRONGEST_BEHIND_NUMBERS if small else 1.0
    # Opacity, not a colour map: an empty cell then has the colour of the page, light or dark.
    cells = [
        [(*to_rgb(PALETTE[0]), strongest * count / max(sum(row), 1)) for count in row]
        for row in counts
    ]
    if not small:
        axes.imshow(cells, interpolation="nearest")
        return
    edges = [index - 0.5 for index in range(size + 1)]
    axes.pcolormesh(edges, edges, cells, edgecolors=FAINT, linewidth=0.5)
    for row, column in ((row, column) for row in range(size) for column in range(size)):
        if counts[row][column]:
            text = {"ha": "center", "va": "center", "fontsize": 8.5}
            axes.text(column, row, str(counts[row][column]), **text)
