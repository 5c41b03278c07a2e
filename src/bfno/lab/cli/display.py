"""The results of train, eval, predict and models as lines of text."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfno.lab.cli.terminal import say
from bfno.lab.errors import ConfigError
from bfno.lab.views.layout import csv_text, printable
from bfno.lab.views.metrics import METRICS, find_metric

if TYPE_CHECKING:
    from bfno.lab.runs.record import Record

__all__ = [
    "evaluation",
    "finished",
    "prediction_printer",
    "size_row",
    "watchers",
]

# Larger confusion matrices do not fit a terminal.
_MOST_CLASSES = 20


def watchers(config: Any, folder: Path, log: str | None) -> list[Any]:
    """Who follows a training: the terminal, and TensorBoard if asked for."""
    from bfno.lab.cli.progress import TrainingDisplay

    found: list[Any] = [TrainingDisplay(config)]
    if log == "tensorboard":
        from bfno.lab.runs.tensorboard import TensorBoardLog

        found.append(TensorBoardLog(folder / "tensorboard"))
    elif log is not None:
        raise ConfigError(f"--log {log}", "is not a log", "write --log tensorboard")
    return found


def finished(record: Record, folder: Path) -> None:
    """Print the result of a run and what to do next; of several processes only the first prints."""
    if os.environ.get("RANK", "0") != "0":
        return
    result, headline = record.result, record.judged_by or "test_accuracy"
    beside = f"{headline}_center"  # of densities of images, which have two figures
    scores = [headline, *([beside] if beside in result else [])]
    metrics = map(find_metric, scores)
    found = ", ".join(f"{one.title} {one.text(result.get(one.key))}" for one in metrics)
    say(
        f"{record.experiment}: {found} "
        f"(epoch {record.chosen_epoch}, chosen by {find_metric(record.chosen_by or '').title}), "
        f"{record.parameters:,} parameters, {result['test_nfe']:.1f} NFE per test batch, "
        f"{record.seconds or 0:.0f} s"
    )
    words = [f"`bfno {command.format(folder)}`" for command in _next_commands(headline)]
    say(f"{folder}: try {', '.join(words[:-1])} or {words[-1]}")


def _next_commands(headline: str) -> tuple[str, ...]:
    """Commands to try with a run that is judged by this metric."""
    if headline == "test_nll":  # points come from no files
        return "sample {}", "eval {}"
    common = ("eval {}", "predict {} FILES")
    return ("sample {}", *common) if headline == "test_bits_per_dim" else common


def evaluation(found: dict[str, Any]) -> list[str]:
    """The result of an evaluation as lines."""
    lines = list(_metric_lines(found))
    if found.get("transductive"):
        from bfno.lab.views.methods import TRANSDUCTIVE

        lines.append(f"transductive: {TRANSDUCTIVE}")
    if found.get("classes"):
        lines += _class_lines(found)
    return lines


def _class_lines(found: dict[str, Any]) -> Iterator[str]:
    names = list(map(printable, found["classes"]))
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
    """What has to be said beside some metrics."""
    count = f"of {found['samples']:,} {found['unit']}"
    if found["unit"] == "time points":
        count += f" in {found['series']:,} series"
    return {
        "accuracy": count,
        "bits_per_dim": f"{count} (an upper bound; comparable)",
        "bits_per_dim_center": "(what RNODE reports; not a bound)",
        "nll": f"{METRICS['nll'].unit} {count}",
        "nfe": "per batch",
    }


def _matrix(found: dict[str, Any]) -> Iterator[str]:
    names = [printable(name)[:8] for name in found["classes"]]
    yield f"{'':8} " + " ".join(f"{name:>8}" for name in names)
    for name, row in zip(names, found["confusion"], strict=True):
        yield f"{name:8} " + " ".join(f"{count:>8}" for count in row)


def prediction_printer(layout: str) -> Callable[[Any], None]:
    """A function that prints one prediction after the other.

    Raises:
        ConfigError: If there is no such layout.
    """
    printers = {"table": _print_row, "csv": _CsvPrinter(), "json": _print_json}
    if layout not in printers:
        raise ConfigError(f"--format {layout}", "is not a format", "write table, csv or json")
    return printers[layout]


def _print_row(prediction: Any) -> None:
    scored = prediction.scores.items()
    places = prediction.place.values()
    where = "  ".join(f"{value:g}" if isinstance(value, float) else value for value in places)
    place = f"{prediction.file}  {where}".rstrip()
    scores = [f"{METRICS[name].words} {METRICS[name].text(score)}" for name, score in scored]
    if prediction.label:
        likely = sorted(prediction.probabilities.items(), key=lambda item: -item[1])[:3]
        shown = "  ".join(f"{name} {probability:.1%}" for name, probability in likely)
        scores.insert(0, f"{prediction.label}  ({shown})" if shown else prediction.label)
    say("  ".join([place, *scores]))


def _print_json(prediction: Any) -> None:
    values = {"file": str(prediction.file), **prediction.place}
    if prediction.label:
        values["label"] = prediction.label
    if prediction.probabilities:
        values["probabilities"] = prediction.probabilities
    # JSON has no word for infinity, which is what an impossible sample costs.
    scores = {name: one if math.isfinite(one) else None for name, one in prediction.scores.items()}
    say(json.dumps(values | scores))


class _CsvPrinter:
    def __init__(self) -> None:
        self._has_header = False

    def __call__(self, prediction: Any) -> None:
        label = {"label": prediction.label} if prediction.label else {}
        numbers = {**prediction.probabilities, **prediction.scores}
        if not self._has_header:
            self._write(["file", *prediction.place, *label, *numbers])
            self._has_header = True
        values = (f"{value:.6f}" for value in numbers.values())
        place = prediction.place.values()
        self._write([str(prediction.file), *place, *label.values(), *values])

    def _write(self, row: list[object]) -> None:
        say(csv_text([row]).removesuffix("\n"), end="\r\n")


def size_row(row: dict[str, Any]) -> str:
    """One line of the list of models."""
    paper = "" if row["paper"] is None else f"{row['paper']:>9,} in the paper"
    differs = "" if row["paper"] in (None, row["parameters"]) else "  (differs)"
    line = f"{row['data']:21} {row['method']:30} {row['parameters']:>9,} {paper}{differs}"
    return line.rstrip()
