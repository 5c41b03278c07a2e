"""Models of irregular series: the settings of each kind, and building it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import Field
from torch import nn

from bfno.fields import Autonomous, LatentOperatorField
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.presets import kinds_of
from bfno.lab.experiments.settings import Settings, one_of
from bfno.models import SeriesModel
from bfno.models.encoders import ODERNNEncoder, RNNEncoder, SeriesEncoder
from bfno.models.generators import ACEGenerator, CoupledGenerator, LatentGenerator
from bfno.models.latent import LatentODE
from bfno.models.ode_rnn import DYNAMICS, ODERNNClassifier, make_ode_rnn
from bfno.models.recurrent import RecurrentClassifier
from bfno.models.recurrent_vae import RecurrentVAE
from bfno.models.series import tanh_network
from bfno.ode import METHODS

__all__ = [
    "MODEL_KINDS",
    "LatentSettings",
    "ODERNNSettings",
    "RecurrentSettings",
    "SeriesData",
    "SeriesModelSettings",
    "VAESettings",
    "without_kinetic",
]

# Channels of an operator on the latent axis, where a state is a function of one channel.
_LATENT_WIDTH = 32


def _fixed_step_methods() -> Iterable[str]:
    found = METHODS.items()
    return (name for name, tableau in found if not (tableau.adaptive or tableau.implicit))


Size = Annotated[int, Field(ge=1, le=65536)]
Head = Annotated[tuple[Size, ...], Field(max_length=8)]
Method = Annotated[str, one_of(_fixed_step_methods)]


@dataclass(frozen=True)
class SeriesData:
    """Facts about the data that a model needs.

    Attributes:
        features: Number of features.
        classes: Number of classes.
        by_row: Whether every row has a label; otherwise every series has one.
    """

    features: int
    classes: int
    by_row: bool


class RecurrentSettings(Settings):
    """RNN-Δt, and with imputation or decay RNN-Impute, RNN-D and GRU-D."""

    kind: Literal["recurrent"] = "recurrent"
    latents: Size = 20
    units: Size = 100
    head: Head = (300, 300)
    impute: bool = False
    decay: bool = False
    gap: Literal["previous", "next", "public_code"] = "previous"

    def build(self, about: SeriesData, solver: Mapping[str, Any]) -> SeriesModel:
        """Build the untrained model; it solves no equation."""
        return RecurrentClassifier(
            about.features,
            about.classes,
            by_row=about.by_row,
            hidden=self.latents,
            units=self.units,
            impute=self.impute,
            decay=self.decay,
            head=self.head,
            gap=self.gap,
        )


class VAESettings(Settings):
    """RNN-VAE."""

    kind: Literal["recurrent_vae"] = "recurrent_vae"
    latents: Size = 20
    encoder_size: Size = 40
    units: Size = 50
    samples: int = Field(default=3, ge=1, le=1000)
    head: Head = (300, 300)
    reverse_axis: Literal["time", "public_code"] = "time"

    def build(self, about: SeriesData, solver: Mapping[str, Any]) -> SeriesModel:
        """Build the untrained model; it solves no equation."""
        return RecurrentVAE(
            about.features,
            about.classes,
            by_row=about.by_row,
            latents=self.latents,
            encoder=self.encoder_size,
            units=self.units,
            reverse_axis=self.reverse_axis,
            samples=self.samples,
            head=self.head,
        )


class ODERNNSettings(Settings):
    """ODE-RNN, GHBNODE-RNN and GNesterovNODE-RNN; `step` is a share of the time span.

    `bfno.ODERNN` and `bfno.ODERNNClassifier` explain `public_code` for `steps`, `gaps` and
    `reconstruction`.
    """

    kind: Literal["ode_rnn"] = "ode_rnn"
    dynamics: Annotated[str, one_of(lambda: DYNAMICS)] = "first_order"
    latents: Size = 20
    layers: int = Field(default=3, ge=0, le=64)
    units: Size = 50
    gru_units: Size = 50
    decoder: Size = 100
    head: Head = (300, 300)
    method: Method = "midpoint"
    step: float = Field(default=0.02, gt=0)
    steps: Literal["own", "public_code"] = "own"
    gaps: Literal["own", "public_code"] = "own"
    reconstruction: Literal["own", "public_code"] = "own"

    def build(self, about: SeriesData, solver: Mapping[str, Any]) -> SeriesModel:
        """Build the untrained model, which has its own method and step."""
        recurrent = make_ode_rnn(
            about.features,
            self.latents,
            layers=self.layers,
            units=self.units,
            gru_units=self.gru_units,
            dynamics=self.dynamics,
            method=self.method,
            step=self.step,
            steps=self.steps,
            gaps=self.gaps,
        )
        return ODERNNClassifier(
            about.features,
            about.classes,
            recurrent,
            by_row=about.by_row,
            decoder=self.decoder,
            head=self.head,
            reconstruction=self.reconstruction,
        )


class LatentSettings(Settings):
    """Latent-ODE with either encoder, Augmented-ODE, ACE-Latent-ODE and Latent-BFNO-NODE.

    Attributes of Latent-BFNO-NODE:
        grid: What the operator takes for space: the latent axis, a single point, or the whole
            batch as in the paper, which makes every prediction depend on the other series.
        width: Channels of the operator; None is 32 on the latent axis and `units` elsewhere.

    Attributes of the encoders:
        encoder_steps: Number of steps of an encoder of kind `ode`, see `bfno.ODERNN`.
        encoder_rows: Rows that an encoder of kind `rnn` reads, see `bfno.RNNEncoder`.
    """

    kind: Literal["latent_ode"] = "latent_ode"
    generator: Literal["mlp", "bfno", "ace"] = "mlp"
    grid: Literal["latent", "point", "batch"] = "latent"
    variant: Literal["own", "public_code"] = "own"
    latents: Size = 20
    augment: int = Field(default=0, ge=0, le=4096)
    layers: int = Field(default=3, ge=0, le=64)
    units: Size = 50
    width: Size | None = None
    samples: int = Field(default=3, ge=1, le=1000)
    head: Head = (300, 300)
    encoder: Literal["ode", "rnn"] = "ode"
    encoder_size: Size = 40
    encoder_layers: int = Field(default=3, ge=0, le=64)
    gru_units: Size = 50
    encoder_method: Method = "midpoint"
    encoder_step: float = Field(default=0.02, gt=0)
    encoder_steps: Literal["own", "public_code"] = "own"
    encoder_rows: Literal["observed", "public_code"] = "observed"

    def build(
        self, about: SeriesData, solver: Mapping[str, Any], *, measures_kinetic: bool = False
    ) -> SeriesModel:
        """Build the untrained model.

        Args:
            about: Sizes of the data.
            solver: Arguments of `solve` for the generator.
            measures_kinetic: Whether `loss.kinetic` weighs the speed of its states.

        Raises:
            ConfigError: If it should measure that but couples series.
        """
        encoder, generator = self._encoder(about.features), self._generator(solver)
        if measures_kinetic and generator.couples_series:
            raise without_kinetic()
        return LatentODE(
            about.features,
            about.classes,
            encoder,
            generator,
            by_row=about.by_row,
            samples=self.samples,
            head=self.head,
            measures_kinetic=measures_kinetic,
        )

    def _encoder(self, features: int) -> SeriesEncoder:
        if self.encoder == "rnn":
            return RNNEncoder(features, self.latents, self.encoder_size, rows=self.encoder_rows)
        recurrent = make_ode_rnn(
            features,
            self.encoder_size,
            layers=self.encoder_layers,
            units=self.units,
            gru_units=self.gru_units,
            method=self.encoder_method,
            step=self.encoder_step,
            steps=self.encoder_steps,
            backward=True,
        )
        return ODERNNEncoder(recurrent, self.latents)

    def _generator(self, solver: Mapping[str, Any]) -> LatentGenerator:
        size = self.latents + self.augment
        settings = {"augment": self.augment, **solver}
        if self.generator == "bfno":
            width = self.width or (_LATENT_WIDTH if self.grid == "latent" else self.units)
            field: nn.Module = LatentOperatorField(size, width, grid=self.grid)
            kind = CoupledGenerator if field.couples_series else LatentGenerator
            return kind(field, **settings)
        field = Autonomous(tanh_network(size, size, self.layers, self.units))
        if self.generator == "mlp":
            return LatentGenerator(field, **settings)
        network = field.network
        if self.variant == "public_code":
            return ACEGenerator(network, variant="public_code", **settings)
        attention = tanh_network(size, size, self.layers, self.units)
        return ACEGenerator(network, attention, **settings)


def without_kinetic() -> ConfigError:
    """The error for a weight of kinetic energy if the model cannot measure it."""
    why = "needs a latent model that does not couple series"
    return ConfigError("loss.kinetic", why, "set it to 0")


SeriesModelSettings = RecurrentSettings | VAESettings | ODERNNSettings | LatentSettings
"""The settings of any model of series, identified by `kind`."""
MODEL_KINDS: dict[str, type[Settings]] = kinds_of(get_args(SeriesModelSettings))
