"""Runs are kept without weights and without places, once, and read as before."""

import json

import pytest

from bfno.errors import ConfigError
from bfno.results.archive import finished_runs, keep_runs
from bfno.results.record import read_run
from tests.results.exhibits import write_exhibit
from tests.results.runs import record, write_files, write_run


def test_a_kept_run_is_read_as_the_run_itself(tmp_path):
    folder = write_run(tmp_path / "runs", "mnist", "node", 8)
    write_exhibit(folder)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "weights").write_bytes(bytes(100))
    kept = keep_runs(tmp_path / "runs", tmp_path / "results")
    assert kept == [tmp_path / "results" / "cpu" / "mnist-node-s8"]
    assert read_run(kept[0]) == read_run(folder)
    names = sorted(file.name for file in kept[0].iterdir())
    assert names == ["exhibit.json", "metrics.jsonl", "record.json"]


def test_small_pictures_are_kept_and_large_ones_are_not(tmp_path):
    folder = write_run(tmp_path / "runs")
    (folder / "figures").mkdir()
    for name, size in (("samples.png", 100), ("large.png", 300_000), ("table.csv", 10)):
        (folder / "figures" / name).write_bytes(bytes(size))
    (kept,) = keep_runs(tmp_path / "runs", tmp_path / "results")
    assert [file.name for file in (kept / "figures").iterdir()] == ["samples.png"]


def test_places_on_the_machine_are_not_kept(tmp_path):
    content = record()
    content["config"]["data"] |= {"dir": "/home/me/data", "path": "/home/me/patients.csv"}
    write_files(tmp_path / "runs" / "one", content)
    (kept,) = keep_runs(tmp_path / "runs", tmp_path / "results")
    text = (kept / "record.json").read_text()
    assert "/home/me" not in text
    assert json.loads(text)["config"]["data"]["path"] == "patients.csv"


def test_a_run_that_was_kept_before_stays(tmp_path):
    folder = write_run(tmp_path / "runs")
    (kept,) = keep_runs(tmp_path / "runs", tmp_path / "results")
    before = (kept / "record.json").read_bytes()
    (folder / "record.json").write_text(json.dumps({**record(), "seconds": 1.0}))
    assert keep_runs(tmp_path / "runs", tmp_path / "results") == []
    assert (kept / "record.json").read_bytes() == before


def test_runs_with_changed_settings_keep_their_own_names(tmp_path):
    write_files(tmp_path / "runs" / "wide", {**record(), "changes": ["model.width=99"]})
    write_files(tmp_path / "runs" / "plain", record())
    kept = keep_runs(tmp_path / "runs", tmp_path / "results")
    assert [folder.name for folder in kept] == ["digits-bfno-node-s7", "wide"]


def test_runs_are_found_in_folders_of_folders_and_unfinished_ones_are_not(tmp_path):
    deep = write_run(tmp_path / "cpu" / "table")
    flat = write_run(tmp_path, seed=8)
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.yaml").write_text("seed: 7")
    assert finished_runs(tmp_path) == sorted([deep, flat])


def test_a_folder_that_is_none_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere: is not a folder"):
        finished_runs(tmp_path / "nowhere")
