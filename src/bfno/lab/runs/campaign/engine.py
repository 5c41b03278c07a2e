"""Engines train the runs of a campaign: they take orders, report on them, and stop them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from bfno.lab.errors import ConfigError

__all__ = ["Engine", "Order", "QueueFull", "Report"]


@dataclass(frozen=True)
class Order:
    """A run to train, in words that work on any machine.

    Attributes:
        folder: Where the run is, or will be.
        begin: The words of `bfno` that begin it.
        go_on: The words of `bfno` that continue it.
        batch: A name shared by exactly the orders given at the same time.
        number: Its place among them.
    """

    folder: Path
    begin: tuple[str, ...]
    go_on: tuple[str, ...]
    batch: str
    number: int

    def words(self, has_begun: bool) -> list[str]:
        """The arguments of `bfno` that do the remaining work.

        Example:
            >>> order = Order(Path("a"), ("train", "x", "--out", "a"), ("resume", "a"), "b1", 0)
            >>> order.words(has_begun=True)
            ['resume', 'a']
        """
        return list(self.go_on if has_begun else self.begin)


@dataclass(frozen=True)
class Report:
    """The state of an order.

    Attributes:
        state: Whether it waits for a machine, is running, or is over.
        code: Exit code of its training, once it is over; None if it was removed before it could
            finish or fail by itself, and may be given again.
        why: The reason for waiting, in the engine's own words.
    """

    state: Literal["queued", "running", "over"]
    code: int | None = None
    why: str = ""


class QueueFull(ConfigError):
    """An engine takes no more orders for now."""


class Engine(Protocol):
    """Where runs are trained."""

    @property
    def name(self) -> str:
        """The name that `--on` takes."""
        ...

    @property
    def slots(self) -> int | None:
        """How many orders it takes at a time; None if it has its own queue."""
        ...

    @property
    def pause(self) -> float:
        """Seconds between two checks."""
        ...

    @property
    def outlives(self) -> bool:
        """Whether it carries on when the program that gave the orders is gone."""
        ...

    def submit(self, orders: Sequence[Order]) -> None:
        """Take orders, which share a batch.

        Raises:
            QueueFull: If it takes no more for now; then it has accepted none of these.
            UserError: If it cannot take them.
        """
        ...

    def state(self, order: Order) -> Report:
        """The state of an order; an unknown order is over."""
        ...

    def cancel(self, orders: Sequence[Order]) -> None:
        """Make trainings save and end; `state` shows when they have."""
        ...
