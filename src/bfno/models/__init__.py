"""Models: an encoder, a neural ODE, and a head."""

from bfno.models.ace import ACEGenerator
from bfno.models.classifier import ImageClassifier
from bfno.models.counting import count_parameters
from bfno.models.encoders import ODERNNEncoder, RNNEncoder
from bfno.models.generators import CoupledGenerator, Generator
from bfno.models.latent import LatentODE
from bfno.models.ode_rnn import ODERNN, ODERNNClassifier, make_ode_rnn
from bfno.models.recurrent import RecurrentClassifier
from bfno.models.recurrent_vae import RecurrentVAE
from bfno.models.series import SeriesModel, SeriesOutput

__all__ = [
    "ODERNN",
    "ACEGenerator",
    "CoupledGenerator",
    "Generator",
    "ImageClassifier",
    "LatentODE",
    "ODERNNClassifier",
    "ODERNNEncoder",
    "RNNEncoder",
    "RecurrentClassifier",
    "RecurrentVAE",
    "SeriesModel",
    "SeriesOutput",
    "count_parameters",
    "make_ode_rnn",
]
