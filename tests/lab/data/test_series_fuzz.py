"""Damaged and invented tables either load to valid series or are refused in one line."""

import csv
import random
import time
from pathlib import Path

import polars as pl
import pytest
import torch

from bfno.lab.data import SeriesSource, SeriesTable, TableLayout, load_series, read_series
from bfno.lab.errors import ConfigError, DataError
from tests.lab.data.dialects import write_excel
from tests.lab.data.mutations import mutated

SECONDS = 2.0  # of the processor's time, which other programs do not take up
GOOD = "id,time,x,y,label\n" + "".join(
    f"{k},{t / 2},{k - t},{'' if t % 3 == 0 else 10 * t},{'uv'[k % 2]}\n"
    for k in range(6)
    for t in range(4)
)
CELLS = [
    *(
        "",
        " ",
        "0",
        "1",
        "-1",
        "0.5",
        "1e3",
        "1e38",
        "1e39",
        "-1e308",
        "1e999",
        "nan",
        "NaN",
        "inf",
    ),
    *("-inf", "1_0", "0x10", "1,5", "a", "b", "é", "\u0661", "2024-01-01", "2024-01-01T10:00:00Z"),
    *("9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "2024-13-01", "NaT", '"', '""'),
    *(
        '"a,b"',
        '"a\nb"',
        "'",
        "\\",
        ";",
        "\t",
        "\0",
        "\ufeff",
        "\r",
        "None",
        "True",
        "1.0",
        "9" * 400,
    ),
]
NAMES = ["id", "time", "label", "x", "y", "x", "", "Time", "ID", "1", "é", "a b", '"q"']


def invented(seed: int) -> bytes:
    """A table whose names, cells and shape are drawn at random; many rows are right."""
    generator = random.Random(seed)
    names = generator.sample(NAMES, generator.randint(1, 6))
    if generator.random() < 0.8:
        names = ["id", "time", "x", "y", "label"][: generator.randint(3, 5)]
    plain = generator.random() < 0.5
    lines = [",".join(names)]
    for _ in range(generator.randint(0, 8)):
        cells = [generator.choice("0123") for _ in names]
        for place in range(len(cells)):
            if generator.random() < (0.03 if plain else 0.2):
                cells[place] = generator.choice(CELLS)
        if generator.random() < 0.02:
            cells = cells[:-1] if generator.random() < 0.5 else [*cells, "1"]
        lines.append(",".join(cells))
    text = generator.choice(["\n", "\n", "\r\n", "\r"]).join(lines)
    return (text + generator.choice(["", "\n"])).encode(
        generator.choice(["utf-8"] * 9 + ["utf-16"])
    )


def edited(seed: int) -> str:
    """The good table with one to three odd cells."""
    generator = random.Random(seed)
    rows = [line.split(",") for line in GOOD.splitlines()]
    for _ in range(generator.randint(1, 3)):
        row = generator.choice(rows[1:])
        row[generator.randrange(len(row))] = generator.choice(CELLS)
    return "".join(",".join(row) + "\n" for row in rows)


def assert_valid(table: SeriesTable) -> None:
    series = table.series
    assert len(series) > 0 and len(set(series.ids)) == len(series)
    assert series.lengths.min() >= 1 and int(series.starts[-1]) == len(series.times)
    assert series.values.isfinite().all() and series.times.isfinite().all()
    assert series.values[~series.mask].abs().sum() == 0
    assert len(series.labels) == len(series.times if series.by_row else series.ids)
    assert series.labels.min() >= -1 and series.labels.max() < len(table.classes)
    first = torch.zeros(len(series.times), dtype=torch.bool)
    first[series.starts[:-1]] = True
    assert (series.times[first] == 0).all() and (series.times.diff()[~first[1:]] > 0).all()


def survives(path: Path, content: bytes, labels: str = "auto") -> bool:
    """Whether the table loads; any other end than a refusal in one line is an error."""
    path.write_bytes(content)
    started = time.process_time()
    try:
        assert_valid(read_series(path, labels=labels))
    except (DataError, ConfigError) as error:
        assert "\n" not in str(error) and "\r" not in str(error) and len(str(error)) < 1000
        return False
    finally:
        assert time.process_time() - started < SECONDS
    return True


MANY = [200, pytest.param(2000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", MANY)
def test_invented_tables_load_or_are_refused(tmp_path, count):
    labels = ["auto", "row", "series"]
    loaded = sum(
        survives(tmp_path / "t.csv", invented(seed), labels[seed % 3]) for seed in range(count)
    )
    assert 0.15 * count < loaded < 0.85 * count


@pytest.mark.parametrize("count", MANY)
def test_damaged_tables_load_or_are_refused(tmp_path, count):
    good = GOOD.encode()
    loaded = sum(survives(tmp_path / "t.csv", mutated(good, seed)) for seed in range(count))
    assert 0.005 * count < loaded < 0.5 * count  # almost any fault of bytes is one of the text


def test_damaged_tables_train_or_are_refused(tmp_path):
    path, trained = tmp_path / "t.csv", 0
    for seed in range(120):
        path.write_text(edited(seed))
        try:
            splits = load_series(SeriesSource("series", path=path), seed)
        except (DataError, ConfigError) as error:
            assert "\n" not in str(error)
            continue
        trained += 1
        for part in (splits.train, splits.test):
            assert len(part) and part.values.isfinite().all() and part.times.isfinite().all()
    assert 20 < trained < 100


def test_damaged_parquet_loads_or_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    columns = {
        "id": [0, 0, 1, 1],
        "time": [0.0, 1, 0, 1],
        "x": [1.0, None, 2, 3],
        "label": [*"uuvv"],
    }
    pl.DataFrame(columns, strict=False).write_parquet(path)
    good = path.read_bytes()
    assert survives(path, good)
    assert sum(survives(path, mutated(good, seed)) for seed in range(150)) < 150


def test_damaged_excel_loads_or_is_refused(tmp_path):
    path = write_excel(tmp_path / "t.xlsx")
    good = path.read_bytes()
    assert survives(path, good)
    assert sum(survives(path, mutated(good, seed)) for seed in range(60)) < 60


def test_quoted_tables_are_cut_as_the_standard_library_does(tmp_path):
    """Cells with separators, quotation marks and line ends, written and read back."""
    generator, odd = random.Random(5), ["a", ",", '"', "\n", ";", "x y", "é", "'"]
    for _ in range(40):
        words = ["".join(generator.choices(odd, k=3)).strip() or "b" for _ in range(6)]
        with open(tmp_path / "t.csv", "w", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerows(
                [["id", "time", "x", "word"], *([k, 0, k, w] for k, w in enumerate(words))]
            )
        found = read_series(tmp_path / "t.csv", TableLayout(categorical=("word",)))
        names = [name.partition("=")[2] for name in found.features[1:]]
        hot = found.series.values[:, 1:].argmax(1).tolist()
        assert [names[place] for place in hot] == words


def test_wrong_cells_are_all_named_or_masked(tmp_path):
    generator, lines = random.Random(0), GOOD.splitlines()
    wrong = {"inf": False, "-inf": False, "1e999": False, "text": False, "nan": True, "": True}
    for _ in range(200):
        row, column = generator.randrange(1, len(lines)), generator.choice([2, 3])
        cell = generator.choice([*wrong])
        cells = lines[row].split(",")
        cells[column] = cell
        text = "\n".join([*lines[:row], ",".join(cells), *lines[row + 1 :], ""])
        (tmp_path / "t.csv").write_text(text)
        if wrong[cell]:
            series = read_series(tmp_path / "t.csv").series
            assert not series.mask[row - 1, column - 2]
        else:
            where = rf"t\.csv, row {row + 1}, column '{'xy'[column - 2]}'"
            with pytest.raises(DataError, match=where):
                read_series(tmp_path / "t.csv")


@pytest.mark.slow
def test_ten_thousand_invented_tables_load_or_are_refused(tmp_path):
    assert sum(survives(tmp_path / "t.csv", invented(seed)) for seed in range(5000, 15_000)) > 0


def test_the_harness_catches_what_it_should(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.lab.data.test_series_fuzz.SECONDS", -1.0)
    with pytest.raises(AssertionError):
        survives(tmp_path / "t.csv", GOOD.encode())
    monkeypatch.setattr("tests.lab.data.test_series_fuzz.SECONDS", 9.0)
    monkeypatch.setattr(
        "tests.lab.data.test_series_fuzz.read_series",
        lambda *a, **k: (_ for _ in ()).throw(KeyError()),
    )
    with pytest.raises(KeyError):
        survives(tmp_path / "t.csv", GOOD.encode())
