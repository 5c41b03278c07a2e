"""What the option `memory` buys: time and peak memory of a training step."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from benchmarks.cases import Case, cifar_case, digits_case, training_step
from benchmarks.steps import steps
from benchmarks.timing import Line, measure, summarise
from bfno.lab.runs.record import peak_memory
from bfno.ode import Stats, solve

__all__ = ["memory"]

AMOUNTS = (0, None, "1 GB", "2 GB", "unlimited")
CASES = {"cifar10": cifar_case, "digits": digits_case}


def memory(repeats: int, notes: dict[str, Any]) -> Iterator[Line]:
    """A training step of two models, dopri5 at 1e-3, for several amounts of memory.

    Then one of a small field, for what may be kept and for several numbers of steps.
    """
    for name, make in CASES.items():
        case, rounds = make(), []
        trained = [_Step(case, amount) for amount in AMOUNTS]
        trained[0]()  # what only the first step of a process takes
        for _ in range(max(1, repeats // 3)):
            rounds.append([measure(step, warm=False) for step in trained])
        for place, (amount, step) in enumerate(zip(AMOUNTS, trained, strict=True)):
            more = {"peak_mib": _peak(name, amount), "backward_evaluations": step.repeated}
            names = ("memory", f"{name} {_word(amount)}", "memory=0")
            yield summarise(names, [(row[place], row[0]) for row in rounds], {**more, **notes})
    yield from steps(notes)


class _Step:
    """A training step with an amount of memory.

    Attributes:
        repeated: How many evaluations its backward pass repeated.
    """

    def __init__(self, case: Case, amount: Any) -> None:
        self._amount, self._stats = amount, Stats()
        self._run: Callable[[], None] = training_step(case, case.field, self._solve)

    def _solve(self, field: nn.Module, y0: Tensor, ts: Tensor) -> Tensor:
        solution = solve(field, y0, ts, rtol=1e-3, atol=1e-3, memory=self._amount)
        self._stats = solution.stats
        return solution.ys[-1]

    def __call__(self) -> None:
        self._run()

    @property
    def repeated(self) -> int:
        return self._stats.backward_evaluations


def _word(amount: Any) -> str:
    return "default" if amount is None else str(amount)


def _peak(name: str, amount: Any) -> int:
    """Memory in MiB that two steps add to a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", name, _word(amount)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _print_peak(name: str, word: str) -> None:
    case, amount = CASES[name](), None if word == "default" else word
    step, before = _Step(case, amount), peak_memory()
    for _ in range(2):  # the second one finds the gradients of the first
        step()
    print(round((peak_memory() - before) / 2**20))


if __name__ == "__main__":
    _print_peak(*sys.argv[1:])
