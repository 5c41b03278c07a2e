"""The settings of a density before changes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from bfno.lab.errors import ConfigError
from bfno.lab.experiments.density.settings import MODEL_KINDS
from bfno.lab.experiments.family import read_recipes
from bfno.lab.experiments.presets import DENSITY_DATA, DENSITY_METHODS, POINT_METHODS, density_group
from bfno.lab.experiments.trees import Tree, merged, setting

__all__ = ["density_preset"]

# Options of operator fields, which another field does not have.
_OF_THE_FIELD = ("branches", "inner_activation", "field_options")


def density_preset(data: str, method: str, tree: Mapping[str, Any]) -> Tree:
    """Complete settings of an experiment; see `Family.preset`."""
    name = DENSITY_DATA[data]
    group = density_group(name, setting(tree, "data", "colour", True) is not False)
    _check_method(data, method, POINT_METHODS if group == "points" else tuple(DENSITY_METHODS))
    recipes = read_recipes("density.yaml")
    scale, both = recipes["scales"][tree["scale"]], f"{group}/{method}"
    layers = (
        recipes["recipe"],
        recipes["groups"][group],
        recipes["data"].get(name, {}),
        recipes["methods"][method],
        recipes["pairs"].get(both, {}),
        *(scale.get(part, {}) for part in ("all", group, name, method, both, f"{name}/{method}")),
    )
    settings: Tree = {"data": {"name": name}, "model": {}}
    for layer in layers:
        settings = merged(settings, layer)
    return {**settings, "model": _of_its_kind(settings["model"], tree)}


def _check_method(data: str, method: str, known: tuple[str, ...]) -> None:
    if method not in known:
        near = difflib.get_close_matches(method, known, n=3, cutoff=0.0)
        raise ConfigError(
            f"{data}/{method}",
            "there is no such experiment",
            f"the nearest are {', '.join(f'{data}/{name}' for name in near)}; `bfno models` lists "
            "all",
        )


def _of_its_kind(model: Tree, tree: Mapping[str, Any]) -> Tree:
    """Leave out what belongs to another kind of model, or to another field, than is asked for."""
    kind = setting(tree, "model", "kind", model["kind"])
    known = set(MODEL_KINDS[kind].model_fields if kind in MODEL_KINDS else model)
    if setting(tree, "model", "field", model.get("field")) != model.get("field"):
        known -= set(_OF_THE_FIELD)
    return {**{name: value for name, value in model.items() if name in known}, "kind": kind}
