"""Notes in the folders of runs: the order that an engine was given, and how it ended.

An engine that outlives the program carries out orders that would otherwise be forgotten. The note
is made before the order is given, so a program that is killed in between forgets none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from bfno.lab.errors import DataError
from bfno.lab.files import read_plain, remove_file, write_atomically
from bfno.lab.runs.campaign.engine import Order

__all__ = ["Note", "forget", "read_note", "write_note"]

_FILE = "job.json"


@dataclass(frozen=True)
class Note:
    """The note in a folder.

    Attributes:
        engine: Name of the engine.
        batch: The order's batch.
        number: Its number.
        code: Exit code of the training, once it has ended.
    """

    engine: str
    batch: str
    number: int
    code: int | None = None

    def is_about(self, order: Order) -> bool:
        """Whether it belongs to this order, not to a later or earlier one."""
        return (self.batch, self.number) == (order.batch, order.number)


def write_note(engine: str, order: Order, code: int | None = None) -> None:
    """Note that an engine has an order, or the code with which the training ended.

    Raises:
        DataError: If the folder cannot be written.
    """
    content = {"engine": engine, "batch": order.batch, "number": order.number, "code": code}
    write_atomically(order.folder / _FILE, (json.dumps(content) + "\n").encode())


def read_note(folder: Path) -> Note | None:
    """Read the note in a folder; None if there is none that can be understood."""
    try:
        found = json.loads(read_plain(folder / _FILE))
        code = found["code"]
        return Note(
            str(found["engine"]),
            str(found["batch"]),
            int(found["number"]),
            None if code is None else int(code),
        )
    except (OSError, DataError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def forget(folder: Path) -> None:
    """Remove the note when its order is over.

    Raises:
        DataError: If it cannot be removed.
    """
    remove_file(folder / _FILE)
