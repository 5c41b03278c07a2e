"""The settings of a run: a closed list, checked before anything is computed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bfno.errors import ConfigError
from bfno.presets import IMAGE_DATA

__all__ = ["Config", "DataSettings", "ModelSettings", "SolverSettings", "TrainSettings", "parse"]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSettings(_Settings):
    """Which images, and how they are divided.

    Attributes:
        name: A data set that `bfno data list` names, or `folder`.
        folder: The folder of images, if that is the name.
        dir: Where the files of data sets are; None leaves it to `BFNO_DATA` and the user's cache.
        size: Side of the grid; None keeps that of the data set, which a folder does not have.
        colour: Whether a folder's images are read in colour.
        validation: Share of the training images that is kept for model selection.
        train_limit: Most training images, validation included.
        test_limit: Most test images.
        test_fraction: Share of a folder without a test part that becomes one.
        corrupt: What happens to files of a folder that cannot be read.
    """

    name: Literal["digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "stl10", "folder"]
    folder: Path | None = None
    dir: Path | None = None
    size: int | None = Field(default=None, ge=2, le=1024)
    colour: bool = True
    validation: float = Field(default=0.0, ge=0, lt=1)
    train_limit: int | None = Field(default=None, ge=1)
    test_limit: int | None = Field(default=None, ge=1)
    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    corrupt: Literal["refuse", "skip"] = "refuse"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images that a model sees."""
        if self.name == "folder":
            side = self.size or 32
            return (3 if self.colour else 1, side, side)
        channels, height, width = IMAGE_DATA[self.name].shape
        return (channels, self.size or height, self.size or width)


class ModelSettings(_Settings):
    """The parts of the model and their sizes; see `bfno.presets.ImageModel`."""

    dynamics: Literal[
        "first_order",
        "second_order",
        "heavy_ball",
        "generalized_heavy_ball",
        "nesterov",
        "generalized_nesterov",
        "adam",
    ]
    field: Literal["conv", "bfno", "fno", "afno"]
    channels: int = Field(ge=1, le=4096)
    width: int = Field(ge=1, le=65536)
    depth: int = Field(default=3, ge=1, le=64)
    field_options: dict[str, Any] = {}
    dynamics_options: dict[str, Any] = {}
    idle_scalars: int = Field(default=0, ge=0, le=64)


class SolverSettings(_Settings):
    """How the ODE is solved; see `bfno.NeuralODE` and `bfno.ode.Options`."""

    method: Literal["euler", "midpoint", "heun", "rk4", "bosh3", "dopri5", "tsit5", "dopri8"] = (
        "dopri5"
    )
    rtol: float = Field(default=1e-3, gt=0)
    atol: float = Field(default=1e-3, gt=0)
    gradient: Literal["checkpoint", "direct", "adjoint"] = "checkpoint"
    step: float | None = Field(default=None, gt=0)
    max_steps: int = Field(default=10_000, ge=1)
    land: bool = True


class TrainSettings(_Settings):
    """The recipe.

    Attributes:
        epochs: Passes over the training images.
        batch: Images a step, over all processes.
        lr: Learning rate of Adam at the start.
        decay: Factor of the learning rate after every `decay_every` steps.
        decay_every: Steps between two decays.
        weight_decay: Adam's L2 penalty.
        clip: Largest norm of a gradient; longer ones are scaled down.
        eval_batch: Images at a time when the model is only evaluated.
        checkpoint_seconds: Time between two checkpoints within an epoch.
    """

    epochs: int = Field(default=10, ge=1)
    batch: int = Field(default=64, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    decay: float = Field(default=0.95, gt=0, le=1)
    decay_every: int = Field(default=1000, ge=1)
    weight_decay: float = Field(default=0.0, ge=0)
    clip: float = Field(default=1.0, gt=0)
    eval_batch: int = Field(default=100, ge=1)
    checkpoint_seconds: float = Field(default=60.0, ge=0)


class Config(_Settings):
    """Everything that decides the outcome of a run.

    Attributes:
        experiment: Its name, `data/method`.
        scale: The size it was asked for.
        seed: Decides initial weights, division and order of the images, and all noise.
        threads: Threads that torch uses; None takes what it finds. Another number changes the last
            digits, so a run remembers it.
    """

    experiment: str
    scale: Literal["smoke", "cpu", "paper"] = "cpu"
    seed: int = Field(default=7, ge=0, lt=2**31)
    threads: int | None = Field(default=None, ge=1, le=1024)
    data: DataSettings
    model: ModelSettings
    solver: SolverSettings = SolverSettings()
    train: TrainSettings = TrainSettings()

    @property
    def method(self) -> str:
        """The part of the experiment's name behind the data set."""
        return self.experiment.rpartition("/")[2]

    def as_dict(self) -> dict[str, Any]:
        """The settings as plain values, ready for JSON or YAML."""
        return self.model_dump(mode="json")

    def as_yaml(self) -> str:
        """The settings as a file that can be edited and run."""
        return yaml.safe_dump(self.as_dict(), sort_keys=False, allow_unicode=True)


def parse(settings: Mapping[str, Any], source: str) -> Config:
    """Check settings and fill in what they leave out.

    Args:
        settings: Nested values by name.
        source: Where they come from, for the message.

    Raises:
        ConfigError: At the first setting that is unknown, missing or of the wrong kind.
    """
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        raise _explain(error, source) from None


def _explain(error: ValidationError, source: str) -> ConfigError:
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"]) or source
    if first["type"] == "extra_forbidden":
        return ConfigError(name, f"is no setting (in {source})", _nearest(name))
    if first["type"] == "missing":
        return ConfigError(name, f"is missing in {source}", "give it a value")
    why = first["msg"][0].lower() + first["msg"][1:]
    value = str(first["input"])
    shown = value if len(value) <= 60 else f"{value[:57]}..."
    return ConfigError(name, f"{why}, got {shown!r}", "choose a value of that kind")


def _nearest(name: str) -> str:
    known = list(_names(Config))
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.3)
    # A leaf that was given without its section, or under another one, is the likeliest meaning.
    same_leaf = [one for one in known if one.rpartition(".")[2] == name.rpartition(".")[2]]
    return f"did you mean {', '.join(dict.fromkeys([*same_leaf, *near])) or ', '.join(known)}?"


def _names(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _names(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
