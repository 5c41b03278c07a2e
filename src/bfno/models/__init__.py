"""Whole models: classifiers of images and series, latent ODEs, and flows."""

from bfno.models import flows
from bfno.models.classifier import ImageClassifier
from bfno.models.counting import count_parameters
from bfno.models.encoders import ODERNNEncoder, Posterior, RNNEncoder, SeriesEncoder
from bfno.models.generators import ACEGenerator, CoupledGenerator, LatentGenerator
from bfno.models.intervals import PredictiveIntervals
from bfno.models.latent import LatentODE
from bfno.models.likelihood import (
    classification_loss,
    evidence_loss,
    gaussian_log_likelihood,
    kl_weight,
)
from bfno.models.nets import ConvNet, ResidualBlock, ode_net, residual_net
from bfno.models.ode_rnn import ODERNN, ODERNNClassifier, make_ode_rnn
from bfno.models.recurrent import RecurrentClassifier
from bfno.models.recurrent_vae import RecurrentVAE
from bfno.models.series import SeriesModel, SeriesOutput, tanh_network

__all__ = [
    "ODERNN",
    "ACEGenerator",
    "ConvNet",
    "CoupledGenerator",
    "ImageClassifier",
    "LatentGenerator",
    "LatentODE",
    "ODERNNClassifier",
    "ODERNNEncoder",
    "Posterior",
    "PredictiveIntervals",
    "RNNEncoder",
    "RecurrentClassifier",
    "RecurrentVAE",
    "ResidualBlock",
    "SeriesEncoder",
    "SeriesModel",
    "SeriesOutput",
    "classification_loss",
    "count_parameters",
    "evidence_loss",
    "flows",
    "gaussian_log_likelihood",
    "kl_weight",
    "make_ode_rnn",
    "ode_net",
    "residual_net",
    "tanh_network",
]
