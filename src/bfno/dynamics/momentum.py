"""Dynamics with momentum, named after optimisers: heavy ball, Nesterov and Adam."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfno.dynamics.interface import Dynamics, Start
from bfno.fields.interface import Time, VectorField
from bfno.layers.activation import ActivationChoice, find_activation, known_activation

__all__ = ["AdamODE", "GeneralizedHeavyBall", "GeneralizedNesterov", "HeavyBall", "Nesterov"]

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
        activation: The function `ς`: a name, such as tanh, hardtanh (clipped to ±0.5) or identity,
            or an elementwise function.

    Shape:
        State `(batch, 2 * state channels, *space)`, read-out `(batch, state channels, *space)`.

    Note:
        The public code stores `-m` and a field of the other sign, which gives the same positions.

    References:
        Xia et al., Heavy Ball Neural Ordinary Differential Equations, 2021.

    Example:
        >>> ball = GeneralizedHeavyBall(lambda t, y: -y, restoring="learned", activation="hardtanh")
        >>> ball(0.0, ball.initial(torch.ones(1, 2))).shape
        torch.Size([1, 4])
    """

    components = 2

    def __init__(
        self,
        field: VectorField,
        start: Start | None = None,
        *,
        restoring: Strength = 1.5,
        restoring_logit: float = 2.0,
        activation: ActivationChoice = "tanh",
    ) -> None:
        super().__init__(field, start)
        self.friction_logit = nn.Parameter(torch.tensor(-3.0))
        self.restoring = _RestoringForce(restoring, restoring_logit)
        self.activation = known_activation(activation)

    @property
    def friction(self) -> Tensor:
        """The coefficient `γ`, between 0 and 1."""
        return self.friction_logit.sigmoid()

    def forward(self, t: Time, y: Tensor) -> Tensor:
        position, momentum = self._split(y)
        force = self.restoring(self.field(t, position), position)
        velocity = find_activation(self.activation).apply(momentum)
        return torch.cat((velocity, force - self.friction * momentum), dim=1)


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

    Example:
        >>> ball = HeavyBall(lambda t, y: -y)
        >>> ball(0.0, ball.initial(torch.ones(1, 1)))
        tensor([[ 0., -1.]]...)
    """

    def __init__(self, field: VectorField, start: Start | None = None) -> None:
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
            code does, on which the published numbers are probably based: its state starts as `(h,
            h')`, is changed by the derivatives of `(x, m)`, and is read out as if it were `(x, m)`.
        sign: The sign `s` of the field, 1 or -1.
        restoring: The strength `ξ`: a constant, or `learned` for the softplus of a trained scalar.
        restoring_logit: Where that scalar starts.
        activation: The function `ς`: a name, such as tanh, hardtanh (clipped to ±0.5) or identity,
            or an elementwise function.

    Shape:
        State `(batch, 2 * state channels, *space)`, read-out `(batch, state channels, *space)`.

    Note:
        `m` starts at `(h' - κ'(t) x) / κ(t)`, which would be `x'` without the bound.

    References:
        Nguyen et al., Improving Neural Ordinary Differential Equations with Nesterov's Accelerated
        Gradient Method, 2022.

    Example:
        >>> dynamics = GeneralizedNesterov(lambda t, y: -y)
        >>> dynamics.interval, dynamics.read_out(dynamics.initial(torch.ones(1, 2))).shape
        ((1.0, 2.0), torch.Size([1, 2]))
    """

    components = 2
    interval = (1.0, 2.0)

    def __init__(
        self,
        field: VectorField,
        start: Start | None = None,
        *,
        variant: str = "consistent",
        sign: int = 1,
        restoring: Strength = 1.5,
        restoring_logit: float = 2.0,
        activation: ActivationChoice = "tanh",
    ) -> None:
        super().__init__(field, start)
        if variant not in ("consistent", "public_code"):
            raise ValueError(
                f"variant must be consistent or public_code, got {variant!r}; pass one of these"
            )
        if sign not in (1, -1):
            raise ValueError(
                f"sign must be 1 or -1, got {sign}; for another factor, scale the field"
            )
        self.variant, self.sign = variant, sign
        self.restoring = _RestoringForce(restoring, restoring_logit)
        self.activation = known_activation(activation)

    def initial(self, x: Tensor) -> Tensor:
        """The state at the first time of the interval."""
        y0 = super().initial(x)
        if self.variant == "public_code":
            return y0
        position, velocity = self._split(y0)
        t = _time_like(self.interval[0], y0)
        k = _growth(t)
        squash = find_activation(self.activation)
        scale = squash.apply(k)
        slope = squash.slope(k, scale) * k * _growth_rate(t)
        stretched = position / scale
        return torch.cat((stretched, (velocity - slope * stretched) / scale), dim=1)

    def forward(self, t: Time, y: Tensor) -> Tensor:
        first, second = self._split(y)
        now, squash = _time_like(t, y), find_activation(self.activation).apply
        if self.variant == "public_code":
            position, momentum = first, (second - _growth_rate(now) * first) / _growth(now)
        else:
            position, momentum = squash(_growth(now)) * first, second
        force = self.sign * squash(self.field(t, position))
        rate = self.restoring(force, position) - momentum
        return torch.cat((squash(momentum), rate), dim=1)

    def position(self, t: Time, y: Tensor) -> Tensor:
        """The position in the state `y` at time `t`."""
        squash = find_activation(self.activation).apply
        return squash(_growth(_time_like(t, y))) * self._split(y)[0]


class Nesterov(GeneralizedNesterov):
    """Nesterov's accelerated descent as an equation of motion (NesterovNODE).

    `x' = m`, `m' = -m + s f(t, h)`, where the position is `h = k(t) x`,
    `k(t) = t^(-3/2) e^(t/2)`. This is the limit `h'' + 3 h' / t = force` of the accelerated method
    where the field absorbs the terms that the change of variables leaves over.

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

    Example:
        >>> dynamics = Nesterov(lambda t, y: -y)
        >>> dynamics.interval, dynamics.read_out(dynamics.initial(torch.ones(1, 2))).shape
        ((1.0, 2.0), torch.Size([1, 2]))
    """

    def __init__(
        self,
        field: VectorField,
        start: Start | None = None,
        *,
        variant: str = "consistent",
        sign: int = 1,
    ) -> None:
        super().__init__(
            field, start, variant=variant, sign=sign, restoring=0.0, activation="identity"
        )


class AdamODE(Dynamics):
    """The limit of the Adam optimiser for small steps, with the field as descent direction.

    `h' = -m / (√s(v) + ε)`, `m' = a (-f(t, h) - m)`, `v' = b (f(t, h)² - v)`: the position moves
    along the mean of the field, divided by its root mean square. The rates `a` and `b` are
    sigmoids of trained scalars, and `s` keeps the root real.

    Args:
        field: Maps time and position to a direction.
        start: Maps the input to what follows it in the initial state `[h, m, v]`; zeros if not
            given. `InitialMoments` learns it.
        positive: The function `s`: sigmoid, softplus, or an elementwise function of values above
            zero.
        rate_logits: Where the scalars behind `a` and `b` start.

    Shape:
        State `(batch, 3 * state channels, *space)`, read-out `(batch, state channels, *space)`.

    References:
        Cho et al., AdamNODEs: When Neural ODE Meets Adaptive Moment Estimation, 2022.

    Example:
        >>> dynamics = AdamODE(lambda t, y: -y)
        >>> dynamics.initial(torch.ones(1, 2)).shape
        torch.Size([1, 6])
    """

    components = 3
    _EPSILON = 1e-8

    def __init__(
        self,
        field: VectorField,
        start: Start | None = None,
        *,
        positive: ActivationChoice = "sigmoid",
        rate_logits: tuple[float, float] = (3.0, 3.0),
    ) -> None:
        super().__init__(field, start)
        if not (callable(positive) or positive in ("sigmoid", "softplus")):
            raise ValueError(
                f"positive must be sigmoid, softplus or a function, got {positive!r}; others may "
                "be negative"
            )
        self.positive = positive
        mean, square = rate_logits
        self.mean_logit = nn.Parameter(torch.tensor(float(mean)))
        self.square_logit = nn.Parameter(torch.tensor(float(square)))

    def forward(self, t: Time, y: Tensor) -> Tensor:
        position, mean, square = self._split(y)
        direction = self.field(t, position)
        root = find_activation(self.positive).apply(square).sqrt()
        velocity = -mean / (root + self._EPSILON)
        mean_rate = -self.mean_logit.sigmoid() * (direction + mean)
        square_rate = self.square_logit.sigmoid() * (direction.square() - square)
        return torch.cat((velocity, mean_rate, square_rate), dim=1)


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
        # A strength of zero needs no pass over memory.
        return torch.sub(force, position, alpha=self.constant) if self.constant else force


def _time_like(t: Time, y: Tensor) -> Tensor:
    """Time as a factor of the state, whether it is one number or one per sample."""
    if not isinstance(t, Tensor):
        return y.new_full((), t)  # on its device: a copy to it would make the host wait
    t = t.to(y)
    return t if t.dim() == 0 else t.reshape(-1, *[1] * (y.dim() - 1))


def _growth(t: Tensor) -> Tensor:
    """`k(t) = t^(-3/2) e^(t/2)`."""
    return t.pow(-1.5) * (t / 2).exp()


def _growth_rate(t: Tensor) -> Tensor:
    """`k'(t) / k(t)`."""
    return 0.5 - 1.5 / t
