"""Time limits as Slurm writes them."""

from __future__ import annotations

import math
import re

__all__ = ["minutes_of"]

_PART = r"([0-9]{1,9})"
_TIME = re.compile(rf"(?:{_PART}-)?{_PART}(?::{_PART})?(?::{_PART})?")


def minutes_of(text: str) -> int | None:
    """Whole minutes of a time as Slurm writes it, rounded up; None if it has no limit.

    Args:
        text: `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`,
            `days-hours:minutes` or `days-hours:minutes:seconds`.

    Raises:
        ValueError: If it is none of these.

    Example:
        >>> [minutes_of(text) for text in ("90", "4:00:00", "1-12", "infinite")]
        [90, 240, 2160, None]
    """
    if text.lower() in ("infinite", "unlimited", "n/a"):
        return None
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"is not a time: {text!r}")
    days, *rest = found.groups()
    numbers = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    whole = math.ceil(((int(days or 0) * 24 + hours) * 60) + minutes + seconds / 60)
    if whole < 1:
        raise ValueError(f"is not a time: {text!r}")
    return whole
