"""The settings of an image classification before changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bfno.lab.experiments.family import read_recipes
from bfno.lab.experiments.presets import ImageModel, find_image_preset
from bfno.lab.experiments.trees import Tree, merged, setting

__all__ = ["image_preset"]


def image_preset(data: str, method: str, tree: Mapping[str, Any]) -> Tree:
    """Complete settings of an experiment; see `Family.preset`."""
    recipes = read_recipes("images.yaml")
    settings, scale = recipes["recipe"], recipes["scales"][tree["scale"]]
    for part in ("all", data):
        settings = merged(settings, scale.get(part, {}))
    factor = settings.pop("width", 1.0)
    settings = merged(settings, {"data": {"name": data}})
    colour = setting(tree, "data", "colour", True)
    like = data if data != "folder" else "cifar10" if colour else "mnist"
    model = dataclasses.asdict(_resized(find_image_preset(like, method).model, factor))
    return merged(settings, {"model": _without_foreign_options(model, tree)})


def _without_foreign_options(model: Tree, tree: Mapping[str, Any]) -> Tree:
    """Drop the options of a field or a dynamics that the settings replace by another."""
    for part in ("field", "dynamics"):
        if setting(tree, "model", part, model[part]) != model[part]:
            model = {**model, f"{part}_options": {}, "idle_scalars": 0}
    return model


def _resized(model: ImageModel, factor: float) -> ImageModel:
    # AFNO cuts its channels into blocks of equal size.
    blocks = model.field_options.get("blocks", 1) if model.field == "afno" else 1
    width = max(1, round(model.width * factor / blocks)) * blocks
    return dataclasses.replace(model, width=width)
