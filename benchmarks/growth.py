"""How costs grow: fitted exponents of time, and memory a step."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import SmallField
from benchmarks.timing import Line, repeat
from bfno.fields import OperatorField
from bfno.ode import solve

__all__ = ["growth"]

Lines = Iterator[Line]


def growth(repeats: int, notes: dict[str, Any]) -> Lines:
    """Fitted exponents of time over grid side, batch, width and 1/tolerance."""

    def field_time(side: int = 32, batch: int = 8, width: int = 32) -> float:
        field = OperatorField("bfno", 3, width, 2)
        y = torch.rand(batch, 3, side, side)
        with torch.no_grad():
            return repeat(lambda: field(0.0, y), repeats)

    def solve_time(tolerance: float) -> float:
        field, y0, ts = SmallField(), torch.randn(64, 20), torch.tensor([0.0, 20.0])
        settings: dict[str, Any] = {"rtol": tolerance, "atol": tolerance}
        with torch.no_grad():
            return repeat(lambda: solve(field, y0, ts, **settings), repeats)

    sweeps: dict[str, tuple[Callable[..., float], str, tuple[float, ...]]] = {
        "side": (field_time, "side", (16, 32, 64, 128)),
        "batch": (field_time, "batch", (4, 8, 16, 32, 64)),
        "width": (field_time, "width", (16, 32, 64, 128)),
        "1/tolerance": (lambda x: solve_time(1 / x), "x", (1e2, 1e3, 1e4, 1e5, 1e6)),
    }
    for case, (measure, name, values) in sweeps.items():
        times = [measure(**{name: value}) for value in values]
        exponent = _fitted_exponent(values, times)
        pairs = zip(values, times, strict=True)
        rows = {f"{value:g}": round(seconds, 6) for value, seconds in pairs}
        more = {"exponent": exponent, "seconds": rows, **notes}
        first, last = times[0], times[-1]
        yield Line("growth", case, "smallest", last, first, first / last, (0.0, 0.0), more)
    yield from _memory_growth(notes)


def _fitted_exponent(values: tuple[float, ...], times: list[float]) -> float:
    x, y = (torch.tensor(numbers).double().log() for numbers in (values, times))
    x = x - x.mean()
    return float((x * (y - y.mean())).sum() / x.square().sum())


def _memory_growth(notes: dict[str, Any]) -> Lines:
    """Bytes that the graph of a solve keeps, over the number of steps."""
    field, y0, ts = SmallField(), torch.randn(64, 20), torch.tensor([0.0, 1.0])
    counts = (8, 32, 128)
    kept: dict[str, list[int]] = {"checkpoint": [], "direct": []}
    for gradient, sizes in kept.items():
        for count in counts:
            settings: dict[str, Any] = {"step": 1 / count, "gradient": gradient}
            call = functools.partial(solve, field, y0, ts, **settings)
            sizes.append(_kept_bytes(call))
    span = counts[-1] - counts[0]
    ours, peer = ((kept[key][-1] - kept[key][0]) / span for key in ("checkpoint", "direct"))
    more = {"bytes_a_step": ours, "direct_bytes_a_step": peer, **notes}
    yield Line("growth", "memory", "direct", 0.0, 0.0, peer / ours, (0.0, 0.0), more)


def _kept_bytes(solved: Callable[[], Any]) -> int:
    """Bytes of all tensors that live on because of a result."""

    def living() -> dict[int, int]:
        gc.collect()
        storages = [v.untyped_storage() for v in gc.get_objects() if issubclass(type(v), Tensor)]
        return {storage.data_ptr(): storage.nbytes() for storage in storages}

    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    before = living()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = solved()
    after = {**saved, **living()}
    del result
    return sum(size for pointer, size in after.items() if pointer not in before)
