"""Flows: densities of images and points that can be evaluated and sampled."""

from bfno.models.flows.continuous import ContinuousFlow
from bfno.models.flows.glow import Glow
from bfno.models.flows.interface import Encoding, Flow, FlowError
from bfno.models.flows.iresnet import IResNet
from bfno.models.flows.multiscale import MultiscaleFlow
from bfno.models.flows.pixels import PixelFlow, bits_per_dim, dequantise
from bfno.models.flows.realnvp import RealNVP

__all__ = [
    "ContinuousFlow",
    "Encoding",
    "Flow",
    "FlowError",
    "Glow",
    "IResNet",
    "MultiscaleFlow",
    "PixelFlow",
    "RealNVP",
    "bits_per_dim",
    "dequantise",
]
