"""Models: an encoder, a neural ODE, and a head."""

from bfno.models.classifier import ImageClassifier
from bfno.models.counting import count_parameters
from bfno.models.latent import LatentODE
from bfno.models.ode_rnn import ODERNN, ODERNNClassifier
from bfno.models.recurrent import RecurrentClassifier
from bfno.models.recurrent_vae import RecurrentVAE
from bfno.models.series import SeriesModel, SeriesOutput

__all__ = [
    "ODERNN",
    "ImageClassifier",
    "LatentODE",
    "ODERNNClassifier",
    "RecurrentClassifier",
    "RecurrentVAE",
    "SeriesModel",
    "SeriesOutput",
    "count_parameters",
]
