"""The program as the child of a campaign: which cores it uses, and how it stops with its parent.

Each child has one thread and, if there are GPUs, its own GPU. The system chooses its core: two
campaigns that picked cores themselves might pick the same ones.

A killed parent cannot notify its children. So each child checks its parent once a second; when the
parent has changed, it sends itself SIGTERM, and the training saves its state and ends. Unlike the
kernel's own death signal, this works on every Unix.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bfno.lab.errors import DataError
from bfno.lab.files import make_folder, open_plain
from bfno.lab.runs.cores import own_cores

__all__ = ["ONE_THREAD", "Places", "child_command", "end_with", "run_child", "start_child"]

_SECONDS = 1.0
_VISIBLE = "CUDA_VISIBLE_DEVICES"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment of libraries that would otherwise start as many threads as the machine has cores."""
# Not `-m`, which looks for every module in the current folder first: a user's own yaml.py there
# would be taken for the real one. The package itself is found where the parent has it, even if
# only the parent's folder led there; it comes last, so that its neighbours hide no module.
_PROGRAM = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); sys.path.append({root!r}); "
    "from {module} import {entry}; {entry}()"
)


def child_command(words: list[str], entry: Callable[[], None] | None = None) -> list[str]:
    """The command that runs the program with these words as a child of this process.

    Args:
        words: The words.
        entry: The function that runs the words, by default `run_child`; a public one of its module.
    """
    entry = entry or run_child
    root = str(Path(__file__).resolve().parents[4])
    program = _PROGRAM.format(root=root, module=entry.__module__, entry=entry.__name__)
    return [sys.executable, "-c", program, str(os.getpid()), *words]


def start_child(
    folder: Path, command: list[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a command that trains in a folder, and prints to the log there.

    Raises:
        DataError: If the folder cannot be written.
    """
    output = _open_log(folder)
    try:
        # In its own session: the parent passes on a Ctrl-C from the terminal.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    finally:
        os.close(output)


def _open_log(folder: Path) -> int:
    from bfno.lab.runs.folder import RunFolder  # a child is to watch its parent before it has this

    try:
        make_folder(folder)
        return open_plain(RunFolder(folder).log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        why = f"cannot be written: {(error.strerror or str(error)).lower()}"
        raise DataError(folder, why, "choose another folder with --runs") from error


def run_child() -> None:
    """Run the program with the words of the command, as long as the process before them lives."""
    end_with(int(sys.argv.pop(1)))
    runpy.run_module("bfno", run_name="__main__", alter_sys=True)


def end_with(parent: int) -> None:
    """Send this process SIGTERM once its parent has changed."""
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


class Places:
    """The cores and GPUs that this program may use, assigned to numbered processes.

    Attributes:
        cores: Numbers of the cores.
        gpus: Names of the GPUs, as the environment calls them.
    """

    def __init__(self) -> None:
        self.cores = own_cores()
        self.gpus = _gpus()

    @property
    def count(self) -> int:
        """How many processes can run without disturbing each other."""
        return len(self.gpus) or len(self.cores)

    def environment(self, number: int) -> dict[str, str]:
        """Environment of a process: this one's, with one thread and one GPU."""
        own = {_VISIBLE: self.gpus[number % len(self.gpus)]} if self.gpus else {}
        return {**os.environ, **ONE_THREAD, **own}


def _gpus() -> list[str]:
    import torch  # which a child imports only when it has begun to watch its parent

    count = torch.cuda.device_count()
    named = os.environ.get(_VISIBLE)
    return (named.split(",") if named else list(map(str, range(count))))[:count]
