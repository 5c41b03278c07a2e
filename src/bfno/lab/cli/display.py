"""What the commands print."""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfno.lab.errors import ConfigError

if TYPE_CHECKING:
    from bfno.lab.runs.record import Record

__all__ = [
    "bar",
    "download_progress",
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
        raise ConfigError(f"--log {log}", "is no log", "write --log tensorboard")
    return found


def finished(record: Record, folder: Path) -> None:
    """Print the result of a run and what to do with it; once, however many have trained it."""
    if os.environ.get("RANK", "0") != "0":
        return
    result, headline = record.result, record.judged_by or "test_accuracy"
    beside = f"{headline}_center"  # of densities of images, which have two figures
    scores = [headline, *([beside] if beside in result else [])]
    found = ", ".join(f"{_title(key)} {_shown(key, result.get(key))}" for key in scores)
    print(
        f"{record.experiment}: {found} "
        f"(epoch {record.chosen_epoch}, chosen by {_title(record.chosen_by or '')}), "
        f"{record.parameters:,} parameters, {result['test_nfe']:.1f} NFE a test batch, "
        f"{record.seconds:.0f} s"
    )
    words = [f"`bfno {command.format(folder)}`" for command in _next_commands(headline)]
    print(f"{folder}: try {', '.join(words[:-1])} or {words[-1]}")


def _next_commands(headline: str) -> tuple[str, ...]:
    """What a run that is judged by this metric is good for."""
    if headline == "test_nll":  # points come from no files
        return "sample {}", "eval {}"
    common = ("eval {}", "predict {} FILES")
    return ("sample {}", *common) if headline == "test_bits_per_dim" else common


# Names and formats of the metrics that an evaluation may have, in the order of the table.
_METRICS = {
    "accuracy": ("accuracy", ".2%"),
    "macro_f1": ("macro-F1", ".4f"),
    "auroc": ("AUROC", ".4f"),
    "auprc": ("AUPRC", ".4f"),
    "loss": ("loss", ".4f"),
    "mse": ("MSE", ".5f"),
    "bits_per_dim": ("bits/dim (uniform)", ".4f"),
    "bits_per_dim_center": ("bits/dim (center)", ".4f"),
    "nll": ("NLL", ".4f"),
    "nfe": ("NFE", ".1f"),
    "seconds": ("seconds", ".1f"),
}


def _title(key: str) -> str:
    split, _, name = key.partition("_")
    return f"{split} {_METRICS[name][0]}" if name in _METRICS else key.replace("_", " ")


def _shown(key: str, value: float | None) -> str:
    name = key.partition("_")[2] if key not in _METRICS else key
    return "unknown" if value is None else format(value, _METRICS.get(name, ("", ".4f"))[1])


def evaluation(found: dict[str, Any]) -> str:
    """The result of an evaluation as text."""
    lines = list(_metric_lines(found))
    if found.get("transductive"):
        lines.append("transductive: a prediction depends on the other series of its batch")
    if found.get("classes"):
        lines += _class_lines(found)
    return "\n".join(lines)


def _class_lines(found: dict[str, Any]) -> Iterator[str]:
    width = min(max(map(len, ("class", *found["classes"]))), 40)
    yield from ("", f"{'class':{width}}  precision  recall      f1  samples")
    for name, scores in zip(found["classes"], found["per_class"], strict=True):
        row = "  ".join(f"{scores[key]:>6.1%}" for key in ("precision", "recall", "f1"))
        yield f"{name[:width]:{width}}     {row}  {scores['samples']:>7.0f}"
    if len(found["classes"]) <= _MOST_CLASSES:
        yield from ("", "confusion (rows: true, columns: predicted)", *_matrix(found))


def _metric_lines(found: dict[str, Any]) -> Iterator[str]:
    remarks = _remarks(found)
    known = {name: title for name, (title, _) in _METRICS.items() if name in found}
    width = max([9, *map(len, known.values())])
    for name, title in known.items():
        parts = [_shown(name, found[name])]
        if name in found.get("intervals", {}):
            low, high = (_shown(name, bound) for bound in found["intervals"][name])
            parts.append(f"[{low}, {high}]")
        if name in found.get("standard_errors", {}):
            parts.append(f"± {_shown(name, found['standard_errors'][name])}")
        yield f"{title:{width}} {' '.join([*parts, remarks.get(name, '')]).rstrip()}"


def _remarks(found: dict[str, Any]) -> dict[str, str]:
    """What has to be said beside some metrics."""
    count = f"of {found['samples']:,} {found['unit']}"
    if found["unit"] == "time points":
        count += f" in {found['series']:,} series"
    return {
        "accuracy": count,
        "bits_per_dim": f"{count} (an upper bound; comparable)",
        "bits_per_dim_center": "(what RNODE reports; no bound)",
        "nll": f"nats {count}",
        "nfe": "a batch",
    }


def _matrix(found: dict[str, Any]) -> Iterator[str]:
    names = [name[:8] for name in found["classes"]]
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
        raise ConfigError(f"--format {layout}", "is no format", "write table, csv or json")
    return printers[layout]


def _print_row(prediction: Any) -> None:
    scored = prediction.scores.items()
    places = prediction.place.values()
    where = "  ".join(f"{value:g}" if isinstance(value, float) else value for value in places)
    place = f"{prediction.file}  {where}".rstrip()
    scores = [f"{_METRICS[name][0]} {_shown(name, score)}" for name, score in scored]
    if prediction.label:
        likely = sorted(prediction.probabilities.items(), key=lambda item: -item[1])[:3]
        shown = "  ".join(f"{name} {probability:.1%}" for name, probability in likely)
        scores.insert(0, f"{prediction.label}  ({shown})")
    print("  ".join([place, *scores]), flush=True)


def _print_json(prediction: Any) -> None:
    values = {"file": str(prediction.file), **prediction.place}
    if prediction.label:
        values |= {"label": prediction.label, "probabilities": prediction.probabilities}
    print(json.dumps(values | dict(prediction.scores)), flush=True)


class _CsvPrinter:
    def __init__(self) -> None:
        self._writer = csv.writer(sys.stdout)
        self._has_header = False

    def __call__(self, prediction: Any) -> None:
        label = {"label": prediction.label} if prediction.label else {}
        numbers = {**prediction.probabilities, **prediction.scores}
        if not self._has_header:
            self._writer.writerow(["file", *prediction.place, *label, *numbers])
            self._has_header = True
        values = (f"{value:.6f}" for value in numbers.values())
        place = prediction.place.values()
        self._writer.writerow([prediction.file, *place, *label.values(), *values])


def size_row(row: dict[str, Any]) -> str:
    """One line of the list of models."""
    paper = "" if row["paper"] is None else f"{row['paper']:>9,} in the paper"
    differs = "" if row["paper"] in (None, row["parameters"]) else "  (differs)"
    line = f"{row['data']:21} {row['method']:30} {row['parameters']:>9,} {paper}{differs}"
    return line.rstrip()


@contextlib.contextmanager
def bar(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on the terminal that is told how many are done and of how many; else nothing."""
    with _bars() as update:
        yield update and functools.partial(update, label)


@contextlib.contextmanager
def download_progress() -> Iterator[Callable[[str, int, int | None], None] | None]:
    """A bar for each file of a download; nothing where there is no terminal."""
    with _bars(in_bytes=True) as update:
        yield update


@contextlib.contextmanager
def _bars(in_bytes: bool = False) -> Iterator[Callable[[str, int, int | None], None] | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TimeRemainingColumn,
    )

    counter = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = ("{task.description}", BarColumn(), counter, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def update(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield update
