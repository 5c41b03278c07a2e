import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from bfno.lab.errors import ConfigError
from bfno.lab.experiments.seeds import first_seeds
from bfno.lab.runs.campaign import local as campaign_local
from bfno.lab.runs.campaign.child import Places
from bfno.lab.runs.campaign.plan import missing_files, plan, state_of
from bfno.lab.runs.campaign.running import Campaign, failure_code, remaining_seconds
from bfno.lab.runs.folder import RunFolder, read_run
from bfno.lab.runs.session import resume, start
from bfno.lab.runs.signals import Stopped
from tests.lab.runs import campaigns
from tests.lab.runs.campaigns import METHODS, calls, settings, write_plan, write_run
from tests.lab.runs.runs import StopAfter, tiny

EXPERIMENTS = [f"digits/{method}" for method in METHODS]


@pytest.fixture(autouse=True)
def own_children(monkeypatch):
    """What a test puts in the place of children ends with it."""
    monkeypatch.setattr(campaign_local, "child_command", None)


def _plan(runs: Path, seeds=(7,), experiments=("digits/node",)):
    return plan(experiments, "smoke", seeds, runs)


def test_seeds_count_from_the_default_one():
    assert first_seeds(1) == [7] and first_seeds(3) == [7, 8, 9]


def test_a_missing_run_gets_a_folder_named_after_it(tmp_path):
    (job,) = _plan(tmp_path / "none")
    assert (job.state, job.epochs, job.seconds) == ("missing", 2, None)
    assert job.folder == tmp_path / "none" / "smoke" / "digits-node-s7"


@pytest.mark.parametrize("place", ["a", "a/b"])
def test_a_finished_run_is_found_wherever_it_lies(tmp_path, place):
    folder = write_run(tmp_path / place, settings("node"))
    (job,) = _plan(tmp_path)
    assert (job.state, job.folder) == ("there", folder)


def test_a_run_whose_settings_changed_on_the_way_is_not_taken(tmp_path):
    config = tiny({"seed": 7}, "digits/node")
    run = tmp_path / "runs" / "run"
    start(config, run)
    resume(run, {"train": {"lr": 0.5, "epochs": 3}})
    wanted = {"train": {**config.train.model_dump(), "lr": 0.5, "epochs": 3}}
    changes = {name: getattr(config, name).model_dump() for name in ("data", "model", "solver")}
    (job,) = plan(["digits/node"], "smoke", [7], tmp_path / "runs", {**changes, **wanted})
    assert job.state == "missing" and job.folder != run
    begun = tmp_path / "begun" / "run"
    with pytest.raises(Stopped):
        start(config, begun, [StopAfter(4)])
    written = config.model_copy(update={"train": config.train.model_copy(update=wanted["train"])})
    RunFolder(begun).write_config(written)  # as by a resume that was killed before a checkpoint
    (job,) = plan(["digits/node"], "smoke", [7], tmp_path / "begun", {**changes, **wanted})
    assert job.state == "missing"
    plain = tmp_path / "plain" / "run"
    start(tiny({"seed": 7, "train": {"lr": 0.5, "epochs": 3}}, "digits/node"), plain)
    (job,) = plan(["digits/node"], "smoke", [7], tmp_path / "plain", {**changes, **wanted})
    assert (job.state, job.folder) == ("there", plain)


def test_a_run_behind_a_link_is_found(tmp_path):
    real = write_run(tmp_path / "far" / "away" / "run", settings("node"))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(real)
    (job,) = _plan(tmp_path / "runs")
    assert (job.state, job.folder) == ("there", tmp_path / "runs" / "link")


@pytest.mark.parametrize(
    "changes",
    [
        {"train": {"lr": 0.5}},
        {"model": {"width": 3}},
        {"data": {"train_limit": 10}},
        {"solver": {"rtol": 0.1}},
        {"seed": 8},
    ],
)
def test_a_finished_run_with_changed_settings_is_not_taken(tmp_path, changes):
    write_run(tmp_path / "smoke" / "digits-node-s7", settings("node", **{"seed": 7, **changes}))
    (job,) = _plan(tmp_path)
    assert job.state == "missing"
    assert job.folder == tmp_path / "smoke" / "digits-node-s7-2"  # the other run keeps its place


CHANGES: dict[str, Any] = {"solver": {"gradient": "adjoint"}}


def test_runs_with_the_same_changed_settings_have_a_place_of_their_own(tmp_path):
    write_run(tmp_path / "smoke" / "digits-node-s7", settings("node"))
    (job,) = plan(["digits/node"], "smoke", [7], tmp_path, CHANGES)
    assert (job.state, job.changes) == ("missing", ('solver.gradient="adjoint"',))
    assert job.folder == tmp_path / "smoke-gradient-adjoint" / "digits-node-s7"
    write_run(job.folder, settings("node", **CHANGES))
    assert plan(["digits/node"], "smoke", [7], tmp_path, CHANGES)[0].state == "there"
    (plain,) = _plan(tmp_path)
    assert plain.folder == tmp_path / "smoke" / "digits-node-s7" and plain.changes == ()


def test_a_change_that_is_none_is_the_run_itself(tmp_path):
    folder = write_run(tmp_path / "a", settings("node"))
    changes = {"solver": {"gradient": settings("node")["solver"]["gradient"]}}
    (job,) = plan(["digits/node"], "smoke", [7], tmp_path, changes)
    assert (job.state, job.folder, job.changes) == ("there", folder, ())


def test_runs_are_trained_with_the_changed_settings(tmp_path):
    campaigns.pretend(write_plan(tmp_path))
    jobs = plan(["digits/node"], "smoke", [7], tmp_path, CHANGES)
    for _ in Campaign(jobs, 1).run():
        pass
    words = calls(tmp_path / "smoke-gradient-adjoint" / "digits-node-s7")[0]["words"]
    assert words[words.index("--set") + 1] == 'solver.gradient="adjoint"'


def test_files_of_every_part_of_a_data_set_are_looked_for(tmp_path):
    (tmp_path / "physionet").mkdir()
    (tmp_path / "physionet" / "Outcomes-a.txt").touch()
    assert missing_files("physionet", tmp_path) is None
    error = missing_files("physionet", tmp_path, {"data": {"sets": "a,b"}})
    assert error is not None and "set-b.tar.gz" in error.fix


def test_circumstances_do_not_make_another_run(tmp_path):
    write_run(tmp_path / "a", settings("node", threads=2, data={"dir": "/elsewhere"}))
    assert _plan(tmp_path)[0].state == "there"


def test_an_old_record_without_newer_settings_is_taken(tmp_path):
    config = settings("node")
    for section, key in (("solver", "first_step"), ("train", "average"), ("train", "optimizer")):
        del config[section][key]
    write_run(tmp_path / "a", config)
    assert _plan(tmp_path)[0].state == "there"


def test_a_newer_setting_that_the_experiment_has_changed_makes_another_run(tmp_path):
    config = settings("node")
    del config["train"]["epochs"]  # ten if it is not there, two in this experiment
    write_run(tmp_path / "a", config)
    assert _plan(tmp_path)[0].state == "missing"


def test_a_run_of_another_scale_is_not_taken(tmp_path):
    from bfno.lab.experiments.resolve import resolve

    write_run(tmp_path / "a", resolve("digits/node", scale="cpu").as_dict())
    assert _plan(tmp_path)[0].state == "missing"


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"status": "finished"}', '{"status": "finished", "config": 3}', "[" * 9999],
)
def test_a_record_that_cannot_be_read_is_no_run(tmp_path, content):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "record.json").write_text(content)
    assert _plan(tmp_path)[0].state == "missing"


def test_a_run_that_was_killed_has_begun_and_one_that_is_held_is_in_use(tmp_path):
    folder = write_run(tmp_path / "a", settings("node"), finished=False)
    (job,) = _plan(tmp_path)
    assert (job.state, job.folder) == ("begun", folder)
    with RunFolder(folder):
        assert _plan(tmp_path)[0].state == state_of(folder) == "in use"
    assert state_of(folder) == "begun"


def test_a_run_in_a_folder_without_write_access_is_trained_again_elsewhere(tmp_path):
    folder = write_run(tmp_path / "a", settings("node"), finished=False)
    (folder / ".lock").mkdir()  # which cannot be opened, as in a folder without rights
    (job,) = _plan(tmp_path)
    assert (job.state, job.folder.parent.name) == ("missing", "smoke")


def test_of_several_the_finished_run_is_taken(tmp_path):
    write_run(tmp_path / "a", settings("node"), finished=False)
    write_run(tmp_path / "b", settings("node"))
    assert _plan(tmp_path)[0].folder == tmp_path / "b"


def test_time_is_estimated_from_the_same_experiment_else_from_the_same_data(tmp_path):
    write_run(tmp_path / "a", settings("node", 8), seconds=10)
    write_run(tmp_path / "b", settings("node", 9), seconds=30)
    write_run(tmp_path / "c", settings("anode", 9), seconds=80)
    jobs = _plan(tmp_path, experiments=EXPERIMENTS)
    assert [job.seconds for job in jobs] == [20, 80, 40]


def test_half_a_line_of_metrics_does_not_count(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1, "x": 2}\n3\n{"epoch": 2, "x')
    assert RunFolder(tmp_path).epochs_so_far() == [{"epoch": 1, "x": 2}]
    assert RunFolder(tmp_path / "none").epochs_so_far() == []


@pytest.mark.parametrize("number", ["Infinity", "NaN", "null", '"x"'])
def test_an_epoch_that_has_no_number_does_not_count(tmp_path, number):
    (tmp_path / "metrics.jsonl").write_text(f'{{"epoch": {number}}}\n{{"epoch": 2}}\n')
    assert RunFolder(tmp_path).epochs_so_far() == [{"epoch": 2}]


@pytest.mark.parametrize(
    "seconds",
    [float("inf"), float("nan"), None],
    ids=["endless", "undefined", "nothing"],
)
def test_a_time_that_is_no_number_tells_nothing(tmp_path, seconds):
    write_run(tmp_path / "a", settings("node", 8), seconds=seconds)
    assert [(job.state, job.seconds) for job in _plan(tmp_path, (7, 8))] == [
        ("missing", None),
        ("there", None),
    ]


def test_the_time_of_a_training_that_failed_is_no_measure_for_others(tmp_path):
    write_run(tmp_path / "a", settings("node", 8), status="failed", seconds=1)
    (tmp_path / "a" / "config.yaml").unlink()
    assert [(job.state, job.seconds) for job in _plan(tmp_path, (7, 8))] == [
        ("missing", None),
        ("failed", None),
    ]


@pytest.mark.parametrize("seconds", [10**400, "long"], ids=["too long for a float", "text"])
def test_a_finished_run_with_a_spoilt_record_is_gone_on_with(tmp_path, seconds):
    write_run(tmp_path / "a", settings("node"), seconds=seconds)
    assert _plan(tmp_path)[0].state == "begun"


def test_settings_without_end_are_no_run(tmp_path):
    config = settings("node")
    config["train"]["epochs"] = float("inf")
    write_run(tmp_path / "a", config)
    assert _plan(tmp_path)[0].state == "missing"


def test_a_record_from_before_there_was_a_status_is_that_of_a_finished_run(tmp_path):
    folder = write_run(tmp_path / "a", settings("node"))
    old = campaigns.record(settings("node"))
    del old["status"]
    (folder / "record.json").write_text(json.dumps(old))
    assert RunFolder(folder).finished_record() is not None
    assert _plan(tmp_path)[0].state == "there"
    assert read_run(folder).experiment == "digits/node"


@pytest.mark.parametrize("content", [{}, {"name": "package"}, {"format": 1, "status": "failed"}])
def test_what_is_no_record_of_a_finished_run_does_not_count(tmp_path, content):
    (tmp_path / "record.json").write_text(json.dumps(content))
    assert RunFolder(tmp_path).finished_record() is None


def test_an_unknown_experiment_is_refused_before_anything_is_looked_for(tmp_path):
    with pytest.raises(ConfigError, match="nearest"):
        _plan(tmp_path, experiments=["digits/nod"])


@pytest.mark.parametrize("data", ["mnist", "cifar10-density", "physionet", "activity"])
def test_missing_files_are_told_with_the_command_that_fetches_them(tmp_path, data):
    error = missing_files(data, tmp_path)
    assert error is not None and "`bfno data get " in error.fix
    assert missing_files("digits", tmp_path) is missing_files("digits-density", tmp_path) is None


def _campaign(root: Path, seeds: int = 1, slots: int | None = 2, **does: str) -> Campaign:
    campaigns.pretend(write_plan(root, seeds, **does))
    return Campaign(plan(EXPERIMENTS, "smoke", first_seeds(seeds), root), slots)


def _states(campaign: Campaign) -> list[str]:
    return [one.state for one in campaign.standings]


def test_a_campaign_trains_what_is_missing_and_no_more_at_a_time_than_asked(tmp_path):
    write_run(tmp_path / "old", settings("anode"))
    campaign = _campaign(tmp_path, seeds=2)
    together = [[one.state for one in standings].count("running") for standings in campaign.run()]
    assert max(together) == 2
    assert _states(campaign) == [
        "finished",
        "there",
        "finished",
        "finished",
        "finished",
        "finished",
    ]
    assert calls(tmp_path / "old") == [] and failure_code(campaign.standings) == 0
    called = calls(tmp_path / "smoke" / "digits-node-s8")
    assert [one["command"] for one in called] == ["train"]
    assert called[0]["words"][:5] == ["digits/node", "--scale", "smoke", "--seed", "8"]


def test_each_run_has_one_thread_on_any_core_for_others_may_have_taken_some(tmp_path):
    campaign = _campaign(tmp_path)
    for _ in campaign.run():
        pass
    for standing in campaign.standings:
        (call,) = calls(standing.job.folder)
        assert call["threads"] == "1" and call["words"][-2:] == ["--set", "threads=1"]
        if hasattr(os, "sched_getaffinity"):
            assert call["cores"] == Places().cores


def test_where_there_are_gpus_each_run_sees_one_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    campaign = _campaign(tmp_path, slots=None)
    assert campaign.slots == 2
    for _ in campaign.run():
        pass
    seen = [call["gpu"] for one in campaign.standings for call in calls(one.job.folder)]
    assert len(seen) == 3 and set(seen) == {"3", "5"}


def test_without_gpus_there_is_a_run_for_each_core(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    places = Places()
    assert places.gpus == [] and places.count == len(places.cores)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert places.environment(0)["CUDA_VISIBLE_DEVICES"] == ""


def test_gpus_are_numbered_if_the_environment_names_none(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    given = [Places().environment(number)["CUDA_VISIBLE_DEVICES"] for number in range(3)]
    assert given == ["0", "1", "0"]  # asked for more at a time, two share one


def test_started_again_a_campaign_does_nothing(tmp_path):
    for _ in _campaign(tmp_path).run():
        pass
    again = Campaign(plan(EXPERIMENTS, "smoke", [7], tmp_path), 2)
    for _ in again.run():
        pass
    assert _states(again) == ["there"] * 3
    assert [len(calls(one.job.folder)) for one in again.standings] == [1, 1, 1]


def test_a_failing_run_stops_no_other_and_tells_why(tmp_path):
    campaign = _campaign(tmp_path, slots=1, node_7="fail", anode_7="die")
    for _ in campaign.run():
        pass
    assert _states(campaign) == ["failed", "failed", "finished"]
    failed, killed, _ = campaign.standings
    assert failed.error == "step\ufffd 3: the loss is not a finite number. Fix: lower the rate"
    assert killed.error.startswith("killed by signal 9")
    assert (failed.code, killed.code) == (4, -9)
    assert failure_code(campaign.standings) == failure_code([killed]) == 4
    failed.code = 3
    assert failure_code([failed]) == 3


def test_a_signal_lets_every_run_save_and_the_same_campaign_continues(tmp_path):
    campaign = _campaign(tmp_path, node_7="wait", anode_7="wait")
    folders = [one.job.folder for one in campaign.standings]
    rounds = campaign.run()
    while not all((folder / "waits").exists() for folder in folders[:2]):
        next(rounds)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Stopped) as stopped:
        for _ in rounds:
            pass
    assert stopped.value.exit_code == 143
    assert [(folder / "saved").exists() for folder in folders] == [True, True, False]
    assert _states(campaign) == ["stopped", "stopped", "waiting"]

    (tmp_path / "smoke" / "go").touch()
    again = Campaign(plan(EXPERIMENTS, "smoke", [7], tmp_path), 2)
    assert [one.job.state for one in again.standings] == ["begun", "begun", "missing"]
    for _ in again.run():
        pass
    assert _states(again) == ["finished"] * 3
    assert [call["command"] for call in calls(folders[0])] == ["train", "resume"]


def test_leaving_a_campaign_stops_its_runs(tmp_path):
    campaign = _campaign(tmp_path, slots=1, node_7="wait")
    folder = campaign.standings[0].job.folder
    rounds = campaign.run()
    while not (folder / "waits").exists():
        next(rounds)
    rounds.close()
    assert (folder / "saved").exists()


def test_a_run_in_use_elsewhere_is_waited_for_and_not_trained_twice(tmp_path):
    config = settings("node")
    folder = write_run(tmp_path / "theirs", config, finished=False)
    with RunFolder(folder):
        campaign = _campaign(tmp_path)
        rounds = campaign.run()
        while _states(campaign) != ["elsewhere", "finished", "finished"]:
            next(rounds)
        (folder / "record.json").write_text(json.dumps(campaigns.record(config)))
    for _ in rounds:
        pass
    assert _states(campaign) == ["finished"] * 3 and calls(folder) == []


def test_a_run_that_another_began_meanwhile_is_waited_for_and_then_resumed(tmp_path):
    campaign = _campaign(tmp_path)
    folder = write_run(tmp_path / "smoke" / "digits-node-s7", settings("node"), finished=False)
    with RunFolder(folder):
        rounds = campaign.run()
        while _states(campaign) != ["elsewhere", "finished", "finished"]:
            next(rounds)
    for _ in rounds:
        pass
    assert _states(campaign) == ["finished"] * 3
    assert [call["command"] for call in calls(folder)] == ["resume"]


def test_remaining_time_is_estimated_from_epochs_and_from_other_records(tmp_path):
    write_run(tmp_path / "a", settings("node", 8), seconds=10)
    write_run(tmp_path / "b", settings("node"), finished=False)  # one of two epochs, of 3 seconds
    waiting = Campaign(_plan(tmp_path, (7, 8, 9)), 2).standings
    assert [one.remaining() for one in waiting] == [3, 0, 10]
    assert remaining_seconds(waiting, slots=1) == 13
    assert remaining_seconds(waiting, slots=2) == 10  # the longest takes that long anyway
    unknown = Campaign(_plan(tmp_path / "none"), 1).standings
    assert remaining_seconds(unknown, 1) is None and remaining_seconds([], 1) == 0


def test_a_run_that_ends_between_two_looks_is_there(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "a", settings("node"), finished=False)
    original = RunFolder.check_free

    def end(self):
        original(self)
        (folder / "record.json").write_text(json.dumps(campaigns.record(settings("node"))))

    monkeypatch.setattr(RunFolder, "check_free", end)
    assert state_of(folder) == "there"


def test_a_run_that_is_held_before_it_has_settings_is_in_use(tmp_path):
    with RunFolder(tmp_path):
        assert state_of(tmp_path) == "in use"
    assert state_of(tmp_path) == "missing"
