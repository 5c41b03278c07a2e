"""Measuring two programs in one run."""

from __future__ import annotations

import gc
import importlib
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Line", "compare", "measure", "peer_library", "repeat"]


@dataclass
class Line:
    """One comparison.

    Attributes:
        bench: Group of cases.
        case: What was measured.
        peer: What it was compared with.
        ours_s: Median of our seconds.
        peer_s: Median of the peer's seconds.
        ratio: How many times as long the peer took: the median over pairs of neighbouring runs.
        spread: Middle half of these ratios.
        notes: Anything else worth knowing.
    """

    bench: str
    case: str
    peer: str
    ours_s: float
    peer_s: float
    ratio: float
    spread: tuple[float, float]
    notes: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> str:
        """One line of JSON, the notes among the other keys."""
        values = asdict(self)
        return json.dumps(_flat(values))

    def as_row(self) -> str:
        """One line of a table for people."""
        name = f"{self.bench}/{self.case}"
        low, high = self.spread
        spread = f"[{low:.2f}, {high:.2f}]" if high else ""
        notes = "  ".join(f"{key}={_short(value)}" for key, value in self.notes.items())
        return (
            f"{name:<18} {self.peer:<22} {_seconds(self.ours_s):>9} {_seconds(self.peer_s):>9} "
            f"{self.ratio:>7.2f}x  {spread:<12}  {notes}"
        )


HEADER = f"{'case':<18} {'peer':<22} {'ours':>9} {'peer':>9} {'ratio':>8}  middle half   notes"


def compare(
    names: tuple[str, str, str],
    ours: Callable[[], Any],
    peer: Callable[[], Any],
    *,
    repeats: int,
    per: float = 1.0,
    notes: dict[str, Any] | None = None,
) -> Line:
    """Run two programs in turns and compare their times.

    Args:
        names: Group, case and peer.
        ours: Our program.
        peer: The other one.
        repeats: How many pairs of runs are measured.
        per: Number of units that a run does; times are per unit.
        notes: What else to report.
    """
    pairs = [(measure(ours) / per, measure(peer) / per) for _ in range(repeats)]
    return summarise(names, pairs, notes)


def summarise(
    names: tuple[str, str, str],
    pairs: list[tuple[float, float]],
    notes: dict[str, Any] | None = None,
) -> Line:
    """A line from pairs of our and the peer's seconds."""
    ratios = sorted(peer / ours for ours, peer in pairs)
    quarter = len(ratios) // 4
    return Line(
        *names,
        statistics.median(ours for ours, _ in pairs),
        statistics.median(peer for _, peer in pairs),
        statistics.median(ratios),
        (ratios[quarter], ratios[-1 - quarter]),
        notes or {},
    )


def peer_library(name: str) -> Any:
    """A library to compare with, which need not be installed otherwise."""
    return importlib.import_module(name)


def repeat(program: Callable[[], Any], repeats: int) -> float:
    """Median seconds of a program."""
    return statistics.median(measure(program) for _ in range(repeats))


def measure(program: Callable[[], Any], *, warm: bool = True) -> float:
    """Seconds of a run right after one of the same program, as in training.

    Args:
        program: What to run.
        warm: Whether there is such an earlier run.
    """
    if warm:
        program()
    gc.collect()
    began = time.perf_counter()
    program()
    return time.perf_counter() - began


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    notes = values.pop("notes")
    return {**values, **notes}


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _seconds(value: float) -> str:
    if value == 0:  # nothing was timed
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"
