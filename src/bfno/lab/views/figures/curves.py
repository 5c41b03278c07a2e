"""Figures that compare methods: over the epochs, and against their cost.

Over the epochs there is a line for each method, a band over its seeds if methods are few, and a
panel for each task.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bfno.lab.runs.record import Record
from bfno.lab.views.curves import EpochPoint, epoch_points, epoch_ticks, known_keys
from bfno.lab.views.figures.style import MARKERS, Drawn, Look, Methods, drawn, short_name
from bfno.lab.views.methods import Replicates
from bfno.lab.views.metrics import COSTS, Estimate, Metric, find_metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["EPOCH_FIGURES", "cost_figure", "curves_figure", "draw_series", "epoch_figure"]
__all__ += ["headline_figure", "logarithmic", "method_panels", "panel_grid", "scale_epochs"]
__all__ += ["task_title"]

EPOCH_FIGURES = {"train-loss": find_metric("train_loss")}
EPOCH_FIGURES |= {f"nfe-{metric.split}": metric for metric in COSTS}
"""Figures over the epochs besides that of the metric that runs are judged by."""
PANEL_WIDTH, PANEL_HEIGHT = 4.0, 2.9  # inches
LONE_WIDTH, LONE_HEIGHT = 6.0, 3.8  # of a panel that is alone
_WIDEST = 9.0  # inches of all panels side by side: more would make letters small on a page
# Inches of a legend: a row, the space beside a name, the space beside all; and letters per inch.
_LEGEND_ROW, _LEGEND_LINE, _LEGEND_EDGE, _LETTERS_AN_INCH = 0.2, 0.8, 0.2, 12.5
# Values that differ by more than this factor do not show on a linear axis.
_WIDE_RANGE = 50.0
_MOST_MARKERS = 8
_MOST_BANDS = 5  # more would overlap and could not be told apart
_ALIKE = 0.01  # of an axis: lines nearer than that are one to the eye


def draw_series(axes: Axes, points: Sequence[EpochPoint], look: Look, *, band: bool = True) -> None:
    """The mean as a line, with a band from the lowest to the highest value if these differ."""
    epochs = [point.epoch for point in points]
    low, high = [point.low for point in points], [point.high for point in points]
    spacing = math.ceil(len(points) / _MOST_MARKERS)
    # Lines that overlap show their markers at different epochs.
    start = MARKERS.index(look.marker) % spacing
    marks = {"marker": look.marker, "markersize": 4.0, "markevery": (start, spacing)}
    line = {"color": look.colour, "linestyle": look.dashes, "linewidth": 1.3}
    axes.plot(epochs, [point.mean for point in points], markeredgewidth=0, **line, **marks)
    if band and low != high:
        axes.fill_between(epochs, low, high, color=look.colour, alpha=0.14, linewidth=0)


def scale_epochs(axes: Axes, points: Sequence[EpochPoint]) -> None:
    """Whole epochs from the first on; a logarithmic axis if values span orders of magnitude."""
    first, last = min(point.epoch for point in points), max(point.epoch for point in points)
    axes.set_xticks(epoch_ticks(first, last))
    axes.margins(x=0.03)
    low, high = min(point.mean for point in points), max(point.mean for point in points)
    if low > 0 and high > _WIDE_RANGE * low:
        logarithmic(axes, (1.0, 2.0, 5.0))


def logarithmic(axes: Axes, between: tuple[float, ...] = (1.0,)) -> None:
    """Make the upright axis logarithmic, with plain numbers.

    Args:
        axes: The panel.
        between: The multiples of the powers of ten that get a number.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=between, numticks=8))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def curves_figure(
    methods: Methods,
    title: str,
    key_of: Callable[[Record], str | None],
) -> Drawn | None:
    """A metric against the epochs, a panel for each task; None if no run has measured it.

    Args:
        methods: Methods of one kind of task.
        title: The title.
        key_of: Key of the metric for a run.
    """
    panels = list(_panels(methods, key_of))
    if not panels:
        return None
    styles = methods.looks_of(group for panel in panels for group, _ in panel.series)
    alt = f"{title} against epochs on {', '.join(task_title(panel.task) for panel in panels)}"

    def paint(figure: Figure) -> None:
        for axes, panel in zip(method_panels(figure, len(panels), styles), panels, strict=True):
            panel.draw(axes, styles)
            axes.set_title(task_title(panel.task))
            axes.set(xlabel="epoch", ylabel=find_metric(panel.key).axis)

    return drawn(alt, paint)


@dataclass(frozen=True)
class _Panel:
    task: tuple[str, str, str]
    key: str
    series: list[tuple[Replicates, list[EpochPoint]]]

    def draw(self, axes: Axes, styles: Mapping[str, Look]) -> None:
        band = len(self.series) <= _MOST_BANDS
        # The best last, on top of the others.
        for group, points in reversed(self.series):
            draw_series(axes, points, styles[group.label], band=band)
        scale_epochs(axes, [point for _, points in self.series for point in points])
        if any(len(group.runs) > 1 for group, _ in self.series):
            note = {"loc": "right", "fontsize": 8, "fontweight": "normal"}
            text = "bands: lowest to highest seed" if band else "means over seeds"
            axes.set_title(text, **note)
        for end, count in self._coinciding():
            # Behind the ends of the lines, where no line is covered.
            place = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(f"{count} alike", end, fontsize=8, **place)

    def _coinciding(self) -> Iterator[tuple[tuple[int, float], int]]:
        """The ends of lines that cannot be told apart, and the number of these lines."""
        means = [point.mean for _, points in self.series for point in points]
        step = _ALIKE * (max(means) - min(means)) or 1.0
        alike = Counter(
            tuple((point.epoch, round((point.mean - min(means)) / step)) for point in points)
            for _, points in self.series
        )
        for line, count in alike.items():
            if count > 1:
                epoch, height = line[-1]
                yield (epoch, min(means) + height * step), count


def _panels(methods: Methods, key_of: Callable[[Record], str | None]) -> Iterator[_Panel]:
    """Each task with its lines; methods that measured only zeros have none."""
    for task, groups in methods.tasks():
        key = next((key for group in groups if (key := key_of(group.runs[0]))), None)
        if key is None:
            continue
        series = [(group, epoch_points(group.runs, key)) for group in groups]
        shown = [(group, points) for group, points in series if any(one.high for one in points)]
        if shown:
            yield _Panel(task, key, shown)


def task_title(task: tuple[str, str, str]) -> str:
    """The title of a task's panel.

    Example:
        >>> task_title(("mnist", "cpu", "")), task_title(("physionet", "cpu", "sound"))
        ('mnist (cpu)', 'physionet (cpu, sound)')
    """
    data, *rest = task
    return f"{short_name(data)} ({', '.join(filter(None, rest))})"


def panel_grid(
    figure: Figure, count: int, size: tuple[float, float], margins: tuple[float, float] = (0, 0)
) -> list[Axes]:
    """Panels in rows.

    Args:
        figure: An empty figure, which gets its size.
        count: How many panels.
        size: Width and height of a panel in inches.
        margins: Inches for a legend, on the right and below.
    """
    width, height = size
    columns = min(count, int(_WIDEST // width)) if count != 4 else 2
    rows = math.ceil(count / columns)
    figure.set_size_inches(width * columns + margins[0], height * rows + margins[1])
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in places[count:]:
        spare.set_axis_off()
    return places[:count]


def method_panels(
    figure: Figure, count: int, styles: Mapping[str, Look], *, lines: bool = True
) -> list[Axes]:
    """Panels that compare methods, with one legend on the right, where it covers no line.

    Args:
        figure: An empty figure, which gets its size.
        count: How many panels.
        styles: The look of each method.
        lines: Whether the methods have lines, or only dots.
    """
    size = (LONE_WIDTH, LONE_HEIGHT) if count == 1 else (PANEL_WIDTH, PANEL_HEIGHT)
    names = [short_name(label) for label in styles]
    columns = 1 if len(names) * _LEGEND_ROW <= size[1] else 2
    wide = columns * (_LEGEND_LINE + max(map(len, names)) / _LETTERS_AN_INCH) + _LEGEND_EDGE
    panels = panel_grid(figure, count, size, (wide, 0))
    high = _LEGEND_ROW * math.ceil(len(names) / columns) + _LEGEND_EDGE
    figure.set_figheight(max(figure.get_figheight(), high))
    placed: dict[str, Any] = {"loc": "outside right center", "ncols": columns}
    handles = [_handle(look, lines) for look in styles.values()]
    figure.legend(handles, names, handlelength=3.4 if lines else 1.0, **placed)
    return panels


def _handle(look: Look, lines: bool) -> Any:
    from matplotlib.lines import Line2D

    line = {"color": look.colour, "linestyle": look.dashes if lines else "none", "linewidth": 1.6}
    return Line2D([], [], marker=look.marker, markersize=5.5, markeredgewidth=0, **line)


def headline_figure(methods: Methods, metric: Metric) -> Drawn | None:
    """The metric that runs are judged by against the epochs; none if they did not measure it.

    Args:
        methods: Methods that are judged by it.
        metric: The metric.
    """

    def held_out(run: Record) -> str | None:
        known = known_keys([run])
        keys = (metric.key, metric.on("validation").key)
        return next((key for key in keys if key in known), None)

    return curves_figure(methods, metric.caption, held_out)


def epoch_figure(methods: Methods, name: str) -> Drawn | None:
    """One of `EPOCH_FIGURES`; None if no run has measured it.

    Args:
        methods: Methods of one kind of task.
        name: Its name.
    """
    metric = EPOCH_FIGURES[name]
    return curves_figure(methods, metric.caption, lambda _: metric.key)


def cost_figure(methods: Methods) -> Drawn | None:
    """The metric that runs are judged by, against seconds per epoch and evaluations per step.

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
            metric = groups[0].headline
            axes.set_title(task_title(task))
            axes.set(xlabel=name, ylabel=metric and metric.title)

    return drawn(alt, paint)


def _epoch_seconds(run: Record) -> float | None:
    # The median: one epoch during which the machine slept, or was busy, says nothing of the method.
    seconds = [epoch["seconds"] for epoch in run.epochs if epoch.get("seconds")]
    return statistics.median(seconds) if seconds else None


def _step_nfe(run: Record) -> float | None:
    passes = (run.result.get("forward_nfe"), run.result.get("backward_nfe"))
    return sum(filter(None, passes)) or None


_COSTS = {"seconds per epoch": _epoch_seconds, "NFE per training step": _step_nfe}


def _draw_cost(
    axes: Axes, group: Replicates, cost: Callable[[Record], float | None], look: Look
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
