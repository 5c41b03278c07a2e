"""From the name of an experiment to its model."""

from __future__ import annotations

from typing import Any

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
from bfno.fields.convolution import ConvField
from bfno.fields.operator import OperatorField
from bfno.models import ImageClassifier
from bfno.ode import NeuralODE
from bfno.presets.images import IMAGE_DATA, ImagePreset, find_image_preset

__all__ = ["build_classifier"]

_DYNAMICS: dict[str, type[Dynamics]] = {
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
        ValueError: If there is no such preset.

    Example:
        >>> classifier = build_classifier("mnist", "node", rtol=1e-2)
        >>> classifier.head.in_features
        784
    """
    preset = find_image_preset(data, method)
    about = IMAGE_DATA[data]
    block = NeuralODE(_build_dynamics(preset), **solver)
    return ImageClassifier(block, about.shape, about.classes, idle_scalars=preset.idle_scalars)


def _build_field(preset: ImagePreset, in_channels: int) -> nn.Module:
    if preset.field == "conv":
        return ConvField(in_channels, preset.width, preset.channels)
    return OperatorField(
        preset.field,
        in_channels,
        preset.width,
        preset.depth,
        out_channels=preset.channels,
        **preset.field_options,
    )


def _build_dynamics(preset: ImagePreset) -> Dynamics:
    image_channels = IMAGE_DATA[preset.data].shape[0]
    kind = _DYNAMICS[preset.dynamics]
    # Only second-order dynamics show the field the whole state instead of the position.
    sees = 2 * preset.channels if kind is SecondOrder else preset.channels
    field = _build_field(preset, sees)
    if kind is FirstOrder:
        return FirstOrder(field, augment=preset.channels - image_channels)
    if kind is AdamODE:
        start = InitialMoments(image_channels, preset.width, preset.channels)
    else:
        missing = kind.components * preset.channels - image_channels
        start = InitialVelocity(image_channels, preset.width, missing)
    return kind(field, start, **preset.dynamics_options)
