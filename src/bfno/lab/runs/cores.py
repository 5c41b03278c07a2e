"""How many cores this program may use, and how many of them other programs leave free."""

from __future__ import annotations

import os

import psutil

__all__ = ["free_cores", "own_cores"]

# Observing for this long distinguishes a program that computes from one briefly busy.
_GLANCE, _LOOK = 0.2, 1.0
# The share of every core that the system itself uses.
_NOISE = 0.1


def own_cores() -> list[int]:
    """The numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def free_cores() -> int:
    """How many of its cores other programs leave free for this process, at least one.

    This takes a fifth of a second, and another second if a core seems busy. If the system does not
    say what other programs do, all cores count as free.
    """
    ours = own_cores()
    try:
        free = _free(ours, _GLANCE)
        return free if free == len(ours) else _free(ours, _LOOK)
    except Exception:  # no answer of a system is a reason not to train
        return len(ours)


def _free(ours: list[int], seconds: float) -> int:
    used = psutil.cpu_percent(seconds, percpu=True)
    # Others may keep to cores that are not ours; a core that has no number here is an IndexError.
    taken = sum(max(0.0, used[core] / 100 - _NOISE) for core in ours)
    return max(1, len(ours) - round(taken))
