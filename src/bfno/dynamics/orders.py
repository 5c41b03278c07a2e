"""First- and second-order dynamics: the field is a velocity, or an acceleration."""

from __future__ import annotations

import torch
from torch import Tensor

from bfno.dynamics.interface import Dynamics, ZeroStart
from bfno.fields.interface import Time, VectorField

__all__ = ["FirstOrder", "SecondOrder"]


class FirstOrder(Dynamics):
    """The field is the velocity: `x' = f(t, x)`.

    Without augmentation this is a neural ODE (NODE), with it an augmented one (ANODE), whose
    trajectories may pass each other in the extra dimensions.

    Args:
        field: Maps time and state to the state's rate of change.
        augment: Number of zero channels appended to the input.

    Shape:
        Input `(batch, channels, *space)`, state and read-out `(batch, channels + augment, *space)`.

    References:
        Chen et al., Neural Ordinary Differential Equations, 2018.
        Dupont et al., Augmented Neural ODEs, 2019.

    Example:
        >>> decay = FirstOrder(lambda t, y: -y, augment=1)
        >>> decay(0.0, decay.initial(torch.ones(1, 2)))
        tensor([[-1., -1., -0.]]...)
    """

    components = 1

    def __init__(self, field: VectorField, augment: int = 0) -> None:
        super().__init__(field, ZeroStart(self.components, augment))

    def forward(self, t: Time, y: Tensor) -> Tensor:
        return self.field(t, y)


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

    Example:
        >>> spring = SecondOrder(lambda t, y: -y[:, :1])
        >>> spring(0.0, spring.initial(torch.ones(1, 1)))
        tensor([[ 0., -1.]]...)
    """

    components = 2

    def forward(self, t: Time, y: Tensor) -> Tensor:
        _, velocity = self._split(y)
        return torch.cat((velocity, self.field(t, y)), dim=1)
