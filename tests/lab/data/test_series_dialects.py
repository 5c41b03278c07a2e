"""The same table in every dialect reads to the same series, and a note says what was understood."""

import json
from dataclasses import replace

import polars as pl
import pytest
import torch

from bfno.lab.data import FileFormat, SeriesTable, TableLayout, read_series
from bfno.lab.errors import DataError
from tests.lab.data.dialects import (
    FEATURES,
    NAMES,
    PATIENTS,
    Dialect,
    assert_equal,
    cells_of,
    patients,
    write_excel,
    write_folder,
    write_parquet,
    write_text,
)

GERMAN = Dialect(separator=";", decimal=",", encoding="cp1252", date="%d.%m.%Y", ending="\r\n")
DIALECTS = {
    "plain": Dialect(),
    "semicolons": Dialect(separator=";"),
    "tabs": Dialect(separator="\t"),
    "bars": Dialect(separator="|"),
    "decimal comma": Dialect(separator=";", decimal=","),
    "decimal comma in quotation marks": Dialect(decimal=",", quoted=True),
    "tabs and decimal comma": Dialect(separator="\t", decimal=","),
    "byte order mark": Dialect(encoding="utf-8-sig"),
    "Latin-1": Dialect(encoding="latin-1"),
    "Windows-1252": Dialect(encoding="cp1252", ending="\r\n"),
    "UTF-16": Dialect(encoding="utf-16", separator="\t"),
    "UTF-16 without mark": Dialect(encoding="utf-16-be"),
    **{
        f"{word!r} missing": Dialect(missing=word)
        for word in ("NA", "N/A", "#N/A", "null", "None", "nan", "NaN", "-", "?", ".", " ")
    },
    "'-' missing, decimal comma": Dialect(separator=";", decimal=",", missing="-"),
    "day.month.year": Dialect(date="%d.%m.%Y"),
    "day.month.two digits": Dialect(date="%d.%m.%y"),
    "day/month/year": Dialect(date="%d/%m/%Y"),
    "month/day/year": Dialect(date="%m/%d/%Y"),
    "month/day/two digits": Dialect(date="%m/%d/%y"),
    "day-month-year": Dialect(date="%d-%m-%Y"),
    "year/month/day": Dialect(date="%Y/%m/%d"),
    "digits": Dialect(date="%Y%m%d"),
    "day Month year": Dialect(date="%d %b %Y"),
    "day-MONTH-year": Dialect(date="%d-%B-%y"),
    "Month day, year": Dialect(date="%B %d, %Y"),
    "numbers": Dialect(date=None),
    "true and false": Dialect(booleans=("False", "TRUE")),
    "no and yes": Dialect(booleans=("no", "yes")),
    "n and y": Dialect(booleans=("N", "Y")),
    "quoted": Dialect(quoted=True, ending="\r\n"),
    "other names": Dialect(
        names=("Subject", "hours", "pulse", "temp", "age", "sex", "smoker", "class"), date=None
    ),
    "German": GERMAN,
}
CLOCKS = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%MZ", "%Y-%m-%d %H:%M:%S.%f+00:00")
CLOCKS += ("%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M %p", "%d/%m/%Y, %H:%M:%S", "%d %b %Y %H:%M")


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_reads_to_the_same_series(tmp_path, name):
    table = read_series(write_text(tmp_path / "t.csv", DIALECTS[name]))
    assert table.features == FEATURES
    assert_equal(table)


@pytest.mark.parametrize("date", CLOCKS)
def test_every_format_of_date_and_time_reads_to_the_same_hours(tmp_path, date):
    table = read_series(write_text(tmp_path / "t.csv", Dialect(date=date, clock=True)))
    assert table.layout.unit == "hours"
    assert_equal(table, clock=True)


@pytest.mark.parametrize("clock", [False, True])
@pytest.mark.parametrize("above", [0, 2])
def test_excel_reads_to_the_same_series(tmp_path, clock, above):
    table = read_series(write_excel(tmp_path / "t.xlsx", clock, above=above))
    assert table.features == FEATURES
    assert_equal(table, clock)


def test_excel_with_numbers_as_text_reads_to_the_same_series(tmp_path):
    assert_equal(read_series(write_excel(tmp_path / "t.xlsx", as_text=True)))


def test_parquet_reads_to_the_same_series(tmp_path):
    assert_equal(read_series(write_parquet(tmp_path / "t.parquet")))


@pytest.mark.parametrize("statics_beside", [False, True])
@pytest.mark.parametrize("dialect", [Dialect(), GERMAN], ids=["plain", "German"])
def test_a_folder_reads_to_the_same_series(tmp_path, dialect, statics_beside):
    table = read_series(write_folder(tmp_path / "t", dialect, statics_beside=statics_beside))
    order = sorted(range(PATIENTS), key=lambda number: f"Zoë {number}")
    whole = read_series(write_text(tmp_path / "t.csv", Dialect()))
    again = whole.series.take(torch.tensor(order))
    assert table.features == FEATURES and table.series.ids == again.ids
    for name in ("times", "values", "mask", "labels", "starts"):
        assert torch.equal(getattr(table.series, name), getattr(again, name)), name


def note(caplog, path, *given, **settings) -> str:
    """What reading the file says last."""
    caplog.clear()
    read_series(path, *given, **settings)
    return caplog.messages[-1]


def test_one_line_says_what_was_understood(tmp_path, caplog):
    missing = sum(cell is None for row in patients() for cell in row)
    assert note(caplog, write_text(tmp_path / "p.csv", replace(GERMAN, missing="NA"))) == (
        "p.csv: 60 series, 236 rows; id 'patient_id', time 'date' (dates, in days from each "
        "series' first), label 'outcome' (2 classes, one per series), 6 features (sex one-hot; "
        f"static: age, sex, smoker), ';', Windows-1252, decimal comma, missing: 'NA' ({missing})"
    )
    line = note(caplog, write_excel(tmp_path / "p.xlsx", above=1))
    assert "sheet 'Patienten', the first of 2" in line and "decimal" not in line
    line = note(caplog, write_text(tmp_path / "p.csv", Dialect(date="%m/%d/%Y")))
    assert "(dates, month first, in days from" in line
    assert "\n" not in line and "','" not in line


def write(path, text: str):
    path.write_text(text)
    return path


FEW = "id;time;x;label\na;{};{};u\na;{};{};u\nb;{};{};v\n"


def few(path, times: str, values: str = "1 2 3"):
    """Three rows with these times and values."""
    cells = [cell for pair in zip(times.split(","), values.split(), strict=True) for cell in pair]
    return write(path, FEW.format(*cells))


AMBIGUOUS = {
    "day or month": (
        "03/04/2024,05/06/2024,07/08/2024",
        "1 2 3",
        "with the month. Fix: say --set data.dates=day-first or --set data.dates=month-first",
    ),
    "day or year": (
        "10/4/24,13/4/24,15/4/24",
        "1 2 3",
        "row 3, column 'time': '13/4/24' may begin with the day or with the year. "
        "Fix: say --set data.dates=day-first, or write all four digits",
    ),
    "both orders": ("13/04/2024,05/16/2024,07/08/2024", "1 2 3", "row 3, column 'time': '05/16"),
    "decimals or thousands": ("0,1,2", "1,234 2,500 3,125", "data.decimal=comma"),
    "two marks": ("0,1,2", "1,5 2.5 3", "use one of them"),
    "thousands or two marks": (
        "0,1,2",
        "1,063 35.62 3",
        "if '1,063' is 1063, say --set data.decimal=point",
    ),
}


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_what_is_ambiguous_is_refused_with_the_setting_that_decides(tmp_path, case):
    times, values, fix = AMBIGUOUS[case]
    with pytest.raises(DataError) as caught:
        read_series(few(tmp_path / "t.csv", times, values))
    assert fix in str(caught.value) and "\n" not in str(caught.value)


def test_settings_decide_what_is_ambiguous(tmp_path):
    path = few(tmp_path / "t.csv", "03/04/2024,05/04/2024,07/08/2024")
    assert read_series(path, TableLayout(dates="day-first")).series.times.tolist() == [0, 2, 0]
    assert read_series(path, TableLayout(dates="month-first")).series.times.tolist() == [0, 61, 0]
    path = few(tmp_path / "t.csv", "20240131,20240201,20240101")
    assert read_series(path).series.times.tolist() == [0, 1, 0]
    assert read_series(path, TableLayout(dates="numbers")).series.times.tolist() == [0, 70, 0]
    path = few(tmp_path / "t.csv", "0,1,2", "1,234 2,500 3,125")
    values = read_series(path, TableLayout(decimal="comma")).series.values
    assert values.flatten().tolist() == pytest.approx([1.234, 2.5, 3.125])


def test_a_year_that_can_be_no_day_tells_the_order(tmp_path):
    path = few(tmp_path / "t.csv", "13/04/85,14/04/85,15/04/85")
    assert read_series(path).series.times.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("values", "decimal", "read"),
    [
        ("1,063 35.62 3", "point", [1063, 35.62, 3]),
        ("1.063 35,62 3", "comma", [1063, 35.62, 3]),
        ("1,063.5 35 2,000", None, [1063.5, 35, 2000]),
        ("1.063,5 35 2.000", None, [1063.5, 35, 2000]),
    ],
)
def test_thousands_may_be_apart(tmp_path, caplog, values, decimal, read):
    path = few(tmp_path / "t.csv", "0,1,2", values)
    found = read_series(path, TableLayout(decimal=decimal)).series.values.flatten().tolist()
    assert found == pytest.approx(read) and "between thousands" in caplog.messages[-1]


@pytest.mark.parametrize("decimal", ["point", "comma"])
def test_cells_that_are_no_groups_are_not_taken_for_thousands(tmp_path, decimal):
    path = few(tmp_path / "t.csv", "0,1,2", "1,06 35.62 3")
    with pytest.raises(DataError, match="is not a number"):
        read_series(path, TableLayout(decimal=decimal))


def test_settings_overrule_what_would_be_found(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("id|time|x|ward|note|label\na|0|1|7|łódź|u\nb|0|-999|8|?|v\n".encode("cp1250"))
    file = FileFormat(separator="bar", encoding="cp1250")
    layout = TableLayout(missing=("-999",), categorical=("ward",), ignore=("x",), file=file)
    table = read_series(path, layout)
    assert table.features == ("ward=7", "ward=8", "note=?", "note=łódź")
    table = read_series(path, replace(layout, ignore=("note",)))
    assert table.features == ("x", "ward=7", "ward=8") and not table.series.mask[1, 0]


@pytest.mark.parametrize("sheet", ["Patienten", "Nowhere"])
def test_a_sheet_may_be_named(tmp_path, sheet):
    path = write_excel(tmp_path / "t.xlsx", above=1)
    layout = TableLayout(file=FileFormat(sheet=sheet))
    if sheet == "Patienten":
        return assert_equal(read_series(path, layout))
    with pytest.raises(DataError, match=r"has no sheet 'Nowhere'.*Patienten, Notes"):
        read_series(path, layout)


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        ("ID,Time,x,Label", ("ID", "Time", "Label")),
        ("Patient No.,time (h),x,target", ("Patient No.", "time (h)", "target")),
        ("id,t,x,class", ("id", "t", "class")),
        ("subject_id,timestamp,hour,outcome", ("subject_id", "timestamp", "outcome")),
        ("id,time,date,label", ("id", "time", "label")),
    ],
)
def test_columns_are_found_by_common_names(tmp_path, names, taken):
    table = read_series(write(tmp_path / "t.csv", f"{names}\n1,0,5,u\n1,1,5,u\n2,0,6,v\n"))
    assert (table.layout.id, table.layout.time, table.layout.label) == taken
    assert len(table.features) == 1 and table.classes == ("u", "v")


@pytest.mark.parametrize(
    ("names", "named", "fix"),
    [
        ("patient,subject,time", "'patient' or 'subject'", "'[patient, time, label]'"),
        ("id,date,timestamp", "'date' or 'timestamp'", "'[id, date, label]'"),
        ("id,patient,time", "'id' differs in every row", "'[patient, time, label]'"),
        ("nr,when,time", "no column 'id'", "'[NAME, time, label]'; nearest: "),
    ],
)
def test_columns_that_may_be_meant_are_asked_for(tmp_path, names, named, fix):
    with pytest.raises(DataError) as caught:
        read_series(write(tmp_path / "t.csv", f"{names},x\n1,5,0,1\n2,5,1,2\n"))
    assert named in str(caught.value) and f"--set data.columns={fix}" in str(caught.value)


def test_a_date_and_a_time_of_day_are_put_together(tmp_path):
    text = "id,Date,Time,x\na,31.12.2024,23:00,1\na,01.01.2025,01:30,2\n"
    table = read_series(write(tmp_path / "t.csv", text))
    assert table.series.times.tolist() == [0, 2.5] and table.layout.time == "date time"
    assert table.time_in_file(1, 0) == "2025-01-01T01:30:00"


def test_words_beyond_the_limit_and_dates_are_left_out_and_named(tmp_path, caplog):
    rows = [f"{k},0,{k},word {k},2024-01-{k + 1:02},u" for k in range(21)]
    path = write(tmp_path / "t.csv", "\n".join(["id,time,x,note,born,label", *rows]))
    line = note(caplog, path)
    assert line.endswith(
        "left out 'note' (21 different words, over 20), left out 'born' (holds dates)"
    )
    assert len(read_series(path, TableLayout(most_categories=21)).features) == 22


def test_rows_and_columns_without_cells_are_passed_over(tmp_path):
    text = "id;time;x;;\n;;;;\na;0;1;;\n;;;;\na;1;oops;;\n;;;;\n"
    table = read_series(write(tmp_path / "t.csv", text.replace("oops", "2")))
    assert table.features == ("x",) and table.series.times.tolist() == [0, 1]
    with pytest.raises(DataError, match=r"row 5, column 'x': 'oops'"):
        read_series(write(tmp_path / "t.csv", text))


def test_the_row_numbers_of_pandas_are_passed_over(tmp_path):
    table = read_series(write(tmp_path / "t.csv", ",id,time,x\n0,a,0,1\n1,a,1,2\n"))
    assert table.features == ("x",)


def test_quotation_marks_within_cells_are_cells(tmp_path):
    text = 'id,time,size,label\na,0,5\'10",u\nb,0,"6, or 7",v\n'
    table = read_series(write(tmp_path / "t.csv", text))
    assert table.features == ("size=5'10\"", "size=6, or 7")


@pytest.mark.parametrize("rows", ["1,0,a,5,7\n1,1,a\n", "1,0,a\n2,0,a,5,6\n"])
def test_rows_whose_lengths_make_up_for_each_other_are_refused(tmp_path, rows):
    with pytest.raises(DataError, match=r"row 2: has \d cells instead of 4"):
        read_series(write(tmp_path / "t.csv", f"id,time,label,x\n{rows}2,0,b,4\n"))


def test_numbers_for_missing_values_are_compared_as_numbers(tmp_path, caplog):
    text = "id;time;x;label\na;0;1,5;u\na;1;-999,0;u\na;2;-999;u\nb;0;-9.99e2;-999.0\n"
    numbers = pl.DataFrame(
        {
            "id": ["a", "a", "a", "b"],
            "time": [0, 1, 2, 0],
            "x": [1.5, -999, -999, -999],
            "label": [1, 1, 1, -999],
        }
    )
    layout = TableLayout(missing=("-999",))
    numbers.write_parquet(tmp_path / "t.parquet")
    numbers.cast({"x": pl.Float32}).write_parquet(tmp_path / "f.parquet")
    numbers.write_excel(tmp_path / "t.xlsx")
    paths = [write(tmp_path / "t.csv", text.replace(",", ".")), tmp_path / "f.parquet"]
    paths += [write(tmp_path / "c.csv", text.replace("-9.99e2", "-9,99e2"))]
    for path in [*paths, tmp_path / "t.parquet", tmp_path / "t.xlsx"]:
        table = read_series(path, layout)
        assert table.series.mask.flatten().tolist() == [True, False, False, False], path
        assert len(table.classes) == 1 and table.series.labels.tolist() == [0, -1], path
        assert "missing: '-9" in caplog.messages[-1], path
    assert "missing: '-999' (1), '-999.0' (3)" in note(caplog, tmp_path / "t.parquet", layout)
    single = numbers.with_columns(pl.Series("x", [1.5, -99.9, 2, 3], pl.Float32))
    single.write_parquet(tmp_path / "f.parquet")
    table = read_series(tmp_path / "f.parquet", TableLayout(missing=("-99.9",)))
    assert table.series.mask.flatten().tolist() == [True, False, True, True]


def test_labels_of_another_format_may_hold_numbers(tmp_path):
    folder = tmp_path / "t"
    folder.mkdir()
    for name in "ab":
        write(folder / f"{name}.csv", "time;x\n0;1,5\n1;2,5\n")
    beside = pl.DataFrame({"id": ["a", "b"], "age": [61.0, 38.5], "label": ["u", "v"]})
    beside.write_parquet(folder / "labels.parquet")
    table = read_series(folder)
    assert table.features == ("x", "age")
    assert table.series.values.tolist() == [[1.5, 61], [2.5, 61], [1.5, 38.5], [2.5, 38.5]]


def test_points_are_day_first_beside_slashes_unless_an_order_is_given(tmp_path):
    path = few(tmp_path / "t.csv", "04/01/2024,03.04.2024,12/31/2024")
    found = read_series(path)
    assert found.series.times.tolist() == [0, 2, 0]
    given = read_series(path, TableLayout(dates="month-first"))
    assert given.series.times.tolist() == [0, 28, 0]  # 4 March comes before 1 April
    dotted = few(tmp_path / "p.csv", "03.04.2024,04.04.2024,05.04.2024")
    assert read_like(found, dotted).series.times.tolist() == [0, 1, 0]
    assert read_like(given, dotted).series.times.tolist() == [0, 31, 0]


@pytest.mark.parametrize(
    ("layout", "times"),
    [(TableLayout(time="Date"), [0, 1]), (TableLayout(ignore=("Time",)), [0, 1])],
)
def test_a_date_and_a_time_of_day_stay_apart_if_the_user_says_so(tmp_path, layout, times):
    text = "id,Date,Time,x\na,31.12.2024,23:00,1\na,01.01.2025,01:30,2\n"
    table = read_series(write(tmp_path / "t.csv", text), layout)
    assert table.series.times.tolist() == times and table.layout.time == "Date"


# Units and labels.


def rows_of(path, *values: str, column: str = "x"):
    """A table of one series per value."""
    rows = (f"s{k};0;{value};{'uv'[k % 2]}\n" for k, value in enumerate(values))
    return write(path, f"id;time;{column};label\n" + "".join(rows))


@pytest.mark.parametrize(
    ("values", "unit", "read"),
    [
        (("37.2 °C", "36.9 °C", "-", "38°C"), "°C", [37.2, 36.9, 0, 38]),
        (("37,2 °C", "36,9 °C", "38 °C"), "°C", [37.2, 36.9, 38]),
        (("80 kg", "7.5e1 kg", "90kg"), "kg", [80, 75, 90]),
        (("12%", "9 %", "NA"), "%", [12, 9, 0]),
        (("61/min", "70 /min"), "/min", [61, 70]),
        (("5 apples", "6 apples"), "apples", [5, 6]),
    ],
)
def test_numbers_with_one_unit_are_numbers_and_the_note_says_so(
    tmp_path, caplog, values, unit, read
):
    table = read_series(rows_of(tmp_path / "t.csv", *values))
    assert table.features == ("x",) and f"1 feature (x in {unit})" in caplog.messages[-1]
    assert table.series.values.flatten().tolist() == pytest.approx(read)
    assert table.layout.units == {"x": unit}


def test_times_may_have_a_unit(tmp_path, caplog):
    table = read_series(write(tmp_path / "t.csv", "id,time,x\na,0 h,1\na,1.5 h,2\n"))
    assert table.series.times.tolist() == [0, 1.5] and "time 'time' (in h)" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (("80 kg", "75 kg", "150 lb"), "row 4, column 'x': '150 lb' is in 'lb', but other cells"),
        (("80 kg", "75 kg", "90"), "row 4, column 'x': '90' has no unit, but other cells have"),
        (("5 mg", "<5 mg", "7 mg"), "row 3, column 'x': '<5 mg' is not a number in 'mg'"),
    ],
)
def test_mixed_units_are_refused(tmp_path, values, told):
    path = rows_of(tmp_path / "t.csv", *values)
    with pytest.raises(DataError) as caught:
        read_series(path)
    assert told in str(caught.value) and "--set " in str(caught.value)
    table = read_series(path, TableLayout(categorical=("x",)))  # as the message says
    assert len(table.features) == 3


@pytest.mark.parametrize("values", [("1a", "1b", "2a"), ("1st", "2nd", "3rd"), ("8 am", "9 pm")])
def test_other_words_behind_numbers_stay_words(tmp_path, values):
    table = read_series(rows_of(tmp_path / "t.csv", *values))
    assert table.features == tuple(f"x={value}" for value in sorted(values))


def test_units_are_words_where_they_were_before(tmp_path):
    path = rows_of(tmp_path / "t.csv", "80 kg", "75 kg")
    assert read_series(path, TableLayout(quantities=False)).features == ("x=75 kg", "x=80 kg")


def test_another_table_has_to_have_the_units_of_the_training(tmp_path, caplog):
    trained = read_series(rows_of(tmp_path / "a.csv", "80 kg", "75 kg"))
    same = read_like(trained, rows_of(tmp_path / "b.csv", "81kg", "76kg"))
    assert same.series.values.flatten().tolist() == [81, 76]
    bare = read_like(trained, rows_of(tmp_path / "c.csv", "81", "76"))
    assert bare.series.values.flatten().tolist() == [81, 76]
    assert "x taken to be in kg" in caplog.messages[-1]
    with pytest.raises(DataError, match=r"'150 lb' is in 'lb', but training had 'kg'"):
        read_like(trained, rows_of(tmp_path / "d.csv", "150 lb", "160 lb"))


def test_the_note_says_what_the_labels_are(tmp_path, caplog):
    def labelled(*labels: str) -> str:
        rows = (f"s{k // 2},{k},1,{label}\n" for k, label in enumerate(labels))
        return note(caplog, write(tmp_path / "t.csv", "id,time,x,label\n" + "".join(rows)))

    assert "label 'label' (2 classes, one per series)" in labelled("u", "u", "v", "v")
    assert "label 'label' (2 numbers, each a class, one per series)" in labelled("1", "1", "2", "2")
    assert "label 'label' (2 numbers, each a class, one per row)" in labelled("1", "2", "2", "1")


@pytest.mark.parametrize(("series", "labels", "is_odd"), [(40, 21, 1), (40, 20, 0), (50, 21, 0)])
def test_labels_that_are_hardly_classes_are_doubted(tmp_path, caplog, series, labels, is_odd):
    rows = (f"s{k},0,1,{k % labels}\n" for k in range(series))
    read_series(write(tmp_path / "t.csv", "id,time,x,label\n" + "".join(rows)))
    doubts = [one for one in caplog.messages if "becomes a class" in one]
    assert len(doubts) == is_odd
    if doubts:
        assert f"{labels} different labels in {series} series" in doubts[0]
        assert "--set data.columns='[id, time, NAME]'" in doubts[0]


# Other tables are read as the first was understood.


def read_like(trained: SeriesTable, path) -> SeriesTable:
    """Read a table with what is kept of another, as values of JSON."""
    facts = json.loads(json.dumps(trained.layout.facts()))
    layout = TableLayout.from_facts(facts, FileFormat())
    return read_series(path, layout, features=trained.features, classes=trained.classes)


def test_facts_read_other_tables_the_same_way(tmp_path):
    trained = read_series(write_text(tmp_path / "a.csv", Dialect(date="%d/%m/%Y")))
    for path in (
        write_text(tmp_path / "b.csv", replace(GERMAN, date="%d/%m/%Y")),
        write_excel(tmp_path / "b.xlsx"),
        write_parquet(tmp_path / "b.parquet"),
    ):
        assert_equal(read_like(trained, path))
    # On its own this table is ambiguous.
    rows = [row for row in cells_of(Dialect(date="%d/%m/%Y")) if row[1] < "13"]
    text = "\n".join(",".join(row) for row in [NAMES, *rows])
    assert len(read_like(trained, write(tmp_path / "c.csv", text)).series) > 9


def test_the_decimal_mark_of_another_table_is_its_own(tmp_path):
    points = write_text(tmp_path / "p.csv", Dialect())
    commas = write_text(tmp_path / "c.csv", Dialect(separator=";", decimal=","))
    assert_equal(read_like(read_series(points), commas))
    assert_equal(read_like(read_series(commas), points))
    trained = read_series(few(tmp_path / "t.csv", "0,1,2", "1,5 2,5 3"))
    grouped = few(tmp_path / "g.csv", "0,1,2", "1,234 2,500 3,125")
    values = read_like(trained, grouped).series.values.flatten().tolist()
    assert values == pytest.approx([1.234, 2.5, 3.125])
    with pytest.raises(DataError, match=r"may be thousands or have decimals.*decimal=point"):
        read_like(trained, few(tmp_path / "o.csv", "0,1,2", "1.234 2.500 3.125"))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("m,0,", "x,0,", "column 'sex': 'x' was not there in training"),
        ("-31", "-31 12:00", None),
        ("2024-", "13.13.", "is not a date"),
        ("pulse", "puls", "lacks the feature 'pulse'"),
        ("sex", "gender", "lacks the feature 'sex'"),
        ("patient_id", "id", "has no column 'patient_id'"),
        ("outcome", "label", "the feature 'label' is unknown"),
    ],
)
def test_what_training_did_not_know_is_refused(tmp_path, old, new, named):
    path = write_text(tmp_path / "a.csv", Dialect())
    trained = read_series(path)
    path.write_text(path.read_text().replace(old, new))
    if named is None:
        assert read_like(trained, path).layout.unit == "days"
        return
    with pytest.raises(DataError) as caught:
        read_like(trained, path)
    assert named in str(caught.value)


def test_dates_of_another_order_than_in_training_are_refused_with_what_helps(tmp_path):
    trained = read_series(few(tmp_path / "a.csv", "13/04/2024,14/04/2024,15/04/2024"))
    other = few(tmp_path / "b.csv", "04/13/2024,04/14/2024,04/15/2024")
    with pytest.raises(
        DataError, match=r"is not a date with the day first. Fix: say --set data.dates=m"
    ):
        read_like(trained, other)
    mixed = few(tmp_path / "c.csv", "04/13/2024,14/04/2024,04/15/2024")
    with pytest.raises(DataError, match="write all dates alike"):
        read_like(trained, mixed)


def test_yes_is_no_number_where_training_had_numbers(tmp_path):
    times = "0,1,2"
    counted = read_series(few(tmp_path / "n.csv", times, "0 1 7"))
    said = read_series(few(tmp_path / "y.csv", times, "no yes no"))
    ones = read_series(few(tmp_path / "o.csv", times, "0 1 0"))
    words = few(tmp_path / "t.csv", times, "true false true")
    assert read_like(said, words).series.values.flatten().tolist() == [1, 0, 1]
    assert read_like(ones, words).series.values.flatten().tolist() == [1, 0, 1]
    with pytest.raises(DataError, match=r"row 2, column 'x': 'true' is not a number"):
        read_like(counted, words)
    facts = counted.layout.facts()
    del facts["booleans"], facts["points"]  # as in runs from before they were kept
    old = TableLayout.from_facts(facts, FileFormat())
    assert read_series(words, old, features=("x",)).series.values.flatten().tolist() == [1, 0, 1]


def test_numbers_are_not_taken_for_dates_nor_dates_for_numbers(tmp_path):
    dates = few(tmp_path / "d.csv", "2024-01-01,2024-01-02,2024-01-03")
    numbers = few(tmp_path / "n.csv", "20240101,20240102,20240103")
    days = few(tmp_path / "e.csv", "0,1,2")
    as_dates, as_numbers = read_series(dates).layout, read_series(days).layout
    assert read_series(numbers, as_dates).series.times.tolist() == [0, 1, 0]
    assert read_series(numbers, as_numbers).series.times.tolist() == [0, 1, 0]
    with pytest.raises(DataError, match="'0' is not a date"):
        read_series(days, as_dates)
    with pytest.raises(DataError, match="'2024-01-01' is not a number"):
        read_series(dates, as_numbers)


def test_a_mistyped_column_to_leave_out_is_reported_in_training_and_not_later(tmp_path, caplog):
    path = tmp_path / "t.csv"
    path.write_text("id,time,pulse,ward,label\na,0,1,2,u\nb,0,3,4,v\n")
    table = read_series(path, TableLayout(ignore=("puls",), categorical=("wrad", "ward")))
    assert table.features == ("pulse", "ward=2", "ward=4")
    assert "t.csv: there is no column 'puls' to leave out; nearest: 'pulse'" in caplog.text
    assert "t.csv: there is no column 'wrad' to take as words; nearest: 'ward'" in caplog.text
    caplog.clear()
    read_series(path, table.layout, features=table.features)
    assert "there is no column" not in caplog.text
