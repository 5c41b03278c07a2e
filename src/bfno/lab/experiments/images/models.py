"""Classifiers of images: the settings of each kind, and building it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field
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
from bfno.fields import LAYERS, ConvField, NormedField, OperatorField
from bfno.lab.experiments.settings import Settings, one_of
from bfno.models import ConvNet, ImageClassifier, ode_net, residual_net
from bfno.models.nets import coarse_grid
from bfno.ode import NeuralODE

__all__ = [
    "DYNAMICS",
    "FIELDS",
    "CNNSettings",
    "ImageModelSettings",
    "NetSettings",
    "ODESettings",
]

Shape = tuple[int, int, int]

DYNAMICS: dict[str, type[Dynamics]] = {
    "first_order": FirstOrder,
    "second_order": SecondOrder,
    "heavy_ball": HeavyBall,
    "generalized_heavy_ball": GeneralizedHeavyBall,
    "nesterov": Nesterov,
    "generalized_nesterov": GeneralizedNesterov,
    "adam": AdamODE,
}
"""How a field moves an image, by name."""

FIELDS: dict[str, Callable[[ODESettings, int], nn.Module]] = {
    "conv": lambda model, channels: ConvField(
        channels, model.width, model.channels, **model.field_options
    ),
}
"""Fields of images by name, besides one for each of `bfno.fields.operator.LAYERS`.

From the model's settings and the number of its input channels, each makes a module that returns
`model.channels` of them.
"""


class ODESettings(Settings):
    """An ODE of the image itself, as in the paper; any dynamics works with any field.

    Attributes:
        kind: Names this kind of model.
        dynamics: Name of the dynamics, one of `DYNAMICS`.
        field: Name of the field: one of `FIELDS`, or an operator layer.
        channels: Channels of the state's position.
        width: Channels inside the field.
        depth: Number of operator layers; a convolutional field has a fixed depth.
        field_options: Further arguments of the field, such as `branches` of bfno. By default, fno
            keeps four `modes`, afno has eight `blocks`, or fewer if these do not fit, and a filter
            of bfno has the `grid` of the images.
        dynamics_options: Further arguments of the dynamics.
    """

    kind: Literal["ode"] = "ode"
    dynamics: Annotated[str, one_of(lambda: DYNAMICS)]
    field: Annotated[str, one_of(lambda: (*FIELDS, *LAYERS))]
    channels: int = Field(ge=1, le=4096)
    width: int = Field(ge=1, le=65536)
    depth: int = Field(default=3, ge=1, le=64)
    field_options: dict[str, Any] = Field(default_factory=dict)
    dynamics_options: dict[str, Any] = Field(default_factory=dict)

    def build(self, in_shape: Shape, classes: int, solver: Mapping[str, Any]) -> ImageClassifier:
        """Build an untrained classifier.

        Args:
            in_shape: Channels, height and width of an image.
            classes: Number of classes.
            solver: Arguments of `NeuralODE`.

        Raises:
            ValueError: If the parts do not match each other or the images.
        """
        if self.channels < in_shape[0]:
            raise ValueError(
                f"the state must hold the image: model.channels must be at least {in_shape[0]}, "
                f"got {self.channels}"
            )
        return ImageClassifier(NeuralODE(self._dynamics(in_shape), **solver), in_shape, classes)

    def _dynamics(self, in_shape: Shape) -> Dynamics:
        augment = self.channels - in_shape[0]
        return _moved(
            DYNAMICS[self.dynamics],
            lambda sees: self._field(sees, in_shape[1:]),
            (in_shape[0], augment),
            self.width,
            self.dynamics_options,
        )

    def _field(self, sees: int, grid: tuple[int, int]) -> nn.Module:
        if self.field in FIELDS:
            return FIELDS[self.field](self, sees)
        return OperatorField(
            self.field,
            sees,
            self.width,
            self.depth,
            out_channels=self.channels,
            **_completed(self.field, self.field_options, self.width, grid),
        )


class NetSettings(Settings):
    """A convolutional stem, ODE blocks on a grid of about 8×8, and a pooled head.

    Attributes:
        kind: Names this kind of model.
        dynamics: Name of the dynamics, one of `DYNAMICS`.
        field: How features are mixed: `conv`, or an operator layer.
        width: Channels of the stem; the blocks have twice as many. Size and cost grow with its
            square.
        depth: Layers of each field.
        blocks: Number of ODEs, one after the other.
        field_options: Further arguments of the field and its layers, such as `branches` of bfno. By
            default, fno keeps three `modes` and afno has eight `blocks`, or fewer if these do not
            fit.
        dynamics_options: Further arguments of the dynamics.
    """

    kind: Literal["net"] = "net"
    dynamics: Annotated[str, one_of(lambda: DYNAMICS)] = "first_order"
    field: Annotated[str, one_of(lambda: ("conv", *LAYERS))] = "bfno"
    width: int = Field(default=24, ge=1, le=4096)
    depth: int = Field(default=1, ge=1, le=64)
    blocks: int = Field(default=1, ge=1, le=64)
    field_options: dict[str, Any] = Field(default_factory=dict)
    dynamics_options: dict[str, Any] = Field(default_factory=dict)

    def build(self, in_shape: Shape, classes: int, solver: Mapping[str, Any]) -> ConvNet:
        """Build an untrained classifier; see `ODESettings.build`."""
        grid = coarse_grid(in_shape)
        blocks = [NeuralODE(self._dynamics(grid), **solver) for _ in range(self.blocks)]
        return ode_net(blocks, self.width, in_shape, classes)

    def _dynamics(self, grid: tuple[int, int]) -> Dynamics:
        channels = 2 * self.width
        options = _completed(self.field, self.field_options, channels, grid, modes=3)
        return _moved(
            DYNAMICS[self.dynamics],
            lambda sees: NormedField(
                self.field, sees, self.depth, out_channels=channels, **options
            ),
            (channels, 0),
            self.width,
            self.dynamics_options,
        )


class CNNSettings(Settings):
    """A small ResNet with the same stem and no ODE: the baseline for the others.

    Attributes:
        kind: Names this kind of model.
        width: Channels of the stem; the blocks have twice as many.
        blocks: Number of residual blocks behind the stem.
    """

    kind: Literal["cnn"] = "cnn"
    width: int = Field(default=28, ge=1, le=4096)
    blocks: int = Field(default=1, ge=1, le=64)

    def build(self, in_shape: Shape, classes: int, solver: Mapping[str, Any]) -> ConvNet:
        """Build an untrained classifier, which solves no equation."""
        return residual_net(in_shape, classes, self.width, self.blocks)


ImageModelSettings = ODESettings | NetSettings | CNNSettings
"""The model of an image classifier, distinguished by its `kind`."""


def _completed(
    field: str, options: Mapping[str, Any], channels: int, grid: tuple[int, int], modes: int = 4
) -> dict[str, Any]:
    """Options of an operator layer, completed with required ones that suit the grid."""
    known: dict[str, dict[str, Any]] = {
        # Each frequency but 0 has a negative one, so half as many differ as there are points.
        "fno": {"modes": max(1, min(modes, min(grid) // 2))},
        "afno": {"blocks": math.gcd(8, channels)},
        "bfno": {"grid": grid} if options.get("kernel") == "filter" else {},
    }
    return {**known.get(field, {}), **options}


def _moved(
    kind: type[Dynamics],
    make_field: Callable[[int], nn.Module],
    channels: tuple[int, int],
    hidden: int,
    options: Mapping[str, Any],
) -> Dynamics:
    """A dynamics with a matching field and start.

    Args:
        kind: Which dynamics.
        make_field: Makes a field, given the number of channels that it sees.
        channels: Number of input channels, and of extra channels in the position.
        hidden: Channels inside the network that computes the rest of the initial state.
        options: Further arguments of the dynamics.
    """
    given, augment = channels
    position = given + augment
    # Only second-order dynamics show the field the whole state instead of the position.
    field = make_field(2 * position if kind is SecondOrder else position)
    if kind is FirstOrder:
        return FirstOrder(field, augment, **options)
    if kind is AdamODE:
        start: nn.Module = InitialMoments(given, hidden, position)
    else:
        start = InitialVelocity(given, hidden, kind.components * position - given)
    return kind(field, start, **options)
