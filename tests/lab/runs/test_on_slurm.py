"""Runs on a real Slurm: nothing is lost, nothing is trained twice, whatever happens to jobs."""

import os
import signal
import subprocess

import pytest

from bfno.lab.runs.campaign.ledger import read_note
from tests.lab.runs import launch, slurm_cluster, twelve
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
    first = twelve.program("slurm", runs)
    killed, process = twelve.freeze_one(runs)

    # The program that gave the runs is killed, the machine drained, a job killed.
    os.kill(first.pid, signal.SIGKILL)
    launch.finish(first)
    assert output("squeue", "-h"), "jobs outlive the program"
    _node("drain")
    job = _job(killed)
    subprocess.run(["scancel", "--full", "--signal=KILL", job], check=True)
    launch.wait_for(lambda: not twelve.lives(process), "the end of the killed job")
    submitted = set(output("squeue", "-h", "-r", "-o", "%i").split())

    second = twelve.program("slurm", runs)
    _node("resume")
    # A job meets its time limit: it is told, saves, and goes back into the queue.
    limited, process = twelve.freeze_one(runs)
    job = _job(limited)
    subprocess.run(["scancel", "--signal=USR2", job], check=True)
    twelve.thaw(process)
    launch.wait_for(lambda: _restarts(job) == 1, "the job's return to the queue")
    # The machine is lost with all its jobs, and comes back.
    lost, process = twelve.freeze_one(runs)
    job = _job(lost)
    _node("down")
    launch.wait_for(lambda: _restarts(job) >= 1, "the return of the lost job")
    _node("resume")
    twelve.thaw(process)

    code, out, err = launch.finish(second)
    (tmp_path / "second.log").write_text(out + err)
    assert code == 0, out[-2000:] + err
    assert submitted, "the second program found jobs of the first"
    assert "Traceback" not in err
    twelve.assert_whole(runs, tmp_path / "alone")
