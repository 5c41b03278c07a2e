"""Small latent models of every kind, with weights strong enough that everything matters."""

from typing import Any

import torch

from bfno.fields import Autonomous, LatentOperatorField
from bfno.models.encoders import ODERNNEncoder, RNNEncoder
from bfno.models.generators import ACEGenerator, CoupledGenerator, LatentGenerator
from bfno.models.latent import LatentODE
from bfno.models.ode_rnn import make_ode_rnn
from bfno.models.series import tanh_network

LATENTS = 4
# One step between two times of a series: then not even the steps depend on the others.
STEPS: dict[str, Any] = {"method": "rk4"}


def make_encoder(kind, features=2) -> Any:
    if kind == "rnn":
        return RNNEncoder(features, LATENTS, size=3, units=4)
    network = make_ode_rnn(
        features, 3, layers=1, units=4, gru_units=4, backward=True, method="euler", step=0.1
    )
    return ODERNNEncoder(network, LATENTS, units=4)


def make_generator(kind, **settings: Any) -> Any:
    settings = settings or STEPS
    size = LATENTS + (2 if kind == "augmented" else 0)

    def net():
        return tanh_network(size, size, 1, 5)

    if kind in ("latent", "point"):
        return LatentGenerator(LatentOperatorField(LATENTS, 6, grid=kind), **settings)
    if kind == "batch":
        return CoupledGenerator(LatentOperatorField(LATENTS, 6, grid=kind), **settings)
    if kind == "ace":
        return ACEGenerator(net(), net(), **settings)
    if kind == "public ace":
        return ACEGenerator(net(), variant="public_code", **settings)
    return LatentGenerator(Autonomous(net()), augment=size - LATENTS, **settings)


def make_latent(
    generator="plain", encoder="ode", *, by_row=True, classes=3, features=2, **settings
) -> Any:
    model = LatentODE(
        features,
        classes,
        make_encoder(encoder, features),
        make_generator(generator, **settings),
        by_row=by_row,
        samples=2,
        head=(5,),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model.eval()


INDEPENDENT = ("plain", "augmented", "latent", "point")
COUPLED = ("batch", "ace", "public ace")
EVERY = (*INDEPENDENT, *COUPLED)
