"""What the commands print."""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bfno.errors import ConfigError

__all__ = [
    "bar",
    "comparison",
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
    from bfno.cli.progress import TrainingDisplay

    found: list[Any] = [TrainingDisplay(config)]
    if log == "tensorboard":
        from bfno.train.tensorboard import TensorBoardLog

        found.append(TensorBoardLog(folder / "tensorboard"))
    elif log is not None:
        raise ConfigError(f"--log {log}", "is no log", "write --log tensorboard")
    return found


def finished(record: dict[str, Any], folder: Path) -> None:
    """Print the result of a run and what to do with it; once, however many have trained it."""
    if os.environ.get("RANK", "0") != "0":
        return
    result, headline = record["result"], record.get("judged_by", "test_accuracy")
    print(
        f"{record['experiment']}: {_title(headline)} {_shown(headline, result.get(headline))} "
        f"(epoch {record['chosen_epoch']}, chosen by {record['chosen_by'].replace('_', ' ')}), "
        f"{record['parameters']:,} parameters, {result['test_nfe']:.1f} NFE a test batch, "
        f"{record['seconds']:.0f} s"
    )
    print(f"{folder}: try `bfno eval {folder}` or `bfno predict {folder} FILES`")


# Names and formats of the metrics that an evaluation may have, in the order of the table.
_METRICS = {
    "accuracy": ("accuracy", ".2%"),
    "macro_f1": ("macro-F1", ".4f"),
    "auroc": ("AUROC", ".4f"),
    "auprc": ("AUPRC", ".4f"),
    "loss": ("loss", ".4f"),
    "mse": ("MSE", ".5f"),
    "nfe": ("NFE", ".1f"),
    "seconds": ("seconds", ".1f"),
}


def _title(key: str) -> str:
    split, _, name = key.partition("_")
    return f"{split} {_METRICS[name][0]}" if name in _METRICS else key


def _shown(key: str, value: float | None) -> str:
    name = key.partition("_")[2] if key not in _METRICS else key
    return "unknown" if value is None else format(value, _METRICS.get(name, ("", ".4f"))[1])


def evaluation(found: dict[str, Any]) -> str:
    """The result of an evaluation as text."""
    lines = list(_metric_lines(found))
    if found.get("transductive"):
        lines.append("transductive: a prediction depends on the other series of its batch")
    width = min(max(map(len, ("class", *found["classes"]))), 40)
    lines += ["", f"{'class':{width}}  precision  recall      f1  samples"]
    for name, scores in zip(found["classes"], found["per_class"], strict=True):
        row = "  ".join(f"{scores[key]:>6.1%}" for key in ("precision", "recall", "f1"))
        lines.append(f"{name[:width]:{width}}     {row}  {scores['samples']:>7.0f}")
    if len(found["classes"]) <= _MOST_CLASSES:
        lines += ["", "confusion (rows: true, columns: predicted)", *_matrix(found)]
    return "\n".join(lines)


def _metric_lines(found: dict[str, Any]) -> Iterator[str]:
    remarks = {"accuracy": f"of {found['samples']:,} {found['unit']}", "nfe": "a batch"}
    if found["unit"] == "time points":
        remarks["accuracy"] += f" in {found['series']:,} series"
    for name, (title, _) in _METRICS.items():
        if name not in found:
            continue
        parts = [_shown(name, found[name])]
        if name in found.get("intervals", {}):
            low, high = (_shown(name, bound) for bound in found["intervals"][name])
            parts.append(f"[{low}, {high}]")
        yield f"{title:9} {' '.join([*parts, remarks.get(name, '')]).rstrip()}"


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
    places = prediction.place.values()
    likely = sorted(prediction.probabilities.items(), key=lambda item: -item[1])[:3]
    shown = "  ".join(f"{name} {probability:.1%}" for name, probability in likely)
    where = "  ".join(f"{value:g}" if isinstance(value, float) else value for value in places)
    place = f"{prediction.file}  {where}".rstrip()
    print(f"{place}  {prediction.label}  ({shown})", flush=True)


def _print_json(prediction: Any) -> None:
    values = {
        "file": str(prediction.file),
        **prediction.place,
        "label": prediction.label,
        "probabilities": prediction.probabilities,
    }
    print(json.dumps(values), flush=True)


class _CsvPrinter:
    def __init__(self) -> None:
        self._writer = csv.writer(sys.stdout)
        self._has_header = False

    def __call__(self, prediction: Any) -> None:
        if not self._has_header:
            self._writer.writerow(["file", *prediction.place, "label", *prediction.probabilities])
            self._has_header = True
        values = (f"{value:.6f}" for value in prediction.probabilities.values())
        place = prediction.place.values()
        self._writer.writerow([prediction.file, *place, prediction.label, *values])


def size_row(row: dict[str, Any]) -> str:
    """One line of the list of models."""
    paper = "" if row["paper"] is None else f"{row['paper']:>9,} in the paper"
    differs = "" if row["paper"] in (None, row["parameters"]) else "  (differs)"
    line = f"{row['data']:14} {row['method']:30} {row['parameters']:>9,} {paper}{differs}"
    return line.rstrip()


def comparison(runs: Sequence[Path]) -> None:
    """Print the results of runs side by side."""
    from bfno.results.record import read_runs
    from bfno.results.tables import as_text
    from bfno.results.tables import comparison as compared

    print(as_text(compared(read_runs(list(runs)))), end="")


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
