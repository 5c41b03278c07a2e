"""Second-order dynamics."""

from __future__ import annotations

import torch
from torch import Tensor

from bfno.dynamics.interface import Dynamics
from bfno.fields.interface import Time

__all__ = ["SecondOrder"]


class SecondOrder(Dynamics):
    """The field is the acceleration: `x' = v`, `v' = f(t, [x, v])`.

    Args:
        field: Maps time and state `[x, v]`, twice the channels of the position, to a rate of
            change of the velocity.
        start: Maps the input to what follows it in the initial state `[x, v]`; zeros if not
            given.

    Shape:
        State `(batch, 2 * state channels, *space)`, read-out `(batch, state channels, *space)`.

    References:
        Norcliffe et al., On Second Order Behaviour in Augmented Neural ODEs, 2020.
    """

    components = 2

    def forward(self, t: Time, y: Tensor) -> Tensor:
        _, velocity = self._split(y)
        return torch.cat((velocity, self.field(t, y)), dim=1)
