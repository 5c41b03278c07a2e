"""Keeps what tables and figures need from runs, without weights, for version control."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from bfno.lab.errors import ConfigError, UserError
from bfno.lab.experiments.settings import DATA_PLACES
from bfno.lab.files import remove_file, write_atomically
from bfno.lab.runs.folder import RunFolder, run_folders
from bfno.lab.runs.record import Record, are_replicates, place_name
from bfno.lab.runs.variants import Variant

__all__ = [
    "LARGEST_PICTURE",
    "Kept",
    "ended_runs",
    "keep_runs",
    "portable_record",
    "unfinished_runs",
]

Kept = Literal["added", "updated", "replaced by another record"]
"""What happened to the record of a run."""
LARGEST_PICTURE = 200_000
"""Largest size of a picture in bytes, so that many fit into a repository."""
_DEPTH = 3  # folders between the one that is named and a run
_LONGEST_NAME = 100


def ended_runs(folder: Path) -> list[Path]:
    """The folders of runs in a folder and its folders that are finished or have failed, in order.

    Raises:
        ConfigError: If there is no such folder.
    """
    if not folder.is_dir():
        raise ConfigError(folder, "is not a folder", "name a folder that holds runs, such as runs")
    return _distinct(_runs(folder, _DEPTH))


def unfinished_runs(folder: Path) -> list[Path]:
    """The folders of runs in a folder and its folders that `ended_runs` leaves out, in order."""
    ended = {place.resolve() for place in ended_runs(folder)}
    others = (one for one in run_folders(folder, _DEPTH) if one.resolve() not in ended)
    return _distinct(others)


def _distinct(places: Iterable[Path]) -> list[Path]:
    """The places in order; a link to a run does not count as another run."""
    found = {place.resolve(): place for place in sorted(places, reverse=True)}
    return sorted(found.values())


def _runs(folder: Path, depth: int) -> Iterator[Path]:
    if RunFolder(folder).record_file.is_file():
        if not _goes_on(folder):
            yield folder
    elif depth:
        for inner in folder.iterdir():
            if inner.is_dir():
                yield from _runs(inner, depth - 1)


def _goes_on(folder: Path) -> bool:
    """Whether a run was resumed after it had ended; damaged records are reported elsewhere."""
    try:
        return not RunFolder(folder).record().has_ended
    except UserError:
        return False


def keep_runs(source: Path, target: Path) -> dict[Path, Kept]:
    """Copy records, metrics, exhibits and small pictures of runs that have ended.

    A run goes to `SCALE/DATA-METHOD-sSEED`; one with changed settings goes to a folder beside that
    of the scale, named after them, as with `bfno table --set`. If another run has that name, a
    number is added. What was kept before stays, except:

    - Files of a kept run that are new or have changed are updated.
    - If the source has another record of the same experiment, scale, settings and seed, and no
      longer the one that was kept, the run was trained again and replaces the old one. A failed run
      does not replace a finished one.

    A folder with a `config.yaml` belongs to a training, and is never written to.

    Args:
        source: Folder of runs.
        target: Folder that gets them.

    Returns:
        What happened to the folders that are new or have changed; empty if there are none.

    Raises:
        ConfigError: If there is no such folder.
        DataError: If a run cannot be read, or a file cannot be written.
    """
    # By their records: a mere copy of a run is the same run.
    fresh: dict[bytes, tuple[Path, Record]] = {}
    for folder in ended_runs(source):
        if folder.resolve().is_relative_to(target.resolve()):
            continue  # kept before, in a folder within that of the runs
        fresh.setdefault(portable_record(folder), (folder, RunFolder(folder).ended()))
    there = ended_runs(target) if target.is_dir() else []
    known = {portable_record(place): place for place in there}
    outdated = {
        place: RunFolder(place).ended()
        for record, place in known.items()
        if record not in fresh and not _is_training(place)
    }
    kept: dict[Path, Kept] = {}
    for record, (folder, run) in fresh.items():
        same = known.get(record)
        old = None if same else _old_place(run, outdated)
        place = same or old or _free_place(run, target)
        if not _is_training(place) and _bring_up_to_date(place, folder, record):
            kept[place] = "updated" if same else "replaced by another record" if old else "added"
    return kept


def _old_place(run: Record, outdated: dict[Path, Record]) -> Path | None:
    """The place of the record that this run replaces, which is removed from the outdated ones."""
    for place, old in outdated.items():
        is_better = old.has_failed or not run.has_failed
        if old.seed == run.seed and are_replicates(old, run) and is_better:
            del outdated[place]
            return place
    return None


def _free_place(run: Record, target: Path) -> Path:
    name = f"{_file_name(run.data)}-{_file_name(run.method)}-s{run.seed}"
    folder = _file_name(Variant.of(run.changes).folder(run.scale))
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    places = (target / folder / one for one in itertools.chain([name], numbered))
    return next(
        place
        for place in places
        if not RunFolder(place).record_file.exists() and not _is_training(place)
    )


def _is_training(folder: Path) -> bool:
    return RunFolder(folder).config_file.exists()


def _file_name(name: str) -> str:
    """The name, made safe as that of a single file or folder."""
    return re.sub(r"[^\w.-]+", "-", name)[:_LONGEST_NAME].strip(".-") or "unnamed"


def _bring_up_to_date(place: Path, folder: Path, record: bytes) -> bool:
    """Copy files that are missing or have changed; return whether there were any."""
    wanted = {name: (folder / name).read_bytes() for name in _files(folder)}
    there = {name: (place / name).read_bytes() for name in _files(place)}
    file = RunFolder(place).record_file
    is_new = not file.is_file() or portable_record(place) != record
    if is_new:
        # The record goes first and comes last: only with it, a copy counts as complete.
        for name in (file.name, *(there.keys() - wanted.keys())):
            remove_file(place / name)
    changed = [name for name in wanted if there.get(name) != wanted[name]]
    for name in changed:
        write_atomically(place / name, wanted[name])
    if is_new:
        write_atomically(file, record)
    return is_new or bool(changed)


def _files(folder: Path) -> list[str]:
    """The files that are kept of a run besides its record."""
    run = RunFolder(folder)
    pictures = sorted(
        file for file in (folder / "figures").glob("*") if file.suffix in (".png", ".svg")
    )
    small = [file for file in pictures if file.stat().st_size <= LARGEST_PICTURE]
    files = [run.metrics_file, run.exhibit_file, *small]
    return [file.relative_to(folder).as_posix() for file in files if file.is_file()]


def portable_record(folder: Path) -> bytes:
    """The content of a run's record without file paths, which copies of a run share."""
    record = RunFolder(folder).record()
    data = record.section("data")
    if not data:
        return record.to_bytes()
    names = {name: place_name(data[name]) for name in DATA_PLACES if data.get(name)}
    portable = {name: None if name == "dir" else last for name, last in names.items()}
    config = {**record.config, "data": {**data, **portable}}
    return replace(record, config=config).to_bytes()
