"""Where the runs of a campaign go: each on a core and, where there are some, a GPU of its own."""

from __future__ import annotations

import os

import torch

__all__ = ["Places"]

_VISIBLE = "CUDA_VISIBLE_DEVICES"
# Libraries that would otherwise start as many threads as the machine has cores.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Places:
    """The cores and GPUs that this program may use, dealt out to numbered processes.

    Attributes:
        cores: Numbers of the cores.
        gpus: Names of the GPUs, as the environment calls them.
    """

    def __init__(self) -> None:
        self.cores = _cores()
        self.gpus = _gpus()

    @property
    def count(self) -> int:
        """How many processes do not disturb each other."""
        return len(self.gpus) or len(self.cores)

    def environment(self, number: int) -> dict[str, str]:
        """Environment of a process: this one's, with one thread and one GPU."""
        own = {_VISIBLE: self.gpus[number % len(self.gpus)]} if self.gpus else {}
        return {**os.environ, **_ONE_THREAD, **own}

    def pin(self, process: int, number: int) -> None:
        """Keep a process on its core, before it has started any thread."""
        if hasattr(os, "sched_setaffinity"):
            try:
                os.sched_setaffinity(process, {self.cores[number % len(self.cores)]})
            except ProcessLookupError:
                return  # it has ended already, which its parent will find


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _gpus() -> list[str]:
    count = torch.cuda.device_count()
    named = os.environ.get(_VISIBLE)
    return (named.split(",") if named else list(map(str, range(count))))[:count]
