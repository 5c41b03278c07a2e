"""Whole programs to start, signal and kill.

A program of its own spends seconds on imports. Most tests therefore fork theirs from a server that
has done the imports and nothing else; the program's `main` runs in them as ever.
"""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from bfno.lab.experiments.experiment import Experiment

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    [
        "bfno.lab.cli.commands",
        "bfno.lab.cli.progress",
        "bfno.lab.runs.session",
        "accelerate",
        "sklearn.datasets",
        "torch._dynamo",  # which every optimizer imports
        __name__,
    ]
)
# More threads would only fight for the cores, and those of a server would not survive its fork.
_FEW_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Seconds that only a program that hangs takes: what lasts a moment can last a minute on a machine
# that is busy with other things, and nothing is learned from that.
_PATIENCE = 300.0

Hook = Callable[[], object]


def words(config: Experiment, folder: Path) -> list[str]:
    """A command that trains with these very settings."""
    file = folder.with_suffix(".yaml")
    file.write_text(config.as_yaml())
    return ["train", str(file), "--out", str(folder)]


def fork(command: list[str], output: Path, hook: Hook | None = None, **environment: str):
    """Run a command in a process of its own; what it prints goes to `output`.out and .err.

    The hook is called in that process before the program.
    """
    os.environ.update(_FEW_THREADS)  # for the server, which the first process starts
    process = _server.Process(target=_main, args=(command, output, hook, environment))
    process.start()
    return process


def fork_several(
    command: list[str], output: Path, hook: Hook | None = None, count: int = 2
) -> list[BaseProcess]:
    """Run a command in processes that train together; `output` gets the number of each."""
    port = str(free_port())
    return [
        fork(
            command,
            output.with_name(f"{output.name}{rank}"),
            hook,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(count),
            LOCAL_WORLD_SIZE=str(count),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
        )
        for rank in range(count)
    ]


def _main(command: list[str], output: Path, hook: Hook | None, environment: dict) -> None:
    from bfno.lab.cli import main

    for descriptor, kind in ((1, "out"), (2, "err")):
        file = os.open(f"{output}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file, descriptor)
    os.environ.update(environment)
    if hook is not None:
        hook()
    code = main(command)
    sys.stdout.flush()
    sys.exit(code)


def send(process: BaseProcess | subprocess.Popen, number: int) -> None:
    """Send a process a signal."""
    assert process.pid is not None
    os.kill(process.pid, number)


def lives(process: BaseProcess | subprocess.Popen) -> bool:
    """Whether a process has not ended yet."""
    ended = process.poll() if isinstance(process, subprocess.Popen) else process.exitcode
    return ended is None


def codes(processes: list[BaseProcess]) -> list[int | None]:
    """Exit codes of processes that have to end by themselves; they are ended if they hang."""
    end = time.monotonic() + _PATIENCE
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    found = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return found


def program(command: list[str], *, module: str = "bfno", **environment: str) -> subprocess.Popen:
    """Start the real program, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **_FEW_THREADS, **environment},
        start_new_session=True,
        preexec_fn=_hear_interrupts,
    )


def _hear_interrupts() -> None:
    """A shell lets what it starts in the background ignore Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def torchrun(command: list[str], count: int = 2) -> subprocess.Popen:
    """Start the real program under PyTorch's launcher."""
    options = ["--nproc-per-node", str(count), "--master-port", str(free_port()), "-m", "bfno"]
    return program([*options, *command], module="torch.distributed.run")


def finish(started: subprocess.Popen) -> tuple[int, str, str]:
    """Wait for a program; returns exit code, output and errors. Nothing of it stays behind."""
    try:
        out, err = started.communicate(timeout=_PATIENCE)
    finally:
        end_group(started)
        for pipe in (started.stdout, started.stderr):
            if pipe is not None:
                pipe.close()
    return started.returncode, out, err


def end_group(started: subprocess.Popen) -> None:
    """Kill a program together with everything it has started."""
    try:
        os.killpg(started.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    started.wait()


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds, and fail if it never does."""
    end = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


def has_trained(folder: Path) -> Callable[[], bool]:
    """Whether a run has finished an epoch."""
    file = folder / "metrics.jsonl"
    return lambda: file.exists() and file.stat().st_size > 0


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
