"""Turns any callable `(t, y)` into a trajectory; knows nothing about networks."""

from bfno.ode.advance import advance
from bfno.ode.block import NeuralODE
from bfno.ode.check import GradientCheck, check_gradient
from bfno.ode.implicit_tableaus import ImplicitTableau, RosenbrockTableau
from bfno.ode.inputs import GRADIENTS
from bfno.ode.odeint import odeint, odeint_adjoint, odeint_dense, odeint_event
from bfno.ode.solution import GradientError, Solution, SolverError, Stats, Status
from bfno.ode.solve import Options, solve
from bfno.ode.tableaus import METHODS, Tableau

__all__ = [
    "GRADIENTS",
    "METHODS",
    "GradientCheck",
    "GradientError",
    "ImplicitTableau",
    "NeuralODE",
    "Options",
    "RosenbrockTableau",
    "Solution",
    "SolverError",
    "Stats",
    "Status",
    "Tableau",
    "advance",
    "check_gradient",
    "odeint",
    "odeint_adjoint",
    "odeint_dense",
    "odeint_event",
    "solve",
]
