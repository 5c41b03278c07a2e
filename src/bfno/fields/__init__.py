"""Vector fields: `(t, y)` to `dy/dt`, independent of any solver."""

from bfno.fields.convolution import ConvField
from bfno.fields.flow import FlowConvField, FlowOperatorField
from bfno.fields.interface import VectorField
from bfno.fields.mlp import MLPField
from bfno.fields.normed import NormedField
from bfno.fields.operator import LAYERS, OperatorField
from bfno.fields.points import Autonomous, LatentOperatorField, PointField

__all__ = [
    "LAYERS",
    "Autonomous",
    "ConvField",
    "FlowConvField",
    "FlowOperatorField",
    "LatentOperatorField",
    "MLPField",
    "NormedField",
    "OperatorField",
    "PointField",
    "VectorField",
]
