"""How much a reader unpacks, which unlike its time is the same on every machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def counted(kind: Any) -> Iterator[list[int]]:
    """The lengths of the pieces that streams of a kind, such as `gzip.GzipFile`, hand out."""
    found: list[int] = []
    read = kind.read

    def counting(self, *size):
        piece = read(self, *size)
        found.append(len(piece))
        return piece

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "read", counting)
        yield found
