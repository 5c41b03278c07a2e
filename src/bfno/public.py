"""Every public name of the library, once; `bfno` itself serves them on first use."""

from bfno.dynamics import (
    AdamODE,
    FirstOrder,
    GeneralizedHeavyBall,
    GeneralizedNesterov,
    HeavyBall,
    Nesterov,
    SecondOrder,
)
from bfno.fields import ConvField, MLPField, OperatorField
from bfno.layers import AFNO, BFNO, FNO
from bfno.models import ImageClassifier, count_parameters
from bfno.ode import (
    METHODS,
    NeuralODE,
    Solution,
    SolverError,
    Stats,
    Status,
    odeint,
    odeint_adjoint,
    odeint_event,
    solve,
)

__all__ = [
    "AFNO",
    "BFNO",
    "FNO",
    "METHODS",
    "AdamODE",
    "ConvField",
    "FirstOrder",
    "GeneralizedHeavyBall",
    "GeneralizedNesterov",
    "HeavyBall",
    "ImageClassifier",
    "MLPField",
    "Nesterov",
    "NeuralODE",
    "OperatorField",
    "SecondOrder",
    "Solution",
    "SolverError",
    "Stats",
    "Status",
    "count_parameters",
    "odeint",
    "odeint_adjoint",
    "odeint_event",
    "solve",
]
