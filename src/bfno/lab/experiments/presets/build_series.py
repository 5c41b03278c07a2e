"""From the settings of a model of series to the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from bfno.fields import Autonomous, LatentOperatorField
from bfno.lab.experiments.presets.series import SeriesData
from bfno.models import (
    ACEGenerator,
    CoupledGenerator,
    LatentGenerator,
    LatentODE,
    ODERNNClassifier,
    ODERNNEncoder,
    RecurrentClassifier,
    RecurrentVAE,
    RNNEncoder,
    SeriesEncoder,
    SeriesModel,
    make_ode_rnn,
    tanh_network,
)

__all__ = ["build_series_model"]

# Channels of an operator on the latent axis, where a state is a function of one channel.
_LATENT_WIDTH = 32


def build_series_model(model: Any, about: SeriesData, solver: dict[str, Any]) -> SeriesModel:
    """Build an untrained model of series.

    Args:
        model: Its settings; `kind` says which attributes it has.
        about: Sizes of the data.
        solver: Arguments of `solve` for the generator of a latent model.

    Raises:
        ValueError: If the settings do not fit each other.
    """
    return _BUILDERS[model.kind](model, about, solver)


def _recurrent(model: Any, about: SeriesData, solver: dict[str, Any]) -> SeriesModel:
    built = RecurrentClassifier(
        about.features,
        about.classes,
        by_row=about.by_row,
        hidden=model.latents,
        units=model.units,
        impute=model.impute,
        decay=model.decay,
        head=model.head,
    )
    built.gap = model.gap
    return built


def _recurrent_vae(model: Any, about: SeriesData, solver: dict[str, Any]) -> SeriesModel:
    built = RecurrentVAE(
        about.features,
        about.classes,
        by_row=about.by_row,
        latents=model.latents,
        encoder=model.encoder_size,
        units=model.units,
        reverse_axis=model.reverse_axis,
        head=model.head,
    )
    built.samples = model.samples
    return built


def _ode_rnn(model: Any, about: SeriesData, solver: dict[str, Any]) -> SeriesModel:
    recurrent = make_ode_rnn(
        about.features,
        model.latents,
        layers=model.layers,
        units=model.units,
        gru_units=model.gru_units,
        dynamics=model.dynamics,
        method=model.method,
        step=model.step,
        gaps=model.gaps,
    )
    return ODERNNClassifier(
        about.features,
        about.classes,
        recurrent,
        by_row=about.by_row,
        decoder=model.decoder,
        head=model.head,
    )


def _latent_ode(model: Any, about: SeriesData, solver: dict[str, Any]) -> SeriesModel:
    return LatentODE(
        about.features,
        about.classes,
        _encoder(model, about.features),
        _generator(model, solver),
        by_row=about.by_row,
        samples=model.samples,
        head=model.head,
    )


def _encoder(model: Any, features: int) -> SeriesEncoder:
    if model.encoder == "rnn":
        return RNNEncoder(features, model.latents, model.encoder_size)
    recurrent = make_ode_rnn(
        features,
        model.encoder_size,
        layers=model.encoder_layers,
        units=model.units,
        gru_units=model.gru_units,
        method=model.encoder_method,
        step=model.encoder_step,
        backward=True,
    )
    return ODERNNEncoder(recurrent, model.latents)


def _generator(model: Any, solver: dict[str, Any]) -> LatentGenerator:
    size = model.latents + model.augment
    settings = {"augment": model.augment, **solver}
    if model.generator == "bfno":
        width = model.width or (_LATENT_WIDTH if model.grid == "latent" else model.units)
        field: nn.Module = LatentOperatorField(size, width, grid=model.grid)
        kind = CoupledGenerator if field.couples_series else LatentGenerator
        return kind(field, **settings)
    field = Autonomous(tanh_network(size, size, model.layers, model.units))
    if model.generator == "mlp":
        return LatentGenerator(field, **settings)
    network = field.network
    if model.variant == "public_code":
        return ACEGenerator(network, variant="public_code", **settings)
    attention = tanh_network(size, size, model.layers, model.units)
    return ACEGenerator(network, attention, **settings)


_BUILDERS: dict[str, Callable[..., SeriesModel]] = {
    "recurrent": _recurrent,
    "recurrent_vae": _recurrent_vae,
    "ode_rnn": _ode_rnn,
    "latent_ode": _latent_ode,
}
