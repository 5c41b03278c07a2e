"""What is known about a file of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["FileCheck"]


@dataclass(frozen=True)
class FileCheck:
    """What is known about one file.

    Attributes:
        path: Where it is, or where it should be.
        state: `ok`, `missing`, `truncated`, `too long`, `wrong checksum`, `wrong content`,
            `unreadable`, or `unchecked` if checking it needs another file.
        size: Bytes on disk, if it exists.
        detail: The evidence for the state.
    """

    path: Path
    state: str
    size: int | None
    detail: str
