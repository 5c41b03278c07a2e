"""Every public name of the library, once; `bfno` itself serves them on first use."""

from pathlib import Path

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
    "load",
    "odeint",
    "odeint_adjoint",
    "odeint_event",
    "solve",
]


def load(run: str | Path) -> ImageClassifier:
    """Return the trained model of a run, ready to call.

    It has the weights of the epoch that was best on the validation images, or of the last one where
    there were none. It takes images between 0 and 1 of shape `(batch, *model.in_shape)` and returns
    scores, whose columns `model.class_names` names.

    Args:
        run: The folder of the run.

    Raises:
        ConfigError: If this is no run, or nothing is trained yet.
        DataError: If its files are damaged.
    """
    # Layers and solvers are used without what training needs to be installed.
    from bfno.train.load import open_run

    return open_run(Path(run)).model
