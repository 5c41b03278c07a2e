"""Equations to solve, some with known solutions."""

from collections.abc import Callable
from typing import NamedTuple

import torch


class Equation(NamedTuple):
    field: Callable
    solution: Callable  # of time
    end: float


class Problem(NamedTuple):
    field: Callable
    start: list[float]
    end: float


def oscillator(t, y):
    return torch.stack((y[1], -y[0]))


OSCILLATOR = Equation(
    oscillator, lambda t: torch.stack((torch.cos(t), -torch.sin(t))), end=2 * torch.pi
)
# x'' = -x + cos 2t with x(0) = 2/3 at rest: the force makes every error term of a method show.
FORCED = Equation(
    lambda t, y: torch.stack((y[1], -y[0] + torch.cos(2 * t))),
    lambda t: torch.stack(
        (torch.cos(t) - torch.cos(2 * t) / 3, -torch.sin(t) + 2 / 3 * torch.sin(2 * t))
    ),
    end=10.0,
)
# y' = y (1 - y), y(0) = 1/4
LOGISTIC = Equation(
    lambda t, y: y * (1 - y), lambda t: (1 / (1 + 3 * torch.exp(-t)))[None], end=3.0
)
# y' = -2 t y², y(0) = 1
TIMED = Equation(lambda t, y: -2 * t * y**2, lambda t: (1 / (1 + t**2))[None], end=2.0)
EQUATIONS = {"oscillator": OSCILLATOR, "logistic": LOGISTIC, "timed": TIMED}

NONLINEAR = {
    "lotka-volterra": Problem(
        lambda t, y: torch.stack((y[0] * (1 - y[1]), y[1] * (y[0] - 1))), [2.0, 1.0], 8.0
    ),
    "pendulum": Problem(lambda t, y: torch.stack((y[1], -torch.sin(y[0]))), [2.0, 0.0], 8.0),
    "brusselator": Problem(
        lambda t, y: torch.stack((1 + y[0] ** 2 * y[1] - 4 * y[0], 3 * y[0] - y[0] ** 2 * y[1])),
        [1.5, 3.0],
        3.0,
    ),
}


class Network(torch.nn.Module):
    """A small smooth field that depends on time, which may be one value per sample."""

    def __init__(self, features: int = 3, hidden: int = 5) -> None:
        super().__init__()
        self.enter = torch.nn.Linear(features + 1, hidden)
        self.leave = torch.nn.Linear(hidden, features)

    def forward(self, t, y):
        t = t.expand(y.shape[0]) if t.dim() == 0 else t
        hidden = torch.tanh(self.enter(torch.cat((y, t[:, None]), dim=1)))
        return self.leave(hidden)
