"""How many parameters the model of every experiment has, next to what the paper prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from bfno.models import count_parameters
from bfno.presets import SERIES_DATA, SERIES_METHODS
from bfno.presets.build import preset_sizes
from bfno.train.experiment import resolve
from bfno.train.series.build import build_model

__all__ = ["model_sizes"]


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
            size = count_parameters(model)
            yield {"data": data, "method": method, "parameters": size, "paper": None}
