"""Runs on a real Slurm: nothing is lost, nothing is trained twice, whatever happens to jobs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bfno.lab.runs.campaign.ledger import read_note
from tests.conftest import REPOSITORY
from tests.lab.runs import launch, slurm_cluster, swept, twelve
from tests.lab.runs.runs import metrics, tiny, weights
from tests.lab.runs.slurm_cluster import output

pytest.importorskip("submitit", reason="needs submitit: pip install 'bfno[slurm]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(slurm_cluster.why_not()), reason=slurm_cluster.why_not()),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster.slurm(tmp_path_factory.mktemp("slurm")):
        yield


def _job(folder) -> str:
    """The number of the job that was given for a folder; not `array_index`, see `SlurmEngine`."""
    note = read_note(folder)
    assert note is not None
    layout = "--format=%A %K"
    listed = output("squeue", "-h", "-r", f"--name=bfno-{note.batch}", layout).splitlines()
    return next(line.split()[0] for line in listed if line.split()[1] in (str(note.number), "N/A"))


def _restarts(job: str) -> int:
    shown = output("scontrol", "show", "job", job)
    return int(shown.partition("Restarts=")[2].split()[0]) if "Restarts=" in shown else 0


def _node(state: str) -> None:
    words = ["scontrol", "update", "nodename=localhost", f"state={state}", "reason=test"]
    subprocess.run(words, check=True, capture_output=True)


def test_twelve_runs_are_those_of_one_machine_whatever_happens(cluster, tmp_path):
    runs = tmp_path / "runs"
    with twelve.program("slurm", runs) as first:
        killed, process = twelve.freeze_one(runs)
        first.kill()
    # The program that gave the runs is gone; the machine is drained, and a job killed.
    assert output("squeue", "-h"), "jobs outlive the program"
    _node("drain")
    subprocess.run(["scancel", "--full", "--signal=KILL", _job(killed)], check=True)
    launch.wait_for(lambda: not twelve.lives(process), "the end of the killed job")

    with twelve.program("slurm", runs) as second:
        _node("resume")
        _meet_the_time_limit(runs)
        _lose_the_machine(runs)
        code, out, err = launch.finish(second)
    assert code == 0, out[-2000:] + err
    assert "Traceback" not in err
    twelve.assert_whole(runs, tmp_path / "alone")


def _meet_the_time_limit(runs: Path) -> None:
    """Slurm signals a job; it saves, goes back into the queue and continues."""
    limited, process = twelve.freeze_one(runs)
    job = _job(limited)
    subprocess.run(["scancel", "--signal=USR2", job], check=True)
    twelve.thaw(process)
    launch.wait_for(lambda: _restarts(job) == 1, "the job's return to the queue")


def _lose_the_machine(runs: Path) -> None:
    """It goes with all its jobs, and comes back by itself, as its daemon answers."""
    lost, process = twelve.freeze_one(runs)
    before = _restarts(job := _job(lost))
    _node("down")
    launch.wait_for(lambda: _restarts(job) > before, "the return of the lost job")
    launch.wait_for(lambda: "down" not in output("sinfo", "-h", "-o", "%T"), "the machine")
    twelve.thaw(process)


def test_a_sweep_continues_with_any_program(cluster, tmp_path):
    pytest.importorskip("optuna", reason="needs optuna: pip install 'bfno[sweep]'")
    folder = tmp_path / "my sweep"
    command = swept.words(folder, "slurm", "--time", "10", "--partition", slurm_cluster.PARTITION)
    with twelve.started(command) as first:
        trial, process = twelve.freeze_one(folder)
        first.kill()
    assert output("squeue", "-h"), "jobs outlive the program"
    with twelve.started(command) as second:
        launch.wait_for(lambda: swept.is_looked_after(trial), "the second program")
        job = _job(trial)
        second.send_signal(signal.SIGINT)  # it cancels the jobs, which save before they end
        launch.wait_for(lambda: _state(job) != "RUNNING", "the end of the job")
        twelve.thaw(process)
        code, _, err = launch.finish(second)
    assert code == 130 and err.splitlines()[-1].endswith("the same command continues from here")
    assert not output("squeue", "-h") and not twelve.is_finished(trial)

    with twelve.started(command) as third:
        code, out, err = launch.finish(third)
    assert code == 0 and "Traceback" not in err, out + err
    assert out.startswith(f"The best of {swept.TRIALS} finished trials of digits/bfno-node is")
    swept.assert_whole(folder, tmp_path / "alone")

    before = swept.everything(folder)
    with twelve.started(command) as again:
        assert launch.finish(again)[:2] == (0, out)
    assert swept.everything(folder) == before, "nothing was left to do"


def _state(job: str) -> str:
    return output("squeue", "-h", "-o", "%T", f"--jobs={job}")


def _script(tmp_path: Path, run: Path) -> Path:
    """The script of the page, with less of everything."""
    page = (REPOSITORY / "docs" / "clusters.md").read_text()
    text = page.partition("```bash\n#!/bin/bash")[2].partition("```")[0]
    settings = run.with_suffix(".yaml")
    settings.write_text(tiny({"train": {"epochs": 6}}).as_yaml())
    smaller = {
        "--nodes=2 --ntasks-per-node=1 --gpus-per-node=8": f"--ntasks=2 --output={tmp_path}/log",
        "RUN=runs/large": f"RUN={run}",
        "cifar10/bfno-node --scale paper": str(settings),
        "--nproc-per-node 8": "--nproc-per-node 1",
        ":29500": f":{launch.free_port()}",
        "torchrun": f"{sys.executable} -m torch.distributed.run",
    }
    for printed, here in smaller.items():
        assert printed in text
        text = text.replace(printed, here)
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/bash" + text)
    return script


def test_one_run_of_two_tasks_meets_its_time_limit_and_continues(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", twelve.PATHS)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = tmp_path / "run"
    job = output("sbatch", "--parsable", str(_script(tmp_path, run)))
    launch.wait_for(launch.has_trained(run), "the first epoch")
    process = int((run / ".lock").read_text().split()[1])
    os.kill(process, signal.SIGSTOP)
    assert not twelve.is_finished(run)
    subprocess.run(["scancel", "--batch", "--signal=USR1", job], check=True)
    twelve.thaw(process)
    launch.wait_for(lambda: _restarts(job) == 1, (tmp_path / "log").read_text())
    launch.wait_for(lambda: twelve.is_finished(run), "the end of the run")
    assert json.loads((run / "record.json").read_text())["processes"] == 2

    whole = tmp_path / "whole"
    command = ["train", str(run.with_suffix(".yaml")), "--out", str(whole)]
    together = launch.fork_several(command, tmp_path / "never")
    assert launch.codes(together) == [0, 0]
    assert weights(run) == weights(whole) and metrics(run) == metrics(whole)
