"""From the name of an experiment to its model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from bfno.dynamics import (
    AdamODE,
    Dynamics,
    FirstOrder,
    GeneralizedHeavyBall,
    GeneralizedNesterov,
    HeavyBall,
    InitialMoments,
    InitialVelocity,
    Nesterov,
    SecondOrder,
)
from bfno.fields import ConvField, OperatorField
from bfno.lab.experiments.presets.images import (
    IMAGE_DATA,
    IMAGE_PRESETS,
    ImageModel,
    find_image_preset,
)
from bfno.models import ImageClassifier, count_parameters
from bfno.ode import NeuralODE

__all__ = ["DYNAMICS", "build_classifier", "build_image_model", "preset_sizes"]

DYNAMICS: dict[str, type[Dynamics]] = {
    "first_order": FirstOrder,
    "second_order": SecondOrder,
    "heavy_ball": HeavyBall,
    "generalized_heavy_ball": GeneralizedHeavyBall,
    "nesterov": Nesterov,
    "generalized_nesterov": GeneralizedNesterov,
    "adam": AdamODE,
}


def build_classifier(data: str, method: str, **solver: Any) -> ImageClassifier:
    """Build the untrained classifier of a method for a data set.

    Args:
        data: Name of the data set, `cifar10` for example.
        method: Name of the method, `bfno-node` for example.
        solver: Arguments of `NeuralODE`, such as `rtol` and `gradient`.

    Raises:
        ConfigError: If there is no such preset.

    Example:
        >>> classifier = build_classifier("mnist", "node", rtol=1e-2)
        >>> classifier.head.in_features
        784
    """
    model = find_image_preset(data, method).model
    about = IMAGE_DATA[data]
    return build_image_model(model, about.shape, about.classes, **solver)


def build_image_model(
    model: ImageModel, in_shape: tuple[int, int, int], classes: int, **solver: Any
) -> ImageClassifier:
    """Build an untrained classifier from its parts.

    Args:
        model: Which parts, and their sizes.
        in_shape: Channels, height and width of an image.
        classes: Number of classes.
        solver: Arguments of `NeuralODE`.

    Raises:
        ValueError: If the parts do not fit each other or the images.
    """
    if model.channels < in_shape[0]:
        raise ValueError(
            f"the state must hold the image: model.channels must be at least {in_shape[0]}, "
            f"got {model.channels}"
        )
    block = NeuralODE(_build_dynamics(model, in_shape[0]), **solver)
    return ImageClassifier(block, in_shape, classes)


def preset_sizes() -> Iterator[dict[str, Any]]:
    """Count the parameters of every preset's model, next to the paper's count where it prints one.

    The models are built without memory for their weights. Public code of several methods creates
    scalars that nothing uses; the published sizes count them, and so do these.
    """
    for (data, method), preset in IMAGE_PRESETS.items():
        with torch.device("meta"):
            size = count_parameters(build_classifier(data, method)) + preset.model.idle_scalars
        yield {"data": data, "method": method, "parameters": size, "paper": preset.published}


def _build_field(model: ImageModel, in_channels: int) -> nn.Module:
    if model.field == "conv":
        return ConvField(in_channels, model.width, model.channels, **model.field_options)
    return OperatorField(
        model.field,
        in_channels,
        model.width,
        model.depth,
        out_channels=model.channels,
        **model.field_options,
    )


def _build_dynamics(model: ImageModel, image_channels: int) -> Dynamics:
    kind = DYNAMICS[model.dynamics]
    # Only second-order dynamics show the field the whole state instead of the position.
    sees = 2 * model.channels if kind is SecondOrder else model.channels
    field = _build_field(model, sees)
    if kind is FirstOrder:
        return FirstOrder(field, model.channels - image_channels, **model.dynamics_options)
    if kind is AdamODE:
        start = InitialMoments(image_channels, model.width, model.channels)
    else:
        missing = kind.components * model.channels - image_channels
        start = InitialVelocity(image_channels, model.width, missing)
    return kind(field, start, **model.dynamics_options)
