"""Intensive care records of the PhysioNet/CinC challenge 2012."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from bfno.lab.data.archives import read_members
from bfno.lab.data.reading import refusing_damage
from bfno.lab.data.series import Series
from bfno.lab.data.series_cache import Arrays, cached, fingerprint
from bfno.lab.errors import ConfigError, DataError

__all__ = ["OUTCOMES", "PARAMETERS", "PUBLISHED_QUANTUM", "find_physionet", "read_physionet"]

_NAMES = """
Age Gender Height ICUType Weight Albumin ALP ALT AST Bilirubin BUN Cholesterol Creatinine DiasABP
FiO2 GCS Glucose HCO3 HCT HR K Lactate Mg MAP MechVent Na NIDiasABP NIMAP NISysABP PaCO2 PaO2 pH
Platelets RespRate SaO2 SysABP Temp TroponinI TroponinT Urine WBC
"""
PARAMETERS = tuple(_NAMES.split())
"""The measured quantities, in the order of the features."""

OUTCOMES = ("survived", "died")
"""Name of each class: whether the patient died in hospital."""

PUBLISHED_QUANTUM = 0.016
"""Hours that times were rounded to in the published experiments, about a minute."""

_FIX = "replace it; `bfno data get physionet` downloads the official files"
_HEADER = "Time,Parameter,Value"
_COLUMN = {name: column for column, name in enumerate(PARAMETERS)}
_POSITIVE = [_COLUMN["Height"], _COLUMN["Weight"]]
_LAST_MINUTE = 60 * 24 * 365
_RECORD_LIMIT, _OUTCOMES_LIMIT = 1 << 20, 1 << 22
# Raised whenever the same files give other arrays, so that what older versions kept is left alone.
_PARSER = "1"
# Reading this many records takes so long that users need a message.
_MANY = 1000
_logger = logging.getLogger(__name__)


def find_physionet(root: Path, sets: Sequence[str]) -> Path:
    """Return the folder with these sets: `physionet2012` or `physionet` in the root, or the root.

    Raises:
        DataError: If there is none; the message says which files to put where.
    """
    folders = [root / "physionet2012", root / "physionet", root]
    for folder in folders:
        if all(os.path.isfile(folder / f"Outcomes-{name}.txt") for name in sets):
            return folder
    names = ", ".join(f"set-{name}.tar.gz, Outcomes-{name}.txt" for name in sets)
    fix = f"`bfno data get physionet`, or put {names} from "
    fix += f"https://physionet.org/files/challenge-2012/1.0.0/ into {folders[1]} by hand"
    raise DataError(folders[1], "PhysioNet 2012 is missing", fix)


def read_physionet(
    folder: Path,
    sets: Sequence[str] = ("a",),
    *,
    quantum: float | None = None,
    keep_impossible: bool = False,
) -> Series:
    """Read records of up to 48 hours, each labelled with whether the patient died in hospital.

    Times are in hours, rounded to multiples of the quantum. Repeated measurements in one row are
    averaged. The first row is at time 0. Records are in the order of their numbers, one set after
    the other.

    The result is kept in the user's cache folder.

    Args:
        folder: Folder with `set-a.tar.gz` or the folder `set-a`, and `Outcomes-a.txt`.
        sets: Which of the sets `a` and `b` to read.
        quantum: Hours; None is `PUBLISHED_QUANTUM`.
        keep_impossible: Whether to keep values that mark missing ones: below zero, which is
            impossible for all parameters, or a height or weight of zero.

    Raises:
        ConfigError: If a setting is out of range.
        DataError: If a file is missing or damaged; it names record and row.
    """
    quantum = PUBLISHED_QUANTUM if quantum is None else quantum
    if not 1e-6 <= quantum <= 48:
        raise ConfigError(
            "quantum", f"{quantum} hours is not a grid of times", "use, for example, 0.016"
        )
    if not sets or not set(sets) <= {"a", "b"} or len(set(sets)) != len(sets):
        raise ConfigError("sets", f"{list(sets)} are not the labelled sets", "use a, b or both")
    parts = [_read_set(folder, name, quantum, keep_impossible) for name in sets]
    return _series(parts)


def _read_set(folder: Path, name: str, quantum: float, keep_impossible: bool) -> Arrays:
    outcomes = _read_file(folder / f"Outcomes-{name}.txt", _OUTCOMES_LIMIT)
    deaths = _parse_outcomes(folder / f"Outcomes-{name}.txt", outcomes)
    archive, records = folder / f"set-{name}.tar.gz", folder / f"set-{name}"
    settings = [_PARSER.encode(), repr((quantum, keep_impossible)).encode(), outcomes]
    if os.path.isdir(records):
        texts = {record: _read_file(records / f"{record}.txt", _RECORD_LIMIT) for record in deaths}
        source, pieces = records, [*texts.values()]
    else:
        texts, source = None, archive
        pieces = [_read_file(archive, 1 << 30)]

    def parse() -> Arrays:
        if len(deaths) >= _MANY:
            _logger.warning(
                "%s: parsing %d records; next time they are cached", source, len(deaths)
            )
        found = _members(archive, name, deaths) if texts is None else texts
        return _parse_set(source, found, deaths, quantum, keep_impossible)

    return cached(f"physionet-{name}", fingerprint([*settings, *pieces]), parse)


def _read_file(path: Path, limit: int) -> bytes:
    with refusing_damage(path, _FIX):
        size = os.stat(path).st_size
        if size > limit or not os.path.isfile(path):
            raise DataError(path, "is far too large, or not a file", _FIX)
        with open(path, "rb") as stream:
            return stream.read(limit)


def _members(archive: Path, name: str, deaths: Mapping[str, int]) -> dict[str, bytes]:
    """The records' bytes by their numbers; nothing is unpacked to the disk."""
    wanted = {
        f"{prefix}set-{name}/{record}.txt": record for prefix in ("", "./") for record in deaths
    }
    found: dict[str, bytes] = {}
    for member, data in read_members(archive, dict.fromkeys(wanted, _RECORD_LIMIT), _FIX):
        found[wanted[member]] = data.tobytes()
    for record in deaths:
        if record not in found:
            raise DataError(archive, f"lacks record {record}", _FIX)
    return {record: found[record] for record in deaths}


def _parse_outcomes(path: Path, content: bytes) -> dict[str, int]:
    """Whether each patient died, by the record's number."""
    lines = content.decode("ascii", "replace").splitlines()
    if not lines or not lines[0].startswith("RecordID,") or not lines[1:]:
        raise DataError(path, "is not a table of outcomes", _FIX)
    deaths: dict[str, int] = {}
    for row, line in enumerate(lines[1:], start=2):
        record, *cells = line.split(",")
        good = record.isdecimal() and record not in deaths and len(cells) == 5
        if not good or cells[-1] not in ("0", "1"):
            raise DataError(f"{path}, row {row}", f"{line[:60]!r} is not an outcome", _FIX)
        deaths[record] = int(cells[-1])
    return dict(sorted(deaths.items(), key=lambda item: int(item[0])))


def _parse_set(
    source: Path,
    texts: Mapping[str, bytes],
    deaths: Mapping[str, int],
    quantum: float,
    keep_impossible: bool,
) -> Arrays:
    """Rows of all records, and the observed values with row and column of each."""
    parts = []
    for record, text in texts.items():
        minutes, columns, values = _parse_record(f"{source}, record {record}", text)
        if not keep_impossible:
            good = (values >= 0) & ~((values == 0) & np.isin(columns, _POSITIVE))
            columns = np.where(good, columns, -1)
        parts.append(_rows(minutes, columns, values, quantum))
    lengths = np.array([len(times) for times, *_ in parts])
    offsets = np.cumsum(lengths) - lengths
    shifted = [part[1] + offset for part, offset in zip(parts, offsets, strict=True)]
    return {
        "ids": np.array([int(record) for record in texts]),
        "labels": np.array([deaths[record] for record in texts], np.int8),
        "lengths": lengths.astype(np.int32),
        "times": np.concatenate([part[0] for part in parts]),
        "rows": np.concatenate(shifted).astype(np.int32),
        "columns": np.concatenate([part[2] for part in parts]).astype(np.uint8),
        "values": np.concatenate([part[3] for part in parts]).astype(np.float32),
    }


def _parse_record(what: str, content: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Minute, column and value of each line; column -1 for the record's own number."""
    header, *lines = content.decode("ascii", "replace").splitlines() or [""]
    if header != _HEADER:
        raise DataError(f"{what}, row 1", f"{header[:60]!r} instead of {_HEADER!r}", _FIX)
    minutes, columns, values = [], [], []
    for row, line in enumerate(lines, start=2):
        try:
            time, parameter, value = line.split(",")
            hours, _, minute = time.partition(":")
            minutes.append(60 * int(hours) + int(minute))
            if minutes[-1] > _LAST_MINUTE:
                raise ValueError("is too late")
            columns.append(-1 if parameter == "RecordID" else _COLUMN[parameter])
            values.append(float(value))
        except (ValueError, KeyError) as error:
            raise DataError(
                f"{what}, row {row}", f"{line[:60]!r} is not a measurement", _FIX
            ) from error
    found = np.array(minutes, np.int64), np.array(columns, np.int64), np.array(values, np.float64)
    finite = np.abs(found[2]) <= np.finfo(np.float32).max
    wrong = ~finite | (np.diff(found[0], prepend=0) < 0)
    if wrong.any():
        row = int(wrong.argmax())
        why = f"{lines[row][:60]!r} goes back in time or is not finite"
        raise DataError(f"{what}, row {row + 2}", why, _FIX)
    return found


def _rows(
    minutes: np.ndarray, columns: np.ndarray, values: np.ndarray, quantum: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Times of the rows; row, column and mean of each observed value."""
    times = np.round((minutes // 60 + minutes % 60 / 60.0) / quantum) * quantum
    begins = np.diff(times, prepend=0.0) != 0
    row = np.cumsum(begins)
    kept = columns >= 0
    places, which = np.unique(row[kept] * len(PARAMETERS) + columns[kept], return_inverse=True)
    means = np.bincount(which, values[kept], len(places)) / np.bincount(
        which, minlength=len(places)
    )
    return (
        np.concatenate(([0.0], times[begins])),
        places // len(PARAMETERS),
        places % len(PARAMETERS),
        means,
    )


def _series(parts: Sequence[Arrays]) -> Series:
    lengths = torch.cat([torch.from_numpy(part["lengths"].astype(np.int64)) for part in parts])
    starts = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
    values = torch.zeros(int(starts[-1]), len(PARAMETERS), dtype=torch.float32)
    mask = torch.zeros(values.shape, dtype=torch.bool)
    offset = 0
    for part in parts:
        rows = torch.from_numpy(part["rows"].astype(np.int64)) + offset
        columns = torch.from_numpy(part["columns"].astype(np.int64))
        values[rows, columns], mask[rows, columns] = torch.from_numpy(part["values"]), True
        offset += len(part["times"])
    return Series(
        torch.cat([torch.from_numpy(part["times"]) for part in parts]),
        values,
        mask,
        torch.cat([torch.from_numpy(part["labels"].astype(np.int64)) for part in parts]),
        starts,
        tuple(str(record) for part in parts for record in part["ids"].tolist()),
        by_row=False,
    )
