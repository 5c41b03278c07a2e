"""The record of a run: its results and their circumstances.

One type both writes and reads `record.json`. Older formats are brought up to date by one function,
`migrated`. Text from a record is safe to print.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from bfno.lab.errors import bfno_command
from bfno.lab.experiments.memory import is_in_memory
from bfno.lab.experiments.settings import CIRCUMSTANCES, DATA_PLACES
from bfno.lab.runs.variants import Variant

__all__ = [
    "FORMAT",
    "Record",
    "RecordError",
    "are_replicates",
    "comparable_settings",
    "flat_config",
    "make_record",
    "migrated",
    "peak_memory",
    "place_name",
    "printable",
    "shared_settings",
    "source_commit",
    "task_of",
]

FORMAT = 2
FINISHED, UNFINISHED, FAILED = "finished", "unfinished", "failed"
COMMITS = " and "
"""Separates the commits of a run that was resumed with other sources."""
_KINDS = ("int", "constrained-int", "float")  # of numbers, as messages of pydantic name them
_CHECKSUM = "sha256"
_CHECKSUMS = (_CHECKSUM, "metrics_sha256")  # which format 1 did not have


class RecordError(ValueError):
    """Some bytes are not the record of a run.

    Args:
        why: The reason.
        kind: `foreign`: they never were a record; `newer`: a newer version of bfno wrote it;
            `spoilt`: they are damaged; `invalid`: the content makes no sense.
    """

    def __init__(self, why: str, kind: Literal["foreign", "newer", "spoilt", "invalid"]) -> None:
        super().__init__(why)
        self.kind = kind


def _square(rows: list[list[int]]) -> list[list[int]]:
    if any(len(row) != len(rows) for row in rows):
        raise ValueError("is not a square of counts")
    return rows


def _without_nothing(values: Any) -> Any:
    """The mapping without null values, which mark metrics that a run does not have."""
    if not isinstance(values, Mapping):
        return values
    return {key: value for key, value in values.items() if value is not None}


# Strict, for a record is written by a program: a number in quotes is damage. Larger integers would
# not fit a float when they are printed; no count or seed is that large.
_Int = Annotated[int, Strict(), Field(gt=-(2**64), lt=2**64)]
_Number = _Int | Annotated[float, Strict()]
_Count = Annotated[int, Strict(), Field(ge=0, lt=2**64)]
_Numbers = Annotated[dict[str, _Number], BeforeValidator(_without_nothing)]


@dataclass(frozen=True)
class Record:
    """The facts about a run; tables, reports and figures are made from it.

    Attributes:
        name: Name of its folder, without the folders above; not in the file.
        experiment: The experiment, as given to `bfno train`.
        data: Name of the data.
        method: Name of the method.
        scale: Size of the run: smoke, cpu or paper.
        seed: Seed of all its random numbers.
        samples: Number of samples of each split, by name.
        parameters: Number of trainable parameters.
        published_parameters: The same number as published.
        steps: Number of training steps.
        chosen_epoch: Epoch whose weights were kept.
        chosen_by: How that epoch was chosen.
        judged_by: Key of the metric that the run is judged by, if it says so.
        result: Metrics of the kept weights, by name.
        seconds: Time of the training.
        peak_memory: Largest number of bytes in use.
        classes: Names of the classes.
        confusion: Counts of test samples, one row per true class, one column per predicted
            class.
        changes: Settings that differ from the experiment's own, as `--set` takes them.
        config: The resolved settings, nested.
        versions: Versions of the programs, by name.
        hardware: Name of the processor, number of its cores, names of graphics cards.
        commit: Commit of the sources; several, if it was resumed with others.
        threads: Threads of each process.
        processes: Number of processes.
        epochs: Metrics of each epoch, in order; not in the file, but in the run's metrics.
        status: `finished`; `failed`, if numbers that are not finite or a solver that gave up ended
            the training, which then has no result; else `unfinished`.
        failure: Why it failed; empty if it did not.
        epoch_count: Number of finished epochs; `epochs` in the file.
        chosen_step: Step whose weights were kept.
        metrics_sha256: Checksum of the run's metrics when it was finished.
        history: Facts that its settings lack: settings that were different before it was resumed,
            each with the step until which they applied, and the file of its first weights. A run
            with a history is not a replicate of one without it.
        facts: Further facts about the data, such as the names of features.
    """

    name: str
    experiment: str
    data: str
    method: str
    scale: str
    seed: _Int
    samples: _Numbers = field(default_factory=dict)
    parameters: _Count | None = None
    published_parameters: _Count | None = None
    steps: _Count | None = None
    chosen_epoch: _Int | None = None
    chosen_by: str | None = None
    judged_by: str | None = None
    result: _Numbers = field(default_factory=dict)
    seconds: _Number | None = None
    peak_memory: _Number | None = None
    classes: list[str] = field(default_factory=list)
    confusion: Annotated[list[list[_Count]], AfterValidator(_square)] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    commit: str | None = None
    threads: _Int | None = None
    processes: _Int | None = None
    epochs: list[dict[str, Any]] = field(default_factory=list)
    status: str = FINISHED
    failure: str = ""
    epoch_count: _Int | None = None
    chosen_step: _Int | None = None
    metrics_sha256: str | None = None
    history: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_bytes(cls, content: bytes, name: str) -> Record:
        """Read the content of `record.json`.

        Args:
            content: The bytes of the file.
            name: Name of the run.

        Raises:
            RecordError: If this is not a record, it was changed since it was written, or a newer
                version of bfno wrote it.
        """
        try:
            # A cut through the middle of a letter must not hide the text before it.
            values = json.loads(content.decode("utf-8", errors="replace"))
        except (ValueError, RecursionError):
            raise RecordError("is cut off or not JSON", "spoilt") from None
        if not isinstance(values, dict) or "format" not in values:
            raise RecordError("is not the record of a run", "foreign")
        known = _by_attribute(migrated(_clean(_verified(values))))
        try:
            return _ADAPTER.validate_python({"name": printable(name), **known})
        except ValidationError as error:
            raise RecordError(_first_problem(error), "invalid") from None

    def to_bytes(self) -> bytes:
        """The content of `record.json`; reading it gives this record."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        for own in ("name", "epochs", "facts"):
            del values[own]
        for later in ("history", "failure"):  # as records were written when there was no such thing
            if not values[later]:
                del values[later]
        count = values.pop("epoch_count")
        content = {"format": FORMAT, **values, "epochs": count, **self.facts}
        return (json.dumps({**content, _CHECKSUM: _checksum(content)}, indent=1) + "\n").encode()

    @property
    def is_finished(self) -> bool:
        """Whether the run has finished, and was not continued since."""
        return self.status == FINISHED

    @property
    def has_failed(self) -> bool:
        """Whether its training ended without a result."""
        return self.status == FAILED

    @property
    def has_ended(self) -> bool:
        """Whether it is finished or has failed."""
        return self.is_finished or self.has_failed

    @property
    def command(self) -> str:
        """The command that trains this run again; for samples in memory, a description."""
        if is_in_memory(self.section("data")):
            return f"fit with method={self.method!r}, random_state={self.seed} (bfno.sklearn)"
        words = ["train", self.experiment, "--scale", self.scale, "--seed", str(self.seed)]
        for key, name in self.own_data.items():
            is_own = key in ("folder", "path")
            words += ["--data", name] if is_own else ["--set", f"data.{key}={name}"]
        for change in self.changes:
            words += ["--set", change]
        return bfno_command(*words)

    @property
    def own_data(self) -> dict[str, str]:
        """Names of the user's own files and folders by their setting, without paths."""
        data = self.section("data")
        return {key: place_name(data[key]) for key in DATA_PLACES if key != "dir" and data.get(key)}

    def section(self, name: str) -> dict[str, Any]:
        """A section of the settings; empty if it is missing or damaged."""
        found = self.config.get(name)
        return found if isinstance(found, dict) else {}


_ADAPTER = TypeAdapter(Record)


def migrated(values: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a record of any format, as this version writes it.

    Raises:
        RecordError: If a newer version of bfno wrote it.
    """
    values, written_by = dict(values), values.get("format")
    if not isinstance(written_by, int) or not 1 <= written_by <= FORMAT:
        why = f"has format {written_by!r}, this version of bfno reads up to {FORMAT}"
        raise RecordError(why, "newer")
    if written_by == 1:
        # Only finished runs had a record at first, and some call a circumstance a change.
        values.setdefault("status", FINISHED)
        if isinstance(values.get("changes"), list):
            values["changes"] = [
                one for one in values["changes"] if str(one).partition("=")[0] not in CIRCUMSTANCES
            ]
    return {**values, "format": FORMAT}


def _by_attribute(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rearrange the content of the file by the names of the attributes."""
    content = {key: value for key, value in values.items() if value is not None}
    del content["format"]
    own = {one.name for one in fields(Record)} - {"name", "epochs", "facts", "epoch_count"}
    known = {key: content.pop(key) for key in own if key in content}
    known["epoch_count"] = content.pop("epochs", None)
    return {**known, "facts": content}


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    parts = [part for part in first["loc"] if isinstance(part, str) and "[" not in part]
    name = ".".join(part for part in parts if part not in _KINDS)
    if first["type"] == "missing":
        return f"{name} is missing"
    if name != ".".join(parts):
        return f"{name} is not a number"
    why = first["msg"].removeprefix("Value error, ")
    return f"{name} {why}" if why.startswith("is ") else f"{name}: {why[0].lower()}{why[1:]}"


def _verified(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a record without its checksum, which is checked."""
    said = {key: value for key, value in values.items() if key != _CHECKSUM}
    if values["format"] == FORMAT:
        for name in _CHECKSUMS:
            if name not in values:
                raise RecordError(f"has lost its {name}", "spoilt")
        if values[_CHECKSUM] != _checksum(said):
            raise RecordError("differs from its SHA-256", "spoilt")
    return said


def _checksum(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _clean(value: Any) -> Any:
    """The value with every text in it safe to print, and to write as UTF-8."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): _clean(inner) for key, inner in value.items()}
    return [_clean(inner) for inner in value] if isinstance(value, list) else value


def printable(text: str) -> str:
    r"""The text without characters that could control a terminal or are forbidden in XML.

    Example:
        >>> printable("a\x1b[2Jb")
        'a�[2Jb'
    """
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def place_name(place: object) -> str:
    """The last name of a path; the folders above it are private.

    Example:
        >>> place_name("photos/2026/birds")
        'birds'
    """
    return PurePath(str(place)).name or str(place)


def task_of(run: Record) -> tuple[str, str, str]:
    """Data, scale and protocol, which two runs must share to be comparable."""
    # All data of users have the same name; two files or folders of them are two tasks, and so are
    # two of the same path with different test samples or classes.
    names = dict(run.own_data)
    if "test_path" in names:
        names["test_path"] = f"tested on {names['test_path']}"
    if names and isinstance(tested := (run.samples or {}).get("test"), int):
        classes = f" of {len(run.classes)} classes" if run.classes else ""
        names["tested"] = f"{tested:,} test samples{classes}"
    own = f" ({', '.join(names.values())})" if names else ""
    protocol = run.section("data").get("protocol") or Variant.of(run.changes).protocol
    return run.data + own, run.scale, str(protocol)


def are_replicates(one: Record, other: Record) -> bool:
    """Whether two runs differ only in their seed and in circumstances."""
    if (*task_of(one), one.method) != (*task_of(other), other.method):
        return False
    mine, theirs = comparable_settings([one, other])
    return mine == theirs


def comparable_settings(runs: Sequence[Record]) -> list[str]:
    """The settings of each run as text, equal for runs that differ only in circumstances.

    A setting that some record is too old to have is not compared if all others with the same
    changes agree on it. Options of a layer are always compared: one that is missing was not given.
    """
    told = [json.dumps([sorted(run.changes), run.history]) for run in runs]
    settings: dict[int, str] = {}
    for same in set(told):
        places = [place for place, one in enumerate(told) if one == same]
        shared = shared_settings([runs[place] for place in places])
        texts = (json.dumps(one, sort_keys=True) for one in shared)
        settings |= zip(places, texts, strict=True)
    return [f"{one} {settings[place]}" for place, one in enumerate(told)]


def shared_settings(runs: Sequence[Record]) -> list[dict[str, Any]]:
    """The settings of runs by dotted name, without circumstances.

    A setting that some run lacks is included only if the others differ in it, or if it is an option
    of a layer.
    """
    flats = [flat_config(run.config) for run in runs]

    def tells(key: str) -> bool:
        known = [json.dumps(flat[key], sort_keys=True) for flat in flats if key in flat]
        return "_options" in key or len(known) == len(flats) or len(set(known)) > 1

    kept = {key for key in set().union(*flats) - CIRCUMSTANCES if tells(key)}
    return [{key: value for key, value in flat.items() if key in kept} for flat in flats]


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level of dotted names.

    Example:
        >>> flat_config({"seed": 7, "model": {"width": 32, "branches": 2}})
        {'seed': 7, 'model.width': 32, 'model.branches': 2}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            flat.update(flat_config(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def make_record(
    config: Mapping[str, Any],
    progress: Mapping[str, Any],
    facts: Mapping[str, Any],
    name: str,
    failure: str = "",
) -> Record:
    """Put together the results of a run and their circumstances.

    Args:
        config: The settings of the run.
        progress: Its progress, with its best epoch.
        facts: Facts that the loop does not know: sizes, class names, threads, processes.
        name: Name of the run.
        failure: Why it failed; then its best epoch does not count.
    """
    data, _, method = config["experiment"].partition("/")
    values = {
        "format": FORMAT,
        "experiment": config["experiment"],
        "data": data,
        "method": method,
        "scale": config["scale"],
        "seed": config["seed"],
        "epochs": progress["epoch"],
        "steps": progress["step"],
        **(_failed(failure) if failure else _chosen(progress["best"])),
        "seconds": round(progress["total_seconds"] + progress["seconds"], 3),
        "history": progress["history"],
        "peak_memory": peak_memory(),
        **facts,
        "config": dict(config),
        "versions": _versions(),
        "hardware": _hardware(),
        "commit": COMMITS.join(progress["commits"]) or None,
    }
    return _ADAPTER.validate_python({"name": name, **_by_attribute(values)})


def _chosen(best: Mapping[str, Any]) -> dict[str, Any]:
    left_out = {"epoch", "step", "lr", "seconds", "peak_memory"}
    return {
        "chosen_epoch": best["metrics"]["epoch"],
        "chosen_step": best["step"],
        "chosen_by": best["by"],
        "result": {key: value for key, value in best["metrics"].items() if key not in left_out},
        "confusion": best["confusion"],
    }


def _failed(why: str) -> dict[str, Any]:
    return {"status": FAILED, "failure": why}


def peak_memory() -> int:
    """Peak memory of this process so far, in bytes."""
    # On Linux, getrusage also counts memory of the program that started this one.
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _versions() -> dict[str, str]:
    packages = {name: importlib.metadata.version(name) for name in ("bfno", "torch", "numpy")}
    return {**packages, "python": platform.python_version()}


def _hardware() -> dict[str, Any]:
    """The hardware of this machine."""
    # Here, as it takes more than a second: tables import this module for a few names only.
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"processor": _processor(), "cores": os.cpu_count(), "gpus": gpus}


def _processor() -> str:
    """The processor's name from Linux, or else the platform's name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            named = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    except OSError:
        named = []
    return named[0] if named else platform.processor() or platform.machine()


@functools.cache
def source_commit() -> str | None:
    """The commit of the checkout that this file belongs to, if it does.

    It ends in `+changes` if tracked files of the checkout differ from the commit. It is read once:
    the sources of a long run may have changed by its end.
    """
    commit = _git("rev-parse", "HEAD")
    is_changed = commit and _git("status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if is_changed else commit


def _git(*words: str) -> str | None:
    """Ask git about the checkout of this file; None if there is none, or no git."""
    # Without its optional lock, a question never gets into the way of a commit.
    command = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
