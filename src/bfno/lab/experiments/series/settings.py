"""The settings of a classification of irregular series."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from bfno.lab.experiments.settings import Config, Settings

__all__ = [
    "MODEL_KINDS",
    "LatentSettings",
    "LossSettings",
    "ODERNNSettings",
    "RecurrentSettings",
    "SeriesConfig",
    "SeriesDataSettings",
    "VAESettings",
]

Size = Annotated[int, Field(ge=1, le=65536)]
Head = Annotated[tuple[Size, ...], Field(max_length=8)]
Method = Literal["euler", "midpoint", "heun", "rk4"]


def _parts(value: object) -> object:
    """`a,b` on a command line means what `[a, b]` means in a file."""
    return tuple(value.split(",")) if isinstance(value, str) else value


class SeriesDataSettings(Settings):
    """Which series, and how they are divided.

    Attributes:
        name: physionet, activity, or series for one's own and for the bundled synthetic ones.
        protocol: `sound` divides by record or sequence before anything else and takes statistics
            from the training part alone; `published` does what the published code does.
        dir: Where the files of data sets are; None leaves it to `BFNO_DATA` and the user's cache.
        path: One's own series, a file or a folder; None is the bundled synthetic ones.
        test_path: One's own test series; None sets a part of the others aside.
        sets: Parts of PhysioNet: a, or a and b.
        quantum: Hours to which PhysioNet's times are rounded; None is the published 0.016.
        times: Whether a batch keeps every series' own times, or puts all on their union as the
            published code does, which gives the same results within the solver's tolerance.
        validation: Share of the training series that is kept for model selection.
        test_fraction: Share that becomes the test part.
        train_limit: Most training series, validation included.
        test_limit: Most test series.
        labels: Whether one's own labels are one a `series` or one a `row`.
        columns: Names of the columns of one's own series for id, time and label.
    """

    name: Literal["physionet", "activity", "series"]
    protocol: Literal["sound", "published"] = "sound"
    dir: Path | None = None
    path: Path | None = None
    test_path: Path | None = None
    sets: Annotated[
        tuple[Literal["a", "b"], ...],
        BeforeValidator(_parts),
        Field(min_length=1, max_length=2),
    ] = ("a",)
    quantum: float | None = Field(default=None, gt=0, le=48)
    times: Literal["own", "union"] = "own"
    validation: float = Field(default=0.1, ge=0, lt=1)
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    train_limit: int | None = Field(default=None, ge=1)
    test_limit: int | None = Field(default=None, ge=1)
    labels: Literal["auto", "series", "row"] = "auto"
    columns: tuple[str, str, str] = ("id", "time", "label")


class RecurrentSettings(Settings):
    """RNN-Δt, and with imputation or decay RNN-Impute, RNN-D and GRU-D."""

    kind: Literal["recurrent"] = "recurrent"
    latents: Size = 20
    units: Size = 100
    head: Head = (300, 300)
    impute: bool = False
    decay: bool = False
    gap: Literal["previous", "next"] = "previous"


class VAESettings(Settings):
    """RNN-VAE."""

    kind: Literal["recurrent_vae"] = "recurrent_vae"
    latents: Size = 20
    encoder_size: Size = 40
    units: Size = 50
    samples: int = Field(default=3, ge=1, le=1000)
    head: Head = (300, 300)
    reverse_axis: Literal["time", "public_code"] = "time"


class ODERNNSettings(Settings):
    """ODE-RNN, GHBNODE-RNN and GNesterovNODE-RNN; `step` is a share of the time span."""

    kind: Literal["ode_rnn"] = "ode_rnn"
    dynamics: Literal["first_order", "generalized_heavy_ball", "generalized_nesterov"] = (
        "first_order"
    )
    latents: Size = 20
    layers: int = Field(default=3, ge=0, le=64)
    units: Size = 50
    gru_units: Size = 50
    decoder: Size = 100
    head: Head = (300, 300)
    method: Method = "midpoint"
    step: float = Field(default=0.02, gt=0)
    gaps: Literal["own", "public_code"] = "own"


class LatentSettings(Settings):
    """Latent-ODE with either encoder, Augmented-ODE, ACE-Latent-ODE and Latent-BFNO-NODE.

    Attributes of Latent-BFNO-NODE:
        grid: What the operator takes for space: the latent axis, a single point, or the whole
            batch as in the paper, which makes every prediction depend on the other series.
        width: Channels of the operator; None is 32 on the latent axis and `units` elsewhere.
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


class LossSettings(Settings):
    """How reconstruction and classification are weighed.

    Attributes:
        reconstruction: Weight of the negative log-likelihood of the observed values.
        classification: Weight of the cross-entropy; the published one is also divided by the
            number of latent samples.
        deviation: Deviation of an observation from the model's prediction, in scaled units.
        kl: Weight of the divergence from the prior, which comes in slowly after ten epochs.
    """

    reconstruction: float = Field(default=1.0, ge=0)
    classification: float = Field(default=100.0, ge=0)
    deviation: float = Field(default=0.01, gt=0)
    kl: float = Field(default=1.0, ge=0)


Model = Annotated[
    RecurrentSettings | VAESettings | ODERNNSettings | LatentSettings, Field(discriminator="kind")
]
MODEL_KINDS: dict[str, type[Settings]] = {
    "recurrent": RecurrentSettings,
    "recurrent_vae": VAESettings,
    "ode_rnn": ODERNNSettings,
    "latent_ode": LatentSettings,
}


class SeriesConfig(Config[SeriesDataSettings, Model]):
    """Everything that decides the outcome of a classification of series."""

    loss: LossSettings = LossSettings()
