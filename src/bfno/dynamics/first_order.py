"""First-order dynamics: plain and augmented neural ODEs."""

from __future__ import annotations

from torch import Tensor

from bfno.dynamics.interface import Dynamics
from bfno.dynamics.start import ZeroStart
from bfno.fields.interface import Field, Time

__all__ = ["FirstOrder"]


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
        >>> import torch
        >>> decay = FirstOrder(lambda t, y: -y, augment=1)
        >>> decay(0.0, decay.initial(torch.ones(1, 2)))
        tensor([[-1., -1., -0.]]...)
    """

    components = 1

    def __init__(self, field: Field, augment: int = 0) -> None:
        super().__init__(field, ZeroStart(self.components, augment))

    def forward(self, t: Time, y: Tensor) -> Tensor:
        return self.field(t, y)
