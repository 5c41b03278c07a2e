"""What all dynamics share: a field, a start, and a state made of components."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from bfno.dynamics.start import Start, ZeroStart
from bfno.fields.interface import Field, Time

__all__ = ["Dynamics"]


class Dynamics(nn.Module, ABC):
    """How a field moves a state, and what is read out of it.

    The state consists of components of equal size, side by side along axis 1. The first one is
    the position, which is what a model reads out; the others, a velocity for example, exist only
    while the equation is solved.

    Args:
        field: Any callable of time and state.
        start: Maps the input to everything that follows it in the initial state; zeros if not
            given.

    Attributes:
        components: Number of components of the state.
        interval: Times between which the equation is meant to be solved.

    Shape:
        Input `(batch, channels, *space)`, state `(batch, components * state channels, *space)`.
    """

    components: int = 1
    interval: tuple[float, float] = (0.0, 1.0)

    def __init__(self, field: Field, start: Start | None = None) -> None:
        super().__init__()
        self.field = field
        self.start = ZeroStart(self.components) if start is None else start

    def initial(self, x: Tensor) -> Tensor:
        """The state at the first time of the interval."""
        y0 = torch.cat((x, self.start(x)), dim=1)
        if y0.shape[1] % self.components:
            raise ValueError(
                f"the initial state must have a multiple of {self.components} channels, got "
                f"{y0.shape[1]}, of which the input has {x.shape[1]}; change the start's channels"
            )
        return y0

    @abstractmethod
    def forward(self, t: Time, y: Tensor) -> Tensor:
        """Rate of change of the state `y` at time `t`."""

    def position(self, t: Time, y: Tensor) -> Tensor:
        """The position in the state `y` at time `t`."""
        return self._split(y)[0]

    def read_out(self, y: Tensor) -> Tensor:
        """The position in the state `y` at the last time of the interval."""
        return self.position(self.interval[1], y)

    def _split(self, y: Tensor) -> tuple[Tensor, ...]:
        return y.chunk(self.components, dim=1)
