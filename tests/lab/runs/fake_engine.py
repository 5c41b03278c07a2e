"""An engine that carries out orders as a test says."""

import json
from collections.abc import Sequence

from bfno.lab.runs.campaign.engine import Order, QueueFull, Report
from bfno.lab.runs.campaign.ledger import read_note
from tests.lab.runs.campaigns import record, settings

QUEUED, RUNNING, LOST = Report("queued", why="Priority"), Report("running"), Report("over")


class FakeEngine:
    """Carries out orders as a script says: one report for each look, the last one for ever."""

    name, slots, pause, outlives = "fake", None, 0.0, True

    def __init__(self, *script: Report | str) -> None:
        self.script = script or (RUNNING, "finish")
        self.given: list[list[str]] = []
        self.cancelled: list[str] = []
        self.full = 0
        self._left: dict[Order, list[Report | str]] = {}

    def submit(self, orders: Sequence[Order]) -> None:
        for order in orders:
            note = read_note(order.folder)
            assert note is not None and note.is_about(order), "noted before it is given"
        if self.full:
            self.full -= 1
            raise QueueFull("--on fake", "the queue is full", "wait")
        self.given.append([order.folder.name for order in orders])
        self._left |= {order: list(self.script) for order in orders}

    def state(self, order: Order) -> Report:
        left = self._left.get(order, [LOST])
        now = left.pop(0) if len(left) > 1 else left[0]
        if order.folder.name in self.cancelled:
            return LOST
        if now == "finish":
            method = order.folder.name.removeprefix("digits-").rpartition("-s")[0]
            if not (order.folder / "record.json").exists():
                (order.folder / "record.json").write_text(json.dumps(record(settings(method))))
            return Report("over", 0)
        assert isinstance(now, Report)
        return now

    def cancel(self, orders: Sequence[Order]) -> None:
        self.cancelled += [order.folder.name for order in orders]
