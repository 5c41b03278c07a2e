"""Files of a run that are damaged, planted or another's are named; nothing takes their place."""

import hashlib
import json
import logging
import os
import re
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from bfno.lab import files
from bfno.lab.cli import main
from bfno.lab.errors import ConfigError, DataError, UserError
from bfno.lab.runs.archive import ended_runs
from bfno.lab.runs.campaign.child import _open_log
from bfno.lab.runs.campaign.plan import state_of
from bfno.lab.runs.checkpoint import ForeignCheckpoint, settings_digest
from bfno.lab.runs.folder import RunFolder, read_run
from bfno.lab.runs.load import keep_exhibit, open_run
from bfno.lab.runs.record import FORMAT, Record
from bfno.lab.runs.session import resume, start
from bfno.lab.runs.signals import Stopped
from bfno.lab.views.exhibit import read_exhibit
from tests.conftest import REPOSITORY
from tests.lab.runs.runs import StopAfter, metrics, result, tiny, weights

THREE = {"train": {"epochs": 3}}
OLD = Path(__file__).parent / "format_1"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = tmp_path_factory.mktemp("trained") / "run"
    start(tiny(THREE), run)
    return run


@pytest.fixture
def run(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


def _chosen(run: Path) -> Path:
    record = RunFolder(run).finished_record()
    assert record is not None and record.chosen_step is not None
    return RunFolder(run).checkpoints.place(record.chosen_step)


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def _forge(place: Path, state: str) -> None:
    """Replace a checkpoint's state, checksum and all."""
    (place / "state.json").write_text(state)
    manifest = json.loads((place / "manifest.json").read_text())
    digest = hashlib.sha256(state.encode()).hexdigest()
    manifest["files"]["state.json"] = {"bytes": len(state), "sha256": digest}
    (place / "manifest.json").write_text(json.dumps(manifest))


def _error(capsys, *words: str) -> tuple[int, str]:
    code = main(list(words))
    return code, capsys.readouterr().err


# -- damaged checkpoints ----------------------------------------------------------------------


@pytest.mark.parametrize("spoil", [lambda f: _flip(f / "model.safetensors"), shutil.rmtree])
def test_a_damaged_best_checkpoint_is_not_replaced_in_silence(run, capsys, caplog, spoil):
    chosen = _chosen(run)
    spoil(chosen)
    code, err = _error(capsys, "eval", str(run))
    assert code == 3 and err.count("\n") == 1
    assert chosen.name in err and "--any-checkpoint" in err
    assert main(["eval", str(run), "--any-checkpoint"]) == 0
    assert "is used instead" in caplog.text and chosen.name in caplog.text
    with pytest.raises(DataError, match=chosen.name):
        open_run(run)


def test_an_exhibit_of_the_checkpoint_that_was_asked_for_instead_is_shown(run):
    chosen = RunFolder(run).record().chosen_step
    shutil.rmtree(_chosen(run))
    assert keep_exhibit(run, any_checkpoint=True)
    found = read_exhibit(run, chosen)
    assert found is not None and found.step != chosen == found.stands_for


def test_a_damaged_newest_checkpoint_of_an_unfinished_run_is_named_too(run):
    (run / "record.json").unlink()
    newest = RunFolder(run).checkpoints.steps()[0]
    _flip(RunFolder(run).checkpoints.place(newest) / "state.json")
    with pytest.raises(DataError, match=f"step-{newest:08d}.*--any-checkpoint"):
        open_run(run)
    assert open_run(run, any_checkpoint=True).step < newest


def test_a_finished_run_that_continues_is_unfinished_from_its_first_step(run):
    with pytest.raises(Stopped):
        resume(run, {"train": {"epochs": 9}}, [StopAfter(40)])
    assert json.loads((run / "record.json").read_text())["status"] == "unfinished"
    with pytest.raises(ConfigError, match=r"is unfinished, not finished\. Fix: bfno resume"):
        read_run(run)
    assert state_of(run) == "begun" and ended_runs(run.parent) == []
    best = RunFolder(run).checkpoints.newest()[0]
    assert best is not None and open_run(run).step == best.progress.best["step"]
    assert resume(run).is_finished and read_run(run).epoch_count == 9


def test_a_resume_without_a_step_leaves_the_run_finished(run):
    before = result(run)
    assert resume(run).is_finished and result(run) == before


def test_a_newest_checkpoint_without_a_manifest_is_named_before_an_older_one_is_used(run, caplog):
    (run / "record.json").unlink()
    store = RunFolder(run).checkpoints
    (store.place(18) / "manifest.json").unlink()
    assert open_run(run).step in (6, 12)  # the best of those that count
    note = "step-00000018: is ignored because it has no manifest"
    assert caplog.text.count(note) == 1 and "step-00000012 is the newest" in caplog.text
    caplog.clear()
    resume(run)  # which takes the steps again: a kill while a checkpoint is written is ordinary
    assert note not in caplog.text
    caplog.clear()
    assert open_run(run).step and caplog.text == ""


def test_a_checkpoint_is_counted_once_despite_copies(run, caplog):
    store = RunFolder(run).checkpoints
    for name in ("step-18", "step-000000018", "step-24", "step-１８"):
        shutil.copytree(store.place(18), store.folder / name)
    assert store.steps() == [18, 12, 6]
    (run / "record.json").unlink()
    open_run(run)
    assert "step-24: is ignored because its name is not step-00000024" in caplog.text


def _spoil_best(run: Path, best: int) -> None:
    """Let an epoch be the best, and damage its checkpoint."""
    for step in (best, 18):  # the newest knows of it, as its own checkpoint does
        place = RunFolder(run).checkpoints.place(step)
        state = json.loads((place / "state.json").read_text())
        line = json.loads((run / "metrics.jsonl").read_text().splitlines()[best // 6 - 1])
        line["validation_accuracy"] = 1.0
        state["progress"]["best"] = {**state["progress"]["best"], "step": best, "metrics": line}
        _forge(place, json.dumps(state))
    _flip(RunFolder(run).checkpoints.place(best) / "model.safetensors")


def test_a_resumed_run_names_a_damaged_best_checkpoint_and_chooses_another(run, caplog):
    _spoil_best(run, 6)
    with caplog.at_level(logging.WARNING):
        record = resume(run, {"train": {"epochs": 4}})
    assert "the best epoch so far, " in caplog.text and "step-00000006" in caplog.text
    assert "takes its place" in caplog.text
    assert record.chosen_step in (12, 18, 24)
    assert open_run(run).step == record.chosen_step


def test_a_finished_run_with_a_damaged_best_checkpoint_keeps_its_result(run, caplog):
    _spoil_best(run, 6)
    record = resume(run)
    assert "step-00000006" in caplog.text and "bring its weights back" in caplog.text
    assert record.chosen_step == 6


def test_without_any_whole_epoch_the_best_is_one_to_come(tmp_path, caplog):
    run = tmp_path / "run"
    with pytest.raises(Stopped):
        start(tiny(THREE), run, [StopAfter(9)])
    _flip(RunFolder(run).checkpoints.place(6) / "model.safetensors")
    record = resume(run)
    assert "the best epoch so far, " in caplog.text and "step-00000006" in caplog.text
    assert "it is left out" in caplog.text and record.chosen_step in (12, 18)


# -- checkpoints of others --------------------------------------------------------------------


def test_a_checkpoint_of_another_run_is_refused_by_name(run, tmp_path, capsys):
    start(tiny(THREE), tmp_path / "other")  # the same settings, to the last digit
    place = RunFolder(run).checkpoints.place(18)
    shutil.rmtree(place)
    shutil.copytree(RunFolder(tmp_path / "other").checkpoints.place(18), place)
    with pytest.raises(ForeignCheckpoint, match="step-00000018: is the checkpoint of another run"):
        resume(run, {"train": {"epochs": 4}})
    with pytest.raises(DataError, match="another run"):
        RunFolder(run).checkpoints.load(18)
    (run / "record.json").unlink()
    code, err = _error(capsys, "eval", str(run))
    assert code == 3 and "another run" in err


def test_a_checkpoint_under_the_name_of_another_step_is_refused_by_name(run):
    store = RunFolder(run).checkpoints
    shutil.copytree(store.place(18), store.place(24))
    with pytest.raises(ForeignCheckpoint, match="step-00000024: is the checkpoint of step 18"):
        resume(run, {"train": {"epochs": 5}})


def test_a_checkpoint_of_other_settings_is_refused_by_name(run):
    manifest = RunFolder(run).checkpoints.place(18) / "manifest.json"
    values = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**values, "settings": "0" * 64}))
    with pytest.raises(ForeignCheckpoint, match="step-00000018: is that of other settings"):
        resume(run)


def test_circumstances_are_no_settings():
    config = tiny().as_dict()
    digest = settings_digest(config)
    other = {**config, "threads": 8, "data": {**config["data"], "dir": "/elsewhere"}}
    other["train"] = {**config["train"], "checkpoint_seconds": 1}
    assert settings_digest(other) == digest != settings_digest({**config, "seed": 4})


def test_every_run_has_an_identity_of_its_own_that_stays(run, tmp_path):
    start(tiny(), tmp_path / "other")
    identity = RunFolder(run).identity()
    assert identity and identity != RunFolder(tmp_path / "other").identity()
    resume(run, {"train": {"epochs": 4}})
    assert RunFolder(run).identity() == identity


@pytest.mark.parametrize("content", ["", "{}", "[]", "[" * 9999])
def test_a_spoilt_identity_is_one_line(run, content):
    (run / "run.json").write_text(content)
    with pytest.raises(DataError, match=r"run\.json: is not the identity of a run"):
        open_run(run)


# -- checksums of the other files -------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda file: file.write_bytes(b""), "has 0 bytes of"),
        (lambda file: file.unlink(), "has 0 bytes of"),
        (lambda file: file.write_bytes(file.read_bytes().replace(b"e", b"E", 1)), "was changed"),
    ],
)
def test_metrics_that_are_no_longer_those_of_the_checkpoint_are_refused(run, capsys, spoil, why):
    spoil(run / "metrics.jsonl")
    code, err = _error(capsys, "resume", str(run), "--set", "train.epochs=4")
    assert code == 3 and err.count("\n") == 1
    assert "metrics.jsonl" in err and why in err and "step 18" in err


def test_the_manifest_has_the_checksums_of_settings_and_metrics(run):
    manifest = RunFolder(run).checkpoints.place(18) / "manifest.json"
    covered = json.loads(manifest.read_text())["covered"]
    for name in ("config.yaml", "metrics.jsonl"):
        assert covered[name] == hashlib.sha256((run / name).read_bytes()).hexdigest()


def test_settings_that_were_edited_are_told_and_used(run, caplog):
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("method: midpoint", "method: rk4"))
    assert open_run(run).config.solver.method == "rk4"
    chosen = RunFolder(run).finished_record()
    assert chosen is not None
    (run / "record.json").unlink()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        resume(run)
    assert "solver.method is 'rk4', but was 'midpoint'" in caplog.text


def test_settings_that_make_another_experiment_are_refused_by_eval_too(run, capsys):
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("seed: 3", "seed: 4"))
    code, err = _error(capsys, "eval", str(run))
    assert code == 2 and "seed: is 4, but 3 in its checkpoints" in err


def test_a_record_that_was_changed_is_refused(run, capsys):
    file = run / "record.json"
    file.write_text(file.read_text().replace('"chosen_epoch": ', '"chosen_epoch": 1'))
    code, err = _error(capsys, "compare", str(run))
    assert code == 3 and "record.json: differs from its SHA-256" in err
    assert open_run(run).step  # the checkpoints know the best step too


@pytest.mark.parametrize("lost", ["sha256", "metrics_sha256"])
def test_a_record_whose_checksum_was_taken_out_is_refused(run, capsys, lost):
    file = run / "record.json"
    values = json.loads(file.read_text())
    del values[lost]
    file.write_text(json.dumps({**values, "chosen_epoch": 1}))
    code, err = _error(capsys, "compare", str(run))
    assert code == 3 and f"record.json: has lost its {lost}" in err and "bfno resume" in err
    resume(run)
    assert read_run(run).is_finished  # and whole again


# -- one record -------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was_written(run):
    record = RunFolder(run).record()
    assert Record.from_bytes(record.to_bytes(), record.name) == record
    assert json.loads(record.to_bytes())["format"] == FORMAT


def test_all_records_of_the_repository_are_read_and_written_without_loss():
    places = sorted((REPOSITORY / "results").rglob("record.json"))
    assert len(places) >= 95
    for file in places:
        raw = json.loads(file.read_text())
        record = RunFolder(file.parent).ended()
        assert record.has_ended and len(record.epochs) == raw["epochs"]
        written = json.loads(record.to_bytes())
        assert Record.from_bytes(record.to_bytes(), record.name).result == record.result
        for key, value in raw.items():
            if key not in ("format", "changes") and value is not None:
                assert written[key] == value, (file, key)


# -- runs of the previous version -------------------------------------------------------------


@pytest.mark.parametrize("name", ["finished", "stopped"])
def test_a_run_of_the_previous_version_is_read_and_continues(tmp_path, name, caplog):
    run = Path(shutil.copytree(OLD / name, tmp_path / name))
    before = RunFolder(run).checkpoints.newest()[0]
    assert before is not None and before.step == {"finished": 12, "stopped": 9}[name]
    assert open_run(run).step in (6, 9)
    assert resume(run).is_finished and read_run(run).steps == 12
    assert resume(run, THREE).steps == 18
    assert open_run(run).step == _number(_chosen(run))
    assert caplog.text == ""


def test_a_stopped_run_of_the_previous_version_ends_like_a_finished_one(tmp_path):
    run = Path(shutil.copytree(OLD / "stopped", tmp_path / "run"))
    resume(run)
    # Another processor may round another way, but then for both.
    start(tiny(), tmp_path / "new")
    if weights(OLD / "finished") == weights(tmp_path / "new"):
        assert weights(run) == weights(OLD / "finished")
        # What is measured today and was not then has nothing to be compared with.
        for now, then in zip(metrics(run), metrics(OLD / "finished"), strict=True):
            measured, known = json.loads(now), json.loads(then)
            assert {name: measured[name] for name in known} == pytest.approx(known, rel=1e-7)


def _number(place: Path) -> int:
    return int(place.name.removeprefix("step-"))


# -- links and pipes --------------------------------------------------------------------------


def _plant(kind: str, file: Path, victim: Path) -> None:
    file.unlink(missing_ok=True)
    if kind == "link":
        file.symlink_to(victim)
    else:
        os.mkfifo(file)


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("name", [".lock", "metrics.jsonl"])
def test_nothing_planted_in_a_run_is_followed_or_waited_for(run, tmp_path, capsys, kind, name):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    _plant(kind, run / name, victim)
    code, err = _error(capsys, "resume", str(run), "--set", "train.epochs=4")
    assert code == 3 and err.count("\n") == 1 and name in err
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_new_run_writes_no_metrics_through_a_link_or_pipe(tmp_path, kind):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "run").mkdir()
    _plant(kind, tmp_path / "run" / "metrics.jsonl", victim)
    with pytest.raises(ConfigError, match=r"this folder already holds a run \(metrics\.jsonl"):
        start(tiny(), tmp_path / "run")
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_the_log_of_a_campaign_is_a_plain_file(tmp_path, kind):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    _plant(kind, tmp_path / "output.log", victim)
    with pytest.raises(DataError, match=r"output\.log: is (a link|not a plain file)"):
        _open_log(tmp_path)
    assert victim.read_text() == "mine"


def test_readers_wait_for_no_pipe(run):
    for name in ("metrics.jsonl", "record.json", "exhibit.json", "run.json"):
        _plant("pipe", run / name, run)
    folder = RunFolder(run)
    assert folder.epochs_so_far() == [] and folder.exhibit_step() is None
    assert folder.finished_record() is None
    for read in (folder.record, folder.epochs, folder.identity):
        with pytest.raises(UserError):
            read()


def test_a_partial_file_is_never_written_through_a_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".file.{os.getpid()}.partial").symlink_to(victim)
    files.write_atomically(tmp_path / "file", b"new")
    assert victim.read_text() == "mine" and (tmp_path / "file").read_bytes() == b"new"
    assert stat.S_ISREG((tmp_path / "file").lstat().st_mode)


def test_a_checkpoint_folder_that_is_a_link_is_not_emptied(run, tmp_path):
    other = shutil.copytree(RunFolder(run).checkpoints.place(18), tmp_path / "other")
    (run / "checkpoints" / "step-00000001").symlink_to(other)
    RunFolder(run).checkpoints.keep({18})
    assert len(list(other.iterdir())) == 4
    assert not (run / "checkpoints" / "step-00000001").is_symlink()


# -- state ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    ["{}", "[]", '{"progress": {}, "config": 3}', '{"progress": {"step": "x"}}', "[" * 9999],
)
def test_a_state_that_says_nothing_is_one_line(run, capsys, content):
    _forge(_chosen(run), content)
    code, err = _error(capsys, "eval", str(run))
    assert code == 3 and err.count("\n") == 1 and "state.json" in err


@pytest.mark.parametrize(
    ("best", "why"),
    [
        ({"step": 6}, "has no by"),
        ({"by": "x", "step": 6, "confusion": []}, "has no metrics"),
        ({"by": "x", "step": 6, "confusion": [], "metrics": {}}, r"has no metrics\.epoch"),
        ({"by": "x", "step": 6, "confusion": [], "metrics": {"epoch": 1, "a": "b"}}, "not a numb"),
    ],
)
def test_a_state_with_half_a_best_epoch_is_one_line(run, capsys, best, why):
    chosen = _chosen(run)
    state = json.loads((chosen / "state.json").read_text())
    state["progress"]["best"] = best
    _forge(chosen, json.dumps(state))
    code, err = _error(capsys, "eval", str(run))
    assert code == 3 and err.count("\n") == 1
    assert re.search(rf"state\.json: cannot be understood: progress\.best: .*{why}", err)


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over(tmp_path):
    run = tmp_path / "run"
    start(tiny(), run)
    before = (run / "metrics.jsonl").read_bytes()
    for file in run.glob("checkpoints/*/model.safetensors"):
        file.write_bytes(b"damaged")
    with pytest.raises(DataError, match="all its checkpoints are damaged"):
        resume(run, {"train": {"epochs": 4}})
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_finished_run_with_emptied_metrics_is_not_shown(run, capsys):
    (run / "metrics.jsonl").write_bytes(b"")
    for command in (["compare", str(run)], ["report", str(run), "-o", str(run / "page.html")]):
        assert main(command) == 3
        assert "metrics.jsonl: has changed since" in capsys.readouterr().err
    assert not (run / "page.html").exists()


def test_what_is_left_of_a_run_is_never_trained_over(trained, run, tmp_path):
    (run / "config.yaml").unlink()
    with pytest.raises(ConfigError, match="this folder already holds a run"):
        start(tiny(), run)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "checkpoints").symlink_to(trained / "checkpoints")
    with pytest.raises(ConfigError, match="this folder already holds a run"):
        start(tiny(), linked)


def test_checkpoints_that_name_their_run_need_its_identity(run):
    (run / "run.json").unlink()
    with pytest.raises(DataError, match=r"no run\.json to compare"):
        open_run(run)


def test_a_finished_run_is_not_relabelled_by_settings_that_train_nothing(run):
    before = (run / "record.json").read_bytes(), (run / "config.yaml").read_bytes()
    with pytest.raises(ConfigError, match=r"has finished its 3 epochs.*train\.epochs=N"):
        resume(run, {"train": {"lr": 5.0}})
    assert ((run / "record.json").read_bytes(), (run / "config.yaml").read_bytes()) == before


def test_a_run_that_lacks_only_its_record_may_be_resumed_elsewhere(run, tmp_path):
    before = result(run)
    (run / "record.json").unlink()  # killed between the last epoch and the record
    changes = {"train": {"checkpoint_seconds": 1}, "threads": 1, "data": {"dir": str(tmp_path)}}
    assert resume(run, changes).is_finished
    assert result(run)["result"] == before["result"]


def test_a_finished_run_whose_checkpoints_are_gone_does_not_start_over(run):
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(DataError, match="its checkpoints are gone"):
        resume(run)


@pytest.mark.parametrize("any_checkpoint", [False, True])
def test_a_record_that_names_no_step_and_no_checkpoint_are_one_line(run, any_checkpoint):
    shutil.rmtree(run / "checkpoints")
    folder = RunFolder(run)
    folder.write_record(replace(folder.record(), chosen_step=None))
    with pytest.raises(DataError, match=r"its checkpoints are gone\. Fix: restore them"):
        open_run(run, any_checkpoint=any_checkpoint)


def test_settings_are_not_read_from_a_pipe(tmp_path, capsys):
    os.mkfifo(tmp_path / "mine.yaml")
    assert main(["config", str(tmp_path / "mine.yaml")]) == 3
    assert "is not a plain file" in capsys.readouterr().err
