"""How many parameters the model of every experiment has, next to what the paper prints."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch

from bfno.lab.errors import ConfigError
from bfno.lab.experiments.density.build import build_model as build_density
from bfno.lab.experiments.presets import DENSITY_METHODS, IMAGE_DATA, SERIES_DATA, SERIES_METHODS
from bfno.lab.experiments.presets.build import preset_sizes
from bfno.lab.experiments.resolve import resolve
from bfno.lab.experiments.series.build import build_model
from bfno.models import count_parameters

__all__ = ["model_sizes"]

_logger = logging.getLogger(__name__)


def model_sizes() -> Iterator[dict[str, Any]]:
    """Count the parameters of every experiment's model at the scale of the paper.

    The models are built without memory for their weights.
    """
    yield from preset_sizes()
    for data, about in SERIES_DATA.items():
        for method in SERIES_METHODS:
            config = resolve(f"{data}/{method}", scale="paper")
            with torch.device("meta"):
                model = build_model(config, about.features, about.classes, about.by_row)
            yield _row(data, method, count_parameters(model))
    yield from _density_sizes()


def _density_sizes() -> Iterator[dict[str, Any]]:
    known: dict[tuple[str, tuple[int, ...]], int] = {}
    for data in (f"{name}-density" for name in IMAGE_DATA):
        for method in DENSITY_METHODS:
            config = resolve(f"{data}/{method}", scale="paper")
            place = method, config.data.shape
            if place not in known:  # flows of hundreds of layers take their time
                try:
                    with torch.device("meta"):
                        known[place] = count_parameters(build_density(config, config.data.shape))
                except ConfigError as error:  # a package that this method needs is missing
                    _logger.info("%s", error)
                    continue
            yield _row(data, method, known[place])


def _row(data: str, method: str, size: int) -> dict[str, Any]:
    # The paper prints no sizes of these models.
    return {"data": data, "method": method, "parameters": size, "paper": None}
