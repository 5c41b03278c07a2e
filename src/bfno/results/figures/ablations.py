"""Figures of the two ablations: the number of branches, and the operator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bfno.results.figures.curves import (
    PANEL_HEIGHT,
    PANEL_WIDTH,
    add_method_legend,
    draw_series,
    epoch_points,
    panel_grid,
    scale_epochs,
    task_title,
)
from bfno.results.figures.style import PALETTE, Drawn, Look, drawn, looks
from bfno.results.layout import Estimate
from bfno.results.record import Metric, RunResult
from bfno.results.tables import Replicates, replicates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["branches_figure", "main_methods", "operators_figure"]

_BRANCHES = re.compile(r"bfno-node(-branches\d+)?")
_OPERATORS = re.compile(r"(?P<operator>a?fno|bfno)-node(?!-branches|-budget)(-.*)?")
_ABLATION = re.compile(r"bfno-node-(branches|small).*|a?fno-node.*")
_OURS = Look(PALETTE[0], "o", "-")
_GREY = PALETTE[6]


def main_methods(runs: Sequence[RunResult]) -> list[RunResult]:
    """The runs without those of ablations, which have figures of their own.

    All runs, if there is nothing else to compare.
    """
    others = [run for run in runs if not _ABLATION.fullmatch(run.method)]
    return others if len({run.method for run in others}) > 1 else list(runs)


def branches_figure(runs: Sequence[RunResult]) -> Drawn | None:
    """The metric of BFNO against its number of branches, and the parameters that these cost.

    Args:
        runs: Runs of one task; nothing is drawn unless they have two numbers of branches.
    """
    found = _by_branches(replicates([run for run in runs if _BRANCHES.fullmatch(run.method)]))
    if len(found) < 2:
        return None
    metric, task = _metric(found[0][1]), task_title(found[0][1].task)
    numbers = [number for number, _ in found]

    def paint(figure: Figure) -> None:
        figure.set_size_inches(PANEL_WIDTH, 1.4 * PANEL_HEIGHT)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.6, 1))
        means = [_draw_final(above, number, group, _OURS) for number, group in found]
        above.plot(numbers, means, color=_OURS.colour, linewidth=1.4)
        above.set_title(f"Branches on {task}")
        above.set_ylabel(metric.title)
        sizes = [(group.runs[0].parameters or 0) / 1000 for _, group in found]
        below.bar(numbers, sizes, 0.5, color=_GREY)
        below.set(xlabel="branches L", ylabel="parameters (k)")
        below.set_xticks(numbers)
        figure.align_ylabels()

    return drawn(f"{metric.title} against the number of branches on {task}", paint)


def operators_figure(runs: Sequence[RunResult]) -> Drawn | None:
    """FNO, AFNO and BFNO as fields: the metric over the epochs, and in the end.

    Args:
        runs: Runs of one task; nothing is drawn unless they have two operators.
    """
    matches = [(run, _OPERATORS.fullmatch(run.method)) for run in runs]
    if len({match["operator"] for _, match in matches if match}) < 2:
        return None
    shown = [run for run, match in matches if match and run.headline]
    groups, styles = [group for group in replicates(shown) if group.score()], looks(shown)
    metric, task = _metric(groups[0]), task_title(groups[0].task)
    lines = [(group, points) for group in groups if (points := epoch_points(group, metric.key))]

    def paint(figure: Figure) -> None:
        left, right = panel_grid(figure, 2, list(styles), (PANEL_WIDTH, PANEL_HEIGHT))
        for group, points in reversed(lines):
            draw_series(left, points, styles[group.label])
        if lines:
            scale_epochs(left, [point for _, points in lines for point in points])
        left.set_title(f"Operators on {task}")
        left.set(xlabel="epoch", ylabel=metric.title)
        for place, label in enumerate(styles):
            group = next(group for group in groups if group.label == label)
            _draw_final(right, place, group, styles[label])
        right.set_title("in the end, mean ± std")
        right.set_xticks([])
        right.set_xlim(-0.7, len(styles) - 0.3)
        add_method_legend(figure, styles)

    return drawn(f"{metric.title} of operators on {task}", paint)


def _by_branches(groups: Sequence[Replicates]) -> list[tuple[int, Replicates]]:
    """One method for each number of branches, the one that is named after it first."""
    found: dict[int, Replicates] = {}
    for group in sorted(groups, key=lambda group: group.label, reverse=True):
        number = _branches(group.runs[0])
        if group.score() is not None and number is not None:
            found.setdefault(number, group)
    return sorted(found.items(), key=lambda pair: pair[0])


def _branches(run: RunResult) -> int | None:
    model: Any = run.config.get("model")
    options = model.get("field_options") if isinstance(model, dict) else None
    number = options.get("branches") if isinstance(options, dict) else None
    return number if isinstance(number, int) else None


def _metric(group: Replicates) -> Metric:
    metric = group.runs[0].headline
    if metric is None:
        raise ValueError("runs without a metric are not drawn")
    return metric


def _draw_final(axes: Axes, place: float, group: Replicates, look: Look) -> float:
    """The mean of the seeds with a bar of a standard deviation, and each seed faintly beside it.

    Returns:
        The mean.
    """
    metric = _metric(group)
    values = [run.result[metric.key] for run in group.runs if metric.key in run.result]
    estimate = Estimate.of(values, metric.digits) or Estimate(float("nan"), None, 0)
    if len(values) > 1:
        dots: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 3.2}
        beside = [place + 0.16] * len(values)
        axes.plot(beside, values, color=look.colour, alpha=0.45, markeredgewidth=0, **dots)
    bar: dict[str, Any] = {"elinewidth": 1.3, "capsize": 3.0, "markeredgewidth": 0}
    mark = {"marker": look.marker, "markersize": 7}
    axes.errorbar(place, estimate.mean, estimate.std or None, color=look.colour, **bar, **mark)
    return estimate.mean
