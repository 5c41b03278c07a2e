"""Tables as a run's settings and its facts say they are to be read."""

import dataclasses

import polars as pl
import pytest

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.experiment import TestRequest
from bfno.lab.experiments.resolve import resolve
from bfno.lab.experiments.series.data import SeriesDataSettings, read_table
from bfno.lab.runs.load import open_run
from bfno.lab.runs.session import resume, start
from tests.lab.data.dialects import Dialect, write_text
from tests.lab.experiments.series.runs import tiny
from tests.lab.experiments.series.test_evaluation import write_table


def test_settings_say_how_tables_are_read():
    given = {"columns": "who,time,what", "missing": [-999, "x"], "ignore": "a,b", "sheet": "S"}
    layout = SeriesDataSettings.model_validate({"name": "series", **given}).layout
    assert (layout.id, layout.time, layout.label) == ("who", None, "what")
    assert (layout.missing, layout.ignore, layout.file.sheet) == (("-999", "x"), ("a", "b"), "S")


def test_new_runs_choose_a_unit_and_old_ones_keep_seconds():
    assert resolve("series/gru-d").data.unit == "auto"
    assert SeriesDataSettings(name="series").unit == "seconds"


def test_a_run_from_before_words_were_features_reads_numbers_alone(tmp_path):
    table = write_table(tmp_path / "mine.csv")
    changes = {"data": {"path": str(table), "train_limit": None}, "train": {"epochs": 1}}
    start(tiny("rnn-delta-t", changes), tmp_path / "run")
    run = open_run(tmp_path / "run")
    facts = {name: fact for name, fact in run.facts.items() if name != "table"}
    old = dataclasses.replace(run, facts=facts)
    assert len(read_table(old, table).series) == 30
    worded = table.read_text().replace(",label", ",sex,label")
    table.write_text(worded.replace(",high", ",m,high").replace(",low", ",m,low"))
    with pytest.raises(DataError, match="the feature 'sex' is unknown"):
        read_table(old, table)
    assert "table" in run.facts and len(read_table(run, write_table(table)).series) == 30


@pytest.mark.parametrize("setting", ["separator", "decimal", "dates", "unit", "most_categories"])
def test_a_setting_out_of_range_is_named(setting):
    with pytest.raises(ConfigError, match=rf"^data\.{setting}: "):
        resolve("series/gru-d", changes={"data": {setting: "odd"}})


def test_a_test_file_is_read_as_the_training_file_was_understood(tmp_path):
    train = write_text(tmp_path / "a.csv", Dialect(date="%m/%d/%Y"))
    test = write_text(tmp_path / "b.csv", Dialect(date="%m/%d/%Y", separator=";", decimal=","))
    data = {"path": str(train), "test_path": str(test), "train_limit": None, "test_limit": None}
    splits = tiny("rnn-delta-t", {"data": data}).load()
    assert len(splits.test) == 60 and splits.layout is not None
    assert splits.layout.dates == "month-first"
    write_text(test, Dialect(date="%d/%m/%Y"))
    with pytest.raises(DataError, match=r"b\.csv, row \d+, column 'date': .* with the month first"):
        tiny("rnn-delta-t", {"data": data}).load()


def test_a_table_that_has_changed_is_neither_tested_on_nor_trained_on(tmp_path):
    table = write_table(tmp_path / "mine.csv")
    changes = {"data": {"path": str(table), "train_limit": None}, "train": {"epochs": 1}}
    start(tiny("rnn-delta-t", changes), tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert run.config.evaluate(run, TestRequest())["series"] == 6
    before = table.read_text()
    owner = before.splitlines()[-1].partition(",")[0]
    table.write_text(before + before.splitlines()[-1].replace(owner, "another", 1) + "\n")
    with pytest.raises(ConfigError, match="other samples than when the run was trained"):
        run.config.evaluate(run, TestRequest())
    with pytest.raises(ConfigError, match="other samples than when the run was trained"):
        resume(tmp_path / "run", {"train": {"epochs": 2}})
    assert run.config.evaluate(run, TestRequest(str(table)))["series"] == 31
    table.write_text(before)
    assert resume(tmp_path / "run", {"train": {"epochs": 2}}).epoch_count == 2


def test_values_and_times_that_seem_to_be_in_another_unit_are_told(tmp_path, caplog):
    table = write_table(tmp_path / "mine.csv")
    changes = {"data": {"path": str(table), "train_limit": None}, "train": {"epochs": 1}}
    start(tiny("rnn-delta-t", changes), tmp_path / "run")
    run, frame = open_run(tmp_path / "run"), pl.read_csv(table)
    caplog.clear()
    read_table(run, table)
    assert not [one for one in caplog.messages if "same unit" in one]
    other = tmp_path / "other.csv"
    frame.with_columns(pl.col("temp") * 1.8 + 32, pl.col("time") * 60).write_csv(other)
    read_table(run, other)
    told = [one for one in caplog.messages if "same unit" in one]
    assert len(told) == 2
    assert told[0].startswith(f"{other}: series 'p") and "times as long as any of the" in told[0]
    assert told[1] == (
        f"{other}: most values of temp are over 5 standard deviations from the mean of the "
        "training, where they are cut off: are they in the same unit?"
    )
