"""Shows the runs of a table during training: a live board on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bfno.lab.cli.terminal import say
from bfno.lab.views.layout import escaped
from bfno.lab.views.metrics import Metric, counted, duration, mean

if TYPE_CHECKING:
    from bfno.lab.runs.campaign.running import Standing

__all__ = ["follow"]

# Finished and waiting runs are only counted where there are more of them than this.
_MOST_ROWS = 12
_WORDS = {
    "there": "already done",
    "elsewhere": "in use elsewhere, waiting for it",
    "stopped": "stopping, saving its state",
    "pruned": "stopped early, others are better",
}
_STYLES = {"running": "bold", "finished": "green", "failed": "red", "pruned": "dim"}
_BY_URGENCY = ("running", "stopped", "elsewhere", "failed", "queued", "waiting", "pruned")
_RANK = {state: place for place, state in enumerate(_BY_URGENCY)}
_OPEN = ("running", "elsewhere", "queued", "waiting")


def follow(rounds: Iterable[list[Standing]], metric: Metric, slots: int) -> None:
    """Show the standings of a campaign until it is over.

    Args:
        rounds: The standings, as they change.
        metric: The metric that runs are judged by.
        slots: How many run at a time.
    """
    if not sys.stderr.isatty():
        _print_lines(rounds, metric)
        return
    from rich.console import Console
    from rich.live import Live

    # The board itself decides when it has changed, so it needs no thread that redraws it.
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        for standings in rounds:
            live.update(_board(standings, metric, slots), refresh=True)


def _print_lines(rounds: Iterable[list[Standing]], metric: Metric) -> None:
    told: dict[str, tuple[str, int]] = {}
    for standings in rounds:
        for one in standings:
            now = (one.state, len(one.epochs))
            before = told.setdefault(one.job.name, ("waiting", len(one.epochs)))
            if now != before:
                told[one.job.name] = now
                clock = time.strftime("%H:%M:%S")
                say(f"{clock} {one.job.name}: {_line(one, metric)}", error=True)


def _line(one: Standing, metric: Metric) -> str:
    score = _score(one, metric)
    if one.state == "failed":
        return f"failed: {one.error}"
    parts = [] if one.state == "running" else [_state_words(one)]
    if not one.is_done and (one.epochs or one.state != "queued"):
        parts.append(_epochs(one))
    return ", ".join([*parts, *([score] if score else [])])


def _state_words(one: Standing) -> str:
    if one.state == "queued" and one.why:
        return f"queued ({escaped(one.why)})"
    return _WORDS.get(one.state, one.state)


def _epochs(one: Standing) -> str:
    if not one.epochs:
        return "started"
    return f"epoch {len(one.epochs)} of {one.job.epochs}"


def _value(one: Standing, metric: Metric) -> float | None:
    value = one.metrics.get(metric.key)
    return float(value) if isinstance(value, int | float) else None


def _score(one: Standing, metric: Metric) -> str:
    value = _value(one, metric)
    return "" if value is None else f"{metric.title} {metric.text(value)}"


def _board(standings: Sequence[Standing], metric: Metric, slots: int) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from bfno.lab.runs.campaign.running import remaining_seconds

    table = Table(box=None, pad_edge=False)
    for title in ("run", "state", "epoch", metric.title, "left"):
        table.add_column(title, justify="left" if title in ("run", "state") else "right")
    for one in _rows(standings):
        value, left = _value(one, metric), one.remaining()
        table.add_row(
            Text(escaped(one.job.name)),
            _state(one),
            f"{len(one.epochs)} of {one.job.epochs}",
            "" if value is None else metric.text(value),
            "" if left is None or one.state not in _OPEN else duration(left),
        )
    summary = [_counts(standings), *_best(standings, metric)]
    left = remaining_seconds(standings, slots)
    if left and all(one.state != "stopped" for one in standings):
        summary.append(f"about {duration(left)} left")
    # At the top, because a terminal with too few lines cuts off the end.
    return Group(Text(" · ".join(summary)), table)


def _state(one: Standing) -> Any:
    from rich.text import Text

    words = f"failed: {one.error}" if one.error else _state_words(one)
    return Text(escaped(words), style=_STYLES.get(one.state, ""), overflow="ellipsis", no_wrap=True)


def _rows(standings: Sequence[Standing]) -> list[Standing]:
    """The runs to show: running ones first, then as many others as fit."""
    active = sorted((one for one in standings if not one.is_done), key=lambda one: _RANK[one.state])
    done = [one for one in standings if one.is_done]
    busy = [one for one in active if one.state not in ("failed", "queued", "waiting", "pruned")]
    return [*active, *done][: max(_MOST_ROWS, len(busy))]


def _counts(standings: Sequence[Standing]) -> str:
    numbers = Counter(one.state for one in standings)
    states = ("there", "finished", "running", "elsewhere", "stopped", "failed", "pruned")
    states += ("queued", "waiting")
    names = {"there": "existing", "elsewhere": "in use elsewhere"}
    names |= {"stopped": "stopping", "pruned": "stopped early"}
    parts = [f"{numbers[state]} {names.get(state, state)}" for state in states if numbers[state]]
    return f"{counted(len(standings), 'run')}: {', '.join(parts)}"


def _best(standings: Sequence[Standing], metric: Metric) -> Iterator[str]:
    """The method of each data set with the best mean of its finished runs, or the best trial."""
    values: dict[str, dict[str, list[float]]] = {}
    for one in standings:
        value = _value(one, metric)
        if one.is_done and value is not None:
            data, _, method = one.job.experiment.partition("/")
            # A job with a title is a file of settings, whose path says nothing about its data.
            data, name = ("", one.job.title) if one.job.title else (f" on {data}", method)
            values.setdefault(data, {}).setdefault(name, []).append(value)
    for data, methods in values.items():
        means = {name: mean(found) for name, found in methods.items()}
        best = min(means, key=lambda name: metric.rank(means[name]))
        yield f"best{data} so far: {best} {metric.text(means[best])}"
