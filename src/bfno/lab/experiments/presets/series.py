"""Irregular series: which data and which methods there are.

This module imports no torch, so that a program can list the presets at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["SERIES_DATA", "SERIES_METHODS", "SeriesData"]


@dataclass(frozen=True)
class SeriesData:
    """What a model has to know of a data set.

    Attributes:
        features: Number of features.
        classes: Number of classes.
        by_row: Whether every row has a label; else every series.
    """

    features: int
    classes: int
    by_row: bool


SERIES_DATA: Mapping[str, SeriesData] = {
    "activity": SeriesData(12, 7, by_row=True),
    "physionet": SeriesData(41, 2, by_row=False),
}

SERIES_METHODS: Mapping[str, str] = {
    "rnn-delta-t": "RNN-Δt",
    "rnn-impute": "RNN-Impute",
    "rnn-d": "RNN-D",
    "gru-d": "GRU-D",
    "rnn-vae": "RNN-VAE",
    "ode-rnn": "ODE-RNN",
    "ghbnode-rnn": "GHBNODE-RNN",
    "gnesterovnode-rnn": "GNesterovNODE-RNN",
    "latent-ode-rnn": "Latent-ODE (RNN enc.)",
    "latent-ode": "Latent-ODE (ODE enc.)",
    "augmented-ode": "Augmented-ODE (ODE enc.)",
    "ace-latent-ode": "ACE-Latent-ODE (ODE enc.)",
    "latent-bfno-node": "Latent-BFNO-NODE (ODE enc.)",
}
"""The methods, each with its name in the paper."""
