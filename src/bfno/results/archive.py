"""Keeps what tables and figures need of runs, without their weights, for version control."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from bfno.errors import ConfigError
from bfno.files import write_atomically
from bfno.results.exhibit import EXHIBIT
from bfno.results.record import METRICS, RECORD, read_run

__all__ = ["finished_runs", "keep_runs"]

_DEPTH = 3  # folders between the one that is named and a run
_LARGEST_PICTURE = 200_000


def finished_runs(folder: Path) -> list[Path]:
    """The folders of finished runs in a folder and its folders, in order.

    Raises:
        ConfigError: If there is no such folder.
    """
    if not folder.is_dir():
        raise ConfigError(folder, "is not a folder", "name a folder that holds runs, such as runs")
    return sorted(_runs(folder, _DEPTH))


def _runs(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / RECORD).is_file():
        yield folder
    elif depth:
        for inner in folder.iterdir():
            if inner.is_dir():
                yield from _runs(inner, depth - 1)


def keep_runs(source: Path, target: Path) -> list[Path]:
    """Copy records, metrics, exhibits and small pictures of finished runs; what is there stays.

    Args:
        source: Folder of runs.
        target: Folder that gets `SCALE/DATA-METHOD-sSEED` for each of them, or the run's own name
            where its settings were changed.

    Returns:
        The new folders.

    Raises:
        ConfigError: If there is no such folder.
        DataError: If a run cannot be read, or something not be written.
    """
    kept = []
    for folder in finished_runs(source):
        run = read_run(folder)
        name = run.name if run.changes else f"{run.data}-{run.method}-s{run.seed}"
        place = target / run.scale / name
        if not (place / RECORD).exists():
            _copy(folder, place)
            kept.append(place)
    return kept


def _copy(folder: Path, place: Path) -> None:
    for name in (METRICS, EXHIBIT):
        if (folder / name).is_file():
            write_atomically(place / name, (folder / name).read_bytes())
    for picture in sorted((folder / "figures").glob("*.[ps][nv]g")):
        if picture.stat().st_size <= _LARGEST_PICTURE:
            write_atomically(place / "figures" / picture.name, picture.read_bytes())
    # The record comes last: with it, the copy counts as complete.
    write_atomically(place / RECORD, _record(folder / RECORD))


def _record(file: Path) -> bytes:
    """The record without the places of files on the machine of the run."""
    record = json.loads(file.read_bytes())
    data = record.get("config", {}).get("data", {})
    for name in ("dir", "folder", "path", "test_path"):
        if data.get(name):
            data[name] = None if name == "dir" else Path(data[name]).name
    return (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode()
