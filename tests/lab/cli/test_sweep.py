"""Sweeps as their users meet them."""

import re

import pytest

pytest.importorskip("optuna", reason="the extra `sweep` is not installed")

from bfno.lab.cli import main
from bfno.lab.experiments.resolve import resolve
from bfno.lab.runs.campaign import local as campaign_local
from bfno.lab.runs.sweep.trials import SweepResult, Trial
from bfno.lab.views.report.sweep import render_sweep, sweep_sentence
from tests.lab.cli.output import error_line
from tests.lab.runs.sweeps import RATES, pretend

COMMON = ["sweep", "digits/node", "--scale", "smoke", "--epochs", "3"]


@pytest.fixture(autouse=True)
def own_children(monkeypatch):
    """What a test puts in the place of children ends with it."""
    monkeypatch.setattr(campaign_local, "child_command", None)


def test_a_sweep_ends_in_settings_to_train_and_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pretend(tmp_path)
    assert main([*COMMON, "--set", RATES, "--trials", "4", "--jobs", "2"]) == 0
    printed = capsys.readouterr()
    told = [line.partition(" ")[2] for line in printed.err.splitlines()]
    assert "trial-0000: started" in told
    assert any(re.match(r"trial-0003: finished, validation accuracy \d+", one) for one in told)
    folder = tmp_path / "runs" / "digits-node-sweep"
    assert printed.out.startswith("The best of 4 finished trials of digits/node is trial-000")
    assert "try `bfno train runs/digits-node-sweep/best.yaml`" in printed.out
    best = resolve(str(folder / "best.yaml"))
    assert 1e-4 <= best.train.lr <= 1e-1 and best.train.test
    page = (folder / "sweep.html").read_text()
    for words in ("History", "Importance", "Parallel coordinates", "trial-0003", "train.lr"):
        assert words in page
    assert "http:" not in page.replace("http://www.w3.org", "")  # it loads nothing

    assert main([*COMMON, "--set", RATES, "--trials", "4"]) == 0  # again: nothing is left to do
    assert capsys.readouterr().out == printed.out
    assert (folder / "sweep.html").read_text() == page
    assert main(["runs", "runs"]) == 0
    assert "trial-0003" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--set", "train.lr=log(0,1)"], "above 0"),
        (["--set", "train.lr=choice()"], "two values or more"),
        (["--set", "train.lr=lgo(1,2)"], "log(1e-4,1e-2)"),
        (["--set", "train.speed=log(1,2)"], "train.speed: is not a setting"),
        ([], "names no range"),
        (["--set", RATES, "--prune", "hard"], "median, halving or none"),
        (["--set", RATES, "--trials", "0"], "--trials"),
        (["--set", RATES, "--jobs", "0"], "--jobs"),
        (["--set", "train.epochs=int(1,9)"], "--epochs: repeats"),
        (["--set", RATES, "--set", "train.epochs=2"], "--epochs: repeats"),
        (["--set", RATES, "--set", "data.validation=0"], "data.validation=0.1"),
    ],
)
def test_bad_words_are_refused_in_one_line(tmp_path, monkeypatch, capsys, words, what):
    monkeypatch.chdir(tmp_path)
    assert main([*COMMON, *words]) == 2
    assert what in error_line(capsys)


def test_a_sweep_of_something_else_is_refused(tmp_path, capsys):
    pretend(tmp_path)
    common = [*COMMON, "--out", str(tmp_path / "sweep"), "--trials", "1"]
    assert main([*common, "--set", RATES]) == 0
    capsys.readouterr()
    assert main([*common, "--set", "train.lr=log(1e-3,1e-1)"]) == 2
    line = error_line(capsys)
    assert "train.lr is log(0.0001, 0.1) there, log(0.001, 0.1) here" in line
    assert "Fix: choose another folder with --out" in line


def test_a_sweep_whose_trials_all_fail_says_so(tmp_path, capsys):
    pretend(tmp_path, trial_0000="fail")
    out = tmp_path / "sweep"
    assert main([*COMMON, "--set", RATES, "--trials", "1", "--out", str(out)]) == 4
    printed = capsys.readouterr()
    assert "no trial finished" in printed.out and "failed: step 3" in printed.err
    assert not (out / "best.yaml").exists() and not (out / "sweep.html").exists()


def test_a_trial_that_was_killed_is_reported_and_tried_again(tmp_path, capsys):
    pretend(tmp_path, trial_0001="die")
    words = [*COMMON, "--set", RATES, "--trials", "2", "--out", str(tmp_path / "sweep")]
    assert main(words) == 4
    assert "1 trials are unfinished; the same command" in capsys.readouterr().err
    assert main(words) == 0
    assert "The best of 2 finished trials" in capsys.readouterr().out


def _result(trials, **more):
    ranges = {"train.lr": "log(0.001, 0.1)", "train.optimizer": "choice(adam, None, 3)"}
    known = {"importance": {"train.lr": 0.75, "train.optimizer": 0.25}, **more}
    logs = frozenset({"train.lr"})
    return SweepResult(
        "digits/node", "cpu", 7, "validation_loss", True, ranges, logs, trials, **known
    )


def test_the_page_shows_every_kind_of_trial_and_escapes_what_is_foreign():
    trials = [
        Trial(0, {"train.lr": 0.01, "train.optimizer": "adam"}, "finished", 0.5, {1: 0.5}),
        Trial(1, {"train.lr": 0.02, "train.optimizer": None}, "finished", 0.25, {1: 0.25}),
        Trial(2, {"train.lr": 0.02, "train.optimizer": 3}, "pruned", None, {1: 0.9}),
        Trial(3, {"train.lr": 0.1, "train.optimizer": 3}, "failed", None, {}, "<script>\x07"),
        Trial(4, {"train.lr": 0.02, "train.optimizer": None}, "finished", 0.25, {}, "", 1),
        Trial(5, {"train.lr": 0.03, "train.optimizer": 3}, "running"),
    ]
    found = _result(trials)
    assert sweep_sentence(found) == (
        "The best of 3 finished trials of digits/node is trial-0001 with a validation loss of "
        "0.2500; train.lr explains most of the differences (75%)."
    )
    page = render_sweep(found)
    assert "6 trials: 3 finished, 1 stopped early, 1 failed, 1 unfinished." in page
    assert "as trial-0001" in page and "<script>" not in page and "\x07" not in page
    assert page.count("<svg") == 3 and page == render_sweep(found)


def test_most_is_more_than_half():
    trial = Trial(0, {"train.lr": 0.01, "train.optimizer": "adam"}, "finished", 0.5)
    found = _result([trial], importance={"train.lr": 0.4, "a": 0.3, "b": 0.3})
    assert sweep_sentence(found).endswith(
        "train.lr explains the largest part of the differences (40%)."
    )


def test_the_page_of_a_single_trial_has_no_importance():
    page = render_sweep(
        _result(
            [Trial(0, {"train.lr": 0.01, "train.optimizer": 3}, "finished", 1.0)], importance={}
        )
    )
    assert page.count("<svg") == 2 and "too few" in page
