"""The results of train, eval, predict and models as lines of text."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfno.lab.cli.terminal import say
from bfno.lab.errors import ConfigError, bfno_command
from bfno.lab.views.layout import csv_text, escaped
from bfno.lab.views.metrics import METRICS, duration, find_metric, reason_of_choice

if TYPE_CHECKING:
    from bfno.lab.runs.record import Record

__all__ = [
    "check_scale",
    "evaluation",
    "finished",
    "prediction_lines",
    "size_lines",
    "size_object",
    "watchers",
]

# Larger confusion matrices do not fit a terminal.
_MOST_CLASSES = 20


def watchers(folder: Path, logs: Sequence[str] | None) -> list[Any]:
    """The watchers of a training: the terminal, and the requested logs."""
    from bfno.lab.cli.progress import TrainingDisplay
    from bfno.lab.runs.logs import make_logs

    return [TrainingDisplay(), *make_logs(logs or (), folder)]


def finished(record: Record, folder: Path) -> None:
    """Print the result of a run and what to do next; with several processes, only in the first."""
    if os.environ.get("RANK", "0") != "0":
        return
    result, headline = record.result, record.judged_by or "test_accuracy"
    beside = f"{headline}_center"  # of densities of images, which have two figures
    scores = [headline, *([beside] if beside in result else [])]
    metrics = map(find_metric, scores)
    found = ", ".join(f"{one.title} {one.text(result.get(one.key))}" for one in metrics)
    say(
        f"{record.experiment}: {found} "
        f"(epoch {record.chosen_epoch}, {reason_of_choice(record.chosen_by or '')}), "
        f"{record.parameters:,} parameters, {_evaluations(result)}{duration(record.seconds or 0)}"
    )
    *others, last = (f"`{one}`" for one in _next_commands(headline, folder))
    say(f"{folder}: try {', '.join(others)} or {last}")


def _evaluations(result: Mapping[str, float]) -> str:
    """The cost of a test batch; empty for a model without an ODE."""
    evaluations = result.get("test_nfe")
    return f"{evaluations:.1f} NFE per test batch, " if evaluations else ""


def _next_commands(headline: str, folder: Path) -> tuple[str, ...]:
    """Commands to try with a run that is judged by this metric."""
    judged = find_metric(headline).name
    sample, evaluate = bfno_command("sample", folder), bfno_command("eval", folder)
    if judged == "nll":  # points come from no files
        return sample, evaluate
    common = (evaluate, bfno_command("predict", folder, "FILES"))
    return (sample, *common) if judged == "bits_per_dim" else common


def evaluation(found: dict[str, Any]) -> list[str]:
    """The result of an evaluation as lines."""
    lines = list(_metric_lines(found))
    if "independent" in found:
        lines.append(f"independent: {found['independent']}")
    if found.get("transductive"):
        from bfno.lab.views.methods import TRANSDUCTIVE

        lines.append(f"transductive: {TRANSDUCTIVE}")
    if found.get("classes"):
        lines += _class_lines(found)
    return lines


def _class_lines(found: dict[str, Any]) -> Iterator[str]:
    names = list(map(escaped, found["classes"]))
    width = min(max(map(len, ("class", *names))), 40)
    yield from ("", f"{'class':{width}}  precision  recall      f1  samples")
    for name, scores in zip(names, found["per_class"], strict=True):
        row = "  ".join(f"{scores[key]:>6.1%}" for key in ("precision", "recall", "f1"))
        yield f"{name[:width]:{width}}     {row}  {scores['samples']:>7.0f}"
    if len(names) <= _MOST_CLASSES:
        yield from ("", "confusion (rows: true, columns: predicted)", *_matrix(found))


def _metric_lines(found: dict[str, Any]) -> Iterator[str]:
    remarks = _remarks(found)
    known = [metric for metric in METRICS.values() if metric.name in found]
    # A model without an ODE evaluates nothing.
    known = [metric for metric in known if found[metric.name] or metric.name != "nfe"]
    width = max([9, *(len(metric.words) for metric in known)])
    for metric in known:
        name = metric.name
        parts = [metric.text(found[name])]
        if name in found.get("intervals", {}):
            low, high = (metric.text(bound) for bound in found["intervals"][name])
            parts.append(f"[{low}, {high}]")
        if name in found.get("standard_errors", {}):
            parts.append(f"± {metric.text(found['standard_errors'][name])}")
        yield f"{metric.words:{width}} {' '.join([*parts, remarks.get(name, '')]).rstrip()}"


def _remarks(found: dict[str, Any]) -> dict[str, str]:
    """Remarks to print beside some metrics."""
    count = f"of {found['samples']:,} {found['unit']}"
    if found["unit"] == "time points":
        count += f" in {found['series']:,} series"
    return {
        "accuracy": count,
        "bits_per_dim": f"{count} (an upper bound; comparable)",
        "bits_per_dim_center": "(what RNODE reports; not a bound)",
        "nll": f"{METRICS['nll'].unit} {count}",
        "nfe": "per batch",
        "coverage_90": f"of {found.get('hidden_values', 0):,} hidden values",
        "width_90": METRICS["width_90"].unit,
    }


def _matrix(found: dict[str, Any]) -> Iterator[str]:
    names = [escaped(name)[:8] for name in found["classes"]]
    yield f"{'':8} " + " ".join(f"{name:>8}" for name in names)
    for name, row in zip(names, found["confusion"], strict=True):
        yield f"{name:8} " + " ".join(f"{count:>8}" for count in row)


def prediction_lines(layout: str) -> Callable[[Any], str]:
    """Return a function that formats one prediction per call.

    Raises:
        ConfigError: If there is no such layout.
    """
    layouts = {"table": _row, "csv": _CsvLines(), "json": _json}
    if layout not in layouts:
        raise ConfigError(f"--format {layout}", "is not a format", "write table, csv or json")
    return layouts[layout]


def _row(prediction: Any) -> str:
    scored = prediction.scores.items()
    places = prediction.place.values()
    where = "  ".join(f"{value:g}" if isinstance(value, float) else value for value in places)
    place = f"{prediction.file}  {where}".rstrip()
    scores = [f"{METRICS[name].words} {METRICS[name].text(score)}" for name, score in scored]
    if prediction.label:
        likely = sorted(prediction.probabilities.items(), key=lambda item: -item[1])[:3]
        shown = "  ".join(f"{name} {probability:.1%}" for name, probability in likely)
        scores.insert(0, f"{prediction.label}  ({shown})" if shown else prediction.label)
    return "  ".join([place, *scores])


def _json(prediction: Any) -> str:
    values = {"file": str(prediction.file), **prediction.place}
    if prediction.label:
        values["label"] = prediction.label
    if prediction.probabilities:
        values["probabilities"] = prediction.probabilities
    # JSON has no word for infinity, which is what an impossible sample costs.
    scores = {name: one if math.isfinite(one) else None for name, one in prediction.scores.items()}
    return json.dumps(values | scores)


class _CsvLines:
    """Rows of a table, the first one below the header."""

    def __init__(self) -> None:
        self._has_header = False

    def __call__(self, prediction: Any) -> str:
        label = {"label": prediction.label} if prediction.label else {}
        numbers = {**prediction.probabilities, **prediction.scores}
        values = (f"{value:.6f}" for value in numbers.values())
        rows = [[str(prediction.file), *prediction.place.values(), *label.values(), *values]]
        if not self._has_header:
            rows.insert(0, _all_different(["file", *prediction.place, *label, *numbers]))
            self._has_header = True
        return csv_text(rows).removesuffix("\n")


def _all_different(names: list[str]) -> list[str]:
    """The names of columns, where a class may be called `label` or `id`."""
    found: list[str] = []
    for name in names:
        while name in found:
            name = f"probability of {name}"
        found.append(name)
    return found


def check_scale(scale: str | None) -> None:
    """Refuse a scale that does not exist.

    Raises:
        ConfigError: If there is no such scale.
    """
    from bfno.lab.experiments.settings import SCALES

    if scale is not None and scale not in SCALES:
        raise ConfigError(scale, "is not a scale", f"choose one of {', '.join(SCALES)}")


def size_object(row: Mapping[str, Any], scale: str | None) -> dict[str, Any]:
    """One experiment of the list of models for programs."""
    return {
        "data": row["data"],
        "method": row["method"],
        "scale": scale or "paper",
        "parameters": row["sizes"][scale or "paper"],
        "paper": row["paper"] if scale in (None, "paper") else None,
        "sizes": row["sizes"],
    }


def size_lines(rows: Sequence[Mapping[str, Any]], scale: str | None) -> Iterator[str]:
    """The list of models as lines: a heading, a line for each, and the examples for own data.

    Args:
        rows: The experiments, as from `model_sizes`.
        scale: The one scale to show; None shows the default one and that of the paper.
    """
    shown = (scale,) if scale else ("cpu", "paper")
    named = {f"{row['data']}/{row['method']}": row for row in rows}
    width = max(len(name) for name in ("parameters at scale", *named))
    yield f"{'parameters at scale':{width}}" + "".join(f" {one:>11}" for one in shown)
    for name, row in named.items():
        sizes = "".join(f" {row['sizes'][one]:>11,}" for one in shown)
        printed = row["paper"] if "paper" in shown else None
        paper = "" if printed is None else f" {printed:>11,} in the paper"
        differs = "" if printed in (None, row["sizes"]["paper"]) else "  (differs)"
        yield f"{name:{width}}{sizes}{paper}{differs}"
    own = {row["data"]: row["example"] for row in rows if row["example"]}
    if own:
        counted = "; ".join(f"{data}: {example}" for data, example in own.items())
        yield f"Your own data decide the sizes; these are examples ({counted})."
