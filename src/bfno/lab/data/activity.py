"""Movements of people with tags on ankles, chest and belt: UCI's activity localisation data."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bfno.lab.data.reading import refusing_damage
from bfno.lab.data.series import UNLABELLED, Series
from bfno.lab.errors import DataError

__all__ = [
    "ACTIVITIES",
    "ACTIVITY_FEATURES",
    "OFFICIAL_MD5",
    "WINDOW",
    "find_activity",
    "read_activity",
    "windows",
]

ACTIVITIES = (
    "walking",
    "falling",
    "lying",
    "sitting",
    "standing up",
    "on all fours",
    "sitting on the ground",
)
"""Name of each class; the file distinguishes eleven, some of which are merged here."""

OFFICIAL_MD5 = "280a677ae0d673ec9a50ada480d8a529"
"""Checksum of the official file."""

WINDOW = 50
"""Rows of a window."""

_CLASS = {
    "walking": 0,
    "falling": 1,
    "lying": 2,
    "lying down": 2,
    "sitting": 3,
    "sitting down": 3,
    "standing up from lying": 4,
    "standing up from sitting": 4,
    "standing up from sitting on the ground": 4,
    # The spelling in the published code, which never occurs in the official file.
    "standing up from sit on grnd": 4,
    "on all fours": 5,
    "sitting on the ground": 6,
}
_NO_CLASS = len(ACTIVITIES)
_CLASS_IN_PUBLIC_CODE = {**_CLASS, "standing up from sitting on the ground": _NO_CLASS}
_TAG = {"010-000-024-033": 0, "010-000-030-096": 1, "020-000-033-111": 2, "020-000-032-221": 3}
_PLACES = ("left ankle", "right ankle", "chest", "belt")
ACTIVITY_FEATURES = tuple(f"{place} {axis}" for place in _PLACES for axis in "xyz")
"""Name of each feature: a coordinate of a tag."""

_FILE = "ConfLongDemo_JSI.txt"
_FIX = "replace it; `bfno data get activity` downloads the official file"
_LIMIT = 1 << 28
_BIN = 10**5  # ticks of 100 ns, so that a bin is 10 ms
_logger = logging.getLogger(__name__)


def find_activity(root: Path) -> Path:
    """Return the file, in `human_activity` or `activity` of the root or in the root itself.

    Raises:
        DataError: If it is missing; the message says what to put where.
    """
    for folder in (root / "human_activity", root / "activity", root):
        if os.path.isfile(folder / _FILE):
            return folder / _FILE
    fix = f"`bfno data get activity`, or put {_FILE} from https://archive.ics.uci.edu/dataset/196 "
    raise DataError(root / "activity", "HumanActivity is missing", f"{fix}there by hand")


def read_activity(path: Path, *, public_code: bool = False) -> Series:
    """Read whole sequences, each row of which is labelled with one of `ACTIVITIES`.

    A row is a bin of 10 ms, counted from the first line of its sequence. Readings of one tag in one
    bin are averaged; of two activities in one bin, the first in class order counts.

    Args:
        path: The file.
        public_code: Whether "standing up from sitting on the ground" is not a label, as in the
            published code, which spells it differently. A row without any other label is
            `UNLABELLED`.

    Raises:
        DataError: If the file is missing or damaged; it names the row.
    """
    with refusing_damage(path, _FIX):
        if os.stat(path).st_size > _LIMIT:
            raise DataError(path, "is far too large", _FIX)
        with open(path, "rb") as stream:
            content = stream.read(_LIMIT)
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != OFFICIAL_MD5:
        _logger.warning("%s: not the official file, but a slice or a version of it", path)
    return _series(*_parse(path, content, _CLASS_IN_PUBLIC_CODE if public_code else _CLASS))


def windows(sequences: Series, stride: int, *, strict: bool) -> Series:
    """Return windows of `WINDOW` rows, whose times count from their first row.

    Args:
        sequences: Series with one label per row; shorter ones yield no window.
        stride: Rows from the start of a window to that of the next.
        strict: Whether a window must end before its sequence does, as in the published code.
    """
    firsts, owners = [], []
    for number, length in enumerate(sequences.lengths.tolist()):
        last = length - WINDOW - (1 if strict else 0)
        offsets = torch.arange(0, last + 1, stride) if last >= 0 else torch.empty(0).long()
        firsts.append(sequences.starts[number] + offsets)
        owners += [sequences.ids[number]] * len(offsets)
    first = torch.cat(firsts) if firsts else torch.empty(0).long()
    rows = (first[:, None] + torch.arange(WINDOW)).flatten()
    times = sequences.times[rows].view(-1, WINDOW)
    return replace(
        sequences,
        times=(times - times[:, :1]).flatten(),
        values=sequences.values[rows],
        mask=sequences.mask[rows],
        labels=sequences.labels[rows],
        starts=torch.arange(len(first) + 1) * WINDOW,
        ids=tuple(owners),
    )


def _parse(
    path: Path, content: bytes, classes: Mapping[str, int]
) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Sequence of each line; ticks, tag and class; coordinates."""
    names, codes, points = [], [], []
    lines = content.decode("ascii", "replace").splitlines()
    for row, line in enumerate(lines, start=1):
        try:
            name, tag, ticks, _, x, y, z, activity = line.strip().split(",")
            codes.append((_ticks(ticks), _TAG[tag], classes[activity]))
            points.append((float(x), float(y), float(z)))
            names.append(name)
        except (ValueError, KeyError) as error:
            why = f"{line[:80]!r} is not a reading of a tag"
            raise DataError(f"{path}, row {row}", why, _FIX) from error
    if not names:
        raise DataError(path, "is empty", _FIX)
    places = np.array(points, np.float64)
    wrong = ~(np.abs(places) <= np.finfo(np.float32).max).all(1)
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"{path}, row {row + 1}", "a coordinate is not finite", _FIX)
    numbers = np.array(codes, np.int64)
    return names, numbers[:, 0], numbers[:, 1:], places


def _ticks(text: str) -> int:
    number = int(text)
    if not 0 <= number < 1 << 62:
        raise ValueError("no time")
    return number


def _series(names: list[str], ticks: np.ndarray, codes: np.ndarray, points: np.ndarray) -> Series:
    ids = tuple(dict.fromkeys(names))
    number = {name: index for index, name in enumerate(ids)}
    owner = np.array([number[name] for name in names])
    # The published code takes ticks for floating-point numbers, which can change a bin.
    exact = ticks.astype(np.float64)
    first = exact[np.unique(owner, return_index=True)[1]]
    bins = np.round((exact - first[owner]) / _BIN)
    order = np.lexsort((bins, owner))
    owner, bins, codes, points = owner[order], bins[order], codes[order], points[order]
    begins = np.diff(owner, prepend=-1).astype(bool) | (np.diff(bins, prepend=np.nan) != 0)
    row = np.cumsum(begins) - 1
    values, mask = _mean_places(row, codes[:, 0], points)
    labels = np.full(len(values), _NO_CLASS)
    np.minimum.at(labels, row, codes[:, 1])
    labels[labels == _NO_CLASS] = UNLABELLED
    starts = np.searchsorted(owner[begins], np.arange(len(ids) + 1))
    return Series(
        torch.from_numpy(bins[begins]),
        values,
        mask,
        torch.from_numpy(labels),
        torch.from_numpy(starts),
        ids,
        by_row=True,
    )


def _mean_places(row: np.ndarray, tag: np.ndarray, points: np.ndarray) -> tuple[Tensor, Tensor]:
    """Mean coordinates of each tag in each row, and whether it was seen."""
    shape = (int(row[-1]) + 1, len(_TAG))
    sums, counts = np.zeros((*shape, 3)), np.zeros(shape)
    np.add.at(sums, (row, tag), points)
    np.add.at(counts, (row, tag), 1)
    means = sums / np.maximum(counts, 1)[:, :, None]
    mask = np.broadcast_to((counts > 0)[:, :, None], means.shape)
    flat = (shape[0], 3 * len(_TAG))
    return (
        torch.from_numpy(means.reshape(flat).astype(np.float32)),
        torch.from_numpy(mask.reshape(flat).copy()),
    )
