"""What the option `memory` buys: processor time and peak memory of a training step."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.cases import Case, cifar_case, digits_case, training_step
from benchmarks.timing import Line
from bfno.lab.runs.record import peak_memory
from bfno.ode import Stats, solve

__all__ = ["memory"]

BUDGETS = ("0", "default", "256 MB", "1 GB", "unlimited")
CASES = {"cifar10": cifar_case, "digits": digits_case}


def memory(repeats: int, notes: dict[str, Any]) -> Iterator[Line]:
    """A training step of two models, dopri5 at 1e-3, for several amounts of memory."""
    for name in CASES:
        nothing = None
        for budget in BUDGETS:
            found = _measured_apart(name, budget, max(1, repeats // 3))
            nothing = nothing or found["seconds"]
            ratio = nothing / found["seconds"]
            more = {key: found[key] for key in ("peak_mib", "forward", "backward")}
            names = ("memory", f"{name} {budget}", "memory=0")
            yield Line(*names, found["seconds"], nothing, ratio, (0.0, 0.0), {**more, **notes})


def _measured_apart(name: str, budget: str, repeats: int) -> dict[str, Any]:
    """Measure in a process of its own, whose peak is that of this amount alone."""
    command = [sys.executable, "-m", "benchmarks.memory", name, budget, str(repeats)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _measure(case: Case, budget: str | None, repeats: int) -> dict[str, Any]:
    """Least processor seconds of a step, and what the peak of the process grows by."""
    stats = Stats()

    def solver(field: Any, y0: torch.Tensor, ts: torch.Tensor) -> torch.Tensor:
        nonlocal stats
        solution = solve(field, y0, ts, rtol=1e-3, atol=1e-3, memory=budget)
        stats = solution.stats
        return solution.ys[-1]

    step, before, seconds = training_step(case, case.field, solver), peak_memory(), []
    for _ in range(repeats + 1):  # the first one warms up
        began = time.process_time()
        step()
        seconds.append(time.process_time() - began)
    return {
        "seconds": min(seconds[1:]),
        "peak_mib": round((peak_memory() - before) / 2**20),
        "forward": stats.forward_evaluations,
        "backward": stats.backward_evaluations,
    }


def _main(name: str, budget: str, repeats: str) -> None:
    given = None if budget == "default" else budget
    print(json.dumps(_measure(CASES[name](), given, int(repeats))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
