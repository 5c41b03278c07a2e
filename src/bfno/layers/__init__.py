"""Tensor to tensor; knows no time."""

from bfno.layers.bfno import BFNO
from bfno.layers.pointwise import Pointwise

__all__ = ["BFNO", "Pointwise"]
