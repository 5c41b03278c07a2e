"""`(t, y)` to `dy/dt`; knows no solver."""

from bfno.fields.convolution import ConvField
from bfno.fields.mlp import MLPField
from bfno.fields.operator import OperatorField

__all__ = ["ConvField", "MLPField", "OperatorField"]
