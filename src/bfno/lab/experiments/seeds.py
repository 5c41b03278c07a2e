"""The seeds of runs, and one for each purpose of a run."""

from __future__ import annotations

import hashlib

__all__ = ["FIRST_SEED", "MOST_SEEDS", "derive_seed", "first_seeds"]

FIRST_SEED = 7
"""The default seed."""
MOST_SEEDS = 1000
"""Largest number of seeds: more runs of one method than anyone has time for."""


def first_seeds(count: int) -> list[int]:
    """A number of seeds, from the default one on.

    Example:
        >>> first_seeds(3)
        [7, 8, 9]
    """
    return list(range(FIRST_SEED, FIRST_SEED + count))


def derive_seed(seed: int, purpose: str, number: int = 0) -> int:
    """A seed for one purpose, unrelated to those for other purposes."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
