"""Reads what a finished run left behind: its record and its metrics, one line an epoch."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.settings import CIRCUMSTANCES, DATA_PLACES
from bfno.lab.runs.record import FORMAT

__all__ = ["RunResult", "place_name", "read_record", "read_run", "read_runs"]

RECORD, METRICS = "record.json", "metrics.jsonl"


@dataclass(frozen=True)
class RunResult:
    """What is known of a finished run.

    Attributes:
        name: Name of its folder, without the folders above.
        experiment: What `bfno train` was told to run.
        data: Name of the data.
        method: Name of the method.
        scale: Size of the run: smoke, cpu or paper.
        seed: Seed of all its random numbers.
        samples: Number of samples of each split, by name.
        parameters: Number of trainable parameters.
        published_parameters: The same number as published.
        steps: Number of training steps.
        chosen_epoch: Epoch whose weights were kept.
        chosen_by: Why these.
        judged_by: Key of the metric that the run is judged by, if it says so.
        result: Metrics of the kept weights, by name.
        seconds: Time of the training.
        peak_memory: Most bytes in use.
        classes: Names of the classes.
        confusion: Counts of test samples, a row a true class, a column a predicted one.
        changes: Settings that differ from the experiment's own, as `--set` takes them.
        config: The resolved settings, nested.
        versions: Versions of the programs, by name.
        hardware: Name of the processor, number of its cores, names of graphics cards.
        commit: Commit of the sources.
        threads: Threads of each process.
        processes: Number of processes.
        epochs: Metrics of each epoch, in order.
    """

    name: str
    experiment: str
    data: str
    method: str
    scale: str
    seed: int
    samples: dict[str, float] = field(default_factory=dict)
    parameters: int | None = None
    published_parameters: int | None = None
    steps: int | None = None
    chosen_epoch: int | None = None
    chosen_by: str | None = None
    judged_by: str | None = None
    result: dict[str, float] = field(default_factory=dict)
    seconds: float | None = None
    peak_memory: float | None = None
    classes: list[str] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    commit: str | None = None
    threads: int | None = None
    processes: int | None = None
    epochs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def command(self) -> str:
        """The command that trains this run again."""
        words = ["bfno", "train", self.experiment, "--scale", self.scale, "--seed", str(self.seed)]
        for key, name in self.own_data.items():
            words += ["--folder", name] if key == "folder" else ["--set", f"data.{key}={name}"]
        for change in self.changes:
            words += ["--set", change]
        return shlex.join(words)

    @property
    def own_data(self) -> dict[str, str]:
        """Names of one's own files and folders by their setting, without where they lie."""
        data = self.section("data")
        return {key: place_name(data[key]) for key in DATA_PLACES if key != "dir" and data.get(key)}

    def section(self, name: str) -> dict[str, Any]:
        """A part of the settings; empty if there is none, or it is spoilt."""
        found = self.config.get(name)
        return found if isinstance(found, dict) else {}


def place_name(place: object) -> str:
    """The last name of a file or folder: where it lies is nobody else's business.

    Example:
        >>> place_name("photos/2026/birds")
        'birds'
    """
    return PurePath(str(place)).name or str(place)


def read_runs(folders: list[Path]) -> list[RunResult]:
    """Read several runs, each once even if it is named twice.

    Args:
        folders: Where the runs are.

    Raises:
        ConfigError: No run is named, or one is not finished.
        DataError: A file of a run cannot be understood.
    """
    if not folders:
        raise ConfigError("runs", "none is named", "name one or more folders, as in runs/*")
    once = {Path(folder).resolve(): Path(folder) for folder in folders}
    return [read_run(folder) for folder in once.values()]


def read_run(folder: Path) -> RunResult:
    """Read a finished run.

    A last line of the metrics that was cut off while it was written is left out; of two lines about
    the same epoch, which a resumed run may have, the later counts.

    Args:
        folder: Where the run is.

    Raises:
        ConfigError: There is no run, or it is not finished.
        DataError: A file of it cannot be understood.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(folder, "is not a folder", "name a folder that `bfno train` wrote")
    record = read_record(folder)
    status = record.get("status", "finished")
    if status != "finished":
        raise ConfigError(folder, f"is {status}, not finished", _resume(folder))
    fields = {name: _field(record, name, folder) for name in _CHECKS}
    known = {name: value for name, value in fields.items() if value is not None}
    # Resolved, because the name of `.` is empty.
    name = _printable(folder.resolve().name)
    return RunResult(name=name, **known, epochs=_read_epochs(folder))


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a run, of which so far only the format is known to be right.

    Raises:
        ConfigError: There is none.
        DataError: It cannot be understood.
    """
    file = folder / RECORD
    if not file.is_file():
        if (folder / METRICS).is_file():
            raise ConfigError(folder, "has no result yet", _resume(folder))
        why = f"has no {RECORD}, so it is not a run"
        raise ConfigError(folder, why, "name a folder that `bfno train` wrote")
    try:
        record = _clean(json.loads(_text(file)))
    except (ValueError, RecursionError):
        raise DataError(file, "is cut off or not JSON", _resume(folder)) from None
    if not isinstance(record, dict) or "format" not in record:
        raise DataError(file, "is not the record of a run", "name a folder that `bfno train` wrote")
    if record["format"] != FORMAT:
        why = f"has format {record['format']!r}, this version of bfno reads {FORMAT}"
        raise DataError(file, why, "install the version of bfno that wrote it")
    if _is_texts(record.get("changes")):
        # Some old ones call a circumstance a change.
        record["changes"] = [
            one for one in record["changes"] if one.partition("=")[0] not in CIRCUMSTANCES
        ]
    return record


def _read_epochs(folder: Path) -> list[dict[str, Any]]:
    file = folder / METRICS
    if not file.is_file():
        raise DataError(file, "is missing", "copy the whole folder of the run, or train it again")
    # Split at newlines only: splitlines() would also break a string at U+2028.
    lines = [line for line in _text(file).split("\n") if line.strip()]
    epochs: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        epoch = _epoch(line)
        if epoch is not None:
            epochs[epoch["epoch"]] = epoch
        elif number < len(lines):
            why = f"line {number} is not the metrics of an epoch"
            raise DataError(file, why, "train the run again")
    return [epochs[key] for key in sorted(epochs)]


def _epoch(line: str) -> dict[str, Any] | None:
    try:
        found = _clean(json.loads(line))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not _is_int(found.get("epoch")):
        return None
    return {key: value for key, value in found.items() if _is_number(value)}


def _text(file: Path) -> str:
    try:
        # A cut through the middle of a letter must not hide the lines before it.
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
        raise DataError(file, why, "check the file's permissions") from None


def _resume(folder: Path) -> str:
    return f"bfno resume {shlex.quote(str(folder))}"


def _clean(value: Any) -> Any:
    """The value with every text in it safe to print, and to write as UTF-8."""
    if isinstance(value, str):
        return _printable(value)
    if isinstance(value, dict):
        return {_printable(key): _clean(inner) for key, inner in value.items()}
    return [_clean(inner) for inner in value] if isinstance(value, list) else value


def _printable(text: str) -> str:
    # Control characters could steer a terminal, and are forbidden in the XML of a figure.
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _is_int(value: object) -> bool:
    # Larger ones would not fit a float when they are printed; no count or seed is that large.
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**64


def _is_number(value: object) -> bool:
    return _is_int(value) or isinstance(value, float)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)


def _is_metrics(value: object) -> bool:
    return isinstance(value, dict) and all(
        inner is None or _is_number(inner) for inner in value.values()
    )


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(_is_text(inner) for inner in value)


def _is_square(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list)
        and len(row) == len(value)
        and all(_is_int(count) and count >= 0 for count in row)
        for row in value
    )


# What each key of a record must look like, in words and as a check.
_CHECKS: dict[str, tuple[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("experiment", "data", "method", "scale"), ("text", _is_text)),
    **dict.fromkeys(("chosen_by", "commit", "judged_by"), ("text", _is_text)),
    **dict.fromkeys(("seed", "parameters", "published_parameters"), ("an integer", _is_int)),
    **dict.fromkeys(("steps", "chosen_epoch", "threads", "processes"), ("an integer", _is_int)),
    **dict.fromkeys(("seconds", "peak_memory"), ("a number", _is_number)),
    **dict.fromkeys(("config", "versions", "hardware"), ("an object", _is_dict)),
    **dict.fromkeys(("result", "samples"), ("an object of numbers", _is_metrics)),
    "classes": ("a list of texts", _is_texts),
    "changes": ("a list of texts", _is_texts),
    "confusion": ("a square of counts", _is_square),
}
_NEEDED = {"experiment", "data", "method", "scale", "seed"}


def _field(record: dict[str, Any], name: str, folder: Path) -> Any:
    """One field of the record; `None` if it is absent and need not be there."""
    wanted, check = _CHECKS[name]
    if record.get(name) is None and name not in _NEEDED:
        return None
    value = record.get(name)
    if not check(value):
        why = f"{name} is not {wanted}" if name in record else f"{name} is missing"
        raise DataError(folder / RECORD, why, "train the run again")
    if isinstance(value, dict) and name in ("result", "samples"):
        return {key: number for key, number in value.items() if number is not None}
    return value
