"""How a field moves a state, and what is read out of it; works with any field."""

from bfno.dynamics.adam import AdamODE
from bfno.dynamics.first_order import FirstOrder
from bfno.dynamics.interface import Dynamics
from bfno.dynamics.momentum import (
    GeneralizedHeavyBall,
    GeneralizedNesterov,
    HeavyBall,
    Nesterov,
)
from bfno.dynamics.second_order import SecondOrder
from bfno.dynamics.start import InitialMoments, InitialVelocity, ZeroStart

__all__ = [
    "AdamODE",
    "Dynamics",
    "FirstOrder",
    "GeneralizedHeavyBall",
    "GeneralizedNesterov",
    "HeavyBall",
    "InitialMoments",
    "InitialVelocity",
    "Nesterov",
    "SecondOrder",
    "ZeroStart",
]
