"""Checks and downloads the known sets of irregular series."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from bfno.lab.data.activity import read_activity
from bfno.lab.data.checks import FileCheck
from bfno.lab.data.contents import file_matches
from bfno.lab.data.download import Progress, download
from bfno.lab.data.physionet import read_physionet
from bfno.lab.data.reading import one_line
from bfno.lab.data.series_catalogue import SERIES_SETS
from bfno.lab.errors import DataError

__all__ = ["check_series", "get_series"]

_RECORDS, _DEATHS = 4000, {"a": 554, "b": 568}
_NO_CHECKSUM = "its packing has no published checksum"
_FIX = "download it again"
_HALF, _MISSING = ("unchecked", "its other half is missing"), ("missing", "not there")


def check_series(name: str, root: Path) -> list[FileCheck]:
    """Compare the files of a set with what is known about the official ones.

    HumanActivity has a checksum. The records of PhysioNet are parsed and counted, because no
    checksum was published.

    Args:
        name: Name of the set.
        root: Folder with all data sets.
    """
    return _CHECKS[name](root)


def get_series(
    name: str,
    root: Path,
    *,
    progress: Progress | None = None,
    sources: Mapping[str, str] | None = None,
) -> Path:
    """Download missing or wrong files of a set, and return its folder.

    A wrong file is replaced only once the new one is there.

    Args:
        name: Name of the set.
        root: Folder with all data sets.
        progress: Called for every piece that arrives.
        sources: Other addresses of the official files, by their names.

    Raises:
        ConfigError: If pooch is missing.
        DataError: If a file cannot be downloaded or written, or is not the right one.
    """
    checks = check_series(name, root)
    folder = checks[0].path.parent
    fix = f"try again, or put the files from {SERIES_SETS[name].homepage} into {folder} by hand"
    bad = {check.path.name for check in checks if check.state not in ("ok", "unchecked")}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in SERIES_SETS[name].files:
            # A folder of records counts as the archive that it was unpacked from.
            if not bad & {file.name, file.name.removesuffix(".tar.gz")}:
                continue
            new = replace(file, name=f"{file.name}.new")
            url = (sources or {}).get(file.name)
            arrived = download(new, folder, fix=fix, url=url, progress=progress)
            os.replace(arrived, folder / file.name)
    except (OSError, ValueError) as error:  # the latter for a path with a zero byte
        fix = "make room or give yourself access, or choose another folder with --data-dir"
        raise DataError(folder, f"cannot be written ({one_line(error)})", fix) from error
    for check in check_series(name, root) if bad else ():
        if check.state != "ok":
            raise DataError(check.path, f"is {check.state} ({check.detail})", fix)
    return folder


def _check_physionet(root: Path) -> list[FileCheck]:
    folders = [root / "physionet2012", root / "physionet", root]
    names = [f"Outcomes-{name}.txt" for name in _DEATHS]
    names += [f"set-{name}{ending}" for name in _DEATHS for ending in ("", ".tar.gz")]
    found = [folder for folder in folders if any(os.path.exists(folder / name) for name in names)]
    folder = [*found, root / "physionet"][0]
    return [check for name in _DEATHS for check in _check_set(folder, name)]


def _check_set(folder: Path, name: str) -> list[FileCheck]:
    records, outcomes = folder / f"set-{name}.tar.gz", folder / f"Outcomes-{name}.txt"
    if os.path.isdir(folder / f"set-{name}"):
        records = folder / f"set-{name}"
    paths = [records, outcomes]
    there = [os.path.exists(path) for path in paths]
    states = [_HALF if is_there else _MISSING for is_there in there]
    if all(there):
        states = [_judge_set(folder, name)] * 2
    return [
        FileCheck(path, state, path.stat().st_size if is_there else None, detail)
        for path, is_there, (state, detail) in zip(paths, there, states, strict=True)
    ]


def _judge_set(folder: Path, name: str) -> tuple[str, str]:
    """State and detail of the records and their outcomes, which can only be checked together."""
    try:
        series = read_physionet(folder, (name,))
    except DataError as error:
        return "unreadable", f"{error.what}: {error.why}"
    deaths = int(series.labels.sum())
    found = f"{len(series):,} records parse, {deaths:,} deaths; {_NO_CHECKSUM}"
    if (len(series), deaths) == (_RECORDS, _DEATHS[name]):
        return "ok", found
    return "wrong content", f"{found}; official: {_RECORDS:,} and {_DEATHS[name]}"


def _check_activity(root: Path) -> list[FileCheck]:
    (file,) = SERIES_SETS["activity"].files
    for folder in (root / "human_activity", root / "activity", root):
        path = folder / file.name
        if os.path.isfile(path):
            return [_judge_activity(path, file.digest or "")]
    return [FileCheck(root / "activity" / file.name, "missing", None, "not there")]


def _judge_activity(path: Path, digest: str) -> FileCheck:
    size = path.stat().st_size
    try:
        if file_matches(path, digest, _FIX):
            return FileCheck(path, "ok", size, digest)
        rows = len(read_activity(path).times)
    except DataError as error:
        return FileCheck(path, "unreadable", size, error.why)
    detail = f"the official file has {digest}; this one parses to {rows:,} rows"
    return FileCheck(path, "wrong checksum", size, detail)


_CHECKS: Mapping[str, Callable[[Path], list[FileCheck]]] = {
    "physionet": _check_physionet,
    "activity": _check_activity,
}
