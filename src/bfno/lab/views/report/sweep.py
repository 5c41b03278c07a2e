"""One HTML page about a sweep: the best trial, the settings that mattered, and all trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from bfno.lab.errors import ConfigError
from bfno.lab.runs.record import printable
from bfno.lab.runs.sweep.trials import SweepResult, Trial
from bfno.lab.views.figures.style import (
    DARK_PALETTE,
    FAINT,
    INK,
    PALETTE,
    drawing,
    short_name,
    svg_element,
)
from bfno.lab.views.metrics import Metric, find_metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["render_sweep", "settings_text", "sweep_sentence"]

_STATES = {
    "finished": "finished",
    "pruned": "stopped early",
    "failed": "failed",
    "running": "unfinished",
}
_BEST, _OTHER = PALETTE[1], PALETTE[0]


def settings_text(values: Mapping[str, Any]) -> str:
    """Settings as one line.

    Example:
        >>> settings_text({"train.lr": 0.00123456, "model.width": 16})
        'train.lr=0.001235 model.width=16'
    """
    return " ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: Any) -> str:
    if value is None:
        return "null"
    return f"{value:.4g}" if isinstance(value, float) else printable(str(value))


def sweep_sentence(found: SweepResult) -> str:
    """The result in one sentence.

    Args:
        found: A sweep with a finished trial.
    """
    best, metric = found.best, find_metric(found.metric)
    if best is None:
        return "No trial is finished yet."
    finished = len(found.ranked)
    text = (
        f"The best of {finished} finished {'trial' if finished == 1 else 'trials'} of "
        f"{found.experiment} is {best.name} with a {metric.title} of {metric.text(best.score)}"
    )
    if not found.importance or len(found.importance) < 2:
        return f"{text}."
    name, share = next(iter(found.importance.items()))
    most = "most" if share > 0.5 else "the largest part"
    return f"{text}; {name} explains {most} of the differences ({share:.0%})."


def render_sweep(found: SweepResult) -> str:
    """The page as text: a pure function of the trials.

    Args:
        found: The trials of a sweep.

    Raises:
        ConfigError: If a package is missing.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise ConfigError("jinja2", "is not installed", "pip install 'bfno[report]'") from None
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    metric = find_metric(found.metric)
    figures = [_history(found, metric), _importance(found)]
    page = environment.from_string(_source("sweep.html.j2")).render(
        title=f"Sweep of {found.experiment}",
        subtitle=f"Scale {found.scale}, seed {found.seed} in every trial",
        lead=sweep_sentence(found),
        counts=_counts(found),
        ranges=found.ranges,
        figures=[one for one in figures if one is not None],
        coordinates=_coordinates(found, metric) or "",
        metric=metric,
        names=list(found.ranges),
        rows=[_row(found, trial, metric) for trial in _best_first(found)],
        palette=list(zip(PALETTE, DARK_PALETTE, strict=True)),
        sheet=_source("report.css"),
        markup=Markup,
    )
    return page if page.endswith("\n") else page + "\n"


def _source(name: str) -> str:
    return resources.files("bfno.lab.views.report").joinpath(name).read_text(encoding="utf-8")


def _counts(found: SweepResult) -> str:
    states = [one.state for one in found.trials]
    parts = [
        f"{states.count(state)} {words}" for state, words in _STATES.items() if state in states
    ]
    return f"{len(states)} trials: {', '.join(parts)}."


def _best_first(found: SweepResult) -> list[Trial]:
    others = [one for one in found.trials if one.score is None]
    return [*found.ranked, *others]


def _row(found: SweepResult, trial: Trial, metric: Metric) -> dict[str, Any]:
    state = _STATES[trial.state]
    if trial.same_as is not None:
        state = f"as trial-{trial.same_as:04}"
    if trial.error:
        state = f"{state}: {printable(trial.error)}"
    return {
        "name": trial.name,
        "is_best": trial is found.best,
        "score": "–" if trial.score is None else metric.text(trial.score),
        "values": [_short(trial.values[name]) for name in found.ranges],
        "epochs": max(trial.scores, default=0),
        "state": state,
    }


# -- figures ------------------------------------------------------------------------------------


def _history(found: SweepResult, metric: Metric) -> str | None:
    """Score of every finished trial in order, and the best so far."""
    scored = [(one.number, one.score) for one in found.trials if one.score is not None]
    if not scored:
        return None
    better = min if found.lower_is_better else max
    best, so_far = [], scored[0][1]
    for _, score in scored:
        so_far = better(so_far, score)
        best.append(so_far)
    alt = f"History: {metric.title} of each trial, and the best so far"
    from matplotlib.ticker import MaxNLocator

    with drawing(f"{alt}, {found.experiment}") as (figure, written):
        figure.set_size_inches(4.6, 3.0)
        axes = figure.subplots()
        numbers = [number for number, _ in scored]
        axes.step(numbers, best, where="post", color=_BEST, linewidth=2, label="best so far")
        scores = [score for _, score in scored]
        axes.plot(numbers, scores, "o", color=_OTHER, markersize=4, label="trial")
        axes.set_title("History")
        axes.set(xlabel="trial", ylabel=metric.axis)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="best")
    return svg_element(written.getvalue().decode(), alt)


def _importance(found: SweepResult) -> str | None:
    """How much of the differences between scores each setting explains."""
    if not found.importance:
        return None
    alt = "Importance: the share of each setting in the differences between scores"
    names = list(found.importance)[::-1]
    with drawing(f"{alt}, {found.experiment}") as (figure, written):
        figure.set_size_inches(4.6, max(3.0, 1.2 + 0.32 * len(names)))
        axes = figure.subplots()
        shares = [found.importance[name] for name in names]
        axes.barh([short_name(name) for name in names], shares, color=_OTHER, height=0.6)
        for place, share in enumerate(shares):
            beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(f"{share:.0%}", (share, place), **beside)
        axes.set_title("Importance")
        axes.set(xlabel="share of the differences between scores", xlim=(0, 1.1))
        axes.grid(visible=False)
    return svg_element(written.getvalue().decode(), alt)


def _coordinates(found: SweepResult, metric: Metric) -> str | None:
    """A line for each finished trial through its settings to its score; better ones are darker."""
    ranked = found.ranked
    if not ranked:
        return None
    axes_of = [_Scale.of(found, name) for name in found.ranges]
    scores = [one.score for one in ranked if one.score is not None]
    last = _Scale(metric.title, min(scores), max(scores), metric=metric)
    alt = f"Parallel coordinates: a line for each trial through its settings to its {metric.title}"
    with drawing(f"{alt}, {found.experiment}") as (figure, written):
        figure.set_size_inches(max(9.6, 1.8 * (len(axes_of) + 1)), 3.6)
        axes = figure.subplots()
        # The best one last, on top of the others.
        for place, trial in reversed(list(enumerate(ranked))):
            heights = [one.height(trial.values[one.name]) for one in axes_of]
            heights.append(last.height(trial.score))
            share = 1 - place / max(len(ranked) - 1, 1)
            colour = _BEST if place == 0 else _OTHER
            width = 2.4 if place == 0 else 1.2
            opacity = 1.0 if place == 0 else 0.15 + 0.6 * share
            axes.plot(heights, color=colour, linewidth=width, alpha=opacity)
        for place, one in enumerate([*axes_of, last]):
            one.draw(axes, place)
        axes.set_title("Parallel coordinates", pad=26)
        axes.set(ylim=(-0.05, 1.05), yticks=[])
        axes.set_xticks([])
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
    return svg_element(written.getvalue().decode(), alt)


class _Scale:
    """A vertical axis of the parallel coordinates, from 0 at the bottom to 1 at the top.

    Args:
        name: What it shows.
        low: The value at the bottom.
        high: The value at the top.
        logarithmic: Whether it is logarithmic.
        choices: The values of an axis without numbers.
        metric: The metric of the values, if they are scores.
    """

    def __init__(
        self,
        name: str,
        low: float,
        high: float,
        *,
        logarithmic: bool = False,
        choices: Sequence[Any] = (),
        metric: Metric | None = None,
    ) -> None:
        self.name, self.low, self.high = name, low, high
        self.logarithmic, self.choices, self.metric = logarithmic, list(choices), metric

    @classmethod
    def of(cls, found: SweepResult, name: str) -> _Scale:
        """The axis of a setting, covering its values in the finished trials."""
        values = [one.values[name] for one in found.ranked]
        if found.ranges[name].startswith("choice("):
            try:
                order = sorted(set(values))
            except TypeError:  # words beside numbers
                order = sorted(set(values), key=repr)
            return cls(name, 0, 1, choices=order)
        return cls(name, min(values), max(values), logarithmic=name in found.logarithmic)

    def height(self, value: Any) -> float:
        """The height of a value."""
        if self.choices:
            low, high, value = 0.0, len(self.choices) - 1.0, float(self.choices.index(value))
        else:
            low, high, value = (self._bent(one) for one in (self.low, self.high, value))
        return 0.5 if high <= low else (value - low) / (high - low)

    def _bent(self, value: float) -> float:
        return math.log(value) if self.logarithmic else float(value)

    def draw(self, axes: Axes, place: int) -> None:
        """Draw the line with its ends, or all of its choices, and its name above."""
        axes.axvline(place, color=FAINT, linewidth=1.2, zorder=0)
        for value in self.choices or dict.fromkeys((self.low, self.high)):
            text = self.metric.text(value) if self.metric else _short(value)
            style: dict[str, Any] = {"fontsize": 8.5, "va": "center", "color": INK}
            axes.text(place + 0.03, self.height(value), short_name(text), **style)
        title = short_name(self.name)
        axes.text(place, 1.12, title, ha="center", va="center", fontsize=9, color=INK)
