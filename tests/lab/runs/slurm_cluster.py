"""A real Slurm of one machine: its own key, ports and files, all below one folder."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.runs import launch

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
PARTITION = "short"
_PATHS = "/usr/sbin:/usr/local/sbin:/sbin"

# Requeued jobs wait for `cred_expire` seconds; `config_overrides` lets a small machine pretend to
# have a core for each job.
_CONFIG = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
KillWait=30
InactiveLimit=0
MaxJobCount={most}
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName={partition} Nodes=localhost Default=YES State=UP MaxTime=8:00:00
"""


def why_not() -> str:
    """Why there can be no Slurm here; nothing if there can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_search_path()) is None]
    if missing:
        return f"needs {', '.join(missing)}: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "needs root, as which slurmd starts jobs"


@contextlib.contextmanager
def slurm(folder: Path, most_jobs: int = 1000) -> Iterator[None]:
    """Start Slurm in a folder; the environment names it as long as it runs."""
    for name in ("spool", "state"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    config = folder / "slurm.conf"
    config.write_text(
        _CONFIG.format(
            host=socket.gethostname().partition(".")[0],
            folder=folder,
            controller=launch.free_port(),
            daemon=launch.free_port(),
            partition=PARTITION,
            most=most_jobs,
        )
    )
    options = [f"--{name}={folder}/munge.{name[:4]}" for name in ("log-file", "seed-file")]
    options += [f"--pid-file={folder}/munge.pid", f"--socket={folder}/munge.socket"]
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}", *options],
        ["slurmctld", "-D", "-f", str(config)],
        ["slurmd", "-D", "-f", str(config), "-N", "localhost"],
    ]
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("PATH", _search_path())
        patch.setenv("SLURM_CONF", str(config))
        for command in commands:
            stack.enter_context(_service(command, folder / f"{command[0]}.out"))
            if command[0] == "munged":
                launch.wait_for((folder / "munge.socket").exists, "munged")
        launch.wait_for(lambda: "idle" in output("sinfo", "-h", "-o", "%T"), "the node")
        try:
            yield
        finally:
            subprocess.run(["scancel", "--user=root"], capture_output=True)
            _end_all(config)


def _end_all(config: Path) -> None:
    """Kill the jobs and those who look after them, which would wait for a Slurm that is gone."""
    mark = f"SLURM_CONF={config}\0".encode()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            environment = (place / "environ").read_bytes()
            is_job = b"\0SLURM_JOB_ID=" in environment
            if mark in environment and (is_job or "slurmstepd" in (place / "comm").read_text()):
                os.kill(int(place.name), signal.SIGKILL)
        except OSError:
            continue  # it has ended meanwhile


def output(*command: str) -> str:
    """What one of Slurm's programs prints; nothing if it fails."""
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()


@contextlib.contextmanager
def _service(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as file:
        started = subprocess.Popen(
            command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        yield
    finally:
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            launch.end_group(started)


def _search_path() -> str:
    return f"{os.environ['PATH']}:{_PATHS}"
