"""From a user's own table to a model, scores and predictions; and every kind of bad table."""

import csv
import io
import json

import pytest

from bfno.lab.cli import main
from tests.lab.cli.output import error_line
from tests.lab.data.dialects import Dialect, write_excel, write_text
from tests.lab.experiments.series.test_evaluation import write_table

QUICK = ["--scale", "smoke", "--set", "threads=1", "--set", "data.train_limit=null"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A table and the run that was trained on it."""
    folder = tmp_path_factory.mktemp("own")
    table = write_table(folder / "mine.csv")
    words = ["train", "series/rnn-delta-t", "--out", str(folder / "run"), *QUICK]
    assert main([*words, "--data", str(table)]) == 0
    return folder


def test_train_and_eval_speak_of_series(trained, capsys):
    assert main(["eval", str(trained / "run")]) == 0
    printed = capsys.readouterr().out
    assert "of 6 series" in printed and "AUROC" in printed and "[" in printed
    assert main(["eval", str(trained / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"accuracy", "macro_f1", "auroc", "auprc", "mse", "intervals"} <= set(found)
    assert found["samples"] == 6 and found["transductive"] is False


def test_predict_prints_every_series_in_every_format(trained, capsys):
    new = write_table(trained / "new.csv", seed=4, count=3)
    run = str(trained / "run")
    assert main(["predict", run, str(new)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[1] for row in rows] == ["p00", "p01", "p02"]
    assert main(["predict", run, str(new), "--format", "csv"]) == 0
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(found[0]) == ["file", "id", "label", "high", "low"]
    assert main(["predict", run, str(new), "--format", "json"]) == 0
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for row, one in zip(found, objects, strict=True):
        assert (row["id"], row["label"]) == (one["id"], one["label"])
        assert float(row["high"]) == pytest.approx(one["probabilities"]["high"], abs=1e-6)


TRAINED_AS = {
    "decimal": ("p;0;1,063;1,500\np;1;1,250;1,125\n", "data.decimal=comma"),
    "missing": ("p;0;1.5;2.5\np;1;n.d.;1.1\n", "data.missing=['n.d.']"),
    "columns": ("p;0;1.5;2.5\np;1;1.2;1.1\n", "data.columns=[chart, time, label]"),
    # A control character is in no text of Windows.
    "encoding": ("p;0;1.5;2.5\nõ\x81;1;1.2;1.1\n", "data.encoding=latin-1"),
}


@pytest.mark.parametrize("case", TRAINED_AS)
@pytest.mark.parametrize("command", ["predict", "reconstruct"])
def test_what_another_table_is_refused_for_is_mended_as_the_message_says(
    trained, tmp_path, capsys, case, command
):
    rows, setting = TRAINED_AS[case]
    new = tmp_path / "new.csv"
    head = "id;time;pulse;temp\n".replace("id", "chart" if case == "columns" else "id")
    codec = "latin-1" if case == "encoding" else "utf-8"
    new.write_bytes((head + rows).encode(codec))
    words = [command, str(trained / "run"), str(new)]
    words += ["-o", str(tmp_path / "p.svg")] if command == "reconstruct" else []
    assert main(words) == 3
    assert f"--set {setting.partition('=')[0]}" in error_line(capsys).replace('"', "")
    assert main([*words, "--set", setting]) == 0


def test_eval_reads_another_table_as_its_options_say(trained, tmp_path, capsys):
    table = write_table(tmp_path / "t.csv", seed=6, count=20)
    table.write_text(table.read_text().replace("id,", "chart,", 1))
    words = ["eval", str(trained / "run"), "--data", str(table)]
    assert main(words) == 3
    assert "--set data.columns='[NAME, time, label]'" in error_line(capsys)
    assert main([*words, "--set", "data.columns=[chart, time, label]"]) == 0


def test_what_the_training_has_fixed_cannot_be_set_for_other_files(trained, tmp_path, capsys):
    new = write_table(tmp_path / "new.csv", seed=4, count=3)
    for setting in ("train.lr=1", "data.unit=days", "data.quantities=false"):
        assert main(["predict", str(trained / "run"), str(new), "--set", setting]) == 2
        told = error_line(capsys)
        assert "has its value from training" in told and "data.decimal" in told
    assert main(["predict", str(trained / "run"), str(new), "--set", "data.decimal=dot"]) == 2
    assert "data.decimal" in error_line(capsys)


def test_predict_takes_the_tables_of_a_folder(trained, tmp_path, capsys, caplog):
    (tmp_path / "tables" / "later").mkdir(parents=True)
    first = write_table(tmp_path / "tables" / "a.csv", seed=4, count=3)
    second = write_table(tmp_path / "tables" / "later" / "b.csv", seed=5, count=2)
    (tmp_path / "tables" / "notes.docx").write_text("no table")
    words = ["predict", str(trained / "run")]
    assert main([*words, str(tmp_path / "tables"), "--format", "csv"]) == 0
    found = capsys.readouterr().out
    assert main([*words, str(first), str(second), "--format", "csv"]) == 0
    assert found == capsys.readouterr().out and found.count("\n") == 6
    told = "left out 1 file of another kind (notes.docx)"
    assert [one for one in caplog.messages if "left out" in one] == [
        f"{tmp_path / 'tables'}: {told}"
    ]


def test_predict_takes_a_folder_with_a_table_for_each_series(trained, tmp_path, capsys):
    for name in ("anna", "ben"):
        (tmp_path / f"{name}.csv").write_text("time,pulse,temp\n0,1.5,\n1,1.2,0.5\n")
    assert main(["predict", str(trained / "run"), str(tmp_path), "--format", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["id"] for one in found] == ["anna", "ben"]


def test_predict_takes_a_folder_with_labels_beside_the_tables(trained, tmp_path, capsys, caplog):
    for name in ("mia", "zoe"):  # after labels.csv in the order of names
        (tmp_path / f"{name}.csv").write_text("time,pulse,temp\n0,1.5,\n1,1.2,0.5\n")
    (tmp_path / "labels.csv").write_text("id,label\nmia,low\nzoe,low\n")
    (tmp_path / "notes.txt").write_text("no table")
    assert main(["predict", str(trained / "run"), str(tmp_path), "--format", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["id"] for one in found] == ["mia", "zoe"]
    assert caplog.text.count("left out 1 file of another kind (notes.txt)") == 1


def test_a_limit_of_eval_has_both_classes_though_the_table_is_sorted_by_them(
    trained, tmp_path, capsys
):
    head, *rows = write_table(tmp_path / "t.csv", seed=6, count=20).read_text().splitlines()
    rows.sort(key=lambda row: row.rpartition(",")[2])
    (tmp_path / "sorted.csv").write_text("\n".join([head, *rows]) + "\n")
    words = ["eval", str(trained / "run"), "--data", str(tmp_path / "sorted.csv"), "--json"]
    assert main([*words, "--limit", "6"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["samples"] for one in found["per_class"]] == [3, 3]


def test_resume_trains_on_with_more_epochs(trained, capsys):
    run = str(trained / "run")
    assert main(["resume", run, "--set", "train.epochs=3"]) == 0
    record = json.loads((trained / "run" / "record.json").read_text())
    assert record["epochs"] == 3 and record["judged_by"] == "test_auroc"


HEAD = "id,time,pulse,temp,label\n"
GOOD = "".join(
    f"p{n},{t},{n + t},1,{'high' if n % 2 else 'low'}\n" for n in range(9) for t in (0, 1)
)
BAD_TABLES = {
    "empty file": ("", "mine.csv"),
    "no rows": (HEAD, "no rows"),
    "text for a time": (HEAD + "p,noon,1,1,low\n", "row 2"),
    "infinite value": (HEAD + "p,0,inf,1,low\n", "row 2"),
    "text for a value": (HEAD + "p,0,1,1,low\np,1,high,1,low\n", "row 3"),
    "too few cells": (HEAD + "p,0,1,1,low\np,1,1\np,2,1,1,low\n", "row 3"),
    "too many cells": (HEAD + "p,0,1,1,low,9\n", "row 2"),
    "cut off mid-line": (HEAD + "p,0,1,1,low\np,1,1", "row 3"),
    "no time column": ("id,when,pulse,temp,label\np,0,1,1,low\n", "time"),
    "column twice": ("id,time,pulse,pulse,label\np,0,1,1,low\n", "pulse"),
    "binary": ("\x00\x01\x02" * 50, "mine.csv"),
    "one class": (HEAD + GOOD.replace("high", "low"), "class"),
    "no labels": ("id,time,pulse,temp\np,0,1,1\n", "label"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_a_bad_table_is_one_line_with_file_and_place(name, tmp_path, capsys):
    content, named = BAD_TABLES[name]
    table = tmp_path / "mine.csv"
    table.write_text(content)
    words = ["train", "series/gru-d", "--out", str(tmp_path / "run"), *QUICK]
    assert main([*words, "--set", f"data.path={table}"]) == 3
    assert named in error_line(capsys)
    assert not (tmp_path / "run").exists()


ODD_TABLES = {
    "one time point": "q,0,1,1,low\n",
    "unsorted times": "q,3,1,1,low\nq,1,2,1,low\n",
    "times twice": "q,1,1,1,low\nq,1,2,1,low\n",
    "missing cells": "q,0,,,low\nq,1,NaN,2,low\n",
    "never observed": "q,0,,,low\n",
    "large times": "q,1000000000000,1,1,low\nq,1000000000009,1,1,low\n",
    "mixed lengths": GOOD + "q,0,1,1,low\n",
}


@pytest.mark.parametrize("name", ODD_TABLES)
@pytest.mark.parametrize("command", ["eval", "predict"])
def test_an_odd_table_gets_finite_answers(name, command, trained, tmp_path, capsys):
    table = tmp_path / "odd.csv"
    table.write_text(HEAD + ODD_TABLES[name])
    run = str(trained / "run")
    if command == "eval":
        assert main(["eval", run, "--data", str(table), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert 0 <= found["accuracy"] <= 1 and found["mse"] < 1e12
    else:
        assert main(["predict", run, str(table), "--format", "json"]) == 0
        for line in capsys.readouterr().out.splitlines():
            assert sum(json.loads(line)["probabilities"].values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("head", "named"),
    [
        ("id,time,pulse,label\np,0,1,low\n", "temp"),
        ("id,time,pulse,temp,extra,label\np,0,1,1,1,low\n", "extra"),
        (HEAD + "p,0,1,1,middling\n", "middling"),
        (HEAD + "p,0,1,1,low\np,36000,1,1,low\n", "series 'p' lasts"),
        (HEAD + "p,2024-01-01,1,1,low\n", "'2024-01-01' is not a number"),
        (HEAD + "p,0,1,warm,low\n", "'warm' is not a number"),
    ],
)
def test_unknown_features_labels_and_units_are_named(head, named, trained, tmp_path, capsys):
    table = tmp_path / "other.csv"
    table.write_text(head)
    assert main(["eval", str(trained / "run"), "--data", str(table)]) == 3
    assert named in error_line(capsys)


def test_a_missing_file_is_one_line(tmp_path, capsys):
    words = ["train", "series/gru-d", "--out", str(tmp_path / "run"), *QUICK]
    assert main([*words, "--set", "data.path=nowhere.csv"]) == 3
    assert "nowhere.csv" in error_line(capsys)


def test_an_excel_sheet_trains_and_a_german_table_is_predicted_alike(tmp_path, capsys, caplog):
    sheet = write_excel(tmp_path / "patients.xlsx")
    words = ["train", "series/rnn-delta-t", "--out", str(tmp_path / "run"), *QUICK]
    assert main([*words, "--set", f"data.path={sheet}"]) == 0
    assert "patients.xlsx: 60 series, 236 rows; id 'patient_id', time 'date' (dates" in caplog.text
    capsys.readouterr()
    german = Dialect(separator=";", decimal=",", encoding="utf-16", date="%d.%m.%Y", missing="-")
    answers = []
    for table in (sheet, write_text(tmp_path / "new.csv", german)):
        assert main(["predict", str(tmp_path / "run"), str(table), "--format", "json"]) == 0
        lines = map(json.loads, capsys.readouterr().out.splitlines())
        answers.append([(line["id"], line["label"], line["probabilities"]) for line in lines])
    assert answers[0] == answers[1] and len(answers[0]) == 60
    facts = json.loads((tmp_path / "run" / "record.json").read_text())["table"]
    assert facts["categories"] == {"sex": ["f", "m"]} and facts["unit"] == "days"


def test_a_table_that_changed_its_meaning_is_not_evaluated(tmp_path, capsys):
    table = write_text(tmp_path / "mine.csv", Dialect(date="%m/%d/%Y"))
    words = ["train", "series/rnn-delta-t", "--out", str(tmp_path / "run"), *QUICK]
    assert main([*words, "--set", f"data.path={table}"]) == 0
    write_text(table, Dialect(date="%d/%m/%Y"))
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run")]) == 2
    assert "dates is 'day-first' now, but was 'month-first' in training" in capsys.readouterr().err


def test_a_limit_draws_from_all_classes(trained, tmp_path, capsys):
    rows = "".join(f"{label}{n},{t},{n},1,{label}\n" for label in ("high", "low")
                   for n in range(20) for t in (0, 1))  # fmt: skip
    (tmp_path / "sorted.csv").write_text(HEAD + rows)
    words = ["eval", str(trained / "run"), "--data", str(tmp_path / "sorted.csv"), "--json"]
    assert main([*words, "--limit", "10"]) == 0
    assert [sum(row) for row in json.loads(capsys.readouterr().out)["confusion"]] == [5, 5]
