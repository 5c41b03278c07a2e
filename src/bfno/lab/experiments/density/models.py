"""Models of densities: the settings of each kind of flow, and building it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import Field
from torch import nn

from bfno.fields.flow import FlowConvField, FlowOperatorField
from bfno.fields.mlp import MLPField
from bfno.fields.operator import LAYERS
from bfno.fields.points import PointField
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.presets import kinds_of
from bfno.lab.experiments.settings import Settings, one_of
from bfno.layers.activation import ACTIVATIONS
from bfno.models.flows import ContinuousFlow, Flow, MultiscaleFlow, PixelFlow
from bfno.models.flows.glow import Glow
from bfno.models.flows.iresnet import IResNet
from bfno.models.flows.pixels import SMALLEST_ALPHA
from bfno.models.flows.realnvp import RealNVP

__all__ = [
    "MODEL_KINDS",
    "ContinuousSettings",
    "FlowSettings",
    "GlowSettings",
    "IResNetSettings",
    "RealNVPSettings",
    "Solving",
]

# The fewest frequencies that say more than a mean fit the coarsest grid of every flow.
_MODES = {"images": 2, "points": 1}

Size = Annotated[int, Field(ge=1, le=65536)]
Alpha = Annotated[float | None, Field(ge=SMALLEST_ALPHA, lt=0.5)]


@dataclass(frozen=True)
class Solving:
    """How a continuous flow is solved.

    Attributes:
        solver: Arguments of `solve` in training.
        test_solver: The same in evaluation.
        penalties: Regularisers computed in training.
    """

    solver: Mapping[str, Any]
    test_solver: Mapping[str, Any]
    penalties: tuple[str, ...] = ()


class ContinuousSettings(Settings):
    """FFJORD, RNODE and flows of operator fields.

    Attributes:
        field: `conv` and `mlp` for images and points, operators for both.
        width: Channels inside the field.
        depth: Operator layers, or hidden layers.
        blocks: Flows on each grid of an image.
        branches: Branches of a BFNO layer.
        inner_activation: Activation inside the branches of a BFNO layer; relu is what the paper's
            authors use; with softplus, the trace trains all weights.
        field_options: Further arguments of operator layers, such as `modes` of fno.
        trace: How the divergence is found: from `gaussian` noise, `rademacher` signs, or `exact`.
        end_time: End of the interval.
        learn_end_time: Whether the end is trained.
        alpha: Images are squeezed into [alpha, 1 - alpha] before the logit; None is no logit.
    """

    kind: Literal["continuous"] = "continuous"
    field: Annotated[str, one_of(lambda: ("conv", *LAYERS, "mlp"))] = "conv"
    width: Size = 64
    depth: int = Field(default=3, ge=1, le=64)
    blocks: int = Field(default=2, ge=1, le=64)
    branches: int | None = Field(default=None, ge=1, le=64)
    inner_activation: Annotated[str, one_of(lambda: ACTIVATIONS)] | None = None
    field_options: dict[str, Any] = Field(default_factory=dict)
    trace: Literal["gaussian", "rademacher", "exact"] = "gaussian"
    end_time: float = Field(default=1.0, gt=0)
    learn_end_time: bool = False
    alpha: Alpha = None

    def build(self, event_shape: tuple[int, ...], solving: Solving) -> Flow:
        """Build an untrained flow of images between 0 and 1, or of points."""
        options = {
            "trace": self.trace,
            "penalties": solving.penalties,
            "end_time": self.end_time,
            "learn_end_time": self.learn_end_time,
            "solver": solving.solver,
            "test_solver": solving.test_solver,
        }
        if len(event_shape) == 1:
            if self.alpha is not None:
                why = "belongs to images; points have no bounds"
                raise ConfigError("model.alpha", why, "leave it out")
            return ContinuousFlow(self._point_field(event_shape[0]), event_shape, **options)
        channels, height, width = event_shape
        flow = MultiscaleFlow(
            (channels, height, width), self._image_field, blocks=self.blocks, **options
        )
        return PixelFlow(flow, self.alpha)

    def _image_field(self, channels: int) -> nn.Module:
        if self.field == "mlp":
            use = f"use {', '.join(('conv', *LAYERS))}"
            raise ConfigError("model.field", "mlp is for points", use)
        if self.field == "conv":
            self._refuse_operator_options()
            return FlowConvField(channels, self.width, self.depth)
        options = self._layer_options("images", skip="conv")
        return FlowOperatorField(self.field, channels, self.width, self.depth, **options)

    def _point_field(self, coordinates: int) -> nn.Module:
        if self.field == "conv":
            use = f"use {', '.join(('mlp', *LAYERS))}"
            raise ConfigError("model.field", "conv needs images", use)
        if self.field == "mlp":
            self._refuse_operator_options()
            field = MLPField(coordinates, self.width, self.depth)
            nn.init.zeros_(field.leave.weight)  # the flow starts as a shift
            return field
        options = self._layer_options("points", skip="linear")
        if self.field == "fno":
            options = {"axes": 1, **options}
        return PointField(
            FlowOperatorField(self.field, coordinates, self.width, self.depth, **options)
        )

    def _layer_options(self, samples: str, skip: str) -> dict[str, Any]:
        if self.field == "bfno":
            given = {"branches": self.branches, "inner_activation": self.inner_activation}
            known = {name: value for name, value in given.items() if value is not None}
            return {"skip": skip, **known, **self.field_options}
        self._refuse_branches()
        modes = {"modes": _MODES[samples]} if self.field == "fno" else {}
        return {**modes, **self.field_options}

    def _refuse_operator_options(self) -> None:
        self._refuse_branches()
        if self.field_options:
            raise ConfigError("model.field_options", f"{self.field} has none", "leave them out")

    def _refuse_branches(self) -> None:
        for name in ("branches", "inner_activation"):
            if getattr(self, name) is not None:
                raise ConfigError(f"model.{name}", f"{self.field} has no such part", "leave it out")


class RealNVPSettings(Settings):
    """RealNVP; see `bfno.models.flows.realnvp.RealNVP`."""

    kind: Literal["realnvp"] = "realnvp"
    scales: int = Field(default=2, ge=1, le=16)
    width: Size = 64
    residual_blocks: int = Field(default=8, ge=1, le=64)
    norm: Literal["batch", "none"] = "batch"
    alpha: Alpha = 0.05

    def build(self, event_shape: tuple[int, ...], solving: Solving) -> Flow:
        """Build an untrained flow of images between 0 and 1; it solves no equation."""
        return _flow_of_layers(RealNVP, self, event_shape)


class GlowSettings(Settings):
    """Glow; see `bfno.models.flows.glow.Glow`."""

    kind: Literal["glow"] = "glow"
    levels: int = Field(default=3, ge=1, le=16)
    steps: int = Field(default=32, ge=1, le=256)
    width: Size = 512
    bound: float | None = Field(default=None, gt=0, le=50)
    alpha: Alpha = None

    def build(self, event_shape: tuple[int, ...], solving: Solving) -> Flow:
        """Build an untrained flow of images between 0 and 1; it solves no equation."""
        return _flow_of_layers(Glow, self, event_shape)


class IResNetSettings(Settings):
    """i-ResNet; see `bfno.models.flows.iresnet.IResNet`."""

    kind: Literal["iresnet"] = "iresnet"
    scales: int = Field(default=3, ge=1, le=16)
    blocks: int = Field(default=16, ge=1, le=256)
    width: Size = 512
    terms: int = Field(default=5, ge=1, le=1000)
    test_terms: int = Field(default=20, ge=1, le=1000)
    coefficient: float = Field(default=0.9, gt=0, lt=1)
    power_iterations: int = Field(default=5, ge=1, le=1000)
    alpha: Alpha = None

    def build(self, event_shape: tuple[int, ...], solving: Solving) -> Flow:
        """Build an untrained flow of images between 0 and 1; it solves no equation."""
        return _flow_of_layers(IResNet, self, event_shape)


def _flow_of_layers(make: Callable[..., Flow], model: Any, event_shape: tuple[int, ...]) -> Flow:
    if len(event_shape) == 1:
        raise ConfigError("model.kind", f"{model.kind} models images alone", "use continuous")
    sizes = model.model_dump(exclude={"kind", "alpha"})
    return PixelFlow(make(event_shape, **sizes), model.alpha)


FlowSettings = ContinuousSettings | RealNVPSettings | GlowSettings | IResNetSettings
"""The settings of any flow, identified by `kind`."""
MODEL_KINDS: dict[str, type[Settings]] = kinds_of(get_args(FlowSettings))
