"""The result of a run as one object, from which tables and reports are made."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["FORMAT", "make_record", "peak_memory", "source_commit"]

FORMAT = 1


def make_record(
    config: Mapping[str, Any], progress: Mapping[str, Any], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Put together what a finished run has found and under which circumstances.

    Args:
        config: The settings of the run.
        progress: How far it came, with its best epoch.
        facts: What the loop does not know: sizes, class names, threads, processes.
    """
    data, _, method = config["experiment"].partition("/")
    best = progress["best"]
    metrics = {
        name: value
        for name, value in best["metrics"].items()
        if name not in {"epoch", "step", "lr", "seconds", "peak_memory"}
    }
    return {
        "format": FORMAT,
        "experiment": config["experiment"],
        "data": data,
        "method": method,
        "scale": config["scale"],
        "seed": config["seed"],
        "status": "finished",
        "epochs": progress["epoch"],
        "steps": progress["step"],
        "chosen_epoch": best["metrics"]["epoch"],
        "chosen_step": best["step"],
        "chosen_by": best["by"],
        "result": metrics,
        "confusion": best["confusion"],
        "seconds": round(progress["total_seconds"], 3),
        "peak_memory": peak_memory(),
        **facts,
        "config": dict(config),
        "versions": _versions(),
        "hardware": _hardware(),
        "commit": source_commit(),
    }


def peak_memory() -> int:
    """Most memory that this process has held so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _versions() -> dict[str, str]:
    packages = {name: importlib.metadata.version(name) for name in ("bfno", "torch", "numpy")}
    return {**packages, "python": platform.python_version()}


def _hardware() -> dict[str, Any]:
    """What the run was computed on."""
    # Here, as it takes more than a second: tables import this module for a few names only.
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"processor": _processor(), "cores": os.cpu_count(), "gpus": gpus}


def _processor() -> str:
    """The processor's name: where Linux keeps it, else what the platform calls itself."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            named = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    except OSError:
        named = []
    return named[0] if named else platform.processor() or platform.machine()


@functools.cache
def source_commit() -> str | None:
    """The commit of the checkout that this file belongs to, if it does.

    It ends in `+changes` if tracked files of the checkout are no longer those of the commit. It is
    asked once: the sources of a long run may have changed when it ends.
    """
    commit = _git("rev-parse", "HEAD")
    is_changed = commit and _git("status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if is_changed else commit


def _git(*words: str) -> str | None:
    """What git says of the checkout of this file; None if there is none, or no git."""
    # Without its optional lock, a question never gets into the way of a commit.
    command = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
