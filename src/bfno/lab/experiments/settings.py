"""The settings of a run: a closed list, checked before anything is computed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Generic, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bfno.lab.errors import ConfigError

__all__ = [
    "CIRCUMSTANCES",
    "DATA_PLACES",
    "Config",
    "Settings",
    "SolverSettings",
    "TrainSettings",
    "parse",
]

DATA_PLACES = ("dir", "folder", "path", "test_path")
"""Settings of data that say where files are, which is nobody else's business."""
CIRCUMSTANCES = frozenset({"seed", "threads", *(f"data.{name}" for name in DATA_PLACES)})
"""Settings that say where and for which seed an experiment was run, not which one it was."""


class Settings(BaseModel):
    """A section of settings: fixed once made, and without a place for unknown ones."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SolverSettings(Settings):
    """How the ODE is solved; see `bfno.NeuralODE` and `bfno.ode.Options`."""

    method: Literal["euler", "midpoint", "heun", "rk4", "bosh3", "dopri5", "tsit5", "dopri8"] = (
        "dopri5"
    )
    rtol: float = Field(default=1e-3, gt=0)
    atol: float = Field(default=1e-3, gt=0)
    gradient: Literal["checkpoint", "direct", "adjoint"] = "checkpoint"
    step: float | None = Field(default=None, gt=0)
    first_step: float | None = Field(default=None, gt=0)
    max_steps: int = Field(default=10_000, ge=1)
    land: bool = True


class TrainSettings(Settings):
    """The recipe.

    Attributes:
        epochs: Passes over the training samples.
        batch: Samples a step, over all processes.
        optimizer: Adam, or its variant of the largest gradient.
        lr: Learning rate at the start.
        warmup: Steps over which it rises from nearly 0, in equal parts.
        decay: Factor of the learning rate after every `decay_every` steps.
        decay_every: Steps between two decays.
        decay_floor: Share of the first learning rate below which it does not fall.
        weight_decay: The optimizer's L2 penalty.
        clip: Largest norm of a gradient; longer ones are scaled down. None scales none.
        average: Share of the old in a moving average of the weights, 0.999 say. It is what is
            evaluated and loaded; the training goes on from the weights themselves. None averages
            none.
        eval_batch: Samples at a time when the model is only evaluated.
        checkpoint_seconds: Time between two checkpoints within an epoch.
    """

    epochs: int = Field(default=10, ge=1)
    batch: int = Field(default=64, ge=1)
    optimizer: Literal["adam", "adamax"] = "adam"
    lr: float = Field(default=1e-3, gt=0, le=1e9)
    warmup: int = Field(default=0, ge=0)
    decay: float = Field(default=0.95, gt=0, le=1)
    decay_every: int = Field(default=1000, ge=1)
    decay_floor: float = Field(default=0.0, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0, le=1e9)
    clip: float | None = Field(default=1.0, gt=0)
    average: float | None = Field(default=None, gt=0, lt=1)
    eval_batch: int = Field(default=100, ge=1)
    checkpoint_seconds: float = Field(default=60.0, ge=0)


DataT = TypeVar("DataT", bound=Settings)
ModelT = TypeVar("ModelT", bound=Settings)
ConfigT = TypeVar("ConfigT", bound="Config[Any, Any]")


class Config(Settings, Generic[DataT, ModelT]):
    """Everything that decides the outcome of a run; each family of experiments has its own kind.

    Attributes:
        experiment: Its name, `data/method`.
        scale: The size it was asked for.
        seed: Decides initial weights, division and order of the samples, and all noise.
        threads: Threads that torch uses; None takes what it finds. Another number changes the last
            digits, so a run remembers it.
    """

    experiment: str
    scale: Literal["smoke", "cpu", "paper"] = "cpu"
    seed: int = Field(default=7, ge=0, lt=2**31)
    threads: int | None = Field(default=None, ge=1, le=1024)
    data: DataT
    model: ModelT
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


def parse(kind: type[ConfigT], settings: Mapping[str, Any], source: str) -> ConfigT:
    """Check settings and fill in what they leave out.

    Args:
        kind: What settings these are.
        settings: Nested values by name.
        source: Where they come from, for the message.

    Raises:
        ConfigError: At the first setting that is unknown, missing or of the wrong kind.
    """
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        raise _explain(kind, error, source) from None


def _explain(kind: type[BaseModel], error: ValidationError, source: str) -> ConfigError:
    first = error.errors(include_url=False)[0]
    name = _name(kind, first["loc"]) or source
    if first["type"] == "extra_forbidden" and name in _names(kind):
        return ConfigError(name, f"has no meaning in this experiment (in {source})", "omit it")
    if first["type"] == "extra_forbidden":
        return ConfigError(name, f"is no setting (in {source})", _nearest(kind, name))
    if first["type"] == "missing":
        return ConfigError(name, f"is missing in {source}", "give it a value")
    why = first["msg"][0].lower() + first["msg"][1:]
    value = str(first["input"])
    shown = value if len(value) <= 60 else f"{value[:57]}..."
    return ConfigError(name, f"{why}, got {shown!r}", "choose a value of that kind")


def _name(kind: type[BaseModel], place: tuple[int | str, ...]) -> str:
    """The setting at that place; the choice among several kinds of a section is no part of it."""
    parts = [str(part) for part in place]
    section = kind.model_fields.get(parts[0]) if len(parts) > 1 else None
    if section is not None and len(_sections(section.annotation)) > 1:
        parts.pop(1)
    return ".".join(parts)


def _nearest(kind: type[BaseModel], name: str) -> str:
    known = list(dict.fromkeys(_names(kind)))
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.3)
    # A leaf that was given without its section, or under another one, is the likeliest meaning.
    same_leaf = [one for one in known if one.rpartition(".")[2] == name.rpartition(".")[2]]
    return f"did you mean {', '.join(dict.fromkeys([*same_leaf, *near])) or ', '.join(known)}?"


def _names(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        inner = _sections(field.annotation)
        if not inner:
            yield f"{prefix}{name}"
        for kind in inner:
            yield from _names(kind, f"{prefix}{name}.")


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a setting can be: itself, or each of a choice; none for a plain value."""
    kinds = get_args(annotation) or (annotation,)
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
