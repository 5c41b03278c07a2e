"""Runs on a cluster, twelve of them: started, frozen in the middle of their work, compared."""

import contextlib
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.session import start
from tests.conftest import REPOSITORY
from tests.lab.runs import cluster_driver, launch
from tests.lab.runs.runs import metrics, result, weights

PATHS = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])


def program(engine: str, runs: Path, **environment: str):
    """Start the program that gives the runs; nothing of it stays behind."""
    module = "tests.lab.runs.cluster_driver"
    return started([engine, str(runs)], module=module, **environment)


@contextlib.contextmanager
def started(words: list[str], *, module: str = "bfno", **environment: str):
    """Start a program that gives runs to an engine; nothing of it stays behind."""
    started = launch.program(words, module=module, PYTHONPATH=PATHS, **environment)
    try:
        yield started
    finally:
        launch.end_group(started)
        for pipe in filter(None, (started.stdout, started.stderr)):
            pipe.close()


def is_finished(folder: Path) -> bool:
    return RunFolder(folder).finished_record() is not None


def freeze_one(runs: Path, by: subprocess.Popen | None = None) -> tuple[Path, int]:
    """Stop the clock of a training that has begun and not ended; returns its folder and process.

    Args:
        runs: Folder of the runs.
        by: The program that gives them; if it has ended, no run will start.
    """
    frozen: list[tuple[Path, int]] = []

    def catch() -> bool:
        assert by is None or by.poll() is None, by.communicate()
        for folder in sorted(file.parent for file in runs.glob("*/metrics.jsonl")):
            if not launch.has_trained(folder)() or is_finished(folder):
                continue
            holder = (folder / ".lock").read_text().split()
            if not holder:  # it is being locked this very moment
                continue
            process = int(holder[1])
            try:
                os.kill(process, signal.SIGSTOP)
            except ProcessLookupError:
                continue
            if not is_finished(folder) and RunFolder(folder).is_in_use:
                frozen.append((folder, process))
                return True
            os.kill(process, signal.SIGCONT)
        return False

    launch.wait_for(catch, "a run at work")
    return frozen[0]


def thaw(process: int) -> None:
    """Let a training go on, if it still is there."""
    try:
        os.kill(process, signal.SIGCONT)
    except ProcessLookupError:
        return


def is_told(process: int) -> bool:
    """Whether a frozen training will get SIGTERM as soon as it continues."""
    status = Path(f"/proc/{process}/status").read_text()
    pending = int(status.partition("ShdPnd:")[2].split()[0], 16)
    return bool(pending >> (signal.SIGTERM - 1) & 1)


def lives(process: int) -> bool:
    """Whether a process has not ended yet."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def parent(process: int) -> int:
    """The process that has started another."""
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def epochs(folder: Path) -> Counter[int]:
    """How often each epoch was trained, as the log of a run tells."""
    lines = (folder / "output.log").read_text().splitlines()
    numbers = (line.split()[0] for line in lines if len(line.split()) > 5)
    return Counter(int(number) for number in numbers if number.isdigit())


def assert_whole(runs: Path, alone: Path) -> None:
    """Each run is that of one machine, byte for byte, and no epoch was trained twice."""
    for method, seed in cluster_driver.RUNS:
        run = cluster_driver.folder(runs, method, seed)
        reference = cluster_driver.folder(alone, method, seed)
        start(cluster_driver.config(method, seed), reference)
        assert weights(run) == weights(reference), run
        assert metrics(run) == metrics(reference), run
        assert without_place(result(run)) == without_place(result(reference))
        often = {number: count for number, count in epochs(run).items() if count > 1}
        assert not often, f"{run} has trained epochs twice: {often}"
        assert max(epochs(run)) == cluster_driver.EPOCHS


def without_place(record: dict) -> dict:
    """A record without what it says of the folder."""
    return {key: value for key, value in record.items() if key not in ("name", "run")}
