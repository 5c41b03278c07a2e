"""From the settings of a density to its flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from bfno.fields import FlowConvField, FlowOperatorField, MLPField, PointField
from bfno.lab.errors import ConfigError
from bfno.models.flows import (
    ContinuousFlow,
    Flow,
    Glow,
    IResNet,
    MultiscaleFlow,
    PixelFlow,
    RealNVP,
)

__all__ = ["Solving", "build_flow"]

_DISCRETE: Mapping[str, Callable[..., Flow]] = {
    "realnvp": RealNVP,
    "glow": Glow,
    "iresnet": IResNet,
}
# The fewest frequencies that say more than a mean fit the coarsest grid of every flow.
_MODES = {"images": 2, "points": 1}


@dataclass(frozen=True)
class Solving:
    """How a continuous flow is solved.

    Attributes:
        solver: Arguments of `solve` in training.
        test_solver: The same in evaluation.
        penalties: Regularisers that are computed in training.
    """

    solver: Mapping[str, Any]
    test_solver: Mapping[str, Any]
    penalties: tuple[str, ...] = ()


def build_flow(model: Any, event_shape: tuple[int, ...], solving: Solving) -> Flow:
    """Build an untrained flow of images between 0 and 1, or of points.

    Args:
        model: Its settings; `kind` says which attributes it has.
        event_shape: Channels, height and width of an image, or the number of coordinates.
        solving: How a continuous flow is solved; others have no use for it.

    Raises:
        ConfigError: If a setting has no meaning for these samples or this field.
        ImportError: If a package is missing.
        ValueError: If sizes do not fit each other.
    """
    is_points = len(event_shape) == 1
    if is_points:
        _refuse_for_points(model)
    if model.kind in _DISCRETE:
        sizes = model.model_dump(exclude={"kind", "alpha"})
        return PixelFlow(_DISCRETE[model.kind](event_shape, **sizes), model.alpha)
    options = {
        "trace": model.trace,
        "penalties": solving.penalties,
        "end_time": model.end_time,
        "learn_end_time": model.learn_end_time,
        "solver": solving.solver,
        "test_solver": solving.test_solver,
    }
    if is_points:
        return ContinuousFlow(_point_field(model, event_shape[0]), event_shape, **options)
    channels, height, width = event_shape
    flow = MultiscaleFlow(
        (channels, height, width),
        lambda channels: _image_field(model, channels),
        blocks=model.blocks,
        **options,
    )
    return PixelFlow(flow, model.alpha)


def _refuse_for_points(model: Any) -> None:
    if model.kind != "continuous":
        raise ConfigError("model.kind", f"{model.kind} models images alone", "use continuous")
    if model.alpha is not None:
        raise ConfigError("model.alpha", "belongs to images; points have no bounds", "leave it out")
    if model.field == "conv":
        raise ConfigError("model.field", "conv needs images", "use mlp, bfno, fno or afno")


def _image_field(model: Any, channels: int) -> nn.Module:
    if model.field == "mlp":
        raise ConfigError("model.field", "mlp is for points", "use conv, bfno, fno or afno")
    if model.field == "conv":
        _refuse_operator_options(model)
        return FlowConvField(channels, model.width, model.depth)
    options = _layer_options(model, "images", skip="conv")
    return FlowOperatorField(model.field, channels, model.width, model.depth, **options)


def _point_field(model: Any, coordinates: int) -> nn.Module:
    if model.field == "mlp":
        _refuse_operator_options(model)
        field = MLPField(coordinates, model.width, model.depth)
        nn.init.zeros_(field.leave.weight)  # the flow starts as a shift
        return field
    options = _layer_options(model, "points", skip="linear")
    if model.field == "fno":
        options = {"axes": 1, **options}
    return PointField(
        FlowOperatorField(model.field, coordinates, model.width, model.depth, **options)
    )


def _layer_options(model: Any, samples: str, skip: str) -> dict[str, Any]:
    if model.field == "bfno":
        given = {"branches": model.branches, "inner_activation": model.inner_activation}
        known = {name: value for name, value in given.items() if value is not None}
        return {"skip": skip, **known, **model.field_options}
    _refuse_branches(model)
    return {**({"modes": _MODES[samples]} if model.field == "fno" else {}), **model.field_options}


def _refuse_operator_options(model: Any) -> None:
    _refuse_branches(model)
    if model.field_options:
        raise ConfigError("model.field_options", f"{model.field} has none", "leave them out")


def _refuse_branches(model: Any) -> None:
    for name in ("branches", "inner_activation"):
        if getattr(model, name) is not None:
            raise ConfigError(f"model.{name}", f"{model.field} has no such part", "leave it out")
