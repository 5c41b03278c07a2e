"""Figures of the two ablations: the number of branches, and the operator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bfno.lab.runs.record import Record
from bfno.lab.views.curves import epoch_points
from bfno.lab.views.figures.curves import (
    LONE_HEIGHT,
    LONE_WIDTH,
    draw_series,
    method_panels,
    scale_epochs,
    task_title,
)
from bfno.lab.views.figures.style import OURS, PALETTE, Drawn, Look, Methods, drawn
from bfno.lab.views.methods import Replicates
from bfno.lab.views.metrics import Estimate, Metric, headline_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["branches_figure", "operators_figure"]

_BRANCHES = re.compile(r"bfno-node(-branches\d+)?")
_OPERATORS = re.compile(r"(?P<operator>a?fno|bfno)-node(?!-branches|-budget)(-.*)?")
_GREY = PALETTE[6]
_ROOM = 0.15  # of an axis, above the highest point: a text fits


def branches_figure(methods: Methods) -> Drawn | None:
    """The metric of BFNO against its number of branches, and the parameters that these cost.

    Args:
        methods: Methods of one task; nothing is drawn unless they have two numbers of branches.
    """
    ours = methods.part(lambda run: _BRANCHES.fullmatch(run.method) is not None)
    found = _by_branches(ours.groups)
    if len(found) < 2:
        return None
    metric, task = _metric(found[0][1]), task_title(found[0][1].task)
    numbers = [number for number, _ in found]

    def paint(figure: Figure) -> None:
        figure.set_size_inches(LONE_WIDTH, 1.1 * LONE_HEIGHT)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.6, 1))
        means = _draw_finals(above, [(number, group, OURS) for number, group in found])
        above.plot(numbers, means, color=OURS.colour, linewidth=1.4)
        above.set_title(f"Branches on {task}")
        above.set_ylabel(metric.title)
        sizes = [(group.runs[0].parameters or 0) / 1000 for _, group in found]
        below.bar(numbers, sizes, 0.5, color=_GREY)
        below.set(xlabel="branches L", ylabel="parameters (k)")
        below.set_xticks(numbers)
        figure.align_ylabels()

    return drawn(f"{metric.title} against the number of branches on {task}", paint)


def operators_figure(methods: Methods) -> Drawn | None:
    """FNO, AFNO and BFNO as fields: the metric over the epochs, and at the end.

    Args:
        methods: Methods of one task; nothing is drawn unless they have two operators.
    """
    shown = methods.part(lambda run: headline_of(run) is not None and _operator(run) is not None)
    groups = [group for group in shown.groups if group.score()]
    if len({_operator(group.runs[0]) for group in groups}) < 2:
        return None
    styles = methods.looks_of(groups)
    metric, task = _metric(groups[0]), task_title(groups[0].task)
    lines = [
        (group, points) for group in groups if (points := epoch_points(group.runs, metric.key))
    ]

    def paint(figure: Figure) -> None:
        left, right = method_panels(figure, 2, styles)
        for group, points in reversed(lines):
            draw_series(left, points, styles[group.label])
        if lines:
            scale_epochs(left, [point for _, points in lines for point in points])
        left.set_title(f"Operators on {task}")
        left.set(xlabel="epoch", ylabel=metric.title)
        places = {label: place for place, label in enumerate(styles)}
        _draw_finals(right, [(places[one.label], one, styles[one.label]) for one in groups])
        right.set_title("in the end, mean ± std")
        right.set_xticks([])
        right.set_xlim(-0.7, len(styles) - 0.3)

    return drawn(f"{metric.title} of operators on {task}", paint)


def _operator(run: Record) -> str | None:
    match = _OPERATORS.fullmatch(run.method)
    return match and match["operator"]


def _by_branches(groups: Sequence[Replicates]) -> list[tuple[int, Replicates]]:
    """One method per number of branches; one named after the number comes first."""
    found: dict[int, Replicates] = {}
    for group in sorted(groups, key=lambda group: group.label, reverse=True):
        number = _branches(group.runs[0])
        if group.score() is not None and number is not None:
            found.setdefault(number, group)
    return sorted(found.items(), key=lambda pair: pair[0])


def _branches(run: Record) -> int | None:
    model: Any = run.config.get("model")
    options = model.get("field_options") if isinstance(model, dict) else None
    number = options.get("branches") if isinstance(options, dict) else None
    return number if isinstance(number, int) else None


def _metric(group: Replicates) -> Metric:
    metric = group.headline
    if metric is None:
        raise ValueError("runs without a metric are not drawn")
    return metric


def _draw_finals(axes: Axes, points: Sequence[tuple[float, Replicates, Look]]) -> list[float]:
    """The mean of each method's seeds; a method with fewer seeds than another says how many.

    Args:
        axes: The panel.
        points: Where along it, the method, and its look.

    Returns:
        The means.
    """
    seeds = [len(_values(group)) for _, group, _ in points]
    means = []
    for (place, group, look), count in zip(points, seeds, strict=True):
        mean, top = _draw_final(axes, place, group, look)
        means.append(mean)
        if count < max(seeds):
            over = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center"}
            text = "1 seed" if count == 1 else f"{count} seeds"
            axes.annotate(text, (place, top), fontsize=8, **over)
    if min(seeds) < max(seeds):
        axes.margins(y=_ROOM)
    return means


def _values(group: Replicates) -> list[float]:
    key = _metric(group).key
    return [run.result[key] for run in group.runs if key in run.result]


def _draw_final(axes: Axes, place: float, group: Replicates, look: Look) -> tuple[float, float]:
    """The mean of the seeds with a bar of a standard deviation, and each seed faintly beside it.

    Returns:
        The mean, and the upper end of the bar.
    """
    values = _values(group)
    estimate = Estimate.of(values, _metric(group).digits) or Estimate(float("nan"), None, 0)
    if len(values) > 1:
        dots: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 3.2}
        beside = [place + 0.16] * len(values)
        axes.plot(beside, values, color=look.colour, alpha=0.45, markeredgewidth=0, **dots)
    bar: dict[str, Any] = {"elinewidth": 1.3, "capsize": 3.0, "capthick": 1.3}
    mark = {"marker": look.marker, "markersize": 7, "markeredgecolor": "none"}
    axes.errorbar(place, estimate.mean, estimate.std or None, color=look.colour, **bar, **mark)
    return estimate.mean, estimate.mean + (estimate.std or 0)
