"""Numpy arrays with masked values, which would be read as if they were not masked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["refuse_masked"]


def refuse_masked(values: Any, name: str, fix: str) -> None:
    """Refuse masked values: code that ignores the mask would read the hidden values.

    Args:
        values: An array, or lists of arrays; a masked array without masked values is accepted.
        name: Its name in the message.
        fix: What to do about it.

    Raises:
        ValueError: If a value is masked.

    Example:
        >>> refuse_masked(np.ma.array([1, 2], mask=[False, True]), "y", "fill it")
        Traceback (most recent call last):
        ValueError: y must hold no masked value; fill it
    """
    if _is_masked(values):
        raise ValueError(f"{name} must hold no masked value; {fix}")


def _is_masked(values: Any) -> bool:
    if isinstance(values, np.ma.MaskedArray):
        return bool(np.ma.is_masked(values))
    is_array_of_arrays = isinstance(values, np.ndarray) and values.dtype == object
    if is_array_of_arrays or (isinstance(values, Sequence) and not isinstance(values, str | bytes)):
        return any(map(_is_masked, values))
    return False
