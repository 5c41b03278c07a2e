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

__all__ = ["child_command", "end_with"]

_SECONDS = 1.0


def child_command(words: list[str]) -> list[str]:
    """The command that runs the program with these words as a child of this process."""
    return [sys.executable, "-m", __name__, str(os.getpid()), *words]


def end_with(parent: int) -> None:
    """Send this process SIGTERM once its parent is no longer that one."""
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _main() -> None:
    end_with(int(sys.argv.pop(1)))
    runpy.run_module("bfno", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
