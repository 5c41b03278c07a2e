"""The settings of a classification of series before changes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from bfno.lab.errors import ConfigError
from bfno.lab.experiments.family import read_recipes
from bfno.lab.experiments.presets import SERIES_METHODS
from bfno.lab.experiments.series.settings import MODEL_KINDS
from bfno.lab.experiments.trees import Tree, merged, setting

__all__ = ["series_preset"]


def series_preset(data: str, method: str, tree: Mapping[str, Any]) -> Tree:
    """Complete settings of an experiment; see `Family.preset`."""
    if method not in SERIES_METHODS:
        near = difflib.get_close_matches(method, SERIES_METHODS, n=3, cutoff=0.0)
        named = ", ".join(f"{data}/{name}" for name in near)
        raise ConfigError(
            f"{data}/{method}",
            "there is no such experiment",
            f"the nearest are {named}; `bfno models` lists all",
        )
    recipes = read_recipes("series.yaml")
    protocol, scale = setting(tree, "data", "protocol", "sound"), recipes["scales"][tree["scale"]]
    layers = (
        recipes["recipe"],
        recipes["data"][data],
        recipes["protocols"].get(protocol, {}),
        recipes["methods"][method],
        *(scale.get(part, {}) for part in ("all", data, method, f"{data}/{method}")),
    )
    settings: Tree = {"data": {"name": data}, "model": {}}
    for layer in layers:
        settings = merged(settings, layer)
    return {**settings, "model": _of_its_kind(settings["model"], tree)}


def _of_its_kind(model: Tree, tree: Mapping[str, Any]) -> Tree:
    """Leave out the sizes of parts that the kind of model does not have."""
    kind = setting(tree, "model", "kind", model["kind"])
    known = MODEL_KINDS[kind].model_fields if kind in MODEL_KINDS else model
    return {**{name: value for name, value in model.items() if name in known}, "kind": kind}
