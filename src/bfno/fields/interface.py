"""What every vector field looks like from outside."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

__all__ = ["Field", "Time"]

Time = float | Tensor
"""A number, a tensor without axes, or one value a sample."""


class Field(Protocol):
    """Anything that maps a time and a state to the state's rate of change."""

    def __call__(self, t: Time, y: Tensor, /) -> Tensor:
        """Rate of change of the state `y`, batch first, at time `t`."""
        ...
