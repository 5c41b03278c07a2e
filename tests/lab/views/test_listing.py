"""A list of runs shows the state of each, even if its files are damaged."""

import fcntl
import json
import os
import subprocess
import sys
import time

import pytest

from bfno.lab.cli import main
from bfno.lab.errors import ConfigError, DataError
from bfno.lab.runs.folder import RunFolder, read_runs
from bfno.lab.runs.session import start
from bfno.lab.views.layout import as_text
from bfno.lab.views.listing import look_at, look_for_runs, read_finished, run_table
from bfno.lab.views.methods import replicates
from tests.lab.cli.output import error_line
from tests.lab.runs.runs import tiny
from tests.lab.views.runs import FAILURE, record, result, write_failed, write_files, write_run

CONFIG = "experiment: digits/node\nscale: cpu\nseed: 3\ntrain: {epochs: 10}\n"


def _begun(root, name="begun", epochs=2):
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    lines = [
        json.dumps({"epoch": epoch, "test_accuracy": 0.3 * epoch, "seconds": 30.0})
        for epoch in range(1, epochs + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_a_finished_run_has_its_score_and_its_time(tmp_path):
    folder = write_run(tmp_path, config={"train": {"epochs": 3}})
    one = look_at(folder)
    assert (one.state, one.experiment, one.progress) == ("finished", "digits/bfno-node", "3 of 3")
    assert (one.metric, one.score, one.seconds) == ("test_accuracy", 0.97, 61.25)


def test_a_run_that_was_stopped_tells_how_far_it_came(tmp_path):
    one = look_at(_begun(tmp_path))
    assert (one.state, one.experiment, one.seed) == ("stopped", "digits/node", 3)
    assert (one.progress, one.score, one.seconds) == ("2 of 10", 0.6, 60.0)
    assert "test accuracy 60.00% so far" in as_text(run_table([one]))
    assert look_at(_begun(tmp_path, "new", epochs=0)).progress == "0 of 10"


def test_a_run_in_training_is_known_by_its_lock_which_is_left_alone(tmp_path):
    folder = _begun(tmp_path)
    (folder / ".lock").write_text("process 1")
    assert look_at(folder).state == "stopped"
    held = os.open(folder / ".lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert look_at(folder).state == "training"
    os.close(held)
    assert look_at(folder).state == "stopped"


def test_a_run_that_ends_during_listing_is_reported_in_one_way(tmp_path, monkeypatch):
    folder = _begun(tmp_path)
    (folder / "output.log").write_text("error: it failed\n")
    answers = iter([True, False])
    monkeypatch.setattr(RunFolder, "is_in_use", property(lambda _: next(answers)))
    one = look_at(folder)
    assert (one.state, one.why) == ("training", "")
    assert next(answers) is False  # asked once


def test_nothing_is_written_into_a_folder_that_is_listed(tmp_path):
    folder = _begun(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    look_at(folder)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_run_that_failed_says_why(tmp_path):
    folder = _begun(tmp_path)
    (folder / "output.log").write_text("epoch 1\nerror: the loss is not finite. Fix: lower it\n")
    one = look_at(folder)
    assert (one.state, one.why) == ("failed", "the loss is not finite. Fix: lower it")
    kept = look_at(write_failed(tmp_path))  # which has neither a log nor settings
    assert (kept.state, kept.why, kept.epochs, kept.score) == ("failed", FAILURE, 0, None)


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("record.json", "{", "record.json: is cut off or not JSON"),
        ("record.json", '{"format": 99}', "record.json: has format 99"),
        ("record.json", json.dumps({**record(), "seed": "x"}), "record.json: seed"),
        ("config.yaml", "train: [", "config.yaml: "),
        ("config.yaml", "seed: 3", "config.yaml: names no experiment"),
        ("config.yaml", None, "config.yaml: is missing"),
    ],
)
def test_a_damaged_run_is_a_row_and_no_crash(tmp_path, capsys, file, content, why):
    folder = _begun(tmp_path / "runs", "broken")
    (folder / file).unlink(missing_ok=True)
    if content is not None:
        (folder / file).write_text(content)
    write_run(tmp_path / "runs")
    assert main(["runs", str(tmp_path / "runs"), "--json"]) == 0
    broken, whole = map(json.loads, capsys.readouterr().out.splitlines())
    assert (broken["state"], whole["state"]) == ("damaged", "finished")
    assert broken["why"].startswith(why)


def test_edited_metrics_are_damage(tmp_path):
    start(tiny(), tmp_path / "run")
    assert look_at(tmp_path / "run").state == "finished"
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    (tmp_path / "run" / "metrics.jsonl").write_text(text.replace("0", "1"))
    assert look_at(tmp_path / "run").state == "damaged"


def test_runs_are_found_two_folders_deep_and_sorted(tmp_path, capsys):
    for name, accuracy, seconds in (("b", 0.5, 10.0), ("a", 0.4, 30.0), ("c", 0.6, 20.0)):
        content = {**record(), "result": result(accuracy), "seconds": seconds}
        write_files(tmp_path / "runs" / ("cpu" if name == "a" else "") / name, content)
    _begun(tmp_path / "runs")
    (tmp_path / "runs" / "notes").mkdir()

    def names(*words):
        assert main(["runs", str(tmp_path / "runs"), "--json", *words]) == 0
        rows = map(json.loads, capsys.readouterr().out.splitlines())
        return [os.path.relpath(row["run"], tmp_path / "runs") for row in rows]

    assert names() == ["b", "begun", "c", "cpu/a"]
    assert names("--sort", "score") == ["begun", "c", "b", "cpu/a"]
    assert names("--sort", "time") == ["begun", "cpu/a", "c", "b"]
    assert names("--sort", "state")[0] == "begun"


def test_the_folder_of_one_run_lists_it(tmp_path):
    folder = write_run(tmp_path)
    assert [one.run for one in look_for_runs(folder)] == [folder]


def test_the_default_folder_is_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 2
    assert "runs" in error_line(capsys)
    (tmp_path / "runs").mkdir()
    assert main(["runs"]) == 0
    assert "has no runs" in capsys.readouterr().out
    write_run(tmp_path / "runs")
    assert main(["runs"]) == 0
    assert "runs/digits-bfno-node-s7  finished" in capsys.readouterr().out
    assert main(["runs", "--sort", "colour"]) == 2
    assert "name, state, score, time" in error_line(capsys)


def test_hundreds_of_runs_are_listed_in_a_moment_and_without_torch(tmp_path):
    for seed in range(300):
        write_run(tmp_path, seed=seed)
    started = time.process_time()
    assert len(look_for_runs(tmp_path)) == 300
    assert time.process_time() - started < 2
    code = "import sys, bfno.lab.views.listing; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_comparing_shows_finished_runs_and_names_the_others(tmp_path, capsys):
    done, begun = write_run(tmp_path), _begun(tmp_path)
    finished, others = read_finished([done, begun, done])
    assert [*finished] == [done] and [one.run for one in others] == [begun]
    assert main(["compare", str(done), str(begun)]) == 0
    printed = capsys.readouterr().out
    assert "bfno-node  digits" in printed
    said = " ".join(printed.split())
    assert f"{begun} is left out: unfinished, stopped after 2 of 10 epochs" in said
    assert f"`bfno resume {begun}` continues it" in said
    assert main(["compare", str(done), str(begun), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["method"] == "bfno-node" and "left out" in printed.err


def test_runs_whose_folders_have_the_same_last_name_are_told_apart(tmp_path):
    folders = [write_run(tmp_path / place) for place in ("a/x", "b/x", "c")]
    folders.append(write_run(tmp_path / "c", seed=8))
    names = ["a/x/digits-bfno-node-s7", "b/x/digits-bfno-node-s7", "c/digits-bfno-node-s7"]
    names.append("digits-bfno-node-s8")  # alone with its name
    finished, _ = read_finished(folders)
    assert [run.name for run in finished.values()] == names
    assert [run.name for run in read_runs(folders)] == names
    labels = [group.label for group in replicates(finished.values())]
    assert labels == [f"bfno-node ({name})" for name in names[:3]]


def test_what_is_no_run_or_damaged_is_still_refused(tmp_path):
    done, begun = write_run(tmp_path), _begun(tmp_path)
    (tmp_path / "stray").mkdir()
    with pytest.raises(ConfigError, match="not a run"):
        read_finished([done, tmp_path / "stray"])
    with pytest.raises(ConfigError, match="bfno resume"):
        read_finished([begun])
    with pytest.raises(ConfigError, match=f"a run inside it, such as {begun}"):
        read_finished([tmp_path])
    with pytest.raises(ConfigError, match="none is named"):
        read_finished([])
    (begun / "record.json").write_text("{")
    with pytest.raises(DataError, match="cut off"):
        read_finished([done, begun])


def test_a_report_leaves_an_unfinished_run_alone(tmp_path, capsys):
    done, begun = write_run(tmp_path), _begun(tmp_path)
    assert main(["report", str(done), str(begun), "-o", str(tmp_path / "page.html")]) == 0
    printed = capsys.readouterr()
    assert "is left out: unfinished" in printed.err and "Traceback" not in printed.err
    assert "stopped after 2 of 10 epochs" in (tmp_path / "page.html").read_text()
