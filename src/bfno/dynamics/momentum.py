"""Dynamics with momentum: heavy-ball and Nesterov neural ODEs and their generalisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfno.dynamics.interface import Dynamics
from bfno.dynamics.start import Start
from bfno.fields.interface import Field, Time

__all__ = ["GeneralizedHeavyBall", "GeneralizedNesterov", "HeavyBall", "Nesterov"]

Strength = float | Literal["learned"]


class GeneralizedHeavyBall(Dynamics):
    """A heavy ball with bounded velocity and a restoring force (GHBNODE).

    `h' = ς(m)`, `m' = -γ m + f(t, h) - ξ h`, where the friction `γ` is the sigmoid of a trained
    scalar that starts at -3.

    Args:
        field: Maps time and position to a force.
        start: Maps the input to what follows it in the initial state `[h, m]`; zeros if not given.
        restoring: The strength `ξ`: a constant, or `learned` for the softplus of a trained scalar.
        restoring_logit: Where that scalar starts.
        activation: The function `ς`: tanh, hardtanh (clipped to ±0.5) or identity.

    Shape:
        State `(batch, 2 * state channels, *space)`, read-out `(batch, state channels, *space)`.

    Note:
        The public code stores `-m` and a field of the other sign, which gives the same positions.

    References:
        Xia et al., Heavy Ball Neural Ordinary Differential Equations, 2021.
    """

    components = 2

    def __init__(
        self,
        field: Field,
        start: Start | None = None,
        *,
        restoring: Strength = 1.5,
        restoring_logit: float = 2.0,
        activation: str = "tanh",
    ) -> None:
        super().__init__(field, start)
        self.friction_logit = nn.Parameter(torch.tensor(-3.0))
        self.restoring = _RestoringForce(restoring, restoring_logit)
        self._squash, _ = _find_squash(activation)

    @property
    def friction(self) -> Tensor:
        """The coefficient `γ`, between 0 and 1."""
        return self.friction_logit.sigmoid()

    def forward(self, t: Time, y: Tensor) -> Tensor:
        position, momentum = self._split(y)
        force = self.restoring(self.field(t, position), position)
        return torch.cat((self._squash(momentum), force - self.friction * momentum), dim=1)


class HeavyBall(GeneralizedHeavyBall):
    """A ball with friction in the force of the field (HBNODE): `h' = m`, `m' = -γ m + f(t, h)`.

    The friction `γ` is the sigmoid of a trained scalar that starts at -3.

    Args:
        field: Maps time and position to a force.
        start: Maps the input to what follows it in the initial state `[h, m]`; zeros if not given.

    Shape:
        State `(batch, 2 * state channels, *space)`, read-out `(batch, state channels, *space)`.

    References:
        Xia et al., Heavy Ball Neural Ordinary Differential Equations, 2021.
    """

    def __init__(self, field: Field, start: Start | None = None) -> None:
        super().__init__(field, start, restoring=0.0, activation="identity")


class GeneralizedNesterov(Dynamics):
    """Nesterov's accelerated descent with bounded rates and a restoring force (GNesterovNODE).

    `x' = ς(m)`, `m' = -m + s ς(f(t, h)) - ξ h`, where the position is `h = κ(t) x` with
    `κ = ς(k)`, `k(t) = t^(-3/2) e^(t/2)`. The equation is solved from 1 to 2, because `k` is
    singular at zero.

    Args:
        field: Maps time and position to a force.
        start: Maps the input to what follows it in the initial `[h, h']`; zeros if not given.
        variant: `consistent` solves for `(x, m)` as above. `public_code` does what the published
            code does, and hence probably what the published numbers rest on: its state starts as
            `(h, h')`, is changed by the derivatives of `(x, m)`, and is read out as if it were
            `(x, m)`.
        sign: The sign `s` of the field, 1 or -1.
        restoring: The strength `ξ`: a constant, or `learned` for the softplus of a trained scalar.
        restoring_logit: Where that scalar starts.
        activation: The function `ς`: tanh, hardtanh (clipped to ±0.5) or identity.

    Shape:
        State `(batch, 2 * state channels, *space)`, read-out `(batch, state channels, *space)`.

    Note:
        `m` starts at `(h' - κ'(t) x) / κ(t)`, which would be `x'` without the bound.

    References:
        Nguyen et al., Improving Neural Ordinary Differential Equations with Nesterov's Accelerated
        Gradient Method, 2022.
    """

    components = 2
    interval = (1.0, 2.0)

    def __init__(
        self,
        field: Field,
        start: Start | None = None,
        *,
        variant: str = "consistent",
        sign: int = 1,
        restoring: Strength = 1.5,
        restoring_logit: float = 2.0,
        activation: str = "tanh",
    ) -> None:
        super().__init__(field, start)
        if variant not in ("consistent", "public_code"):
            raise ValueError(
                f"variant must be consistent or public_code, got {variant!r}; pass one of these"
            )
        if sign not in (1, -1):
            raise ValueError(f"sign must be 1 or -1, got {sign}; scale the field instead")
        self.variant, self.sign = variant, sign
        self.restoring = _RestoringForce(restoring, restoring_logit)
        self._squash, self._slope = _find_squash(activation)

    def initial(self, x: Tensor) -> Tensor:
        """The state at the first time of the interval."""
        y0 = super().initial(x)
        if self.variant == "public_code":
            return y0
        position, velocity = self._split(y0)
        t = _time_like(self.interval[0], y0)
        k = _growth(t)
        scale, slope = self._squash(k), self._slope(k) * k * _growth_rate(t)
        stretched = position / scale
        return torch.cat((stretched, (velocity - slope * stretched) / scale), dim=1)

    def forward(self, t: Time, y: Tensor) -> Tensor:
        first, second = self._split(y)
        now = _time_like(t, y)
        if self.variant == "public_code":
            position, momentum = first, (second - _growth_rate(now) * first) / _growth(now)
        else:
            position, momentum = self._squash(_growth(now)) * first, second
        force = self.sign * self._squash(self.field(t, position))
        rate = self.restoring(force, position) - momentum
        return torch.cat((self._squash(momentum), rate), dim=1)

    def position(self, t: Time, y: Tensor) -> Tensor:
        """The position in the state `y` at time `t`."""
        return self._squash(_growth(_time_like(t, y))) * self._split(y)[0]


class Nesterov(GeneralizedNesterov):
    """Nesterov's accelerated descent as an equation of motion (NesterovNODE).

    `x' = m`, `m' = -m + s f(t, h)`, where the position is `h = k(t) x`,
    `k(t) = t^(-3/2) e^(t/2)`. This is the limit `h'' + 3 h' / t = force` of the accelerated method
    with what is left over by the change of variables absorbed into the field.

    Args:
        field: Maps time and position to a force.
        start: Maps the input to what follows it in the initial `[h, h']`; zeros if not given.
        variant: `consistent` or `public_code`, see `GeneralizedNesterov`.
        sign: The sign `s` of the field, 1 or -1.

    Shape:
        State `(batch, 2 * state channels, *space)`, read-out `(batch, state channels, *space)`.

    References:
        Nguyen et al., Improving Neural Ordinary Differential Equations with Nesterov's Accelerated
        Gradient Method, 2022.
    """

    def __init__(
        self,
        field: Field,
        start: Start | None = None,
        *,
        variant: str = "consistent",
        sign: int = 1,
    ) -> None:
        super().__init__(
            field, start, variant=variant, sign=sign, restoring=0.0, activation="identity"
        )


class _RestoringForce(nn.Module):
    """Subtracts `ξ h` from a force."""

    def __init__(self, strength: Strength, logit: float) -> None:
        super().__init__()
        learned = strength == "learned"
        if isinstance(strength, str) and not learned:
            raise ValueError(
                f"restoring must be a number or learned, got {strength!r}; pass 0 for none"
            )
        self.logit = nn.Parameter(torch.tensor(float(logit))) if learned else None
        self.constant = 0.0 if learned else float(strength)

    def forward(self, force: Tensor, position: Tensor) -> Tensor:
        if self.logit is not None:
            return force - F.softplus(self.logit) * position
        # Without the force there is no reason to pass over the memory of both.
        return torch.sub(force, position, alpha=self.constant) if self.constant else force


def _identity(v: Tensor) -> Tensor:
    return v


def _tanh_slope(v: Tensor) -> Tensor:
    return 1 - v.tanh().square()


def _clip(v: Tensor) -> Tensor:
    return v.clamp(-0.5, 0.5)


def _clip_slope(v: Tensor) -> Tensor:
    return (v.abs() < 0.5).to(v.dtype)


Squash = Callable[[Tensor], Tensor]

# Each squashing function with its slope, which the change of variables of Nesterov's start needs.
_SQUASHES: dict[str, tuple[Squash, Squash]] = {
    "identity": (_identity, torch.ones_like),
    "tanh": (torch.tanh, _tanh_slope),
    "hardtanh": (_clip, _clip_slope),
}


def _find_squash(name: str) -> tuple[Squash, Squash]:
    if name not in _SQUASHES:
        raise ValueError(
            f"activation must be one of {', '.join(_SQUASHES)}, got {name!r}; pass one of these"
        )
    return _SQUASHES[name]


def _time_like(t: Time, y: Tensor) -> Tensor:
    """Time as a factor of the state, whether it is one number or one a sample."""
    t = torch.as_tensor(t, dtype=y.dtype, device=y.device)
    return t if t.dim() == 0 else t.reshape(-1, *[1] * (y.dim() - 1))


def _growth(t: Tensor) -> Tensor:
    """`k(t) = t^(-3/2) e^(t/2)`."""
    return t.pow(-1.5) * (t / 2).exp()


def _growth_rate(t: Tensor) -> Tensor:
    """`k'(t) / k(t)`."""
    return 0.5 - 1.5 / t
