"""The settings of a density of images or points."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from bfno.lab.experiments.images.settings import ImageDataSettings
from bfno.lab.experiments.settings import Config, Settings, SolverSettings

__all__ = [
    "MODEL_KINDS",
    "ContinuousSettings",
    "DensityConfig",
    "GlowSettings",
    "IResNetSettings",
    "ImagesSettings",
    "PenaltySettings",
    "PointsSettings",
    "RealNVPSettings",
]

Size = Annotated[int, Field(ge=1, le=65536)]
Alpha = Annotated[float | None, Field(ge=0, lt=0.5)]


class ImagesSettings(ImageDataSettings):
    """Which images; labels do not matter, and a folder needs no classes.

    Attributes:
        flip: Whether training images are mirrored, left to right, every other time.
    """

    flip: bool = False


class PointsSettings(Settings):
    """Which points in the plane.

    Attributes:
        name: Their shape; see `bfno.lab.data.toy_points`.
        points: Number of training points.
        held_out: Number of points for model selection, and as many for testing.
    """

    name: Literal["moons", "spirals", "checkerboard", "pinwheel"]
    points: int = Field(default=25_600, ge=1, le=10_000_000)
    held_out: int = Field(default=2_000, ge=2, le=1_000_000)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample."""
        return (2,)


class ContinuousSettings(Settings):
    """FFJORD, RNODE and flows of operator fields.

    Attributes:
        field: `conv` and `mlp` for images and points, operators for both.
        width: Channels inside the field.
        depth: Operator layers, or hidden layers.
        blocks: Flows on each grid of an image.
        branches: Branches of a BFNO layer.
        inner_activation: Activation inside the branches of a BFNO layer; relu is what the paper's
            authors use, softplus lets the trace teach all weights.
        field_options: Further arguments of operator layers, such as `modes` of fno.
        trace: How the divergence is found: by `gaussian` noise, by `rademacher` signs, or `exact`.
        end_time: End of the interval.
        learn_end_time: Whether that is trained.
        alpha: Images are squeezed into [alpha, 1 - alpha] before the logit; None is no logit.
    """

    kind: Literal["continuous"] = "continuous"
    field: Literal["conv", "bfno", "fno", "afno", "mlp"] = "conv"
    width: Size = 64
    depth: int = Field(default=3, ge=1, le=64)
    blocks: int = Field(default=2, ge=1, le=64)
    branches: int | None = Field(default=None, ge=1, le=64)
    inner_activation: Literal["relu", "softplus", "tanh"] | None = None
    field_options: dict[str, Any] = Field(default_factory=dict)
    trace: Literal["gaussian", "rademacher", "exact"] = "gaussian"
    end_time: float = Field(default=1.0, gt=0)
    learn_end_time: bool = False
    alpha: Alpha = None


class RealNVPSettings(Settings):
    """RealNVP; see `bfno.models.flows.realnvp.RealNVP`."""

    kind: Literal["realnvp"] = "realnvp"
    scales: int = Field(default=2, ge=1, le=16)
    width: Size = 64
    residual_blocks: int = Field(default=8, ge=1, le=64)
    norm: Literal["batch", "none"] = "batch"
    alpha: Alpha = 0.05


class GlowSettings(Settings):
    """Glow; see `bfno.models.flows.glow.Glow`."""

    kind: Literal["glow"] = "glow"
    levels: int = Field(default=3, ge=1, le=16)
    steps: int = Field(default=32, ge=1, le=256)
    width: Size = 512
    alpha: Alpha = None


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


class PenaltySettings(Settings):
    """Weights of the regularisers of a continuous flow; those of no weight are not computed.

    Attributes:
        kinetic: Weight of half the squared speed, averaged over dimensions and integrated.
        jacobian: Weight of the squared norm of the Jacobian, in the same way.
    """

    kinetic: float = Field(default=0.0, ge=0)
    jacobian: float = Field(default=0.0, ge=0)


Data = Annotated[ImagesSettings | PointsSettings, Field(discriminator="name")]
Model = Annotated[
    ContinuousSettings | RealNVPSettings | GlowSettings | IResNetSettings,
    Field(discriminator="kind"),
]
MODEL_KINDS: dict[str, type[Settings]] = {
    "continuous": ContinuousSettings,
    "realnvp": RealNVPSettings,
    "glow": GlowSettings,
    "iresnet": IResNetSettings,
}


class DensityConfig(Config[Data, Model]):
    """Everything that decides the outcome of a density.

    Attributes:
        loss: Weights of the regularisers.
        evaluation: How the ODE is solved when the model is not trained: to evaluate, to sample.
    """

    loss: PenaltySettings = PenaltySettings()
    evaluation: SolverSettings = SolverSettings(rtol=1e-5, atol=1e-5)
