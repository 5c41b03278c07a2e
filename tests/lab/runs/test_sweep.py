"""Sweeps find the best settings, survive any interruption, and train nothing twice."""

import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="the extra `sweep` is not installed")

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.experiments.resolve import resolve
from bfno.lab.files import lock_file, make_folder
from bfno.lab.runs.campaign import local as campaign_local
from bfno.lab.runs.campaign.engine import Order
from bfno.lab.runs.campaign.ledger import write_note
from bfno.lab.runs.signals import Stopped
from bfno.lab.runs.sweep.running import Sweep
from bfno.lab.runs.sweep.space import Range, read_ranges
from bfno.lab.runs.sweep.study import Study
from tests.lab.runs import sweeps
from tests.lab.runs.fake_engine import LOST, RUNNING, FakeEngine
from tests.lab.runs.fake_trial import score
from tests.lab.runs.sweeps import RATES, calls, finish_some, outcome, plan, pretend, run


@pytest.fixture(autouse=True)
def own_children(monkeypatch):
    """What a test puts in the place of children ends with it."""
    monkeypatch.setattr(campaign_local, "child_command", None)


# -- what is tried ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values", "size"),
    [
        ("log(1e-4, 1e-2)", (1e-4, 1e-2), math.inf),
        ("uniform(-1,2)", (-1.0, 2.0), math.inf),
        ("int(16,128)", (16, 128), 113),
        ("choice(16, 32)", (16, 32), 2),
        ("choice(1e-4, 1e-3, null)", (1e-4, 1e-3, None), 3),  # YAML takes 1e-4 for a word
        ("choice(adam, adamw)", ("adam", "adamw"), 2),
    ],
)
def test_ranges_mean_what_they_say(text, values, size):
    found = Range.read("x.y", text)
    assert found is not None
    assert (found.values, found.size) == (values, size)
    assert Range.read("x.y", str(found)) == found  # what a file says of it is it
    for value in found.samples:
        assert found.distribution()._contains(found.distribution().to_internal_repr(value))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("log(0,1)", "above 0"),
        ("log(-1,1)", "above 0"),
        ("log(1)", "two numbers"),
        ("log(1,2,3)", "two numbers"),
        ("log(1e-2,1e-4)", "lowest value has to come first"),
        ("uniform(1,1)", "lowest value has to come first"),
        ("uniform(a,b)", "two numbers"),
        ("uniform(0,inf)", "two numbers"),
        ("uniform(0,nan)", "two numbers"),
        ("int(1.5,3)", "whole numbers"),
        ("choice()", "two values or more"),
        ("choice(1)", "two values or more"),
        ("choice(1,1)", "twice"),
        ("choice(1,1.0)", "twice"),
        ("choice(false,0)", "twice"),
        ("choice(1,[2])", "plain values"),
        ("choice(1,.inf)", "finite"),
        ("choice(1,{)", "list"),
        ("lgo(1,2)", "not a kind of range"),
    ],
)
def test_bad_ranges_are_refused_in_one_line(text, why):
    with pytest.raises(ConfigError, match=rf"train\.lr=.*{why}.*Fix: ") as refused:
        read_ranges([f"train.lr={text}"])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        (["train.lr=0.1"], "names no range"),
        ([], "names no range"),
        ([RATES, RATES], "has two ranges"),
        ([RATES, "train.lr=0.1"], "a range and a value"),
        ([RATES, "train={lr: 0.1}"], "a range and a value"),
        (["train=choice(a,b)"], "train: is a section"),
        (["model.field_options=choice(null,a)", "model.field_options.rank=int(1,2)"], "two ranges"),
        (["seed=int(1,9)"], "same for all trials"),
        (["data.validation=uniform(0.1,0.5)"], "same for all trials"),
        (["train.test=choice(true,false)"], "same for all trials"),
        (["train.eval_batch=choice(10,100)"], "same for all trials"),
        (["evaluation.rtol=log(1e-5,1e-2)"], "same for all trials"),
        (["evaluation.method=choice(dopri5,rk4)"], "same for all trials"),
        (["model.test_terms=int(1,20)"], "same for all trials"),
        (["solver.memory=choice(steps,log)"], "changes no score"),
        (["train.checkpoint_seconds=uniform(1,60)"], "changes no score"),
    ],
)
def test_what_cannot_be_swept_is_refused(sets, why):
    with pytest.raises(ConfigError, match=rf"{why}.*\. Fix: "):
        read_ranges(sets)


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        ("train.speed=log(1,2)", r"train\.speed: is not a setting .*did you mean"),
        ("model.width=choice(8,wide)", r"model\.width: "),
        ("model.width=uniform(8,16)", r"model\.width: "),  # half a channel
        ("train.decay=uniform(0.5,1.5)", r"train\.decay: "),
    ],
)
def test_a_range_has_to_suit_its_setting_throughout(sets, why):
    with pytest.raises(ConfigError, match=why):
        plan(sets).check()


def test_an_unknown_way_to_prune_is_refused():
    with pytest.raises(ConfigError, match="median, halving or none"):
        plan(prune="hard").check()


# -- the study ----------------------------------------------------------------------------------


def test_the_same_trials_follow_from_the_same_scores(tmp_path):
    scores = [0.5, 0.7, 0.2, 0.9] * 4  # enough that the sampler learns from them
    first, second = (Study(tmp_path / name, plan()) for name in "ab")
    finish_some(first, scores)
    for one in scores:  # started again for each trial, as after a kill
        finish_some(Study(tmp_path / "b", plan()), [one])
    assert outcome(first.trials()) == outcome(second.trials())
    rates = [one.values["train.lr"] for one in first.trials()]
    assert len(set(rates)) == len(rates) and all(1e-4 <= one <= 1e-1 for one in rates)


def test_a_small_space_is_tried_once_and_wholly(tmp_path):
    study = Study(tmp_path, plan("model.width=choice(2,3)", "train.batch=int(8,9)"))
    finish_some(study, [0.1, 0.2, 0.3, 0.4])
    assert study.propose(100) is None
    tried = {tuple(one.values.values()) for one in study.trials()}
    assert tried == {(2, 8), (2, 9), (3, 8), (3, 9)}


def test_a_space_that_becomes_small_is_tried_wholly(tmp_path):
    study = Study(tmp_path, plan("model.width=choice(2,3,4)"))
    drawn = study._next_values
    study._next_values = lambda trials, is_small: {"model.width": 2}  # twice, as samplers may
    for _ in range(2):
        trial = study.propose(2)
        assert trial is not None
        study.finish(trial.number, 0.5) if trial.state == "running" else None
    study._next_values = drawn
    finish_some(study, [0.5, 0.5])
    assert study.propose(100) is None
    assert {one.values["model.width"] for one in study.trials()} == {2, 3, 4}


def test_settings_that_come_again_keep_their_score(tmp_path):
    study = Study(tmp_path, plan("model.width=choice(2,3)"))
    same = {"model.width": 2}
    study._next_values = lambda trials, is_small: same  # what a sampler may well draw twice
    first = study.propose(2)
    assert first is not None and first.state == "running"
    study.finish(0, 0.75)
    second = study.propose(2)
    assert second is not None
    assert (second.state, second.score, second.same_as) == ("finished", 0.75, 0)


def test_a_trial_that_falls_behind_is_not_worth_going_on(tmp_path):
    study = Study(tmp_path, plan())
    finish_some(study, [0.6, 0.6, 0.6, 0.6])
    bad, good = study.propose(9), study.propose(9)
    assert bad is not None and good is not None
    assert not study.report(bad.number, 1, 0.1)
    assert study.report(good.number, 1, 0.3)
    calm = Study(tmp_path / "calm", plan(prune="none"))
    finish_some(calm, [0.6, 0.6, 0.6, 0.6])
    assert calm.propose(9) and calm.report(4, 1, 0.1)


def test_a_score_that_is_no_number_is_a_failure(tmp_path):
    study = Study(tmp_path, plan())
    study.propose(1)
    study.finish(0, math.nan)
    assert study.trials()[0].state == "failed" and study.result().best is None
    assert study.write_best() is None


def test_a_line_that_a_power_cut_left_unfinished_is_dropped(tmp_path):
    study = Study(tmp_path, plan())
    finish_some(study, [0.5])
    journal = tmp_path / "journal.jsonl"
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "study')
    again = Study(tmp_path, plan())
    finish_some(again, [0.6])
    assert [one.score for one in Study(tmp_path, plan()).trials()] == [0.5, 0.6]
    journal.write_bytes(b"not a journal\n")
    with pytest.raises(DataError, match=r"journal\.jsonl: is not the journal of a sweep"):
        Study(tmp_path, plan()).trials()


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (plan("train.lr=log(1e-3,1e-1)"), r"train\.lr is log\(0\.0001, 0\.1\) there, log"),
        (plan(RATES, "model.width=choice(2,3)"), r"model\.width"),
        (plan(RATES, "train.batch=3"), r"train\.batch is \d+ there, 3 here"),
        (plan(prune="none"), "prune is median there, none here"),
    ],
)
def test_a_study_of_something_else_is_refused_and_kept(tmp_path, other, what):
    finish_some(Study(tmp_path, plan()), [0.5])
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match=rf"{what}.*Fix: choose another folder with --out"):
        Study(tmp_path, other)
    assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_a_study_written_by_an_earlier_version_continues(tmp_path):
    same = plan(RATES, "solver.memory=2 GB")
    finish_some(Study(tmp_path, same), [0.5])
    file, text = tmp_path / "sweep.yaml", (tmp_path / "sweep.yaml").read_text()
    # Another spelling of a setting, and one that the earlier version did not have.
    file.write_text(text.replace("memory: 2 GB", "memory: 2GB").replace("    land: true\n", ""))
    assert file.read_text() != text and "land" not in file.read_text()
    assert len(Study(tmp_path, same).trials()) == 1
    with pytest.raises(ConfigError, match=r"solver\.memory is 2 GB there, 3 GB here"):
        Study(tmp_path, plan(RATES, "solver.memory=3 GB"))


def _table(file: Path, ids: str, value: int = 0) -> Path:
    rows = [
        f"{one},{time},{number % 7 + value},{number % 2}"
        for number, one in enumerate(ids)
        for time in (0, 1)
    ]
    file.write_text("\n".join(["id,time,x,label", *rows]))
    return file


def test_a_study_goes_on_only_with_the_samples_that_it_began_with(tmp_path):
    table, letters = tmp_path / "table.csv", "abcdefghijklmnopqrst"
    ranges, changes = read_ranges([RATES])

    def opened() -> Study:
        return Study(
            tmp_path / "sweep",
            sweeps.SweepPlan("series/gru-d", ranges, "smoke", changes, table),
        )

    _table(table, letters)
    finish_some(opened(), [0.5])
    before = (tmp_path / "sweep" / "sweep.yaml").read_bytes()
    for ids, value in ((letters[1:], 0), (letters, 1)):
        _table(table, ids, value)
        with pytest.raises(ConfigError, match=r"sweep: .*other samples.*Fix: bring .* --out") as no:
            opened()
        assert "\n" not in str(no.value)
    _table(table, letters)
    assert len(opened().trials()) == 1
    assert (tmp_path / "sweep" / "sweep.yaml").read_bytes() == before


def test_a_folder_that_holds_a_run_is_refused(tmp_path):
    (tmp_path / "config.yaml").write_text("experiment: digits/node")
    with pytest.raises(ConfigError, match="is not the folder of a sweep"):
        Study(tmp_path, plan())


def test_trials_that_have_lost_their_sweep_are_refused(tmp_path):
    finish_some(Study(tmp_path, plan()), [0.5])
    (tmp_path / "trial-0000").mkdir()
    (tmp_path / "sweep.yaml").unlink()
    (tmp_path / "journal.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"it has trial-0000, and no sweep\.yaml"):
        Study(tmp_path, plan("train.lr=log(1e-3,1e-2)"))


def test_an_experiment_without_validation_samples_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"validation samples .*data\.validation=0\.1"):
        Study(tmp_path, plan(RATES, "data.validation=0"))
    assert not (tmp_path / "sweep.yaml").exists()


def test_the_best_settings_are_a_file_for_train(tmp_path):
    study = Study(tmp_path, plan())
    finish_some(study, [0.2, 0.9, 0.4])
    file = study.write_best()
    best = resolve(str(file))
    assert best.train.lr == study.trials()[1].values["train.lr"]
    assert best.train.epochs == 3 and best.train.test  # it is tested, once
    assert not study.plan.config({}).train.test  # which no trial is


def test_the_best_settings_find_their_data_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ranges, changes = read_ranges([RATES, "data.dir=data sets"])
    study = Study(tmp_path / "sweep", sweeps.SweepPlan("digits/node", ranges, "smoke", changes))
    finish_some(study, [0.5])
    file = study.write_best()
    assert resolve(str(file)).data.dir == tmp_path / "data sets"


def test_other_machines_are_told_where_data_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BFNO_DATA", "data sets")
    for known in (plan(), plan(RATES, "data.dir=data sets")):
        there = known.for_other_machines()
        assert there.data_dir == tmp_path / "data sets"
        assert there.described() == known.described()  # one study for both
    ranges, changes = read_ranges([RATES, "data.folder=photos"])
    own = sweeps.SweepPlan("folder/node", ranges, "smoke", changes).for_other_machines()
    assert f"folder: {tmp_path / 'photos'}\n" in own.file({}).decode()
    drawn = sweeps.SweepPlan("moons/ffjord", ranges, "smoke")  # from no files
    assert drawn.for_other_machines() == drawn and drawn.data_dir is None


def test_a_lower_score_may_be_the_better_one(tmp_path):
    ranges, changes = read_ranges([RATES, "data.points=50", "data.held_out=20"])
    lower = sweeps.SweepPlan("moons/ffjord", ranges, "smoke", changes)
    study = Study(tmp_path, lower)
    finish_some(study, [0.5, -0.5, 0.9])
    assert study.metric == "validation_nll" and study.result().ranked[0].number == 1


# -- trials in processes ------------------------------------------------------------------------


def test_a_sweep_trains_every_trial_once(tmp_path):
    pretend(tmp_path)
    study = Study(tmp_path / "sweep", plan())
    sweep = run(study, 3)
    assert [one.state for one in sweep.standings] == ["finished"] * 3
    for trial in study.trials():
        rate = trial.values["train.lr"]
        assert trial.score == pytest.approx(score(rate, 3, 3), rel=1e-9)  # through JSON and YAML
        assert list(trial.scores) == [1, 2, 3]
        folder = tmp_path / "sweep" / trial.name
        assert calls(folder) == ["train"]
        assert not resolve(str(folder / "config.yaml")).train.test
    assert run(Study(tmp_path / "sweep", plan()), 3).standings[0].state == "there"
    assert all(calls(tmp_path / "sweep" / one.name) == ["train"] for one in study.trials())


def test_a_trial_whose_program_was_killed_is_resumed(tmp_path):
    pretend(tmp_path, trial_0000="die")
    study = Study(tmp_path / "sweep", plan())
    sweep = run(study, 1)
    assert sweep.standings[0].state == "failed" and "signal 9" in sweep.standings[0].error
    assert study.trials()[0].state == "running"  # it is not its settings' fault
    assert [one.state for one in run(Study(tmp_path / "sweep", plan()), 1).standings] == [
        "finished"
    ]
    assert calls(tmp_path / "sweep" / "trial-0000") == ["train", "resume"]
    assert list(study.trials()[0].scores) == [1, 2, 3]


def test_a_trial_whose_settings_fail_is_counted_and_not_repeated(tmp_path):
    pretend(tmp_path, trial_0000="fail")
    study = Study(tmp_path / "sweep", plan())
    run(study, 2)
    first, second = study.trials()
    assert first.state == "failed" and "not a finite number" in first.error
    assert second.state == "finished"
    run(Study(tmp_path / "sweep", plan()), 2)
    assert calls(tmp_path / "sweep" / "trial-0000") == ["train"]


def test_a_trial_that_falls_behind_is_stopped(tmp_path):
    pretend(tmp_path, trial_0004="wait")
    study = Study(tmp_path / "sweep", plan())
    finish_some(study, [2.0, 2.0, 2.0, 2.0])  # better than any trial can be
    sweep = run(study, 5)  # ends only if the trial is stopped, for it waits
    assert sweep.standings[4].state == "pruned" and study.trials()[4].state == "pruned"
    assert not (tmp_path / "sweep" / "trial-0004" / "record.json").exists()
    run(Study(tmp_path / "sweep", plan()), 5)
    assert calls(tmp_path / "sweep" / "trial-0004") == ["train"]


def test_a_trial_of_another_program_is_left_alone(tmp_path):
    pretend(tmp_path)
    study = Study(tmp_path / "sweep", plan())
    study.propose(2)
    theirs = tmp_path / "sweep" / "trial-0000"
    make_folder(theirs)
    claim = os.open(theirs / ".claim", os.O_RDWR | os.O_CREAT)
    assert lock_file(claim)
    sweep = Sweep(study, 2, 1)
    rounds = sweep.run()
    while sweep.standings[-1].state != "finished":
        next(rounds)
    assert [one.state for one in sweep.standings] == ["elsewhere", "finished"]
    assert calls(theirs) == []
    os.close(claim)  # as if the other program had died
    assert [one.state for one in list(rounds)[-1]] == ["finished", "finished"]
    assert calls(theirs) == ["train"]


def test_a_stopped_sweep_continues_where_it_was(tmp_path):
    pretend(tmp_path, trial_0000="wait")
    study = Study(tmp_path / "sweep", plan())
    sweep = Sweep(study, 1, 1)
    with pytest.raises(Stopped):
        for _ in sweep.run():
            waits = tmp_path / "sweep" / "trial-0000" / "waits"
            if waits.exists():
                waits.unlink()  # a second signal would end this program at once
                signal.raise_signal(signal.SIGTERM)
    assert (tmp_path / "sweep" / "trial-0000" / "saved").exists()
    (tmp_path / "sweep" / "go").touch()
    sweep._release(sweep.standings[0].job)  # which the end of the program does
    assert run(Study(tmp_path / "sweep", plan()), 1).standings[0].state == "finished"
    assert calls(tmp_path / "sweep" / "trial-0000") == ["train", "resume"]


class _Busy(FakeEngine):
    """Has jobs of everything that was ever noted, until they are cancelled."""

    def state(self, order):
        return LOST if order.folder.name in self.cancelled else RUNNING


def test_the_job_of_a_trial_that_a_killed_program_was_about_to_stop_is_cancelled(tmp_path):
    study = Study(tmp_path, plan())
    for number in range(2):  # the second is not known to any engine
        trial = study.propose(2)
        assert trial is not None
        study.prune(number)
    write_note("fake", Order(tmp_path / "trial-0000", (), (), "b", 0))
    engine = _Busy()
    sweep = Sweep(study, 2, 1, None, engine)
    assert [one.state for one in list(sweep.run())[-1]] == ["pruned", "pruned"]
    assert engine.cancelled == ["trial-0000"] and engine.given == []


# -- for real -----------------------------------------------------------------------------------

WORDS = [
    *("sweep", "digits/node", "--scale", "smoke", "--jobs", "1", "--trials", "3", "--epochs", "2"),
    *("--set", RATES, "--set", "model.width=choice(2,3)"),
    *("--set", "data.train_limit=60", "--set", "data.size=4"),
]


def _program(folder: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "bfno", *WORDS, "--out", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_killed_sweep_ends_like_one_that_was_never_killed(tmp_path):
    whole = _program(tmp_path / "whole")
    assert whole.wait() == 0
    killed = _program(tmp_path / "killed")
    while not (tmp_path / "killed" / "trial-0001" / "metrics.jsonl").exists():
        assert killed.poll() is None
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    again = _program(tmp_path / "killed")
    assert again.wait() == 0
    first, second = (_found(tmp_path / name) for name in ("whole", "killed"))
    assert first == second
    assert (tmp_path / "whole" / "best.yaml").read_text() == (
        tmp_path / "killed" / "best.yaml"
    ).read_text()


@pytest.mark.slow
def test_two_programs_share_a_study_and_train_nothing_twice(tmp_path):
    programs = [_program(tmp_path / "sweep") for _ in range(2)]
    assert [one.wait() for one in programs] == [0, 0]
    trials = _found(tmp_path / "sweep")
    assert len(trials) == 3 and all(state in ("finished", "pruned") for _, state, _, _ in trials)
    for number in range(3):
        log = (tmp_path / "sweep" / f"trial-000{number}" / "output.log").read_text()
        heads = re.findall(r"^ *epoch +loss", log, re.MULTILINE)
        assert len(heads) == 1, log  # one training wrote it


def _found(folder: Path):
    ranges, changes = read_ranges([word for word in WORDS if "=" in word])
    changes["train"] = {"epochs": 2}
    plan = sweeps.SweepPlan("digits/node", ranges, "smoke", changes)
    return outcome(Study(folder, plan).trials())
