"""Layers: tensor to tensor, without a notion of time."""

from bfno.layers.afno import AFNO
from bfno.layers.bfno import BFNO
from bfno.layers.fno import FNO
from bfno.layers.pointwise import Pointwise

__all__ = ["AFNO", "BFNO", "FNO", "Pointwise"]
