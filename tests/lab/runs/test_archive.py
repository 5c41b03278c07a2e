"""Runs are kept without weights and without places, once, and read as before."""

import json
import shutil

import pytest

from bfno.lab.errors import ConfigError
from bfno.lab.runs.archive import ended_runs, keep_runs
from bfno.lab.runs.folder import RunFolder, read_run
from tests.lab.views.exhibits import write_exhibit
from tests.lab.views.runs import FAILURE, record, result, write_failed, write_files, write_run


def test_a_kept_run_is_read_as_the_run_itself(tmp_path):
    folder = write_run(tmp_path / "runs", "mnist", "node", 8)
    write_exhibit(folder)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "weights").write_bytes(bytes(100))
    kept = list(keep_runs(tmp_path / "runs", tmp_path / "results"))
    assert kept == [tmp_path / "results" / "cpu" / "mnist-node-s8"]
    assert read_run(kept[0]) == read_run(folder)
    names = sorted(file.name for file in kept[0].iterdir())
    assert names == ["exhibit.json", "metrics.jsonl", "record.json"]


def test_a_training_that_failed_is_kept_until_it_succeeds(tmp_path):
    failed = write_failed(tmp_path / "runs" / "cpu", "node")
    (kept,) = keep_runs(tmp_path / "runs", tmp_path / "results")
    assert RunFolder(kept).ended() == RunFolder(failed).ended()
    with pytest.raises(ConfigError, match=f"has failed: {FAILURE}"):
        read_run(kept)
    shutil.rmtree(failed)
    write_run(tmp_path / "runs" / "cpu", "mnist", "node")
    assert keep_runs(tmp_path / "runs", tmp_path / "results") == {
        kept: "replaced by another record"
    }
    assert read_run(kept).result == result()


def test_a_training_that_failed_does_not_take_the_place_of_one_that_was_finished(tmp_path):
    write_run(tmp_path / "results" / "cpu", "mnist", "node")
    write_failed(tmp_path / "runs" / "cpu", "node")
    kept = keep_runs(tmp_path / "runs", tmp_path / "results")
    assert kept == {tmp_path / "results" / "cpu" / "mnist-node-s7-2": "added"}


def test_a_run_that_was_trained_again_is_renewed_in_an_archive_within_its_folder(tmp_path):
    source, target = tmp_path / "runs", tmp_path / "runs" / "kept"
    folder = write_run(source / "cpu", "mnist", "node")
    (kept,) = keep_runs(source, target)
    shutil.rmtree(folder)
    write_files(folder, {**record("mnist", "node"), "result": result(0.75)})
    assert keep_runs(source, target) == {kept: "replaced by another record"}
    assert read_run(kept).result == result(0.75)
    assert keep_runs(source, target) == {}


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


def test_runs_of_a_variant_are_kept_apart(tmp_path):
    name = "digits-bfno-node-s7"
    runs = {
        "cpu": [],
        "cpu-published-sets-a-b": ['data.protocol="published"', 'data.sets=["a", "b"]'],
        "cpu-gradient-adjoint": ['solver.gradient="adjoint"'],
        "cpu-width-99": ["model.width=99"],
    }
    for folder, changes in runs.items():
        write_files(tmp_path / "runs" / folder / name, {**record(), "changes": changes})
    kept = list(keep_runs(tmp_path / "runs", tmp_path / "results"))
    assert {place.relative_to(tmp_path / "results").as_posix() for place in kept} == {
        f"{folder}/{name}" for folder in runs
    }
    assert keep_runs(tmp_path / "runs", tmp_path / "results") == {}


@pytest.mark.parametrize("data", [None, "digits", {"path": 3, "dir": ["/home/me"]}])
def test_spoilt_settings_are_kept_as_far_as_they_name_no_place(tmp_path, data):
    write_files(tmp_path / "runs" / "one", {**record(), "config": {"data": data}})
    (kept,) = keep_runs(tmp_path / "runs", tmp_path / "results")
    assert "/home/me" not in (kept / "record.json").read_text()


def test_what_happened_to_a_record_is_reported(tmp_path):
    runs, kept = tmp_path / "runs", tmp_path / "results"
    folder = write_run(runs)
    assert [*keep_runs(runs, kept).values()] == ["added"]
    (folder / "figures").mkdir()
    (folder / "figures" / "samples.png").write_bytes(b"new")
    assert [*keep_runs(runs, kept).values()] == ["updated"]
    write_files(tmp_path / "others" / "run", {**record(), "steps": 99})
    assert [*keep_runs(tmp_path / "others", kept).values()] == ["replaced by another record"]


def _keep(tmp_path):
    """Keep the runs; the names of what is new, and of all folders with the results that they hold.

    What was kept must never be kept again.
    """
    kept = list(keep_runs(tmp_path / "runs", tmp_path / "results"))
    assert keep_runs(tmp_path / "runs", tmp_path / "results") == {}
    found = {
        place.name: read_run(place).result["test_accuracy"]
        for place in ended_runs(tmp_path / "results")
    }
    return [place.name for place in kept], found


def _write(folder, accuracy, **changes):
    return write_files(folder, {**record(), "result": result(accuracy), **changes})


def test_a_run_that_was_trained_again_takes_the_place_of_the_old_one(tmp_path):
    name = "digits-bfno-node-s7"
    write_exhibit(_write(tmp_path / "runs" / "a", 0.1))
    assert _keep(tmp_path) == ([name], {name: 0.1})
    shutil.rmtree(tmp_path / "runs" / "a")
    # Its settings are the same: where it lies does not count, nor what older records do not have.
    config = {**record()["config"], "threads": 8, "train": {"average": None}}
    _write(tmp_path / "runs" / "b", 0.2, config=config)
    assert _keep(tmp_path) == ([name], {name: 0.2})
    assert not (tmp_path / "results" / "cpu" / name / "exhibit.json").exists()  # the old weights'


def test_a_run_that_is_in_the_folder_twice_is_kept_twice(tmp_path):
    name = "digits-bfno-node-s7"
    _write(tmp_path / "runs" / "b", 0.2)
    assert _keep(tmp_path) == ([name], {name: 0.2})
    _write(tmp_path / "runs" / "a", 0.1)
    assert _keep(tmp_path) == ([f"{name}-2"], {name: 0.2, f"{name}-2": 0.1})
    # A mere copy is the same run.
    shutil.copytree(tmp_path / "runs" / "a", tmp_path / "runs" / "c")
    write_exhibit(tmp_path / "runs" / "c")
    assert _keep(tmp_path)[0] == []


def test_runs_of_one_name_and_different_settings_are_numbered(tmp_path):
    for width in (1, 2, 3):
        _write(tmp_path / "runs" / str(width), width / 10, config={"model": {"width": width}})
    name = "digits-bfno-node-s7"
    numbers = {name: 0.1, f"{name}-2": 0.2, f"{name}-3": 0.3}
    assert _keep(tmp_path) == (list(numbers), numbers)


def test_runs_on_different_folders_of_images_are_numbered(tmp_path):
    for number, folder in enumerate(("/home/ann/birds", "/home/ann/cats"), 1):
        config = {"data": {"folder": folder}}
        _write(tmp_path / "runs" / str(number), number / 10, data="folder", config=config)
    name = "folder-bfno-node-s7"
    assert _keep(tmp_path) == ([name, f"{name}-2"], {name: 0.1, f"{name}-2": 0.2})


def test_what_is_made_of_a_run_later_arrives_too(tmp_path):
    folder = _write(tmp_path / "runs" / "one", 0.1)
    _keep(tmp_path)
    place = tmp_path / "results" / "cpu" / "digits-bfno-node-s7"
    write_exhibit(folder)
    assert _keep(tmp_path)[0] == [place.name] and (place / "exhibit.json").is_file()
    (folder / "figures").mkdir()
    for content in (b"one", b"two"):
        (folder / "figures" / "samples.png").write_bytes(content)
        assert _keep(tmp_path)[0] == [place.name]
        assert (place / "figures" / "samples.png").read_bytes() == content


def test_a_copy_that_was_cut_off_is_made_again(tmp_path):
    _write(tmp_path / "runs" / "one", 0.1)
    place = tmp_path / "results" / "cpu" / "digits-bfno-node-s7"
    place.mkdir(parents=True)
    write_exhibit(place)  # that of another run, whose record did not arrive
    assert _keep(tmp_path) == ([place.name], {place.name: 0.1})
    assert not (place / "exhibit.json").exists()


def test_a_training_that_is_there_itself_gets_nothing_from_its_copy(tmp_path):
    training = _write(tmp_path / "results" / "cpu" / "mine", 0.1)
    (training / "config.yaml").write_text("seed: 7")
    write_exhibit(_write(tmp_path / "runs" / "copy", 0.1))
    assert _keep(tmp_path) == ([], {"mine": 0.1})
    assert not (training / "exhibit.json").exists()


@pytest.mark.parametrize("is_finished", [True, False])
def test_the_folder_of_a_training_is_never_written_over(tmp_path, is_finished):
    name = "digits-bfno-node-s7"
    training = _write(tmp_path / "results" / "cpu" / name, 0.1)
    (training / "config.yaml").write_text("seed: 7")
    if not is_finished:
        (training / "record.json").unlink()
    before = (training / "metrics.jsonl").read_bytes()
    _write(tmp_path / "runs" / "one", 0.2)
    kept, found = _keep(tmp_path)
    assert kept == [f"{name}-2"] and found[f"{name}-2"] == 0.2
    assert (training / "metrics.jsonl").read_bytes() == before


def test_runs_of_the_same_folder_are_kept_already(tmp_path):
    content = record()
    content["config"]["data"]["folder"] = "/home/me/birds"
    folder = write_files(tmp_path / "runs" / "one", content)
    before = (folder / "record.json").read_bytes()
    assert keep_runs(tmp_path / "runs", tmp_path / "runs") == {}
    assert (folder / "record.json").read_bytes() == before


@pytest.mark.parametrize("key", ["data", "method", "scale"])
@pytest.mark.parametrize("name", ["../../../escape/x", "{}/escape", "..", "", "x" * 300])
def test_no_name_in_a_record_leads_out_of_the_folder(tmp_path, key, name):
    inner = tmp_path / "a" / "b" / "results"
    _write(tmp_path / "runs" / "one", 0.1, **{key: name.format(tmp_path)})
    (kept,) = keep_runs(tmp_path / "runs", inner)
    assert kept.parent.parent == inner and ".." not in kept.parts
    assert (kept / "record.json").is_file()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "runs"]
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["b"]


def test_runs_are_found_in_folders_of_folders_and_unfinished_ones_are_not(tmp_path):
    deep = write_run(tmp_path / "cpu" / "table")
    flat = write_run(tmp_path, seed=8)
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.yaml").write_text("seed: 7")
    assert ended_runs(tmp_path) == sorted([deep, flat])


def test_a_folder_that_is_none_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere: is not a folder"):
        ended_runs(tmp_path / "nowhere")
