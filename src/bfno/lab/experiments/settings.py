"""The settings of a run: a closed list, checked before anything is computed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from bfno.lab.errors import ConfigError

__all__ = [
    "CIRCUMSTANCES",
    "DATA_PLACES",
    "SCALES",
    "Scale",
    "Settings",
    "SolverSettings",
    "TrainSettings",
    "migrated_settings",
    "migrated_weights",
    "one_of",
    "parse",
    "setting_names",
]

Scale = Literal["smoke", "cpu", "paper"]
SCALES: tuple[str, ...] = get_args(Scale)
"""The scale of an experiment: seconds, minutes on a processor, or the paper's size."""

DATA_PLACES = ("dir", "folder", "path", "test_path")
"""Settings of data that say where files are, which is private."""
CIRCUMSTANCES = frozenset(
    {"seed", "threads", "train.checkpoint_seconds", *(f"data.{name}" for name in DATA_PLACES)}
)
"""Settings that describe where and with which seed an experiment ran, not the experiment itself."""


# Epochs that are chosen by themselves for a single sample, before the bounds.
_AUTO_EPOCHS = 4000

# The largest first.
_UNITS = {
    "TiB": 2**40,
    "TB": 10**12,
    "GiB": 2**30,
    "GB": 10**9,
    "MiB": 2**20,
    "MB": 10**6,
    "KiB": 2**10,
    "kB": 10**3,
}

WeightT = TypeVar("WeightT")
SettingsT = TypeVar("SettingsT", bound="Settings")


class Settings(BaseModel):
    """A section of settings: immutable, and closed to unknown ones."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def one_of(names: Callable[[], Iterable[str]]) -> BeforeValidator:
    """A setting whose value is a name in a registry.

    The registry is read when settings are checked: a name added there is a choice at once, and
    importing the settings imports none of the parts that they name.

    Args:
        names: Returns the registry, or the names in it.

    Example:
        >>> class Section(Settings):
        ...     method: Annotated[str, one_of(lambda: ("euler", "rk4"))] = "rk4"
        >>> Section(method="euler").method
        'euler'
    """

    def check(value: object) -> object:
        known = list(names())
        if value not in known:
            *others, last = map(repr, known)
            expected = f"{', '.join(others)} or {last}" if others else last
            raise PydanticCustomError(
                "choice", "Input should be {expected}", {"expected": expected}
            )
        return value

    return BeforeValidator(check)


def _methods() -> Iterable[str]:
    from bfno.ode import METHODS

    return METHODS


def _controllers() -> Iterable[str]:
    from bfno.ode.inputs import CONTROLLERS

    return CONTROLLERS


def _gradients() -> Iterable[str]:
    from bfno.ode import GRADIENTS

    return GRADIENTS


def _read_memory(value: float | str | None) -> float | str | None:
    """The amount as it is usually written, so `2GB` and `2000 MB` are one setting."""
    from bfno.ode.inputs import read_memory

    if value is None:
        return None
    try:
        found = read_memory("memory", value)
    except ValueError as error:
        expected = "a number of bytes or text such as '256 MB', 'unlimited', 'steps' or 'log'"
        raise PydanticCustomError(
            "memory", "Input should be {expected}", {"expected": expected}
        ) from error
    if found == math.inf:
        return "unlimited"
    if isinstance(found, str):
        word, _, size = found.partition(" ")
        return f"{word} {_amount(int(size))}" if size else word
    return _amount(int(found))


def _amount(size: int) -> int | str:
    """Bytes in the largest unit that gives a whole number, or else plain bytes.

    Example:
        >>> _amount(2_000_000_000), _amount(1536 * 2**20), _amount(1001)
        ('2 GB', '1536 MiB', 1001)
    """
    whole = (name for name, unit in _UNITS.items() if size and size % unit == 0)
    name = next(whole, None)
    return size if name is None else f"{size // _UNITS[name]} {name}"


class SolverSettings(Settings):
    """How the ODE is solved; see `bfno.NeuralODE` and `bfno.ode.Options`."""

    method: Annotated[str, one_of(_methods)] = "dopri5"
    rtol: float = Field(default=1e-3, gt=0)
    atol: float = Field(default=1e-3, gt=0)
    gradient: Annotated[str, one_of(_gradients)] = "checkpoint"
    memory: Annotated[int | str | None, AfterValidator(_read_memory)] = None
    step: float | None = Field(default=None, gt=0)
    first_step: Annotated[float, Field(gt=0)] | Literal["last"] | None = None
    max_steps: int = Field(default=10_000, ge=1)
    controller: Annotated[str, one_of(_controllers)] = "I"
    land: bool = True


class TrainSettings(Settings):
    """The recipe.

    Attributes:
        epochs: Passes over the training samples; `auto` takes many for few samples and few for
            many, see `epochs_for`.
        select: Which weights a run ends with: those of the `best` epoch on the validation samples,
            or of the `last` one, which does not depend on chance if these are few.
        patience: Stop after this many epochs in a row without a better validation score. None
            trains all epochs.
        batch: Samples per step, over all processes.
        optimizer: `adam`; `adamax`, its variant with the largest gradient; or `adamw`, whose weight
            decay does not go through the gradient.
        lr: The highest learning rate.
        schedule: How the rate falls: `steps` multiplies it by `decay` every `decay_every` steps,
            `cosine` lowers it along half a cosine until the last step.
        restart: The epoch after which the schedule restarts, warm-up included, for the remaining
            epochs; useful for continuing a finished training for long. 0 means never.
        warmup: Steps over which it rises evenly from nearly 0; a number below 1 is a share of all
            steps.
        decay: Factor of the learning rate after every `decay_every` steps.
        decay_every: Steps between two decays.
        decay_floor: Share of the highest learning rate below which it does not fall.
        weight_decay: The optimizer's L2 penalty; for `adamw`, the share of a weight that a step at
            learning rate 1 would remove.
        clip: Largest norm of a gradient; longer ones are scaled down. None scales none.
        average: Share of the old average in a moving average of the weights, for example 0.999. The
            average is evaluated and loaded; training continues from the weights themselves. None
            does not average.
        test: Whether the test samples are evaluated after every epoch. If not, the training never
            sees them, so a choice among many runs does not depend on them, and `bfno eval` tests
            the chosen one.
        eval_batch: Samples at a time when the model is only evaluated.
        checkpoint_seconds: Time between two checkpoints within an epoch.
    """

    epochs: Annotated[int, Field(ge=1)] | Literal["auto"] = 10
    select: Literal["best", "last"] = "best"
    patience: int | None = Field(default=None, ge=1)
    batch: int = Field(default=64, ge=1, le=10**9)
    optimizer: Literal["adam", "adamax", "adamw"] = "adam"
    lr: float = Field(default=1e-3, gt=0, le=1e9)
    schedule: Literal["steps", "cosine"] = "steps"
    restart: int = Field(default=0, ge=0)
    warmup: Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0, lt=1)] = 0
    decay: float = Field(default=0.95, gt=0, le=1)
    decay_every: int = Field(default=1000, ge=1)
    decay_floor: float = Field(default=0.0, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0, le=1e9)
    clip: float | None = Field(default=1.0, gt=0)
    average: float | None = Field(default=None, gt=0, lt=1)
    test: bool = True
    eval_batch: int = Field(default=100, ge=1, le=10**9)
    checkpoint_seconds: float = Field(default=60.0, ge=0)

    @property
    def knows_its_end(self) -> bool:
        """Whether learning rates depend on the number of all steps."""
        return self.schedule == "cosine" or 0 < self.warmup < 1

    def epochs_for(self, samples: int) -> int:
        """The number of epochs for a number of training samples.

        With `auto`, the steps of a training grow with the square root of the number of samples: 183
        epochs of 480, 57 of 5,000, at least 10 and at most 200.

        Example:
            >>> TrainSettings(epochs="auto").epochs_for(5000)
            57
        """
        if self.epochs != "auto":
            return self.epochs
        return min(max(round(_AUTO_EPOCHS / math.sqrt(max(samples, 1))), 10), 200)


def migrated_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings written by an earlier release to those of this one.

    `model.idle_scalars` was the number of parameters that a published count includes although
    nothing uses them. It now belongs only to the count, and models do not have it. The models of
    image classifiers had no `kind`, because there was only one.

    Args:
        settings: Nested values of a config.yaml, a record or a checkpoint; left as they are.

    Example:
        >>> migrated_settings({"seed": 7, "model": {"kind": "ode", "width": 50, "idle_scalars": 1}})
        {'seed': 7, 'model': {'kind': 'ode', 'width': 50}}
    """
    found = dict(settings)
    if isinstance(model := found.get("model"), Mapping):
        kept = {name: value for name, value in model.items() if name != "idle_scalars"}
        is_old_classifier = "kind" not in model and "dynamics" in model
        found["model"] = {"kind": "ode", **kept} if is_old_classifier else kept
    return found


def migrated_weights(weights: Mapping[str, WeightT]) -> dict[str, WeightT]:
    """Remove tensors of a checkpoint that models no longer have; see `migrated_settings`."""
    return {name: tensor for name, tensor in weights.items() if name != "idle"}


def parse(kind: type[SettingsT], settings: Mapping[str, Any], source: str) -> SettingsT:
    """Check settings and fill in defaults.

    Args:
        kind: The class of the settings.
        settings: Nested values by name.
        source: Their origin, for the message.

    Raises:
        ConfigError: At the first setting that is unknown, missing or of the wrong kind.
    """
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        raise _explain(kind, error, source) from None


def _explain(kind: type[BaseModel], error: ValidationError, source: str) -> ConfigError:
    found = error.errors(include_url=False)
    first = found[0]
    name = _name(kind, first["loc"]) or source
    if first["type"] == "extra_forbidden" and name in setting_names(kind):
        return ConfigError(name, f"has no meaning in this experiment (in {source})", "omit it")
    if first["type"] == "extra_forbidden":
        return ConfigError(name, f"is not a setting (in {source})", _nearest(kind, name))
    if first["type"] == "missing":
        return ConfigError(name, f"is missing in {source}", "give it a value")
    # A setting that takes several kinds of values has an error for each of them.
    reasons = [one["msg"] for one in found if (_name(kind, one["loc"]) or source) == name]
    why = " or ".join(reason[0].lower() + reason[1:] for reason in dict.fromkeys(reasons))
    value = str(first["input"])
    shown = value if len(value) <= 60 else f"{value[:57]}..."
    return ConfigError(name, f"{why}, got {shown!r}", "choose a value of that kind")


def _name(kind: type[BaseModel], place: tuple[int | str, ...]) -> str:
    """The name of the setting at that place; a choice among kinds is not part of it."""
    parts = [str(part) for part in place]
    section = kind.model_fields.get(parts[0]) if len(parts) > 1 else None
    if section is not None and len(_sections(section.annotation)) > 1:
        parts.pop(1)
    if ".".join(parts[:-1]) in setting_names(kind):
        parts.pop()
    return ".".join(parts)


def _nearest(kind: type[BaseModel], name: str) -> str:
    known = list(dict.fromkeys(setting_names(kind)))
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.3)
    # A leaf that was given without its section, or under another one, is the likeliest meaning.
    same_leaf = [one for one in known if one.rpartition(".")[2] == name.rpartition(".")[2]]
    return f"did you mean {', '.join(dict.fromkeys([*same_leaf, *near])) or ', '.join(known)}?"


def setting_names(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every setting of an experiment or a section, for example `train.lr`."""
    for name, field in section.model_fields.items():
        inner = _sections(field.annotation)
        if not inner:
            yield f"{prefix}{name}"
        for kind in inner:
            yield from setting_names(kind, f"{prefix}{name}.")


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a setting can be: itself, or each of a choice; none for a plain value."""
    kinds = get_args(annotation) or (annotation,)
    kinds = [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in kinds]
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
