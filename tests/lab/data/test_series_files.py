"""The user's own series: read as written, every fault named by file, row and column."""

import gzip
import sys
from datetime import date, time, timedelta
from pathlib import Path

import polars as pl
import pytest
import torch
import xlsxwriter

from bfno.lab.data import UNLABELLED, FileFormat, TableLayout, read_series, table_file
from bfno.lab.errors import ConfigError, DataError

HEADER = "id,time,x,y,label\n"
GOOD = "a,0,1,10,u\na,1,2,20,u\nb,0,3,,v\nb,2,,40,v\n"


def write(folder: Path, text: str | bytes, name: str = "table.csv") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(path: Path, **settings) -> str:
    with pytest.raises(DataError) as caught:
        read_series(path, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path.parent}/")


def test_a_table_is_read_as_written(tmp_path):
    table = read_series(write(tmp_path, HEADER + GOOD))
    series = table.series
    assert (table.features, table.classes, series.ids) == (("x", "y"), ("u", "v"), ("a", "b"))
    assert series.times.tolist() == [0, 1, 0, 2] and series.starts.tolist() == [0, 2, 4]
    assert series.values.tolist() == [[1, 10], [2, 20], [3, 0], [0, 40]]
    assert series.mask.tolist() == [[True, True], [True, True], [True, False], [False, True]]
    assert series.labels.tolist() == [0, 1] and not series.by_row
    assert series.values.dtype == series.times.dtype == torch.float64


def test_columns_may_have_other_names_and_any_order(tmp_path):
    text = "y,when,x,who,what\n10,0,1,a,u\n,5,3,b,v\n"
    table = read_series(write(tmp_path, text), TableLayout("who", "when", "what"))
    assert table.features == ("y", "x") and table.series.values.tolist() == [[10, 1], [0, 3]]


def test_rows_of_a_series_need_not_stand_together(tmp_path):
    lines = GOOD.splitlines(True)
    mixed = read_series(write(tmp_path, HEADER + lines[0] + lines[2] + lines[1] + lines[3]))
    whole = read_series(write(tmp_path, HEADER + GOOD))
    assert torch.equal(mixed.series.values, whole.series.values)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_endings_and_byte_order_mark_do_not_matter(tmp_path, ending, mark):
    text = mark + (HEADER + GOOD).replace("\n", ending)
    assert read_series(write(tmp_path, text)).series.labels.tolist() == [0, 1]
    assert len(read_series(write(tmp_path, text.rstrip())).series) == 2


def test_times_count_from_the_first_row_of_each_series(tmp_path):
    table = read_series(write(tmp_path, "id,time,x\na,1e9,1\na,1000000000.5,2\nb,-3,1\n"))
    assert table.series.times.tolist() == [0, 0.5, 0] and table.origins.tolist() == [1e9, -3]


@pytest.mark.parametrize("zone", ["", "Z", "+02:00"])
def test_date_times_become_hours_or_another_unit(tmp_path, zone):
    rows = [f"a,2024-02-2{8 + k}T23:59:59.5{zone},1" for k in (0, 1)]
    path = write(tmp_path, "id,time,x\n" + "\n".join(rows))
    table = read_series(path, TableLayout(unit="seconds"))
    assert table.series.times.tolist() == [0, 86_400]
    assert read_series(path).series.times.tolist() == [0, 24]


def test_one_time_point_is_a_series(tmp_path):
    series = read_series(write(tmp_path, HEADER + "a,5,1,2,u\n")).series
    assert series.times.tolist() == [0] and series.lengths.tolist() == [1]


def test_unsorted_times_are_sorted_with_a_notice(tmp_path, caplog):
    text = HEADER + "a,3,3,,u\na,1,1,,u\nb,1,1,,v\nb,2,2,,v\n"
    series = read_series(write(tmp_path, text)).series
    assert series.values[:, 0].tolist() == [1, 3, 1, 2]
    assert "sorted 1 series by time" in caplog.text


def test_rows_of_one_time_are_merged_with_a_notice(tmp_path, caplog):
    text = HEADER + "a,1,1,,u\na,1,4,8,\na,1,,,u\nb,1,7,,v\n"
    series = read_series(write(tmp_path, text)).series
    assert series.values.tolist() == [[2.5, 8], [7, 0]]
    assert series.mask.tolist() == [[True, True], [True, False]]
    assert "merged 2 rows" in caplog.text


def test_a_feature_that_is_never_observed_is_kept_with_a_notice(tmp_path, caplog):
    table = read_series(write(tmp_path, "id,time,x,y,label\na,0,1,,u\nb,0,2,NaN,v\n"))
    assert table.features == ("x", "y") and not table.series.mask[:, 1].any()
    assert "feature 'y' is never observed" in caplog.text


@pytest.mark.parametrize("missing", ["", " ", "nan", "NaN", "NAN"])
def test_nothing_and_nan_are_missing(tmp_path, missing):
    series = read_series(write(tmp_path, f"{HEADER}a,0,{missing},1,u\n")).series
    assert series.mask.tolist() == [[False, True]] and series.values.tolist() == [[0, 1]]


def test_labels_may_be_given_in_some_rows_only(tmp_path):
    text = HEADER + "a,0,1,,\na,1,1,,u\nb,0,1,,v\nb,1,1,,\nc,0,1,,\n"
    series = read_series(write(tmp_path, text)).series
    assert series.labels.tolist() == [0, 1, UNLABELLED] and not series.by_row


def test_two_labels_in_a_series_mean_one_label_per_row(tmp_path):
    text = HEADER + "a,0,1,,u\na,1,1,,v\nb,0,1,,\n"
    series = read_series(write(tmp_path, text)).series
    assert series.by_row and series.labels.tolist() == [0, 1, UNLABELLED]
    message = refusal(tmp_path / "table.csv", labels="series")
    assert message.startswith("table.csv, row 3: series 'a' has the label 'v'")


def test_one_label_per_row_can_be_requested(tmp_path):
    series = read_series(write(tmp_path, HEADER + GOOD), labels="row").series
    assert series.by_row and series.labels.tolist() == [0, 0, 1, 1]


def test_merged_rows_must_agree_on_their_label(tmp_path):
    text = HEADER + "a,0,1,,u\na,1,1,,v\na,1,2,,\n"
    series = read_series(write(tmp_path, text)).series
    assert series.labels.tolist() == [0, 1]
    message = refusal(write(tmp_path, text + "a,1,5,,u\n"))
    assert message.startswith("table.csv, row 5: has the label 'u', but another row of the same")


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ("10 9 -1", ("-1", "9", "10")),
        ("1.0 0.0 2.0", ("0", "1", "2")),
        ("0.5 1e-3 2", ("1e-3", "0.5", "2")),
        ("b10 b9 a", ("a", "b10", "b9")),
        ("1 x 0", ("0", "1", "x")),
    ],
)
def test_classes_come_in_the_order_of_numbers_or_letters(tmp_path, labels, classes):
    rows = [f"{k},0,1,2,{label}\n" for k, label in enumerate(labels.split())]
    table = read_series(write(tmp_path, HEADER + "".join(rows)))
    assert table.classes == classes
    names = [table.classes[label] for label in table.series.labels]
    assert [float(n) if n[0] not in "abx" else n for n in names] == [
        float(n) if n[0] not in "abx" else n for n in labels.split()
    ]


def test_known_features_and_classes_fix_the_order(tmp_path):
    path = write(tmp_path, HEADER + GOOD)
    table = read_series(path, features=("y", "x"), classes=("w", "v", "u"))
    assert table.features == ("y", "x") and table.classes == ("w", "v", "u")
    assert table.series.values[0].tolist() == [10, 1] and table.series.labels.tolist() == [2, 1]


def test_without_a_label_column_nothing_is_labelled(tmp_path):
    table = read_series(write(tmp_path, "id,time,x\na,0,1\nb,0,2\n"), classes=("u", "v"))
    assert table.series.labels.tolist() == [UNLABELLED] * 2 and table.classes == ("u", "v")


def test_unknown_names_are_answered_with_the_nearest(tmp_path):
    path = write(tmp_path, HEADER + GOOD)
    message = refusal(path, features=("x", "yy"))
    assert "lacks the feature 'yy'" in message and "nearest: 'y'" in message
    assert "the feature 'y' is unknown" in refusal(path, features=("x",))
    message = refusal(path, classes=("u", "w"))
    assert message.startswith("table.csv, row 4: the label 'v' is unknown") and "'w'" in message


FAULTS = {
    "empty file": ("", "table.csv: is empty"),
    "only empty lines": ("\n\n", "table.csv: is empty"),
    "no rows": (HEADER, "table.csv: holds no rows"),
    "no time column": ("id,tiem,x\na,0,1\n", "table.csv: has no column 'time' with times"),
    "no id column": ("who,time,x\na,0,1\n", "table.csv: has no column 'id' with the names"),
    "title above": ("My study\nid,time,x\na,0,1\n", "table.csv, row 2: has 3 cells instead of 1"),
    "blanks": ("id time x\na 0 1\n", "table.csv: has a single column, 'id time x'"),
    "no such day": ("id,time,x\na,2024-02-30,1\n", "table.csv, row 2, column 'time': '2024-02-30'"),
    "no feature": ("id,time,label\na,0,u\n", "table.csv: has no feature"),
    "column twice": ("id,time,x,x\na,0,1,1\n", "table.csv, row 1: has the column 'x' twice"),
    "nameless column": (",id,time,x\n5,a,0,1\n", "table.csv, row 1: column 1 has no name"),
    "text": (HEADER + GOOD + "b,3,high,1,v\n", "table.csv, row 6, column 'x': 'high' is no"),
    "digit groups": (HEADER + GOOD + "b,3,1_0,1,v\n", "table.csv, row 6, column 'x': '1_0' is"),
    "infinite": (HEADER + GOOD + "b,3,1,-inf,v\n", "table.csv, row 6, column 'y': -inf is inf"),
    "overflow": (HEADER + GOOD + "b,3,1e999,1,v\n", "table.csv, row 6, column 'x': inf is inf"),
    "too large": (HEADER + GOOD + "b,3,1e39,1,v\n", "table.csv, row 6, column 'x': 1e+39 is"),
    "few cells": (HEADER + "a,0,1\n" + GOOD, "table.csv, row 2: has 3 cells instead of 5"),
    "many cells": (HEADER + "a,0,1,2,3,4\n" + GOOD, "table.csv, row 2: has 6 cells instead of 5"),
    "cut off": (HEADER + GOOD + "b,3", "table.csv, row 6: has 2 cells instead of 5: the last"),
    "open quote": (HEADER + GOOD + 'b,3,"1', "table.csv, row 6: the file is cut off inside"),
    "no time": (HEADER + GOOD + "b,,1,2,v\n", "table.csv, row 6, column 'time': holds no time"),
    "endless time": (HEADER + GOOD + "b,inf,1,2,v\n", "table.csv, row 6, column 'time': holds no"),
    "time as text": (HEADER + GOOD + "b,now,1,2,v\n", "table.csv, row 6, column 'time': 'now' is"),
    "mixed times": (HEADER + GOOD + "b,2024-01-01,1,2,v\n", "table.csv, row 6, column 'time': "),
    "clock alone": ("id,time,x\na,08:30,1\na,09:30,1\n", "table.csv, row 2, column 'time': '08:"),
    "far times": (HEADER + "a,-1e308,1,1,u\na,1e308,1,1,u\n", "table.csv, row 3: its time is too"),
    "nameless series": (HEADER + GOOD + ",3,1,1,v\n", "table.csv, row 6, column 'id': names no"),
    "damaged utf-8": (
        (HEADER + "Zo\u00eb,0,1,1,u\n").encode() + b"b\xe9,0,1,1,u\n",
        "table.csv, row 3: is not UTF-8",
    ),
    "zero bytes": (HEADER + "a,0,1,1,\0\n", "table.csv: holds zero bytes"),
    "stray quote": (HEADER + 'a,0,"1"2,1,u\n', "table.csv, row 2: is malformed"),
    "huge cell": (HEADER + f"a,0,{'1' * 200_000},1,u\n", "table.csv, row 2, column 'x': inf is"),
    "huge word": (HEADER + f"a,0,1,1,u\nb,0,{'z' * 200_000},1,u\n", "table.csv, row 3, column 'x'"),
    "huge quotation": (HEADER + f'a,0,"{"1" * 200_000}",1,u\n', "table.csv, row 2: is malformed"),
    "many labels": (
        HEADER + "".join(f"{k},0,1,1,{k}\n" for k in range(1001)),
        "table.csv: holds more than 1,000 different labels",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_named_by_file_row_and_column(tmp_path, case):
    text, message = FAULTS[case]
    assert refusal(write(tmp_path, text)).startswith(message)


def test_empty_lines_and_quoted_lines_do_not_shift_row_numbers(tmp_path):
    text = HEADER + '\na,0,1,1,"two\nlines"\n\nb,0,bad,1,u\n'
    assert refusal(write(tmp_path, text)).startswith("table.csv, row 6, column 'x'")


def test_what_is_no_regular_file_is_refused(tmp_path):
    assert "is missing or not a file" in refusal(tmp_path / "nowhere.csv")
    assert "is missing or not a file" in refusal(Path("/dev/zero"))
    assert "is missing or not a file" in refusal(tmp_path / "nowhere.parquet")


def test_a_file_of_absurd_size_is_refused_unread(tmp_path):
    path = write(tmp_path, HEADER)
    with open(path, "r+b") as file:
        file.truncate(1 << 40)  # sparse, so that it takes no room
    assert "has 1024.0 GB, more than 1" in refusal(path)


@pytest.mark.parametrize("name", ["table.csv.gz", "table.TSV.GZ", "table.txt", "table.csv"])
def test_a_gzipped_table_is_read_as_if_it_were_unpacked(tmp_path, name):
    text = HEADER + GOOD
    text = text.replace(",", "\t") if "TSV" in name else text
    table = read_series(write(tmp_path, gzip.compress(text.encode()), name))
    assert table.series.ids == ("a", "b") and table.features == ("x", "y")
    broken = gzip.compress(text.encode())[:-9]
    assert "is damaged" in refusal(write(tmp_path, broken, name))


def test_a_table_that_unpacks_to_an_absurd_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(table_file, "_LIMIT", 1 << 20)
    path = write(tmp_path, gzip.compress(b"0" * (2 << 20)), "table.csv.gz")
    assert "unpacks to more than" in refusal(path)


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"labels": "rows"}, "labels"), ({"layout": TableLayout("id", "id")}, "columns")],
)
def test_a_setting_out_of_range_is_named(tmp_path, settings, name):
    with pytest.raises(ConfigError, match=rf"^{name}: "):
        read_series(tmp_path / "x.csv", **settings)


# A folder with a table for each series.


def test_a_folder_holds_a_table_for_each_series(tmp_path):
    write(tmp_path, "time,x,y,label\n0,1,10,u\n1,2,20,u\n", "a.csv")
    write(tmp_path, gzip.compress(b"y,time,x,label\n,0,3,v\n40,2,,v\n"), "b.csv.gz")
    write(tmp_path, "not a table", "notes.txt")
    write(tmp_path, "hidden", ".b.csv")
    folder, table = read_series(tmp_path), read_series(write(tmp_path / "t", HEADER + GOOD))
    assert (folder.features, folder.classes) == (table.features, table.classes)
    assert folder.series.ids == table.series.ids
    for name in ("times", "values", "mask", "labels", "starts"):
        assert torch.equal(getattr(folder.series, name), getattr(table.series, name))


def test_labels_may_lie_beside_the_tables(tmp_path, caplog):
    for name in "abc":
        write(tmp_path, "time,x\n0,1\n1,2\n", f"{name}.csv")
    write(tmp_path, "id,label\nb,v\na,u\nz,w\n", "labels.csv")
    series = read_series(tmp_path).series
    assert series.ids == ("a", "b", "c") and series.labels.tolist() == [0, 1, UNLABELLED]
    assert "1 labelled series have no file, first 'z'" in caplog.text
    write(tmp_path, "id,label\nb,v\nb,u\n", "labels.csv")
    assert refusal(tmp_path).endswith("has another label above. Fix: keep one of them")


def test_what_is_beside_the_tables_of_a_folder_is_said(tmp_path, caplog):
    for name in ("a.csv", "later/b.csv", "notes.txt", ".c.csv"):
        write(tmp_path, "time,x\n0,1\n1,2\n", name)
    assert read_series(tmp_path).series.ids == ("a",)
    assert caplog.messages[0] == (
        f"{tmp_path}: left out 1 hidden file or folder (.c.csv), "
        "1 table in a nested folder (later/b.csv), 1 file of another kind (notes.txt)"
    )


FOLDER_FAULTS = {
    "no tables": ({"x.txt": "x"}, "holds no tables. Fix: name a folder with tables in it (.csv, "),
    "labels alone": ({"labels.csv": "id,label\na,u\n"}, "holds no tables of series beside labels"),
    "empty series": ({"a.csv": "time,x\n0,1\n", "b.csv": "time,x\n"}, "b.csv: holds no rows"),
    "empty file": ({"a.csv": "time,x\n0,1\n", "b.csv": ""}, "b.csv: is empty"),
    "other feature": (
        {"a.csv": "time,heart\n0,1\n", "b.csv": "time,hart\n0,1\n"},
        "b.csv: lacks the feature 'heart'. Fix: add or rename a column; nearest: 'hart'",
    ),
    "label in some": (
        {"a.csv": "time,x,label\n0,1,u\n", "b.csv": "time,x\n0,1\n"},
        "b.csv: differs from other files in the column 'label'",
    ),
    "labels twice": (
        {"a.csv": "time,x,label\n0,1,u\n", "labels.csv": "id,label\na,u\n"},
        "a.csv: has a column 'label' beside labels.csv",
    ),
    "no label column": ({"a.csv": "time,x\n0,1\n", "labels.csv": "id,l\na,u\n"}, "labels.csv: has"),
    "series twice": ({"a.csv": "time,x\n0,1\n", "a.pq": ""}, "both hold series 'a'"),
    "bad cell": ({"a.csv": "time,x\n0,1\n", "b.csv": "time,x\n0,!\n"}, "b.csv, row 2, column 'x'"),
    "two clocks": (
        {"a.csv": "time,x\n0,1\n", "b.csv": "time,x\n2024-01-01,1\n"},
        "b.csv, row 2, column 'time'",
    ),
}


@pytest.mark.parametrize("case", FOLDER_FAULTS)
def test_a_fault_in_a_folder_names_the_file(tmp_path, case):
    files, message = FOLDER_FAULTS[case]
    for name, text in files.items():
        write(tmp_path / "set", text, name)
    assert message in refusal(tmp_path / "set")


def test_a_conflict_in_a_folder_names_file_and_row(tmp_path):
    write(tmp_path, "time,x,label\n0,1,u\n", "a.csv")
    write(tmp_path, "time,x,label\n0,1,u\n1,1,v\n", "b.csv")
    with pytest.raises(DataError, match=r"b\.csv, row 3: series 'b' has the label 'v'"):
        read_series(tmp_path, labels="series")


# Parquet.


def parquet(path: Path, columns: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(columns, strict=False).write_parquet(path)
    return path


def test_parquet_gives_the_same_as_text(tmp_path):
    columns = {
        "id": ["a", "a", "b", "b"],
        "time": [0, 1, 0, 2],
        "x": [1.0, 2.0, 3.0, None],
        "y": [10, 20, None, 40],
        "label": ["u", "u", "v", "v"],
    }
    binary = read_series(parquet(tmp_path / "t.parquet", columns))
    text = read_series(write(tmp_path, HEADER + GOOD))
    assert binary.features == text.features and binary.classes == text.classes
    for name in ("times", "values", "mask", "labels", "starts"):
        assert torch.equal(getattr(binary.series, name), getattr(text.series, name))


def test_parquet_keeps_long_numbers_as_names_and_reads_date_times(tmp_path):
    big = 2**60
    columns = {
        "id": [big, big, big + 1],
        "time": pl.Series([0, 1_500_000, 7]).cast(pl.Datetime("us", "UTC")),
        "x": pl.Series([1, None, 3], dtype=pl.Int8),
        "kind": pl.Series(["1", "1", "2"], dtype=pl.Categorical),
        "label": [1.0, None, 0.0],
    }
    path = parquet(tmp_path / "t.pq", columns)
    table = read_series(path, TableLayout(unit="seconds"))
    assert table.series.ids == (str(big), str(big + 1)) and table.classes == ("0", "1")
    assert table.series.times.tolist() == [0, 1.5, 0] and table.features == ("x", "kind")
    assert table.series.values.tolist() == [[1, 1], [0, 1], [3, 2]]
    assert table.time_in_file(1, 0) == "1970-01-01T00:00:01.500000"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": ["a"], "time": [0], "x": [[1]]}, "column 'x': holds List"),
        ({"id": ["a"], "time": [0], "x": [float("inf")]}, "row 1, column 'x': inf is infinite"),
        ({"id": [1, 1], "time": [0, 1], "x": ["3", "high"]}, "row 2, column 'x': 'high' is no"),
        ({"id": ["a"], "time": [None], "x": [1]}, "row 1, column 'time': holds no time"),
        ({"id": [None], "time": [1], "x": [1]}, "row 1, column 'id': names no series"),
        ({"id": [], "time": [], "x": []}, "holds no rows"),
    ],
)
def test_a_fault_in_parquet_is_named(tmp_path, columns, message):
    assert message in refusal(parquet(tmp_path / "t.parquet", columns))


def test_damaged_parquet_is_refused(tmp_path):
    good = parquet(tmp_path / "t.parquet", {"id": ["a"], "time": [0], "x": [1]}).read_bytes()
    for bad in (b"", b"PAR1", good[:-5], good[: len(good) // 2], b"\0" * 100):
        assert "t.parquet: is damaged" in refusal(write(tmp_path, bad, "t.parquet"))


@pytest.mark.parametrize("name", ["polars", "fastexcel"])
def test_a_missing_package_is_named_with_its_remedy(tmp_path, monkeypatch, name):
    path = write(tmp_path, "", "t.xlsx")
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"needs {name}, which is missing.*'bfno\[train\]'"):
        read_series(path)


# Excel.


def workbook(path: Path, cells: dict[str, object]) -> Path:
    """A sheet with these cells; formulas and errors as `=...`."""
    with xlsxwriter.Workbook(path) as book:
        sheet = book.add_worksheet()
        for place, cell in cells.items():
            sheet.write(place, cell)
    return path


def test_the_rows_of_a_sheet_are_counted_as_excel_does(tmp_path):
    head = {"B3": "id", "C3": "time", "D3": "x", "B4": "a", "C4": 0, "D4": 1}
    message = refusal(workbook(tmp_path / "t.xlsx", {**head, "B7": "a", "C7": 1, "D7": "high"}))
    assert message.startswith("t.xlsx, row 7, column 'x': 'high' is not a number")


def test_a_sheet_without_cells_is_refused(tmp_path):
    assert "is empty" in refusal(workbook(tmp_path / "t.xlsx", {}))


def test_a_sheet_of_absurd_size_is_refused_unread(tmp_path):
    path = workbook(tmp_path / "t.xlsx", {"A1": "id", "XFD1048576": 1})
    assert "declares 1,048,576 rows of 16,384 columns" in refusal(path)


def test_damaged_excel_is_refused(tmp_path):
    good = workbook(tmp_path / "t.xlsx", {"A1": "id"}).read_bytes()
    for bad in (b"", b"PK", good[:-30], good[: len(good) // 2], b"id,time,x\na,0,1\n"):
        assert "t.xlsx: is damaged" in refusal(write(tmp_path, bad, "t.xlsx"))


@pytest.mark.parametrize("kind", ["durations", "times of day"])
def test_clocks_without_a_date_are_refused_as_times_and_left_out_by_their_name(
    tmp_path, caplog, kind
):
    spans = [timedelta(hours=1), timedelta(hours=2, minutes=30), timedelta(hours=1)]
    days = [time(1), time(2, 30), time(1)]
    spans = spans if kind == "durations" else days
    columns = {"id": ["a", "a", "b"], "time": spans, "x": [1.0, 2.0, 3.0]}
    text = refusal(parquet(tmp_path / "t.parquet", columns))
    assert text.startswith(f"t.parquet, column 'time': holds {kind}, neither numbers nor dates")
    beside = {**columns, "time": [0.0, 1.0, 2.0], "gap": spans}
    read_series(parquet(tmp_path / "beside.parquet", beside))
    assert f"left out 'gap' (holds {kind})" in caplog.text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_a_byte_order_mark_is_no_part_of_a_name_where_the_encoding_is_given(tmp_path, encoding):
    path = tmp_path / "t.csv"
    path.write_bytes("\ufeffid,time,x\na,0,1\na,1,2\n".encode(encoding))
    table = read_series(path, TableLayout(file=FileFormat(encoding=encoding)))
    assert table.layout.id == "id"


def test_dates_of_parquet_are_refused_where_times_are_numbers(tmp_path):
    days = [date(2024, 1, 1), date(2024, 1, 3), date(2024, 1, 1)]
    path = parquet(tmp_path / "t.parquet", {"id": ["a", "a", "b"], "time": days, "x": [1, 2, 3]})
    text = refusal(path, layout=TableLayout(dates="numbers"))
    assert text.endswith("column 'time': holds dates, but times are numbers. Fix: write numbers")
