"""Records of intensive care: parsed as the published code does, cached, refused when damaged."""

import gzip
import io
import logging
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from bfno.lab.data import series_cache
from bfno.lab.data.physionet import PARAMETERS, find_physionet, read_physionet
from bfno.lab.errors import ConfigError, DataError
from tests.lab.data import official

DESCRIPTORS = "00:00,Age,54\n00:00,Gender,0\n00:00,Height,-1\n00:00,ICUType,4\n00:00,Weight,-1\n"
RECORDS = {
    "11": f"00:00,RecordID,11\n{DESCRIPTORS}00:07,HR,73\n00:07,HR,77\n"
    "01:00,HR,60\n01:00,Temp,-17.8\n",
    "2": f"00:00,RecordID,2\n{DESCRIPTORS}",
    "33": "00:00,RecordID,33\n00:00,Weight,0\n00:00,Weight,80\n47:59,K,4.5\n",
}
OUTCOMES = "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def real(shared_folder) -> Path:
    """The folder with both real sets."""
    folder = shared_folder / "data" / "physionet2012"
    if not folder.is_dir():
        pytest.skip("needs PhysioNet 2012 in ../shared/data, which is not there")
    return folder


def write(folder: Path, records: dict[str, str] | None = None, packed: bool = True) -> Path:
    """Set a with these records, the second of which died."""
    records = RECORDS if records is None else records
    folder.mkdir(parents=True, exist_ok=True)
    texts = {name: f"Time,Parameter,Value\n{text}" for name, text in records.items()}
    rows = [f"{name},1,1,5,-1,{int(k == 1)}\n" for k, name in enumerate(records)]
    (folder / "Outcomes-a.txt").write_text(OUTCOMES + "".join(rows))
    if packed:
        entries = [official.tar_entry("set-a/", kind=b"5")]
        entries += [
            official.tar_entry(f"set-a/{name}.txt", t.encode()) for name, t in texts.items()
        ]
        (folder / "set-a.tar.gz").write_bytes(official.tar_gz(*entries))
        return folder
    (folder / "set-a").mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / "set-a" / f"{name}.txt").write_text(text)
    return folder


def column(name: str) -> int:
    return PARAMETERS.index(name)


def slow_record(text: str, quantum: float) -> tuple[list[float], dict[tuple[int, str], float]]:
    """Times of the rows, and the mean of what each row measured; line by line, nothing clever."""
    times, seen = [0.0], {}
    for line in text.splitlines()[1:]:
        clock, name, value = line.split(",")
        hours, minutes = clock.split(":")
        moment = round((float(hours) + float(minutes) / 60.0) / quantum) * quantum
        if moment != times[-1]:
            times.append(moment)
        if name != "RecordID":
            seen.setdefault((len(times) - 1, name), []).append(float(value))
    return times, {place: sum(found) / len(found) for place, found in seen.items()}


@pytest.mark.parametrize("packed", [True, False])
def test_small_records_are_read_as_written(tmp_path, packed):
    series = read_physionet(write(tmp_path, packed=packed), keep_impossible=True)
    assert series.ids == ("2", "11", "33") and series.labels.tolist() == [1, 0, 0]
    assert series.lengths.tolist() == [1, 3, 2]
    first, last = series.times[series.starts[:-1]], series.times[-1].item()
    assert first.tolist() == [0, 0, 0] and last == round((47 + 59 / 60) / 0.016) * 0.016
    hr = series.values[:, column("HR")]
    assert hr.tolist() == [0, 0, 75, 60, 0, 0]
    assert series.mask[:, column("HR")].tolist() == [False, False, True, True, False, False]
    assert series.values[0, column("Height")] == -1 and series.values[4, column("Weight")] == 40


def test_impossible_values_are_missing_before_anything_is_averaged(tmp_path):
    series = read_physionet(write(tmp_path))
    assert not series.mask[:, column("Height")].any() and not series.mask[:, column("Temp")].any()
    assert series.values[4, column("Weight")] == 80
    assert series.mask[0].sum() == 3  # age, gender and unit
    assert series.values[0, column("Gender")] == 0 and series.mask[0, column("Gender")]


def test_archive_and_folder_give_the_same(tmp_path):
    one, other = write(tmp_path / "a"), write(tmp_path / "b", packed=False)
    first, second = read_physionet(one), read_physionet(other)
    assert torch.equal(first.values, second.values) and torch.equal(first.times, second.times)


@pytest.mark.parametrize("place", ["physionet2012", "physionet", "."])
def test_the_set_is_found_where_people_put_it(tmp_path, place):
    write(tmp_path / place)
    assert find_physionet(tmp_path, ["a"]) == tmp_path / place
    with pytest.raises(DataError, match=r"is missing.*bfno data get physionet.*Outcomes-b\.txt"):
        find_physionet(tmp_path, ["a", "b"])


BAD_LINES = {
    "too few cells": "00:07,HR",
    "too many cells": "00:07,HR,73,4",
    "unknown parameter": "00:07,Pulse,73",
    "text": "00:07,HR,fast",
    "not a number": "00:07,HR,nan",
    "infinite": "00:07,HR,inf",
    "too large": "00:07,HR,1e39",
    "no time": "seven,HR,73",
    "no minutes": "7,HR,73",
    "negative time": "-1:30,HR,73",
    "endless time": "9" * 30 + ":00,HR,73",
    "backwards": "00:07,HR,73\n00:06,HR,73",
    "empty line": "",
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_malformed_line_is_named_by_record_and_row(tmp_path, case):
    line = BAD_LINES[case]
    text = f"00:00,RecordID,7\n00:05,HR,70\n{line}\n00:09,HR,1\n"
    row = 4 + line.count("\n")
    with pytest.raises(DataError, match=rf"record 7, row {row}: [^\n]*bfno data get physionet"):
        read_physionet(write(tmp_path, {"1": "00:00,Age,3\n", "7": text}))


@pytest.mark.parametrize("header", ["", "Time;Parameter;Value", "\xff\xfe"])
def test_a_record_without_its_header_is_refused(tmp_path, header):
    folder = write(tmp_path, packed=False)
    (folder / "set-a" / "2.txt").write_text(header + "\n00:00,Age,3\n")
    with pytest.raises(DataError, match="record 2, row 1"):
        read_physionet(folder)


@pytest.mark.parametrize(
    "line", ["12,1,1,1,1,2", "12,1,1,1,1", "../../x,1,1,1,1,0", "2,1,1,1,1,0", "x,1,1,1,1,0", ""]
)
def test_a_malformed_outcome_is_named_by_its_row(tmp_path, line):
    folder = write(tmp_path)
    with open(folder / "Outcomes-a.txt", "a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=r"Outcomes-a\.txt, row 5: "):
        read_physionet(folder)


def test_no_outcomes_at_all_are_refused(tmp_path):
    for text in ("", OUTCOMES, "something else\n1\n"):
        (write(tmp_path) / "Outcomes-a.txt").write_text(text)
        with pytest.raises(DataError, match="is not a table of outcomes"):
            read_physionet(tmp_path)


def test_a_missing_record_is_named(tmp_path):
    folder = write(tmp_path, packed=False)
    (folder / "set-a" / "33.txt").unlink()
    with pytest.raises(DataError, match=r"33\.txt: is missing"):
        read_physionet(folder)
    packed = write(tmp_path / "packed")
    entry = official.tar_entry("set-a/2.txt", b"Time,Parameter,Value\n")
    (packed / "set-a.tar.gz").write_bytes(official.tar_gz(entry))
    with pytest.raises(DataError, match="lacks record 11"):
        read_physionet(packed)


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"5"])
def test_links_and_devices_in_the_archive_are_refused(tmp_path, kind):
    folder = write(tmp_path)
    entry = official.tar_entry("set-a/2.txt", kind=kind, link="/etc/passwd")
    (folder / "set-a.tar.gz").write_bytes(official.tar_gz(entry))
    with pytest.raises(DataError, match="no regular file"):
        read_physionet(folder)


def test_a_path_out_of_the_archive_writes_nothing(tmp_path):
    folder = write(tmp_path / "inner")
    good = gzip.decompress((folder / "set-a.tar.gz").read_bytes())[:-1024]
    evil = official.tar_entry("../../evil.txt", b"x") + official.tar_entry("/tmp/evil.txt", b"x")
    (folder / "set-a.tar.gz").write_bytes(gzip.compress(good + evil + bytes(1024)))
    assert len(read_physionet(folder)) == 3
    assert sorted(path.name for path in folder.iterdir()) == ["Outcomes-a.txt", "set-a.tar.gz"]


def test_names_that_begin_with_a_dot_are_read_too(tmp_path):
    folder = write(tmp_path)
    before = read_physionet(folder)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.USTAR_FORMAT) as archive:
        for name, text in RECORDS.items():
            entry = tarfile.TarInfo(f"./set-a/{name}.txt")
            content = f"Time,Parameter,Value\n{text}".encode()
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    (folder / "set-a.tar.gz").write_bytes(buffer.getvalue())
    assert torch.equal(read_physionet(folder).values, before.values)


@pytest.mark.parametrize("quantum", [0.0, -1.0, float("nan"), 1e9])
def test_a_quantum_that_is_no_grid_is_refused(tmp_path, quantum):
    with pytest.raises(ConfigError, match="quantum"):
        read_physionet(tmp_path, quantum=quantum)


@pytest.mark.parametrize("sets", [(), ("c",), ("a", "a")])
def test_sets_without_labels_are_refused(tmp_path, sets):
    with pytest.raises(ConfigError, match="sets"):
        read_physionet(tmp_path, sets)


def parsed(folder: Path, **settings) -> bool:
    """Whether the records were parsed, rather than found in the cache."""
    called = []
    with pytest.MonkeyPatch.context() as patch:
        original = series_cache._write
        patch.setattr(series_cache, "_write", lambda *a: (called.append(1), original(*a)))
        read_physionet(folder, **settings)
    return bool(called)


def test_the_second_reading_comes_from_the_cache(tmp_path):
    folder = write(tmp_path)
    first = read_physionet(folder)
    assert not parsed(folder)
    assert torch.equal(first.values, read_physionet(folder).values)


def test_other_files_and_settings_are_parsed_again(tmp_path):
    folder = write(tmp_path, packed=False)
    assert parsed(folder) and parsed(folder, quantum=1.0) and parsed(folder, keep_impossible=True)
    record = folder / "set-a" / "11.txt"
    record.write_text(record.read_text().replace("73", "74"))
    assert parsed(folder)
    outcomes = folder / "Outcomes-a.txt"
    outcomes.write_text(outcomes.read_text().replace("11,1,1,5,-1,0", "11,1,1,5,-1,1"))
    assert parsed(folder) and not parsed(folder)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_cache_is_silently_made_again(tmp_path, caplog, damage):
    folder = write(tmp_path)
    first = read_physionet(folder)
    (path,) = (tmp_path / "cache" / "bfno" / "parsed").iterdir()
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    path.write_bytes({"flip": bytes(flipped), "cut": good[:-1], "empty": b""}[damage])
    with caplog.at_level(logging.INFO):
        assert torch.equal(read_physionet(folder).values, first.values)
    assert not caplog.records and path.read_bytes() == good


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.INFO):
        assert len(read_physionet(write(tmp_path / "data"))) == 3
    assert "not kept for the next run" in caplog.text


def test_the_real_sets_are_whole_and_fast(real):
    # Of the processor's time, which other programs do not take up.
    started = time.process_time()
    series = read_physionet(real, ("a", "b"), keep_impossible=True)
    first = time.process_time() - started
    started = time.process_time()
    read_physionet(real, ("a", "b"), keep_impossible=True)
    second = time.process_time() - started
    assert first < 60 and second < 6  # three times what a machine of our own is allowed
    assert len(series) == 8000 and len(set(series.ids)) == 8000
    assert (series.labels[:4000].sum(), series.labels[4000:].sum()) == (554, 568)
    assert series.values.shape[1] == 41 and series.values[~series.mask].abs().max() == 0
    assert series.times.max() <= 48.0 and series.times[series.starts[:-1]].abs().max() == 0
    inner = torch.ones(len(series.times), dtype=torch.bool)
    inner[series.starts[:-1]] = False
    assert (series.times.diff()[inner[1:]] > 0).all()
    assert [series.ids[k] for k in (series.lengths == 1).nonzero().flatten()][:3] == [
        "140501",
        "140936",
        "141264",
    ]


@pytest.mark.parametrize("quantum", [0.016, pytest.param(1.0, marks=pytest.mark.slow)])
def test_real_records_agree_with_a_slow_reading(real, quantum):
    wanted = {f"set-a/{name}.txt": name for name in ("132539", "140501", "137593", "142673")}
    whole = read_physionet(real, quantum=quantum, keep_impossible=True)
    with tarfile.open(real / "set-a.tar.gz") as archive:
        for member, name in wanted.items():
            content = archive.extractfile(member)
            assert content is not None
            times, seen = slow_record(content.read().decode(), quantum)
            record = whole.take(torch.tensor([whole.ids.index(name)]))
            assert record.times.tolist() == times
            assert int(record.mask.sum()) == len(seen)
            for (row, parameter), value in seen.items():
                assert record.mask[row, column(parameter)]
                assert record.values[row, column(parameter)] == np.float32(value)
