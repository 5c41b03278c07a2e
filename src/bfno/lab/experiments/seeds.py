"""One seed for each purpose of a run."""

from __future__ import annotations

import hashlib

__all__ = ["derive_seed"]


def derive_seed(seed: int, purpose: str, number: int = 0) -> int:
    """A seed for one purpose, unrelated to those of the others."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
