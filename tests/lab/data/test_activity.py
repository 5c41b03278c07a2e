"""Readings of tags: binned, averaged and labelled as the published code does, cut into windows."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from bfno.lab.data import UNLABELLED, activity
from bfno.lab.data.activity import ACTIVITIES, WINDOW, find_activity, read_activity, windows
from bfno.lab.errors import DataError

TAGS = ("010-000-024-033", "010-000-030-096", "020-000-033-111", "020-000-032-221")
START = 633790226051280329
MERGED = {
    "walking": 0,
    "falling": 1,
    "lying": 2,
    "lying down": 2,
    "sitting": 3,
    "sitting down": 3,
    "standing up from lying": 4,
    "standing up from sitting": 4,
    "standing up from sitting on the ground": 4,
    "standing up from sit on grnd": 4,
    "on all fours": 5,
    "sitting on the ground": 6,
}


def line(name: str, tag: int, ticks: int, place: tuple[float, ...], label: str) -> str:
    x, y, z = place
    return f"{name},{TAGS[tag]},{START + ticks},27.05.2009 14:03:25:127,{x},{y},{z},{label}\n"


def write(folder: Path, *lines: str) -> Path:
    path = folder / "ConfLongDemo_JSI.txt"
    path.write_text("".join(lines))
    return path


def steady(name: str, rows: int, label: str = "walking") -> list[str]:
    return [line(name, k % 4, 300_000 * k, (k, -k, 0.5), label) for k in range(rows)]


def slow_rows(path: Path) -> dict[str, list[tuple[float, dict[int, list], set[int]]]]:
    """Rows of each sequence: bin, places by tag, labels; line by line, then sorted by bin."""
    rows: dict[str, dict[float, tuple[dict[int, list], set[int]]]] = {}
    first: dict[str, float] = {}
    for text in path.read_text().splitlines():
        name, tag, ticks, _, x, y, z, label = text.split(",")
        moment = float(ticks)
        first.setdefault(name, moment)
        bin_ = round((moment - first[name]) / 10**5)
        places, labels = rows.setdefault(name, {}).setdefault(bin_, ({}, set()))
        places.setdefault(TAGS.index(tag), []).append((float(x), float(y), float(z)))
        labels.add(MERGED[label])
    return {name: [(b, *rows[name][b]) for b in sorted(rows[name])] for name in rows}


@pytest.fixture
def real(shared_folder) -> Path:
    path = shared_folder / "data" / "human_activity" / "ConfLongDemo_JSI.txt"
    if not path.is_file():
        pytest.skip("needs HumanActivity in ../shared/data, which is not there")
    return path


def test_readings_of_one_bin_are_averaged_and_the_lowest_class_wins(tmp_path):
    path = write(
        tmp_path,
        line("A01", 2, 0, (1, 2, 3), "lying"),
        line("A01", 2, 40_000, (3, 4, 5), "falling"),
        line("A01", 0, 49_000, (9, 9, 9), "lying down"),
        line("A01", 1, 160_000, (7, 8, 9), "on all fours"),
        line("B02", 3, 160_000, (1, 1, 1), "sitting"),
    )
    series = read_activity(path)
    assert series.ids == ("A01", "B02") and series.lengths.tolist() == [2, 1] and series.by_row
    assert series.times.tolist() == [0, 2, 0]
    assert series.labels.tolist() == [1, 5, 3]
    assert series.values[0].tolist() == [9, 9, 9, 0, 0, 0, 2, 3, 4, 0, 0, 0]
    assert series.mask[0].tolist() == 3 * [True] + 3 * [False] + 3 * [True] + 3 * [False]


@pytest.mark.parametrize("label", MERGED)
def test_every_activity_has_its_class(tmp_path, label):
    series = read_activity(write(tmp_path, line("A01", 0, 0, (0, 0, 0), label)))
    assert series.labels.tolist() == [MERGED[label]]


def test_the_public_code_does_not_know_one_activity(tmp_path):
    unknown = "standing up from sitting on the ground"
    path = write(
        tmp_path,
        line("A01", 0, 0, (1, 2, 3), "lying"),
        line("A01", 0, 200_000, (1, 2, 3), unknown),
        line("A01", 0, 400_000, (1, 2, 3), unknown),
        line("A01", 1, 410_000, (1, 2, 3), "on all fours"),
        line("A01", 0, 600_000, (1, 2, 3), "standing up from lying"),
    )
    assert read_activity(path).labels.tolist() == [2, 4, 4, 4]
    assert read_activity(path, public_code=True).labels.tolist() == [2, UNLABELLED, 5, 4]


def test_lines_that_go_back_in_time_are_sorted(tmp_path):
    lines = [line("A01", 0, ticks, (ticks, 0, 0), "lying") for ticks in (0, 300_000, 200_000)]
    series = read_activity(write(tmp_path, *lines))
    assert series.times.tolist() == [0, 2, 3] and series.values[:, 0].tolist() == [0, 2e5, 3e5]


BAD_LINES = {
    "too few cells": "A01,010-000-024-033,1,x,1,2,3",
    "unknown tag": "A01,000,1,x,1,2,3,lying",
    "unknown activity": "A01,010-000-024-033,1,x,1,2,3,flying",
    "text": "A01,010-000-024-033,1,x,1,two,3,lying",
    "infinite": "A01,010-000-024-033,1,x,1,inf,3,lying",
    "not a number": "A01,010-000-024-033,1,x,1,nan,3,lying",
    "too large": "A01,010-000-024-033,1,x,1,1e39,3,lying",
    "endless time": f"A01,010-000-024-033,{'9' * 30},x,1,2,3,lying",
    "negative time": "A01,010-000-024-033,-1,x,1,2,3,lying",
    "empty line": "",
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_malformed_line_is_named_by_its_row(tmp_path, case):
    path = write(tmp_path, *steady("A01", 2), BAD_LINES[case] + "\n", *steady("A01", 2))
    with pytest.raises(DataError, match=r"row 3: [^\n]*bfno data get activity"):
        read_activity(path)


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="is empty"):
        read_activity(write(tmp_path))
    with pytest.raises(DataError, match="is missing"):
        read_activity(tmp_path / "nowhere.txt")


@pytest.mark.parametrize("place", ["human_activity", "activity", "."])
def test_the_file_is_found_where_people_put_it(tmp_path, place):
    (tmp_path / place).mkdir(exist_ok=True)
    path = write(tmp_path / place, *steady("A01", 2))
    assert find_activity(tmp_path) == path
    path.unlink()
    with pytest.raises(DataError, match=r"is missing.*bfno data get activity"):
        find_activity(tmp_path)


def test_a_slice_is_taken_with_a_warning_and_the_official_file_without(
    tmp_path, monkeypatch, caplog
):
    path = write(tmp_path, *steady("A01", 3))
    read_activity(path)
    assert "not the official file" in caplog.text
    caplog.clear()
    monkeypatch.setattr(activity, "OFFICIAL_MD5", hashlib.md5(path.read_bytes()).hexdigest())
    read_activity(path)
    assert not caplog.records


@pytest.mark.parametrize(
    ("rows", "strict", "stride", "count"),
    [
        (49, False, 25, 0),
        (50, True, 25, 0),  # the published loop demands a row beyond the window
        (50, False, 25, 1),
        (51, True, 25, 1),
        (75, True, 25, 1),
        (76, True, 25, 2),
        (149, False, 50, 2),
        (150, False, 50, 3),
    ],
)
def test_windows_start_at_every_stride_while_they_fit(tmp_path, rows, strict, stride, count):
    sequences = read_activity(write(tmp_path, *steady("A01", rows), *steady("A02", 3)))
    found = windows(sequences, stride, strict=strict)
    assert len(found) == count and found.ids == ("A01",) * count
    assert found.lengths.tolist() == [WINDOW] * count
    for k in range(count):
        window = found.take(torch.tensor([k]))
        assert window.times[0] == 0 and (window.times.diff() == 3).all()
        rows_of = slice(k * stride, k * stride + WINDOW)
        assert torch.equal(window.values, sequences.values[rows_of])


def test_the_real_slice_is_as_counted_by_hand(real):
    sequences = read_activity(real)
    assert len(real.read_text().splitlines()) == 22_250
    assert sequences.ids == ("A01", "A02", "A03", "A04", "A05")
    found = windows(sequences, 25, strict=True)
    lengths = sequences.lengths.tolist()
    assert len(found) == sum(len(range(0, n - WINDOW, 25)) for n in lengths) == 884
    assert found.lengths.unique().tolist() == [50] and found.values.shape[1] == 12
    assert found.labels.unique().tolist() == list(range(len(ACTIVITIES)))
    assert found.times[found.starts[:-1]].abs().max() == 0
    assert found.values[~found.mask].abs().max() == 0
    assert sequences.labels.bincount().tolist() == [3025, 363, 9218, 4257, 2469, 963, 1952]
    public = read_activity(real, public_code=True).labels
    known = public[public != UNLABELLED]
    assert known.bincount().tolist() == [3025, 363, 9218, 4257, 2128, 963, 1952]
    assert len(public) - len(known) == 341


def test_the_real_slice_agrees_with_a_slow_reading(real):
    sequences, slow = read_activity(real), slow_rows(real)
    for number, name in enumerate(sequences.ids):
        part = sequences.take(torch.tensor([number]))
        assert part.times.tolist() == [row[0] for row in slow[name]]
        assert part.labels.tolist() == [min(row[2]) for row in slow[name]]
        values, mask = np.zeros((len(slow[name]), 4, 3)), np.zeros((len(slow[name]), 4, 3), bool)
        for row, (_, places, _) in enumerate(slow[name]):
            for tag, found in places.items():
                values[row, tag], mask[row, tag] = np.mean(found, axis=0), True
        assert np.array_equal(part.mask.numpy(), mask.reshape(-1, 12))
        assert np.allclose(part.values.numpy(), values.reshape(-1, 12), rtol=1e-7, atol=0)
