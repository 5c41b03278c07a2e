"""The 25 non-stiff DETEST problems: initial-value problems on the interval (0, 20) in float64.

Classes: A single equations, B small systems, C moderate systems, D orbits, E second-order
equations written as systems of the first order.

References:
    T. E. Hull, W. H. Enright, B. M. Fellen, A. E. Sedgwick, *Comparing numerical methods for
    ordinary differential equations*, SIAM J. Numer. Anal. 9 (1972).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

END = 20.0


@dataclass(frozen=True)
class Problem:
    """A vector field with its initial value and, where there is one, its solution as a formula."""

    field: Callable[[Tensor, Tensor], Tensor]
    y0: Tensor
    exact: Callable[[Tensor], Tensor] | None = None


def _double(values: Sequence[float] | Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _unit(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)[0]


def _lotka_volterra(t: Tensor, y: Tensor) -> Tensor:
    prey, hunter = y
    met = prey * hunter
    return torch.stack((2 * (prey - met), met - hunter))


def _reaction(t: Tensor, y: Tensor) -> Tensor:
    """A nonlinear chemical reaction: first substance into second, second into third."""
    first, second, _ = y
    squared = second**2
    return torch.stack((-first, first - squared, squared))


def _torus(t: Tensor, y: Tensor) -> Tensor:
    """The integral surface is a torus."""
    x, y, z = y
    radius = torch.hypot(x, y)
    return torch.stack((-y - x * z / radius, x - y * z / radius, x / radius))


def _rigid_body(t: Tensor, y: Tensor) -> Tensor:
    """Euler's equations of a body that turns without an external force."""
    a, b, c = y
    return torch.stack((b * c, -a * c, -0.51 * a * b))


def _linear(matrix: Tensor, y0: Tensor) -> Problem:
    """y' = A y, whose solution is the matrix exponential."""

    def exact(ts: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(ts[:, None, None] * matrix) @ y0

    return Problem(lambda t, y: matrix @ y, y0, exact)


def _chain(rates: Sequence[float]) -> Problem:
    """Radioactive decay: each nuclide turns into the next at its own rate, the last one stays."""
    decay = torch.cat((_double(rates), torch.zeros(1, dtype=torch.float64)))
    return _linear(torch.diag(decay[:-1], -1) - torch.diag(decay), _unit(len(decay)))


def _heat(size: int) -> Problem:
    """The heat equation on a line of points: the second difference."""
    ones = torch.ones(size, dtype=torch.float64)
    beside = torch.diag(ones[1:], 1) + torch.diag(ones[1:], -1)
    return _linear(beside - 2 * torch.diag(ones), _unit(size))


_GRAVITY = 2.95912208286
_SUN = 1.00000597682  # and the inner planets
_PLANETS = _double(
    [9.54786104043e-4, 2.85583733151e-4, 4.37273164546e-5, 5.17759138449e-5, 2.77777777778e-6]
)
_POSITIONS = [
    [3.42947415189, 3.35386959711, 1.35494901715],
    [6.64145542550, 5.97156957878, 2.18231499728],
    [11.2630437207, 14.6952576794, 6.27960525067],
    [-30.1552268759, 1.65699966404, 1.43785752721],
    [-21.1238353380, 28.4465098142, 15.3882659679],
]
_VELOCITIES = [
    [-0.557160570446, 0.505696783289, 0.230578543901],
    [-0.415570776342, 0.365682722812, 0.169143213293],
    [-0.325325669158, 0.189706021964, 0.0877265322780],
    [-0.0240476254170, -0.287659532608, -0.117219543175],
    [-0.176860753121, -0.216393453025, -0.0148647893090],
]


def _planets(t: Tensor, y: Tensor) -> Tensor:
    """Five outer planets around the sun: state `(position and velocity, planet, axis)`, flat."""
    position, velocity = y.view(2, 5, 3)
    # pull[k]: what planet k does to the sun, the origin of the coordinates, for a unit of mass.
    pull = position / position.norm(dim=1, keepdim=True) ** 3
    apart = position[None, :] - position[:, None]
    distance = apart.norm(dim=2, keepdim=True) + torch.eye(5, dtype=y.dtype)[..., None]
    # A planet is at distance zero from itself; the identity keeps that term finite, and what is
    # left of it is minus its own pull, which belongs to the sum over the others and is added back.
    mutual = apart / distance**3 - pull[None, :]
    others = (_PLANETS[None, :, None] * mutual).sum(dim=1) + _PLANETS[:, None] * pull
    sun = (_SUN + _PLANETS[:, None]) * pull
    return torch.stack((velocity, _GRAVITY * (others - sun))).flatten()


def _orbit(eccentricity: float) -> Problem:
    """Two bodies under gravity, started where they are closest."""

    def field(t: Tensor, y: Tensor) -> Tensor:
        position, velocity = y.view(2, 2)
        return torch.cat((velocity, -position / position.norm() ** 3))

    speed = math.sqrt((1 + eccentricity) / (1 - eccentricity))
    return Problem(field, _double([1 - eccentricity, 0, 0, speed]))


def _bessel(t: Tensor, y: Tensor) -> Tensor:
    """Bessel's equation of order 1/2 in s = t + 1."""
    s = t + 1
    return torch.stack((y[1], -y[1] / s - (1 - 0.25 / s**2) * y[0]))


def _bessel_exact(ts: Tensor) -> Tensor:
    s = ts + 1
    scale = torch.sqrt(2 / (math.pi * s))
    value, slope = scale * s.sin(), scale * (s.cos() - s.sin() / (2 * s))
    return torch.stack((value, slope), dim=1)


def _van_der_pol(t: Tensor, y: Tensor) -> Tensor:
    return torch.stack((y[1], (1 - y[0] ** 2) * y[1] - y[0]))


def _duffing(t: Tensor, y: Tensor) -> Tensor:
    return torch.stack((y[1], y[0] ** 3 / 6 - y[0] + 2 * torch.sin(2.78535 * t)))


def _falling(t: Tensor, y: Tensor) -> Tensor:
    return torch.stack((y[1], 0.032 - 0.4 * y[1] ** 2))


def _falling_exact(ts: Tensor) -> Tensor:
    final, rate = math.sqrt(0.032 / 0.4), math.sqrt(0.032 * 0.4)
    height = 30 + torch.log(torch.cosh(rate * ts)) / 0.4
    return torch.stack((height, final * torch.tanh(rate * ts)), dim=1)


def _pursuit(t: Tensor, y: Tensor) -> Tensor:
    return torch.stack((y[1], torch.sqrt(1 + y[1] ** 2) / (25 - t)))


def _pursuit_exact(ts: Tensor) -> Tensor:
    # The slope is sinh(log(25 / (25 - t))); the height is its integral from zero.
    left = 25 - ts
    slope = (25 / left - left / 25) / 2
    height = (25 * torch.log(25 / left) - (25**2 - left**2) / 50) / 2
    return torch.stack((height, slope), dim=1)


def _column(formula: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda ts: formula(ts)[:, None]


PROBLEMS: dict[str, Problem] = {
    "A1": Problem(lambda t, y: -y, _double([1]), _column(lambda t: torch.exp(-t))),
    "A2": Problem(lambda t, y: -(y**3) / 2, _double([1]), _column(lambda t: (1 + t) ** -0.5)),
    "A3": Problem(
        lambda t, y: y * torch.cos(t), _double([1]), _column(lambda t: torch.exp(torch.sin(t)))
    ),
    "A4": Problem(
        lambda t, y: y / 4 * (1 - y / 20),
        _double([1]),
        _column(lambda t: 20 / (1 + 19 * torch.exp(-t / 4))),
    ),
    "A5": Problem(lambda t, y: (y - t) / (y + t), _double([4])),
    "B1": Problem(_lotka_volterra, _double([1, 3])),
    "B2": _linear(_double([[-1, 1, 0], [1, -2, 1], [0, 1, -1]]), _double([2, 0, 1])),
    "B3": Problem(_reaction, _double([1, 0, 0])),
    "B4": Problem(_torus, _double([3, 0, 0])),
    "B5": Problem(_rigid_body, _double([0, 1, 1])),
    "C1": _chain([1] * 9),
    "C2": _chain(range(1, 10)),
    "C3": _heat(10),
    "C4": _heat(51),
    "C5": Problem(_planets, torch.tensor([_POSITIONS, _VELOCITIES], dtype=torch.float64).flatten()),
    "D1": _orbit(0.1),
    "D2": _orbit(0.3),
    "D3": _orbit(0.5),
    "D4": _orbit(0.7),
    "D5": _orbit(0.9),
    "E1": Problem(_bessel, _bessel_exact(_double([0]))[0], _bessel_exact),
    "E2": Problem(_van_der_pol, _double([2, 0])),
    "E3": Problem(_duffing, _double([0, 0])),
    "E4": Problem(_falling, _double([30, 0]), _falling_exact),
    "E5": Problem(_pursuit, _double([0, 0]), _pursuit_exact),
}
