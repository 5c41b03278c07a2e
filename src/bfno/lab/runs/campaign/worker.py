"""Carrying out an order on a machine of a cluster.

It may have been given twice: by an engine that repeats the orders of a lost machine, or by a
program that was killed before it had an answer. So the machine itself checks what is left to do,
and only one order at a time works in a folder.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

from bfno.lab.files import lock_file, make_folder, open_plain
from bfno.lab.runs.campaign.child import ONE_THREAD, child_command, end_with, start_child
from bfno.lab.runs.campaign.engine import Order

__all__ = ["carry_out", "exit_code", "is_at_work", "start_worker"]

_TURN = ".job"
# Longer than a file server keeps the locks of a machine that is gone: 90 seconds with NFS 4.
_PATIENCE = 120.0
_PAUSE = 0.2
_NOT_FREE = 75
# Exit codes of a training that was stopped, or could not begin: it may be submitted again.
_UNFINISHED = {_NOT_FREE, 130, 143, -2, -15}


def start_worker(order: Order) -> subprocess.Popen[bytes]:
    """Start a child that does the remaining work of an order, if any."""
    words = [str(order.folder), json.dumps(order.begin), json.dumps(order.go_on)]
    return start_child(order.folder, child_command(words, carry_out), {**os.environ, **ONE_THREAD})


def exit_code(code: int) -> int | None:
    """The exit code of a worker; None if it was stopped from outside and should continue."""
    return None if code in _UNFINISHED else code


def is_at_work(folder: Path) -> bool:
    """Whether a worker is using a folder; checks without writing."""
    try:
        descriptor = open_plain(folder / _TURN, os.O_RDWR)
    except OSError:
        return False
    try:
        # Shared and for a moment only: a worker that comes meanwhile tries again.
        return not lock_file(descriptor, shared=True)
    finally:
        os.close(descriptor)


def carry_out() -> None:
    """Do the remaining work of the order in the command's words; the child's main function."""
    end_with(int(sys.argv.pop(1)))
    folder = Path(sys.argv[1])
    begin, go_on = map(json.loads, sys.argv[2:])
    end = time.monotonic() + _PATIENCE
    turn = _take_turn(folder, end)
    if turn is None:
        sys.exit(_NOT_FREE)
    from bfno.lab.runs.campaign.plan import state_of  # which imports torch

    while (state := state_of(folder)) == "in use" and time.monotonic() < end:
        time.sleep(_PAUSE)
    if state == "there":
        return
    if state == "in use":
        sys.exit(_NOT_FREE)
    sys.argv[1:] = begin if state == "missing" else go_on
    runpy.run_module("bfno", run_name="__main__", alter_sys=True)


def _take_turn(folder: Path, end: float) -> int | None:
    """Keep other orders out of a folder for as long as this process lives."""
    make_folder(folder)
    descriptor = open_plain(folder / _TURN, os.O_RDWR | os.O_CREAT)
    while not lock_file(descriptor):
        if time.monotonic() >= end:
            return None
        time.sleep(_PAUSE)
    return descriptor
