"""Tables as their users meet them."""

import csv
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from bfno.lab.cli import board, main
from bfno.lab.experiments.resolve import SCALES, resolve
from bfno.lab.paper.numbers import paper_table
from bfno.lab.runs.campaign import local as campaign_local
from bfno.lab.runs.campaign.plan import Job
from bfno.lab.runs.campaign.running import Standing
from bfno.lab.views.metrics import HEADLINES
from tests.lab.cli.output import error_line
from tests.lab.runs import campaigns, launch
from tests.lab.runs.campaigns import calls, record, settings, write_plan, write_run

ONLY = [word for method in campaigns.METHODS for word in ("--only", method)]


@pytest.fixture(autouse=True)
def own_children(monkeypatch):
    """What a test puts in the place of children ends with it."""
    monkeypatch.setattr(campaign_local, "child_command", None)


def _table(runs: Path, *words: str, name: str = "1") -> int:
    common = ["--data", "digits", "--scale", "smoke", "--runs", str(runs)]
    return main(["table", name, *common, *words])


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["1", "2", "3", "4", "ablation-operator", "ablation-branches"])
def test_every_row_of_every_table_is_an_experiment(name, scale):
    table = paper_table(name)
    for data in table.titles:
        for experiment in filter(None, (row.experiment(data) for row in table.rows)):
            assert resolve(experiment, scale=scale).experiment == experiment


def test_a_table_trains_what_is_missing_and_prints_it(tmp_path, capsys):
    campaigns.pretend(write_plan(tmp_path, seeds=2))
    assert _table(tmp_path, *ONLY, "--seeds", "2", "--jobs", "2") == 0
    printed = capsys.readouterr()
    (line,) = [line for line in printed.out.splitlines() if line.startswith("ANODE")]
    assert line.split() == ["ANODE", "1,000", "–", "0.2000", "±", "0.0000", "–"]
    assert "test accuracy\n" in re.sub(r" *\n", "\n", printed.out)
    assert "Here: smoke scale" in printed.out and "Seeds 7, 8;" in printed.out
    told = [line.partition(" ") for line in printed.err.splitlines()]
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", clock) for clock, _, _ in told)
    lines = [text for _, _, text in told]
    assert "digits/anode seed 8: finished, test accuracy 20.00%" in lines

    assert _table(tmp_path, *ONLY, "--seeds", "2") == 0
    again = capsys.readouterr()
    assert again.out == printed.out
    assert all(": already done, test accuracy" in line for line in again.err.splitlines())
    assert len(calls(tmp_path / "smoke" / "digits-anode-s8")) == 1


def test_only_the_named_methods_are_trained_and_shown(tmp_path, capsys):
    campaigns.pretend(write_plan(tmp_path))
    assert _table(tmp_path, "--only", "anode") == 0
    out = capsys.readouterr().out
    assert "ANODE" in out and "BFNO" not in out
    assert [run.name for run in (tmp_path / "smoke").iterdir()] == ["digits-anode-s7"]


def test_the_branches_take_the_run_of_table_1(tmp_path, capsys):
    write_run(tmp_path / "a", settings("bfno-node"))
    assert _table(tmp_path, "--only", "bfno-node", name="ablation-branches") == 0
    assert re.search(r"L = 2 +1,000 +– +0\.2000", capsys.readouterr().out)


def test_a_failing_run_is_in_the_table_and_in_the_exit_code(tmp_path, capsys):
    campaigns.pretend(write_plan(tmp_path, anode_7="fail"))
    assert _table(tmp_path, *ONLY) == 4
    printed = capsys.readouterr()
    assert re.search(r"ANODE +4,330 +– +failed +–", printed.out)
    assert "digits/anode with seed 7 failed: step\ufffd 3: the loss is not a finite number" in (
        " ".join(printed.out.split())
    )
    assert re.search(r"BFNO-NODE +1,000 +– +0\.2000", printed.out)
    assert "digits/anode seed 7: failed: step\ufffd 3: the loss" in printed.err


def test_a_failure_of_which_only_the_record_is_kept_is_shown_and_not_trained_again(
    tmp_path, capsys
):
    run = write_run(tmp_path / "a", settings("anode"), finished=False)
    failed = record(settings("anode"), status="failed", failure="step 3: diverged")
    (run / "record.json").write_text(json.dumps(failed))
    (run / "config.yaml").unlink()
    write_run(tmp_path / "b", settings("bfno-node"))
    both = ("--only", "anode", "--only", "bfno-node")
    assert _table(tmp_path, *both, "--plan") == 0
    assert "2 runs: 1 done, 1 failed, 0 to do" in capsys.readouterr().out
    assert _table(tmp_path, *both) == 4
    printed = capsys.readouterr()
    assert re.search(r"ANODE +4,330 +– +failed +–", printed.out)
    assert "digits/anode seed 7: failed: step 3: diverged" in printed.err
    assert not (tmp_path / "smoke").exists()


def test_the_plan_trains_nothing(tmp_path, capsys):
    write_run(tmp_path / "a", settings("node"), seconds=500)
    write_run(tmp_path / "b", settings("anode"), finished=False)
    assert _table(tmp_path, *ONLY, "--plan", "--jobs", "1") == 0
    node, anode, bfno, total = capsys.readouterr().out.splitlines()
    assert node.split() == ["digits/node", "seed", "7", "done", str(tmp_path / "a")]
    assert anode.split()[3:] == ["to", "resume", str(tmp_path / "b"), "about", "3", "s"]
    assert bfno.endswith(f"{tmp_path / 'smoke' / 'digits-bfno-node-s7'}  about 8 min")
    assert total == "3 runs: 1 done, 2 to do, about 8 min with 1 at a time"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_the_plan_of_a_cluster_needs_none_and_names_whole_paths(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "a", settings("node"), seconds=500)
    assert _table(Path("runs"), *ONLY, "--plan", "--on", "slurm") == 0
    node, *_, total = capsys.readouterr().out.splitlines()
    assert node.endswith(str(tmp_path / "runs" / "a"))
    assert total == "3 runs: 1 done, 2 to do, about 8 min with 3 at a time"


@pytest.mark.parametrize(
    ("suffix", "start"),
    [(".md", "| method |"), (".csv", "method,"), (".tex", "% needs"), (".txt", "        ")],
)
def test_the_suffix_of_a_file_chooses_the_format(tmp_path, capsys, suffix, start):
    write_run(tmp_path / "a", settings("node"))
    file = tmp_path / f"table{suffix}"
    assert _table(tmp_path, "--only", "node", "-o", str(file)) == 0
    assert capsys.readouterr().out == f"written to {file}\n"
    assert file.read_text().startswith(start) and "NODE" in file.read_text()


def test_a_file_is_not_replaced_unless_asked_for(tmp_path, capsys):
    write_run(tmp_path / "a", settings("node"))
    notes = tmp_path / "notes.md"
    notes.write_text("precious")
    assert _table(tmp_path, "--only", "node", "-o", str(notes)) == 2
    assert "notes.md: exists already. Fix: pass --force" in error_line(capsys)
    assert notes.read_text() == "precious"
    assert _table(tmp_path, "--only", "node", "-o", str(notes), "--force") == 0
    assert notes.read_text().startswith("| method |")


def test_runs_have_to_be_in_a_folder(tmp_path, capsys):
    (tmp_path / "notes.md").touch()
    assert _table(tmp_path / "notes.md", "--only", "node", "--plan") == 2
    assert "notes.md: is not a folder" in error_line(capsys)


def test_csv_on_the_terminal_has_all_digits(tmp_path, capsys):
    write_run(tmp_path / "a", settings("node"), result={"test_accuracy": 1 / 3})
    assert _table(tmp_path, "--only", "node", "--format", "csv") == 0
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert float(row["digits_test_accuracy_here_smoke"]) == 1 / 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["5"], "nearest"),
        (["1", "--only", "bfno"], "nearest: bfno-node"),
        (["1", "--data", "mnst"], "nearest: mnist"),
        (["1", "--scale", "huge"], "smoke, cpu, paper"),
        (["1", "--seeds", "0"], "--seeds 0: is too few"),
        (["1", "--seeds", "99999999999"], "--seeds 99999999999: is too many"),
        (
            ["1", "--data", "cifar10", "--only", "node", "--only", "bfno-node-budget"],
            "--only bfno-node-budget: is not in table 1 for cifar10",
        ),
        (["1", "--set", "train.epochs=auto"], "--set train.epochs=auto: would give each data"),
        (["1", "--set", "train=5"], "train"),
        (["1", "--force"], "--force: needs --out"),
        (["1", "--jobs", "-1"], "--jobs -1: is too few"),
        (["1", "--on", "moon"], "write local, slurm, ray or ray://HOST:PORT"),
        (["1", "--time", "60"], "--time: means nothing here, only with --on slurm"),
        (["1", "--format", "html"], "write text, markdown, csv, latex"),
        (["1", "-o", "table.pdf"], "end it in .txt, .md, .csv, .tex"),
        (["1", "--protocol", "published"], "of table 1. Fix: write usual or counted"),
        (["4", "--protocol", "sound"], "table 4 has no protocols. Fix: leave it out; tables 1"),
        (
            ["1", "--protocol", "counted", "--scale", "paper"],
            "--protocol counted: is not for the scale paper. Fix: write --scale cpu, or leave out",
        ),
        (
            ["1", "--protocol", "counted", "--set", "train.epochs=3"],
            "--set train.epochs: is a setting of --protocol counted. Fix: leave out one of the two",
        ),
        (
            ["2", "--protocol", "publishd"],
            "not a protocol of table 2. Fix: write sound or published",
        ),
        (
            ["3", "--set", "data.protocol=published"],
            "--set data.protocol: has its own option",
        ),
        (["3", "--set", "seed=3"], "--set seed: does not change what a table shows"),
        (["1", "--set", "scale=cpu"], "--set scale: has its own option. Fix: write --scale"),
        (["1", "--set", "experiment=mnist/anode"], "Fix: write --only"),
        (["1", "--set", "data.name=cifar10"], "Fix: write --data"),
        (["3", "--set", "data.set=b"], "did you mean data.sets"),
        (["3", "--set", "sets"], "write section.key=value"),
        (["ablation-operator", "--data", "digits", "--only", "fno-node-small"], ""),
    ],
)
def test_a_wrong_word_is_reported_in_one_line(tmp_path, capsys, words, message):
    code = main(["table", *words, "--runs", str(tmp_path), "--plan"])
    if message:
        assert code == 2 and message in error_line(capsys)
    else:
        assert code == 0  # the name of a row on other data is a name of that row


@pytest.mark.parametrize(("name", "data"), [("2", "activity"), ("3", "physionet")])
def test_the_published_protocol_is_planned_and_shown_beside_the_sound_one(
    tmp_path, capsys, name, data
):
    for file in ("activity/ConfLongDemo_JSI.txt", "physionet/Outcomes-a.txt"):
        (tmp_path / "data" / file).parent.mkdir(parents=True)
        (tmp_path / "data" / file).touch()
    words = ["table", name, "--scale", "smoke", "--runs", str(tmp_path), "--only", "gru-d"]
    words += ["--data-dir", str(tmp_path / "data")]
    published = {"data": {"protocol": "published"}}
    for folder, changes, score in (("a", {}, 0.25), ("b", published, 0.75)):
        config = resolve(f"{data}/gru-d", scale="smoke", changes=changes).as_dict()
        result = {"test_accuracy": score, "test_auroc": score}
        changed = ['data.protocol="published"'] if changes else []
        write_run(tmp_path / folder, config, result=result, changes=changed)
    for protocol, folder, score in (
        (None, "a", "0.25"),
        ("sound", "a", "0.25"),
        ("published", "b", "0.75"),
    ):
        chosen = ["--protocol", protocol] if protocol else []
        assert main([*words, *chosen, "--plan"]) == 0
        assert f"done       {tmp_path / folder}" in capsys.readouterr().out
        assert main([*words, *chosen]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert f"Protocol {protocol or 'sound'}" in out and score in out
    assert main([*words, "--protocol", "published", "--seeds", "2", "--plan"]) == 0
    place = tmp_path / "smoke-published" / f"{data}-gru-d-s8"
    assert f"to train   {place}" in capsys.readouterr().out


def test_data_that_are_named_but_missing_are_an_error_before_anything_is_trained(tmp_path, capsys):
    words = ["--data", "digits", "--data", "mnist", "--data-dir", str(tmp_path / "none")]
    assert main(["table", "1", *words, "--scale", "smoke", "--runs", str(tmp_path)]) == 3
    assert "`bfno data get mnist`" in error_line(capsys)
    assert list(tmp_path.iterdir()) == []


def test_data_that_are_not_named_and_missing_are_left_out_and_the_table_says_so(tmp_path, capsys):
    config = resolve("mnist/node", scale="smoke").as_dict()
    write_run(tmp_path / "a", config)
    words = ["--data-dir", str(tmp_path / "none"), "--runs", str(tmp_path), "--only", "node"]
    assert main(["table", "1", "--scale", "smoke", *words]) == 0
    printed = capsys.readouterr()
    assert re.search(r"NODE +1,000 +85,316 +0\.2000 +0\.9531 ± 0\.0042", printed.out)
    assert "CIFAR-10 is missing; `bfno data get cifar10` fetches it" in printed.out
    assert "note: stl10: nothing was trained" in printed.err
    assert str(tmp_path) not in printed.out


def test_without_any_data_there_is_nothing_to_do(tmp_path, capsys):
    words = ["--data-dir", str(tmp_path), "--runs", str(tmp_path)]
    assert main(["table", "3", *words]) == 3
    assert "`bfno data get physionet`" in error_line(capsys)


def _lives(process: int) -> bool:
    # A child that nobody has asked for its exit code is still listed, as a zombie.
    state = Path(f"/proc/{process}/stat")
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_killed_table_leaves_no_children_and_does_only_what_is_missing(tmp_path):
    plan = write_plan(tmp_path, anode_7="wait")
    command = ["table", "1", "--data", "digits", "--scale", "smoke", "--runs", str(tmp_path)]
    command += [*ONLY, "--jobs", "1"]
    folders = [tmp_path / "smoke" / f"digits-{method}-s7" for method in campaigns.METHODS]
    killed = launch.fork(command, tmp_path / "killed", campaigns.pretend, FAKE_PLAN=str(plan))
    launch.wait_for((folders[1] / "waits").exists, "the second run")
    killed.kill()
    killed.join()
    child = calls(folders[1])[0]["process"]
    launch.wait_for(lambda: not _lives(child), "the end of the child")
    assert (folders[1] / "saved").exists() and not folders[2].exists()

    (tmp_path / "smoke" / "go").touch()
    again = launch.fork(command, tmp_path / "again", campaigns.pretend, FAKE_PLAN=str(plan))
    assert launch.codes([again]) == [0]
    commands = [[call["command"] for call in calls(folder)] for folder in folders]
    assert commands == [["train"], ["train", "resume"], ["train"]]
    assert "BFNO-NODE" in (tmp_path / "again.out").read_text()


def test_two_tables_at_once_train_each_run_once(tmp_path):
    plan = write_plan(tmp_path, seeds=2)
    command = ["table", "1", "--data", "digits", "--scale", "smoke", "--runs", str(tmp_path)]
    command += [*ONLY, "--seeds", "2", "--jobs", "2", "--format", "csv"]
    both = [
        launch.fork(command, tmp_path / name, campaigns.pretend, FAKE_PLAN=str(plan))
        for name in ("one", "other")
    ]
    assert launch.codes([*both]) == [0, 0]
    runs = list((tmp_path / "smoke").iterdir())
    assert len(runs) == 6 and [len(calls(run)) for run in runs] == [1] * 6
    assert (tmp_path / "one.out").read_text() == (tmp_path / "other.out").read_text() != ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_table_says_that_the_same_command_continues(tmp_path, number, code):
    plan = write_plan(tmp_path, node_7="wait")
    command = ["table", "1", "--data", "digits", "--scale", "smoke", "--runs", str(tmp_path)]
    command += ["--only", "node"]
    folder = tmp_path / "smoke" / "digits-node-s7"
    started = launch.fork(command, tmp_path / "table", campaigns.pretend, FAKE_PLAN=str(plan))
    launch.wait_for((folder / "waits").exists, "the run")
    launch.send(started, number)
    assert launch.codes([started]) == [code]
    assert (folder / "saved").exists()
    lines = (tmp_path / "table.err").read_text().splitlines()
    assert lines[-1].endswith("; the same command continues from here")
    assert (tmp_path / "table.out").read_text() == ""


@pytest.mark.slow
def test_a_killed_table_of_real_trainings_continues_where_it_was(tmp_path):
    words = ["table", "1", "--data", "digits", "--scale", "smoke", "--runs", str(tmp_path)]
    words += ["--only", "node", "--only", "bfno-node", "--jobs", "1", "--format", "csv"]
    first, second = (tmp_path / "smoke" / f"digits-{name}-s7" for name in ("node", "bfno-node"))
    started = launch.program(words)
    launch.wait_for((first / "record.json").exists, "the first run")
    launch.wait_for((second / "config.yaml").exists, "the second run")
    os.kill(started.pid, signal.SIGKILL)
    launch.finish(started)
    content = (first / "record.json").read_bytes()
    lock = (second / ".lock").read_text().split()
    launch.wait_for(lambda: not _lives(int(lock[1])), "the end of the child")

    code, out, err = launch.finish(launch.program(words))
    assert code == 0, err
    assert (first / "record.json").read_bytes() == content
    assert "digits/node seed 7: already done" in err
    rows = {row["method"]: row for row in csv.DictReader(out.splitlines())}
    for folder, method in ((first, "NODE"), (second, "BFNO-NODE")):
        record = json.loads((folder / "record.json").read_text())
        score = float(rows[method]["digits_test_accuracy_here_smoke"])
        assert score == record["result"]["test_accuracy"]


def _standings(count: int) -> list[Standing]:
    states = ("waiting", "running", "finished", "failed", "there")
    return [
        Standing(
            Job(f"digits/method-{number}", "smoke", 7, Path("x"), "missing", 3, seconds=60.0),
            states[number % len(states)],  # pyright: ignore[reportArgumentType]
            [{"epoch": 1, "seconds": 20.0, "test_accuracy": number / 100}],
            error="a reason" * (number % len(states) == 3),
        )
        for number in range(count)
    ]


def test_a_board_of_forty_runs_fits_a_screen_with_the_running_ones_first():
    from rich.console import Console

    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(board._board(_standings(40), HEADLINES[0], slots=2))
        lines = console.export_text().splitlines()
    assert len(lines) <= 20
    summary, rows = " ".join(" ".join(lines[:2]).split()), lines[3:]
    assert ["running" in line for line in rows] == [True] * 8 + [False] * 4
    assert "40 runs: 8 existing, 8 finished, 8 running, 8 failed, 8 waiting" in summary
    assert "best on digits so far: method-39 39.00%" in summary and "left" in summary


def test_a_board_of_trials_names_the_best_of_them():
    jobs = [
        Job(f"/runs/x/trial-{number}/trial.yaml", "smoke", 7, Path("x"), "there", 3, title=name)
        for number, name in enumerate(("trial-0000", "trial-0001"))
    ]
    standings = [
        Standing(job, "finished", result={"test_accuracy": score})
        for job, score in zip(jobs, (0.5, 0.75), strict=True)
    ]
    assert list(board._best(standings, HEADLINES[0])) == ["best so far: trial-0001 75.00%"]


def test_help_has_an_example(capsys):
    assert main(["table", "--help"]) == 0
    assert "Example: bfno table 1 --data mnist" in " ".join(capsys.readouterr().out.split())
