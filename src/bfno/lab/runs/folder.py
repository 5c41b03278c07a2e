"""The folder of a run: settings, metrics, record, exhibit, checkpoints, and a lock."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfno.lab.errors import ConfigError, DataError, bfno_command
from bfno.lab.files import (
    append_line,
    cut_file,
    lock_file,
    make_folder,
    open_plain,
    read_plain,
    remove_file,
    remove_leftovers,
    write_atomically,
)
from bfno.lab.runs.record import UNFINISHED, Record, RecordError, printable

if TYPE_CHECKING:
    from bfno.lab.experiments.experiment import Experiment
    from bfno.lab.runs.checkpoint import Checkpoint, CheckpointStore

__all__ = ["RunFolder", "named_apart", "read_run", "read_runs", "run_folders"]

_EXHIBIT_FORMAT = 1
_PATIENCE = 0.5  # seconds to wait for those who only look at the lock
_TRAINED = "name a folder that `bfno train` wrote"


class RunFolder:
    """One run on disk.

    As a context manager, it keeps all other processes from training in the folder.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._lock: int | None = None

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def record_file(self) -> Path:
        return self.path / "record.json"

    @property
    def exhibit_file(self) -> Path:
        return self.path / "exhibit.json"

    @property
    def log_file(self) -> Path:
        """The output of a campaign's child that trains the run."""
        return self.path / "output.log"

    @property
    def lock_file(self) -> Path:
        return self.path / ".lock"

    @property
    def identity_file(self) -> Path:
        return self.path / "run.json"

    @property
    def is_run(self) -> bool:
        """Whether the folder holds a run, or remains of one."""
        files = (self.config_file, self.record_file, self.metrics_file, self.identity_file)
        return any(map(_is_file, files))

    @property
    def is_in_use(self) -> bool:
        """Whether a process is training in the folder now; checks without writing."""
        if not _is_file(self.lock_file):
            return False
        try:
            self.check_free()
        except ConfigError:
            return True
        except DataError:  # a folder without write access has no training
            return False
        return False

    @functools.cached_property
    def checkpoints(self) -> CheckpointStore:
        """The checkpoints, which name the run they belong to."""
        # Imported here, because it imports torch: tables only read records.
        from bfno.lab.runs.checkpoint import CheckpointStore

        return CheckpointStore(self.path / "checkpoints", self.identity())

    # -- a new run ------------------------------------------------------------------------------

    def check_unused(self) -> None:
        """Make sure that there is no run in the folder yet.

        Raises:
            ConfigError: If there is.
            DataError: If such a folder cannot exist.
        """
        # Any of them: the rest of a run that has lost its settings may still be needed.
        for file in (
            self.config_file,
            self.record_file,
            self.metrics_file,
            self.path / "checkpoints",
        ):
            try:
                os.lstat(file)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise self._cannot_be_made(error) from error
            raise ConfigError(
                self.path,
                f"this folder already holds a run ({file.name})",
                f"continue it with `{self._resume()}`, or choose another folder with --out",
            )

    def create(self) -> None:
        """Make the folder, and give the run its identity.

        Raises:
            ConfigError: If there is a run in it already.
            DataError: If it cannot be made.
        """
        self.check_unused()
        try:
            make_folder(self.path)
        except OSError as error:
            raise self._cannot_be_made(error) from error
        # Before there are settings, which make a run of a folder: a run without is an old one.
        identity = {"format": 1, "id": secrets.token_hex(16)}
        write_atomically(self.identity_file, (json.dumps(identity) + "\n").encode())
        self.__dict__.pop("checkpoints", None)

    def identity(self) -> str | None:
        """A unique name of the run; None if the run is older than such names.

        Raises:
            DataError: If it cannot be understood.
        """
        try:
            return str(json.loads(read_plain(self.identity_file))["id"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            why, fix = "is not the identity of a run", "copy it from a backup of the run"
            raise DataError(self.identity_file, why, fix) from error

    def _cannot_be_made(self, error: OSError) -> DataError:
        why = f"cannot be made: {(error.strerror or str(error)).lower()}"
        return DataError(_shortened(self.path), why, "choose another folder with --out")

    # -- settings -------------------------------------------------------------------------------

    def write_config(self, config: Experiment) -> None:
        """Write the settings, which makes the folder a run."""
        write_atomically(self.config_file, config.as_yaml().encode())

    def read_config(self) -> Experiment:
        """The settings of the run.

        Raises:
            ConfigError: If this is not a run, or its settings are damaged.
        """
        from bfno.lab.experiments.resolve import read_written  # which imports torch

        if not _is_file(self.config_file):
            why = "is not a run folder: it has no config.yaml"
            raise ConfigError(_shortened(self.path), why, self._where_runs_are())
        return read_written(self.config_file)

    # -- metrics --------------------------------------------------------------------------------

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of an epoch."""
        append_line(self.metrics_file, json.dumps(metrics))

    def metrics_size(self) -> int:
        """Bytes of the metrics so far."""
        return self.metrics_file.stat().st_size if self.metrics_file.exists() else 0

    def cut_metrics(self, size: int) -> None:
        """Remove the epochs after a checkpoint, which will be trained again."""
        if self.metrics_size() > size:
            cut_file(self.metrics_file, size)

    def epochs(self) -> list[dict[str, Any]]:
        """Metrics of each epoch of a finished run, in order.

        A last line that was cut off while being written is left out; if a resumed run has two lines
        about the same epoch, the later one counts.

        Raises:
            DataError: If they are missing or cannot be understood.
        """
        file = self.metrics_file
        if not _is_file(file):
            fix = "copy the whole folder of the run, or train it again"
            raise DataError(file, "is missing", fix)
        lines = self._metrics_lines()
        found: dict[int, dict[str, Any]] = {}
        for number, line in enumerate(lines, 1):
            epoch = _epoch(line)
            if epoch is not None:
                found[epoch["epoch"]] = epoch
            elif number < len(lines):
                why = f"line {number} is not the metrics of an epoch"
                raise DataError(file, why, "train the run again")
        return [found[key] for key in sorted(found)]

    def epochs_so_far(self) -> list[dict[str, Any]]:
        """Metrics of the epochs that a run in training has finished; empty if there are none."""
        try:
            known = [epoch for line in self._metrics_lines() if (epoch := _epoch(line))]
        except DataError:
            return []
        found = {epoch["epoch"]: epoch for epoch in known}
        return [found[key] for key in sorted(found)]

    def _metrics_lines(self) -> list[str]:
        text = _content(self.metrics_file).decode("utf-8", errors="replace")
        # Split at newlines only: splitlines() would also break a string at U+2028.
        return [line for line in text.split("\n") if line.strip()]

    # -- record ---------------------------------------------------------------------------------

    def write_record(self, record: Record) -> None:
        """Write the record of the run, with a checksum of its metrics."""
        if _is_file(self.metrics_file):
            record = replace(record, metrics_sha256=_digest(_content(self.metrics_file)))
        write_atomically(self.record_file, record.to_bytes())

    def record(self) -> Record:
        """The record of the run, finished or not.

        Raises:
            ConfigError: If there is none.
            DataError: If it cannot be understood.
        """
        if not _is_file(self.record_file):
            if _is_file(self.metrics_file) or _is_file(self.config_file):
                raise ConfigError(self.path, "has no result yet", self._go_on())
            why = "has no record.json, so it is not a run"
            raise ConfigError(self.path, why, self._where_runs_are())
        try:
            # Resolved, because the name of `.` is empty.
            return Record.from_bytes(_content(self.record_file), self.path.resolve().name)
        except RecordError as error:
            raise DataError(self.record_file, str(error), self._remedy(error)) from None

    def finished_record(self) -> Record | None:
        """The record of a run that is finished; None if it is not, or cannot be read."""
        record = self._readable_record()
        return record if record and record.is_finished else None

    def failed_for_good(self) -> Record | None:
        """The record of a failed run in an archive, which is too incomplete to try it again."""
        record = None if self.can_go_on else self._readable_record()
        return record if record and record.has_failed else None

    def _readable_record(self) -> Record | None:
        try:
            return self.record()
        except (ConfigError, DataError):
            return None

    def finished(self) -> Record:
        """The record of a finished run, with the metrics of its epochs.

        Raises:
            ConfigError: There is no run, or it is not finished.
            DataError: A file of it cannot be understood.
        """
        record = self.ended()
        if record.has_failed:
            fix = "name runs that are finished"
            if self.can_go_on:
                fix = f"continue with a smaller rate: {self._resume()} --set train.lr=..."
            raise ConfigError(self.path, f"has failed: {record.failure}", fix)
        return record

    def ended(self) -> Record:
        """The record of a run that is finished or has failed, with the metrics of its epochs.

        Raises:
            ConfigError: There is no run, or it can continue.
            DataError: A file of it cannot be understood.
        """
        if not _is_folder(self.path):
            raise ConfigError(_shortened(self.path), "is not a folder", _TRAINED)
        record = self.record()
        if not record.has_ended:
            raise ConfigError(self.path, f"is {record.status}, not finished", self._go_on())
        # A training that failed in its first epoch has none.
        epochs = self.epochs_so_far() if record.has_failed else self.epochs()
        known = record.metrics_sha256
        if known is not None and known != _digest(_content(self.metrics_file)):
            why = "has changed since the run finished"
            raise DataError(self.metrics_file, why, "copy the whole folder of the run again")
        return replace(record, epochs=epochs)

    def mark_unfinished(self) -> None:
        """Mark the record, if any, as unfinished: the run continues, its result is outdated."""
        if not os.path.lexists(self.record_file):
            return
        try:
            self.write_record(replace(self.record(), status=UNFINISHED, failure=""))
        except (ConfigError, DataError):  # an unreadable file gives no information
            remove_file(self.record_file)

    def _resume(self) -> str:
        return bfno_command("resume", self.path)

    @property
    def can_go_on(self) -> bool:
        """Whether the run can be resumed: it has its settings, which archives lack."""
        return self.config_file.exists()

    def _go_on(self) -> str:
        return self._resume() if self.can_go_on else "copy the whole folder of the run again"

    def _where_runs_are(self) -> str:
        """What to name instead of a folder that is not a run."""
        inner = next(run_folders(self.path), None)
        return f"name a run inside it, such as {inner}" if inner else _TRAINED

    def _remedy(self, problem: RecordError) -> str:
        remedies = {
            "foreign": _TRAINED,
            "newer": "install the version of bfno that wrote it",
            "spoilt": self._go_on(),
            "invalid": "train the run again",
        }
        return remedies[problem.kind]

    # -- exhibit --------------------------------------------------------------------------------

    def write_exhibit(self, step: int, content: Mapping[str, Any]) -> None:
        """Keep the exhibit of the weights of a step."""
        shown = {"format": _EXHIBIT_FORMAT, "step": step, **content}
        write_atomically(self.exhibit_file, json.dumps(shown).encode())

    def exhibit_step(self) -> int | None:
        """The step of the exhibit's weights; a run that was continued since has newer ones."""
        try:
            found = json.loads(read_plain(self.exhibit_file))
            return found["step"] if found["format"] == _EXHIBIT_FORMAT else None
        except (OSError, DataError, ValueError, KeyError, TypeError, RecursionError):
            return None

    # -- pictures -------------------------------------------------------------------------------

    @property
    def pictures_file(self) -> Path:
        """The weights that the pictures beside it show."""
        return self.path / "figures" / "drawn.json"

    def note_picture(self, name: str, step: int) -> None:
        """Keep the step whose weights a picture shows."""
        write_atomically(self.pictures_file, json.dumps({**self._pictures(), name: step}).encode())

    def is_outdated(self, name: str, step: int | None) -> bool:
        """Whether a picture is known to show other weights than those of a step, if that is known.

        Args:
            name: The picture.
            step: The step.
        """
        drawn_of = self._pictures().get(name)
        return None not in (drawn_of, step) and drawn_of != step

    def _pictures(self) -> dict[str, int]:
        try:
            found = json.loads(read_plain(self.pictures_file))
            return {name: step for name, step in found.items() if isinstance(step, int)}
        except (OSError, DataError, ValueError, AttributeError, RecursionError):
            return {}

    # -- log ------------------------------------------------------------------------------------

    def last_error(self) -> str:
        """The error that is the last line of the log; empty if there is none.

        An error further up belongs to an earlier part of the run, which has continued since.
        """
        try:
            lines = read_plain(self.log_file).decode(errors="replace").strip().splitlines()
        except (OSError, DataError):
            return ""
        last = lines[-1] if lines else ""
        return printable(last.removeprefix("error: ")) if last.startswith("error: ") else ""

    # -- checkpoints ----------------------------------------------------------------------------

    def save(self, checkpoint: Checkpoint) -> None:
        """Save a checkpoint together with the checksums of the settings and the metrics so far.

        Raises:
            DataError: If it cannot be written; what was saved before is still there.
        """
        covered = {}
        if _is_file(self.config_file):
            covered[self.config_file.name] = _digest(_content(self.config_file))
        if size := checkpoint.progress.metrics_size:
            covered[self.metrics_file.name] = _digest(_content(self.metrics_file, size))
        self.checkpoints.save(replace(checkpoint, covered=covered))

    def is_config_of(self, checkpoint: Checkpoint) -> bool:
        """Whether `config.yaml` is unchanged since a checkpoint was saved, as far as that says."""
        expected = checkpoint.covered.get(self.config_file.name)
        return expected is None or _digest(_content(self.config_file)) == expected

    def check_metrics(self, checkpoint: Checkpoint) -> None:
        """Make sure that the metrics up to a checkpoint have not changed since it was saved.

        Raises:
            DataError: If they do not.
        """
        expected = checkpoint.covered.get(self.metrics_file.name)
        if expected is None:
            return
        size = checkpoint.progress.metrics_size
        try:
            found = _content(self.metrics_file, size)
        except DataError:
            found = b""
        if _digest(found) != expected:
            short = f"has {len(found)} bytes of {size}" if len(found) < size else "was changed"
            why = f"{short} since the checkpoint of step {checkpoint.step} was saved"
            raise DataError(
                self.metrics_file, why, "copy it from a backup of the run, or train the run again"
            )

    # -- lock -----------------------------------------------------------------------------------

    def check_free(self) -> None:
        """Make sure that no process is training in the folder.

        Raises:
            ConfigError: If one is.
        """
        # Shared: all processes of one run check this, and must not block each other.
        os.close(self._locked(shared=True))

    def __enter__(self) -> RunFolder:
        self._lock = self._locked(shared=False)
        os.ftruncate(self._lock, 0)
        os.write(self._lock, f"process {os.getpid()} on {socket.gethostname()}".encode())
        remove_leftovers(self.path)
        return self

    def _locked(self, *, shared: bool) -> int:
        descriptor = None
        try:
            descriptor = open_plain(self.lock_file, os.O_RDWR | os.O_CREAT)
            is_free = lock_file(descriptor, shared=shared)
            # A program that checks whether the folder is free holds a shared lock for a moment.
            patience = time.monotonic() + _PATIENCE
            while not is_free and not shared and time.monotonic() < patience:
                time.sleep(_PATIENCE / 20)
                is_free = lock_file(descriptor)
        except OSError as error:
            if descriptor is not None:
                os.close(descriptor)
            why = f"cannot be locked: {(error.strerror or str(error)).lower()}"
            raise DataError(self.path, why, "check the folder's rights") from error
        if not is_free:
            holder = printable(os.read(descriptor, 200).decode(errors="replace"))
            os.close(descriptor)
            raise ConfigError(
                self.path, f"is in use by {holder or 'another process'}", "wait for it, or stop it"
            )
        return descriptor

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def read_runs(folders: list[Path]) -> list[Record]:
    """Read several finished runs, each once even if it is named twice.

    Args:
        folders: Where the runs are.

    Raises:
        ConfigError: No run is named, or one is not finished.
        DataError: A file of a run cannot be understood.
    """
    if not folders:
        raise ConfigError("runs", "none is named", "name one or more folders, as in runs/*")
    once = {Path(folder).resolve(): Path(folder) for folder in folders}
    return [*named_apart({folder: read_run(folder) for folder in once.values()}).values()]


def named_apart(runs: Mapping[Path, Record]) -> dict[Path, Record]:
    """Name runs whose folders have the same last name by as much of the path as tells them apart.

    Args:
        runs: Each run by its folder.
    """
    paths = [folder.resolve().parts for folder in runs]

    def name(path: tuple[str, ...]) -> str:
        ends = (path[-length:] for length in itertools.count(1))
        own = next(end for end in ends if sum(one[-len(end) :] == end for one in paths) == 1)
        return printable("/".join(own))

    return {
        folder: replace(run, name=name(path))
        for (folder, run), path in zip(runs.items(), paths, strict=True)
    }


def read_run(folder: Path) -> Record:
    """Read a finished run; see `RunFolder.finished`."""
    return RunFolder(folder).finished()


def run_folders(root: Path, depth: int = 2) -> Iterator[Path]:
    """Folders of runs below a folder, by name; follows links, but does not look inside runs.

    Args:
        root: Where to look.
        depth: How many folders deep.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    except OSError:
        return
    for folder in (Path(root) / name for name in names):
        if RunFolder(folder).is_run:
            yield folder
        elif depth > 1:
            yield from run_folders(folder, depth - 1)


def _epoch(line: str) -> dict[str, Any] | None:
    """The numbers in a line of metrics; None if the line is something else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not _is_int(found.get("epoch")):
        return None
    return {
        printable(key): value
        for key, value in found.items()
        if _is_int(value) or isinstance(value, float)
    }


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**64


def _is_file(path: Path) -> bool:
    """Whether there is a plain file; False for a name that is too long."""
    try:
        return path.is_file()
    except OSError:
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _content(file: Path, most: int | None = None) -> bytes:
    try:
        return read_plain(file, most)
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
        raise DataError(file, why, "check the file's permissions") from None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _shortened(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 120 else f"{text[:60]}…{text[-40:]}"
