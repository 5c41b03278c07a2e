"""How many cores other programs leave free."""

from __future__ import annotations

import os

import psutil

__all__ = ["free_cores"]

# Looking for so long tells a program that computes from one that was busy for a moment.
_GLANCE, _LOOK = 0.2, 1.0
# A core counts as free if others take no more of it than this.
_SPARE = 0.3


def free_cores() -> int:
    """The cores that this process may use and others leave free, at least one.

    It takes a fifth of a second, and a whole one more if a core seems to be taken. Where the system
    does not tell what others do, all cores count as free.
    """
    ours = len(_cores())
    try:
        free = _free(_GLANCE)
        return free if free == ours else _free(_LOOK)
    except (OSError, psutil.Error):
        return ours


def _free(seconds: float) -> int:
    used = psutil.cpu_percent(seconds, percpu=True)
    # Others may keep to cores that are not ours.
    mine = [used[core] / 100 for core in _cores() if core < len(used)]
    return max(1, int(len(mine) - sum(mine) + _SPARE))


def _cores() -> list[int]:
    """The numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
