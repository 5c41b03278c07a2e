"""Every public name of the library, once; `bfno` itself serves them on first use."""

from pathlib import Path
from typing import Any

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
from bfno.fields.flow import FlowConvField, FlowOperatorField
from bfno.fields.series import LatentOperatorField
from bfno.layers import AFNO, BFNO, FNO
from bfno.models import (
    ODERNN,
    ACEGenerator,
    CoupledGenerator,
    Generator,
    ImageClassifier,
    LatentODE,
    ODERNNClassifier,
    ODERNNEncoder,
    RecurrentClassifier,
    RecurrentVAE,
    RNNEncoder,
    SeriesModel,
    SeriesOutput,
    count_parameters,
    make_ode_rnn,
)
from bfno.models.flows import (
    ContinuousFlow,
    Flow,
    FlowError,
    Glow,
    IResNet,
    MultiscaleFlow,
    PixelFlow,
    RealNVP,
    bits_per_dim,
    dequantise,
)
from bfno.ode import (
    METHODS,
    GradientError,
    NeuralODE,
    Solution,
    SolverError,
    Stats,
    Status,
    odeint,
    odeint_adjoint,
    odeint_dense,
    odeint_event,
    solve,
)

__all__ = [
    "AFNO",
    "BFNO",
    "FNO",
    "METHODS",
    "ODERNN",
    "ACEGenerator",
    "AdamODE",
    "ContinuousFlow",
    "ConvField",
    "CoupledGenerator",
    "FirstOrder",
    "Flow",
    "FlowConvField",
    "FlowError",
    "FlowOperatorField",
    "GeneralizedHeavyBall",
    "GeneralizedNesterov",
    "Generator",
    "Glow",
    "GradientError",
    "HeavyBall",
    "IResNet",
    "ImageClassifier",
    "LatentODE",
    "LatentOperatorField",
    "MLPField",
    "MultiscaleFlow",
    "Nesterov",
    "NeuralODE",
    "ODERNNClassifier",
    "ODERNNEncoder",
    "OperatorField",
    "PixelFlow",
    "RNNEncoder",
    "RealNVP",
    "RecurrentClassifier",
    "RecurrentVAE",
    "SecondOrder",
    "SeriesModel",
    "SeriesOutput",
    "Solution",
    "SolverError",
    "Stats",
    "Status",
    "bits_per_dim",
    "count_parameters",
    "dequantise",
    "load",
    "make_ode_rnn",
    "odeint",
    "odeint_adjoint",
    "odeint_dense",
    "odeint_event",
    "solve",
]


def load(run: str | Path, *, any_checkpoint: bool = False) -> Any:
    """Return the trained model of a run, ready to call.

    It has the weights of the epoch that was best on the validation split, or of the last one where
    there was none. `model.class_names` names the columns of its scores.

    An `ImageClassifier` takes images between 0 and 1 of shape `(batch, *model.in_shape)` and
    returns scores. A `Flow` takes points or images between 0 and 1 (see `dequantise`) and has
    `log_prob`, `sample`, `encode` and `decode`. A model of series takes times, values and mask,
    scaled as in its training (the run's record says how), and returns a `SeriesOutput`.

    Args:
        run: The folder of the run.
        any_checkpoint: Whether to take the newest checkpoint that is whole where that of the best
            epoch is damaged; else a damaged one is an error.

    Raises:
        ConfigError: If this is not a run, or nothing is trained yet.
        DataError: If its files are damaged.
    """
    # Layers and solvers are used without what training needs to be installed.
    from bfno.lab.runs.load import open_run

    return open_run(Path(run), any_checkpoint=any_checkpoint).model
