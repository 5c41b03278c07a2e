"""Figures that compare methods: over the epochs, and against what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bfno.lab.runs.metrics import Metric
from bfno.lab.runs.record import Record as RunResult
from bfno.lab.views.figures.curves import (
    curves_figure,
    method_panels,
    task_title,
)
from bfno.lab.views.figures.methods import Methods
from bfno.lab.views.figures.style import Drawn, Look, drawn
from bfno.lab.views.layout import Estimate
from bfno.lab.views.tables import Replicates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["EPOCH_FIGURES", "cost_figure", "epoch_figure", "headline_figure"]

EPOCH_FIGURES = {
    "train-loss": ("train_loss", "Training loss", "training loss"),
    "nfe-forward": ("forward_nfe", "NFE of the forward pass", "NFE, forward"),
    "nfe-backward": ("backward_nfe", "NFE of the backward pass", "NFE, backward"),
    "nfe-test": ("test_nfe", "NFE of the test", "NFE, test"),
}
"""Figures over the epochs: the key of the metric, its title, and what stands at its axis."""


def headline_figure(methods: Methods, metric: Metric) -> Drawn | None:
    """The metric that runs are judged by against the epochs; none if they did not measure it.

    Args:
        methods: Methods that are judged by it.
        metric: The metric.
    """

    def held_out(run: RunResult) -> str | None:
        known = {key for epoch in run.epochs for key in epoch}
        keys = (metric.key, f"validation_{metric.name}")
        return next((key for key in keys if key in known), None)

    def unit(key: str) -> str:
        return metric.title.replace("test ", f"{key.partition('_')[0]} ", 1)

    title = metric.title[0].upper() + metric.title[1:]
    return curves_figure(methods, title, held_out, unit)


def epoch_figure(methods: Methods, name: str) -> Drawn | None:
    """One of `EPOCH_FIGURES`; none if no run has measured it.

    Args:
        methods: Methods of one kind of task.
        name: Which.
    """
    key, title, unit = EPOCH_FIGURES[name]
    return curves_figure(methods, title, lambda _: key, lambda _: unit)


def cost_figure(methods: Methods) -> Drawn | None:
    """The metric that runs are judged by, against the time and the evaluations of a training step.

    Args:
        methods: Methods of one kind of task; none is drawn of a task with fewer than two methods.
    """
    tasks = [(task, groups) for task, groups in methods.tasks() if len(groups) > 1]
    panels = [
        (task, groups, name, cost)
        for task, groups in tasks
        for name, cost in _COSTS.items()
        if groups[0].score() and any(cost(run) for group in groups for run in group.runs)
    ]
    if not panels:
        return None
    styles = methods.looks_of(group for _, groups in tasks for group in groups)
    alt = f"Result against cost on {', '.join(task_title(task) for task, _ in tasks)}"

    def paint(figure: Figure) -> None:
        places = method_panels(figure, len(panels), styles, lines=False)
        for axes, (task, groups, name, cost) in zip(places, panels, strict=True):
            for group in groups:
                _draw_cost(axes, group, cost, styles[group.label])
            metric = groups[0].runs[0].headline
            axes.set_title(task_title(task))
            axes.set(xlabel=name, ylabel=metric and metric.title)

    return drawn(alt, paint)


def _step_seconds(run: RunResult) -> float | None:
    return run.seconds / run.steps if run.seconds and run.steps else None


def _step_nfe(run: RunResult) -> float | None:
    passes = (run.result.get("forward_nfe"), run.result.get("backward_nfe"))
    return sum(filter(None, passes)) or None


_COSTS = {"seconds a training step": _step_seconds, "NFE a training step": _step_nfe}


def _draw_cost(
    axes: Axes, group: Replicates, cost: Callable[[RunResult], float | None], look: Look
) -> None:
    """A dot at the means, with bars of a standard deviation over the seeds."""
    across, up = Estimate.of((cost(run) for run in group.runs), 0), group.score()
    if across is None or up is None or not math.isfinite(up.mean):
        return
    mark: dict[str, Any] = {"marker": look.marker, "markersize": 7, "markeredgewidth": 0}
    axes.errorbar(
        *(across.mean, up.mean, up.std or None, across.std or None),
        **mark,
        color=look.colour,
        ecolor=(look.colour, 0.45),
        elinewidth=1.1,
    )
