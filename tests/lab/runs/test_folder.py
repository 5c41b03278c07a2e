import fcntl
import json
import os
import threading
import time

import pytest

from bfno.lab.errors import ConfigError, DataError, UserError
from bfno.lab.runs.folder import RunFolder, read_run, read_runs
from bfno.lab.runs.load import is_current, note_picture
from tests.lab.views.runs import (
    epoch_lines,
    record,
    result,
    write_files,
    write_old_record,
    write_run,
)


def test_a_finished_run_is_read_with_its_epochs(tmp_path):
    run = read_run(write_run(tmp_path))
    assert (run.name, run.method, run.seed) == ("digits-bfno-node-s7", "bfno-node", 7)
    assert run.result["test_accuracy"] == 0.97
    assert [epoch["epoch"] for epoch in run.epochs] == [1, 2, 3]
    assert run.command == "bfno train digits/bfno-node --scale cpu --seed 7"


def test_the_command_names_the_folder_of_images_but_not_where_it_lies(tmp_path):
    config = {"data": {"name": "folder", "folder": "/somewhere/my photos"}}
    run = read_run(write_run(tmp_path, config=config))
    assert run.command.endswith("--data 'my photos'")


def test_the_command_names_the_files_of_series_but_not_where_they_lie(tmp_path):
    config = {"data": {"path": "/home/ann/mine.csv", "test_path": "/home/ann/later.csv"}}
    # Older records call it a change where the test series lie.
    changes = ["train.lr=0.5", 'data.test_path="/home/ann/later.csv"']
    run = read_run(write_run(tmp_path, config=config, changes=changes))
    files = "--data mine.csv --set data.test_path=later.csv"
    assert run.command.endswith(f"--seed 7 {files} --set train.lr=0.5")


@pytest.mark.parametrize(
    ("data", "more"),
    [(None, ""), ("digits", ""), ({"folder": 3}, " --data 3"), ({"path": None}, "")],
)
def test_the_command_does_without_settings_that_are_spoilt(tmp_path, data, more):
    run = read_run(write_run(tmp_path, config={"data": data}))
    assert run.command == f"bfno train digits/bfno-node --scale cpu --seed 7{more}"


def test_the_command_repeats_what_was_changed(tmp_path):
    run = read_run(write_run(tmp_path, changes=["train.lr=0.5", "solver.step=null"]))
    assert run.command.endswith("--seed 7 --set train.lr=0.5 --set solver.step=null")


@pytest.mark.parametrize("keep", [1, 20, -1])
def test_a_last_line_cut_off_while_written_is_left_out(tmp_path, keep):
    folder = write_old_record(write_run(tmp_path))
    lines = epoch_lines(result())
    (folder / "metrics.jsonl").write_text(f"{lines[0]}\n{lines[1]}\n{lines[2][:keep]}")
    assert [epoch["epoch"] for epoch in read_run(folder).epochs] == [1, 2]


def test_a_last_line_cut_inside_a_letter_is_left_out(tmp_path):
    folder = write_old_record(write_run(tmp_path))
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write('{"epoch": 4, "note": "µ'.encode()[:-1])
    assert len(read_run(folder).epochs) == 3


def test_a_broken_line_before_the_last_is_an_error_that_names_it(tmp_path):
    lines = epoch_lines(result())
    folder = write_files(tmp_path / "run", record(), [lines[0], lines[1][:9], lines[2]])
    with pytest.raises(DataError, match="line 2 is not the metrics of an epoch"):
        read_run(folder)


def test_the_later_of_two_lines_about_an_epoch_counts(tmp_path):
    lines = [*epoch_lines(result()), '{"epoch": 2, "train_loss": 9.0}']
    run = read_run(write_files(tmp_path / "run", record(), lines))
    assert [epoch["epoch"] for epoch in run.epochs] == [1, 2, 3]
    assert run.epochs[1] == {"epoch": 2, "train_loss": 9.0}


def test_a_run_without_the_optional_keys_is_read(tmp_path):
    needed = ("format", "experiment", "data", "method", "scale", "seed", "result")
    content = {key: value for key, value in record().items() if key in needed}
    run = read_run(write_files(tmp_path / "run", content))
    assert run.parameters is None
    assert run.confusion == []


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    run = read_run(write_run(tmp_path, method="x", chosen_by="\x1b[2J\u202e\ud800ok"))
    assert run.chosen_by == "\ufffd[2J\ufffd\ufffdok"


def test_a_run_named_twice_is_read_once(tmp_path):
    folder = write_run(tmp_path)
    assert len(read_runs([folder, folder / ".." / folder.name])) == 1


def test_a_record_of_an_unfinished_run_says_how_to_resume(tmp_path):
    folder = write_run(tmp_path, status="interrupted")
    with pytest.raises(ConfigError, match=r"Fix: copy the whole folder of the run again"):
        read_run(folder)  # a record alone has no settings to resume with
    (folder / "config.yaml").touch()
    with pytest.raises(
        ConfigError, match=f"is interrupted, not finished. Fix: bfno resume {folder}"
    ):
        read_run(folder)


def test_a_run_without_a_record_says_how_to_resume(tmp_path):
    folder = write_run(tmp_path)
    (folder / "record.json").unlink()
    (folder / "config.yaml").touch()
    with pytest.raises(ConfigError, match=f"has no result yet. Fix: bfno resume {folder}"):
        read_run(folder)
    (folder / "metrics.jsonl").unlink()  # killed in its first epoch
    with pytest.raises(ConfigError, match=f"has no result yet. Fix: bfno resume {folder}"):
        read_run(folder)


def _missing_folder(folder):
    (folder / "record.json").unlink()
    (folder / "metrics.jsonl").unlink()
    folder.rmdir()


def _write(name, text):
    return lambda folder: (folder / name).write_text(text)


DAMAGES = {
    "is not a folder": _missing_folder,
    "cut off or not JSON": _write("record.json", json.dumps(record())[:200]),
    "cut off or not JSON\\.": _write("record.json", "[" * 100_000),
    "is not the record of a run": _write("record.json", "[1, 2]"),
    "is not the record of a run\\.": _write("record.json", '{"name": "package"}'),
    "has format 3, this version of bfno reads up to 2": _write("record.json", '{"format": 3}'),
    "experiment is missing": _write("record.json", '{"format": 1}'),
    "seed: input should be a valid integer": _write(
        "record.json", json.dumps({**record(), "seed": "x"})
    ),
    "result: input should be a valid dictionary": _write(
        "record.json", json.dumps({**record(), "result": [1]})
    ),
    "confusion is not a square": _write(
        "record.json", json.dumps({**record(), "confusion": [[1, 2]]})
    ),
    "metrics.jsonl: is missing": lambda folder: (folder / "metrics.jsonl").unlink(),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_damaged_runs_give_one_line_that_names_the_fix(tmp_path, message):
    folder = write_run(tmp_path)
    DAMAGES[message](folder)
    with pytest.raises(UserError, match=message) as caught:
        read_run(folder)
    assert "\n" not in str(caught.value)
    assert "Fix: " in str(caught.value)


def test_no_run_at_all_is_an_error():
    with pytest.raises(ConfigError, match="none is named"):
        read_runs([])


def test_someone_who_only_looks_for_a_moment_does_not_keep_a_training_from_its_folder(tmp_path):
    looking = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(looking, fcntl.LOCK_SH)
    leave = threading.Timer(0.1, os.close, (looking,))
    leave.start()
    with RunFolder(tmp_path) as run:
        assert run.is_in_use
    leave.join()


def test_a_folder_that_is_trained_in_is_refused_soon(tmp_path):
    with RunFolder(tmp_path):
        before = time.monotonic()
        with pytest.raises(ConfigError, match="is in use by process"), RunFolder(tmp_path):
            pass
        assert time.monotonic() - before < 5


def test_each_kind_of_damage_to_a_record_has_its_remedy(tmp_path):
    run = RunFolder(write_run(tmp_path))
    run.config_file.touch()
    whole = json.loads(run.record_file.read_text())
    remedies = {
        "{": f"bfno resume {run.path}",
        json.dumps({**whole, "seed": 8}): f"bfno resume {run.path}",
        json.dumps({"id": "a"}): "name a folder that `bfno train` wrote",
        json.dumps({**whole, "format": 99}): "install the version of bfno that wrote it",
        json.dumps({"format": 1, "seed": "x"}): "train the run again",
    }
    for content, fix in remedies.items():
        run.record_file.write_text(content)
        with pytest.raises(DataError) as error:
            run.record()
        assert error.value.fix == fix, content


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("epoch 1\nerror: a\x1b[2Jb: is missing\n\n", "a\ufffd[2Jb: is missing"),
        ("error: of an earlier part\nepoch 2\n", ""),
        ("", ""),
    ],
)
def test_the_log_tells_the_error_that_ended_the_run(tmp_path, log, error):
    run = RunFolder(tmp_path)
    assert run.last_error() == ""
    run.log_file.write_text(log)
    assert run.last_error() == error


def test_a_picture_stays_unless_it_is_known_to_show_other_weights(tmp_path):
    run, picture = write_run(tmp_path, chosen_step=3), tmp_path / "samples.png"
    assert not is_current(picture, run)
    picture.touch()
    assert is_current(picture, run)  # nobody has noted what it shows
    RunFolder(run).note_picture(picture.name, 2)
    assert not is_current(picture, run)
    note_picture(picture, run)
    assert is_current(picture, run)
    RunFolder(run).record_file.unlink()  # and without checkpoints nobody knows the weights
    assert is_current(picture, run)
