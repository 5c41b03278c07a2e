"""Neural ordinary differential equations whose time-derivative is a neural operator."""

import importlib as _importlib
import sys as _sys
import typing as _typing

__version__ = "0.2.0"

if _typing.TYPE_CHECKING:
    # What editors and type checkers see. At run time the same names are loaded on first use:
    # they need torch, which takes more than a second to import, too long for `bfno --help`.
    from bfno import dynamics as dynamics
    from bfno import fields as fields
    from bfno import layers as layers
    from bfno import models as models
    from bfno import ode as ode
    from bfno import sklearn as sklearn
    from bfno.dynamics import AdamODE as AdamODE
    from bfno.dynamics import Dynamics as Dynamics
    from bfno.dynamics import FirstOrder as FirstOrder
    from bfno.dynamics import GeneralizedHeavyBall as GeneralizedHeavyBall
    from bfno.dynamics import GeneralizedNesterov as GeneralizedNesterov
    from bfno.dynamics import HeavyBall as HeavyBall
    from bfno.dynamics import InitialMoments as InitialMoments
    from bfno.dynamics import InitialVelocity as InitialVelocity
    from bfno.dynamics import Nesterov as Nesterov
    from bfno.dynamics import SecondOrder as SecondOrder
    from bfno.dynamics import ZeroStart as ZeroStart
    from bfno.fields import Autonomous as Autonomous
    from bfno.fields import ConvField as ConvField
    from bfno.fields import FlowConvField as FlowConvField
    from bfno.fields import FlowOperatorField as FlowOperatorField
    from bfno.fields import LatentOperatorField as LatentOperatorField
    from bfno.fields import MLPField as MLPField
    from bfno.fields import NormedField as NormedField
    from bfno.fields import OperatorField as OperatorField
    from bfno.fields import PointField as PointField
    from bfno.fields import VectorField as VectorField
    from bfno.layers import AFNO as AFNO
    from bfno.layers import BFNO as BFNO
    from bfno.layers import FNO as FNO
    from bfno.models import ODERNN as ODERNN
    from bfno.models import ACEGenerator as ACEGenerator
    from bfno.models import ConvNet as ConvNet
    from bfno.models import CoupledGenerator as CoupledGenerator
    from bfno.models import ImageClassifier as ImageClassifier
    from bfno.models import LatentGenerator as LatentGenerator
    from bfno.models import LatentODE as LatentODE
    from bfno.models import ODERNNClassifier as ODERNNClassifier
    from bfno.models import ODERNNEncoder as ODERNNEncoder
    from bfno.models import PredictiveIntervals as PredictiveIntervals
    from bfno.models import RecurrentClassifier as RecurrentClassifier
    from bfno.models import RecurrentVAE as RecurrentVAE
    from bfno.models import RNNEncoder as RNNEncoder
    from bfno.models import SeriesEncoder as SeriesEncoder
    from bfno.models import SeriesModel as SeriesModel
    from bfno.models import SeriesOutput as SeriesOutput
    from bfno.models import classification_loss as classification_loss
    from bfno.models import count_parameters as count_parameters
    from bfno.models import evidence_loss as evidence_loss
    from bfno.models import gaussian_log_likelihood as gaussian_log_likelihood
    from bfno.models import make_ode_rnn as make_ode_rnn
    from bfno.models import ode_net as ode_net
    from bfno.models import residual_net as residual_net
    from bfno.models.flows import ContinuousFlow as ContinuousFlow
    from bfno.models.flows import Encoding as Encoding
    from bfno.models.flows import Flow as Flow
    from bfno.models.flows import FlowError as FlowError
    from bfno.models.flows import Glow as Glow
    from bfno.models.flows import IResNet as IResNet
    from bfno.models.flows import MultiscaleFlow as MultiscaleFlow
    from bfno.models.flows import PixelFlow as PixelFlow
    from bfno.models.flows import RealNVP as RealNVP
    from bfno.models.flows import bits_per_dim as bits_per_dim
    from bfno.models.flows import dequantise as dequantise
    from bfno.ode import GRADIENTS as GRADIENTS
    from bfno.ode import METHODS as METHODS
    from bfno.ode import GradientCheck as GradientCheck
    from bfno.ode import GradientError as GradientError
    from bfno.ode import NeuralODE as NeuralODE
    from bfno.ode import Options as Options
    from bfno.ode import Solution as Solution
    from bfno.ode import SolverError as SolverError
    from bfno.ode import Stats as Stats
    from bfno.ode import Status as Status
    from bfno.ode import Tableau as Tableau
    from bfno.ode import check_gradient as check_gradient
    from bfno.ode import odeint as odeint
    from bfno.ode import odeint_adjoint as odeint_adjoint
    from bfno.ode import odeint_dense as odeint_dense
    from bfno.ode import odeint_event as odeint_event
    from bfno.ode import solve as solve
    from bfno.program import Run as Run
    from bfno.program import load as load
    from bfno.program import resume as resume
    from bfno.program import train as train
else:
    _PARTS = ("layers", "fields", "dynamics", "ode", "models", "sklearn")
    _NAMES = {
        "bfno.layers": "AFNO BFNO FNO",
        "bfno.fields": """
            Autonomous ConvField FlowConvField FlowOperatorField LatentOperatorField MLPField
            NormedField OperatorField PointField VectorField
        """,
        "bfno.dynamics": """
            AdamODE Dynamics FirstOrder GeneralizedHeavyBall GeneralizedNesterov HeavyBall
            InitialMoments InitialVelocity Nesterov SecondOrder ZeroStart
        """,
        "bfno.ode": """
            GRADIENTS METHODS GradientCheck GradientError NeuralODE Options Solution SolverError
            Stats Status Tableau check_gradient odeint odeint_adjoint odeint_dense odeint_event
            solve
        """,
        "bfno.models": """
            ODERNN ACEGenerator ConvNet CoupledGenerator ImageClassifier LatentGenerator LatentODE
            ODERNNClassifier ODERNNEncoder PredictiveIntervals RNNEncoder RecurrentClassifier
            RecurrentVAE
            SeriesEncoder SeriesModel SeriesOutput classification_loss count_parameters
            evidence_loss gaussian_log_likelihood make_ode_rnn ode_net residual_net
        """,
        "bfno.models.flows": """
            ContinuousFlow Encoding Flow FlowError Glow IResNet MultiscaleFlow PixelFlow RealNVP
            bits_per_dim dequantise
        """,
        "bfno.program": "Run load resume train",
    }
    _HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
    _RENAMED = {"Generator": "LatentGenerator"}  # names of the last release, which still work

    __all__ = [*_HOMES]

    def __getattr__(name: str) -> object:
        if name in _PARTS:
            return _importlib.import_module(f"bfno.{name}")
        if name in _RENAMED:
            return _renamed(name, _RENAMED[name])
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(_importlib.import_module(_HOMES[name]), name)
        globals()[name] = value  # from now on without this function
        return value

    def __dir__() -> list[str]:
        own = (name for name in globals() if name.startswith("__"))
        return sorted({*own, *_PARTS, *_HOMES})

    def _renamed(old: str, new: str) -> object:
        import warnings

        message = f"bfno.{old} is now called bfno.{new}; the old name goes with the next release"
        warnings.warn(message, DeprecationWarning, stacklevel=3)
        return __getattr__(new)

    _MOVED = {"presets": "experiments", "results": "views", "train": "runs"}
    _MOVED |= {name: name for name in ("cli", "data", "errors", "files")}

    class _Moved:
        """Finds modules of the last release by their old name, and says where they are now."""

        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if (old := name.removeprefix("bfno.")) != name and old in _MOVED:
                raise ModuleNotFoundError(f"{name} is now bfno.lab.{_MOVED[old]}; see CHANGELOG.md")

    _sys.meta_path.append(_Moved)
