"""Training in processes of this machine, which end with the program."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Sequence

from bfno.lab.runs.campaign.child import Places, child_command, start_child
from bfno.lab.runs.campaign.engine import Order, Report
from bfno.lab.runs.campaign.plan import state_of

__all__ = ["LocalEngine"]


class LocalEngine:
    """Gives each order a process with one thread and, if there are GPUs, its own GPU."""

    name, pause, outlives = "local", 0.25, False

    def __init__(self) -> None:
        self._places = Places()
        self.slots = self._places.count
        self._children: dict[Order, tuple[int, subprocess.Popen[bytes]]] = {}

    def submit(self, orders: Sequence[Order]) -> None:
        for order in orders:
            taken = {place for place, child in self._children.values() if child.poll() is None}
            place = next(number for number in itertools.count() if number not in taken)
            words = order.words(has_begun=state_of(order.folder) == "begun")
            environment = self._places.environment(place)
            child = start_child(order.folder, child_command(words), environment)
            self._children[order] = place, child

    def state(self, order: Order) -> Report:
        if order not in self._children:
            return Report("over")
        code = self._children[order][1].poll()
        return Report("running") if code is None else Report("over", code)

    def cancel(self, orders: Sequence[Order]) -> None:
        for order in orders:
            if order in self._children:
                self._children[order][1].terminate()
