"""The program as the child of a campaign: it stops when its parent is gone.

A parent that is killed cannot tell its children. So each of them asks once a second whose child it
is; once that is somebody else, it sends itself SIGTERM, upon which a training saves its state and
ends. Unlike the kernel's own death signal, this works on every Unix.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

__all__ = ["child_command", "end_with", "run_child"]

_SECONDS = 1.0
# Not `-m`, which looks for every module in the current folder first: a user's own yaml.py there
# would be taken for the real one. The package itself is found where the parent has it, even if
# nothing but the parent's folder led there; last of all, so that its neighbours hide no module.
_PROGRAM = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); sys.path.append({root!r}); "
    "from {module} import run_child; run_child()"
)


def child_command(words: list[str]) -> list[str]:
    """The command that runs the program with these words as a child of this process."""
    root = str(Path(__file__).resolve().parents[4])
    program = _PROGRAM.format(root=root, module=__name__)
    return [sys.executable, "-c", program, str(os.getpid()), *words]


def run_child() -> None:
    """Run the program with the words of the command, as long as the process before them lives."""
    end_with(int(sys.argv.pop(1)))
    runpy.run_module("bfno", run_name="__main__", alter_sys=True)


def end_with(parent: int) -> None:
    """Send this process SIGTERM once its parent is no longer that one."""
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
