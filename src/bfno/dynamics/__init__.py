"""Dynamics: how a field moves a state, and what is read out of it; they work with any field."""

from bfno.dynamics.interface import Dynamics, InitialMoments, InitialVelocity, ZeroStart
from bfno.dynamics.momentum import (
    AdamODE,
    GeneralizedHeavyBall,
    GeneralizedNesterov,
    HeavyBall,
    Nesterov,
)
from bfno.dynamics.orders import FirstOrder, SecondOrder

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
