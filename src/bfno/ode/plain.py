"""Fixed steps between known times in plain operations, which compilers and exporters follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from bfno.ode.evaluate import Evaluator
from bfno.ode.solution import Stats
from bfno.ode.solve import fixed_stops
from bfno.ode.state import Packing, real_dtype
from bfno.ode.step import Sums, take_stages
from bfno.ode.tableaus import find_method
from bfno.tracing import is_exporting

__all__ = ["is_plain", "plain_steps"]

# Options that have to read the numbers of a state, or pass them to the user.
_CURIOUS = ("event", "dense", "on_step", "jumps")


def is_plain(settings: Mapping[str, Any]) -> bool:
    """Whether a solve can be traced before any number of its state is known.

    Args:
        settings: Arguments of `solve`.

    Raises:
        ValueError: If it cannot, and `torch.export` is tracing it.
    """
    tableau = find_method(settings["method"])
    adaptive = tableau.adaptive and settings.get("step") is None
    wanted = [name for name in _CURIOUS if settings.get(name)]
    exporting = is_exporting()
    if exporting and tableau.implicit:
        raise ValueError(
            f"torch.export needs an explicit method such as rk4, got {tableau.name!r}, which "
            "solves equations in every step"
        )
    if exporting and (adaptive or wanted):
        problem = f"got {wanted[0]}={settings[wanted[0]]!r}" if wanted else "got adaptive ones"
        raise ValueError(
            f"torch.export needs fixed steps and none of {', '.join(_CURIOUS)}, {problem}; make "
            "the NeuralODE with step=…, such as step=0.1"
        )
    # The adjoint's gradient is not that of the steps; an exported model is evaluated only.
    is_exact = settings["gradient"] != "adjoint" or exporting or not torch.is_grad_enabled()
    return not (adaptive or wanted or tableau.implicit) and is_exact


def plain_steps(
    field: Callable[..., Any], y0: Any, interval: tuple[float, float], settings: Mapping[str, Any]
) -> tuple[Any, Stats]:
    """The state at the end of an interval, and its cost.

    It does not check that the state is finite.

    Args:
        field: The derivative.
        y0: The state at the start.
        interval: The start and the end.
        settings: Arguments of `solve` that `is_plain`.
    """
    tableau, stats = find_method(settings["method"]), Stats()
    arguments, by_sample = settings.get("args", ()), bool(settings.get("independent"))
    packing = Packing(y0, by_sample=by_sample)
    evaluate = Evaluator(packing.wrap(lambda t, y: field(t, y, *arguments)))
    y = packing.pack(y0)
    # The dtype of the time that the field receives.
    shape, dtype = y.shape[:1] if by_sample else (), real_dtype(y.dtype)
    sums, slopes, begin = Sums(tableau), [], float(interval[0])
    for stop in fixed_stops(interval, settings.get("step"), settings.get("stops", ())):
        size = stop.moment.value - begin
        sums.begin(y, size)
        for slope in slopes:
            sums.add(slope)
        times = [y.new_full(shape, begin + node * size, dtype=dtype) for node in tableau.nodes]
        y = take_stages(evaluate, times, sums)
        stats.forward_evaluations += len(times) - len(slopes)
        slopes = [sums.slopes[-1]] if tableau.reuses_last_stage else []
        begin = stop.moment.value
        stats.accepted += 1
        stats.step_ends.append(begin)
    return packing.unpack(y), stats
