"""How many parameters the model of every experiment has, next to what the paper prints."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import torch

from bfno.lab.errors import ConfigError
from bfno.lab.experiments.resolve import EXPERIMENTS, resolve

__all__ = ["model_sizes"]

_logger = logging.getLogger(__name__)


def model_sizes() -> Iterator[dict[str, Any]]:
    """Count the parameters of every experiment's model at the scale of the paper.

    The models are built without memory for their weights.
    """
    known: dict[str, int] = {}
    for name in (name for kind in EXPERIMENTS for name in kind.names()):
        config = resolve(name, scale="paper")
        try:
            size = _size(config, known)
        except ConfigError as error:  # a package that this method needs is missing
            _logger.info("%s", error)
            continue
        data, _, method = name.partition("/")
        yield {"data": data, "method": method, "parameters": size, "paper": config.published}


def _size(config: Any, known: dict[str, int]) -> int:
    facts, shape = config.known_facts(), getattr(config.data, "shape", None)
    # Flows of hundreds of layers take their time, and several data sets have the same.
    key = json.dumps([config.method, config.model.model_dump(), facts, shape])
    if key not in known:
        with torch.device("meta"):
            known[key] = config.count(config.build(facts))
    return known[key]
