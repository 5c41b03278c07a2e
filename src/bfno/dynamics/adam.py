"""Dynamics that follow the Adam optimiser."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfno.dynamics.interface import Dynamics
from bfno.dynamics.start import Start
from bfno.fields.interface import Field, Time

__all__ = ["AdamODE"]

_POSITIVE = {"sigmoid": torch.sigmoid, "softplus": F.softplus}


class AdamODE(Dynamics):
    """The limit of the Adam optimiser for small steps, with the field as descent direction.

    `h' = -m / (√s(v) + ε)`, `m' = a (-f(t, h) - m)`, `v' = b (f(t, h)² - v)`: the position moves
    along the mean of the field, divided by its root mean square. The rates `a` and `b` are
    sigmoids of trained scalars, and `s` keeps the root real.

    Args:
        field: Maps time and position to a direction.
        start: Maps the input to what follows it in the initial state `[h, m, v]`; zeros if not
            given. `InitialMoments` learns it.
        positive: The function `s`: sigmoid or softplus.
        rate_logits: Where the scalars behind `a` and `b` start.

    Shape:
        State `(batch, 3 * state channels, *space)`, read-out `(batch, state channels, *space)`.

    References:
        Cho et al., AdamNODEs: When Neural ODE Meets Adaptive Moment Estimation, 2022.
    """

    components = 3
    _EPSILON = 1e-8

    def __init__(
        self,
        field: Field,
        start: Start | None = None,
        *,
        positive: str = "sigmoid",
        rate_logits: tuple[float, float] = (3.0, 3.0),
    ) -> None:
        super().__init__(field, start)
        if positive not in _POSITIVE:
            raise ValueError(f"positive must be sigmoid or softplus, got {positive!r}; pass either")
        self._positive = _POSITIVE[positive]
        mean, square = rate_logits
        self.mean_logit = nn.Parameter(torch.tensor(float(mean)))
        self.square_logit = nn.Parameter(torch.tensor(float(square)))

    def forward(self, t: Time, y: Tensor) -> Tensor:
        position, mean, square = self._split(y)
        direction = self.field(t, position)
        velocity = -mean / (self._positive(square).sqrt() + self._EPSILON)
        mean_rate = -self.mean_logit.sigmoid() * (direction + mean)
        square_rate = self.square_logit.sigmoid() * (direction.square() - square)
        return torch.cat((velocity, mean_rate, square_rate), dim=1)
