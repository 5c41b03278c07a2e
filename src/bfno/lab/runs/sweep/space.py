"""The search space of a sweep: ranges of settings, as written on the command line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bfno.lab.errors import ConfigError
from bfno.lab.experiments.trees import Tree, read_settings
from bfno.lab.files import parse_yaml
from bfno.lab.runs.record import flat_config

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["Range", "read_ranges"]

_CALL = re.compile(r"([A-Za-z_]\w*)\s*\((.*)\)", re.DOTALL)
_FORMS = "log(1e-4,1e-2), uniform(0,0.5), int(16,128) or choice(16,32,64)"
# Settings that would have trials judged by other samples, by other means, or by luck; those that
# end in a dot are sections.
_SAME_FOR_ALL = (
    *("data.", "experiment", "scale", "seed", "threads", "train.test", "train.select"),
    *("evaluation.", "train.eval_batch", "model.test_terms"),
)
# Settings that decide about time, memory and failures alone.
_WITHOUT_SCORE = ("train.checkpoint_seconds", "solver.memory", "solver.max_steps")
_INNER = 0.381966  # of a range: a value that is not whole unless all of them are


@dataclass(frozen=True)
class Range:
    """The values of one setting that a sweep tries.

    Attributes:
        name: The setting, `train.lr`.
        kind: `log`, `uniform`, `int` or `choice`.
        values: Lowest and highest value, or all choices.

    Example:
        >>> one = Range.read("train.lr", "log(1e-4, 1e-2)")
        >>> one.kind, one.values, str(one)
        ('log', (0.0001, 0.01), 'log(0.0001, 0.01)')
    """

    name: str
    kind: str
    values: tuple[Any, ...]

    @classmethod
    def read(cls, name: str, text: str) -> Range | None:
        """The range that a text stands for; None for a single value.

        Raises:
            ConfigError: If it looks like a range but is not one.
        """
        call = _CALL.fullmatch(text.strip())
        if call is None:
            return None
        kind, inside = call.groups()
        shown = f"{name}={text}"
        if kind not in _CHECKS:
            raise ConfigError(shown, f"{kind} is not a kind of range", f"write {_FORMS}")
        values = _choices(shown, inside) if kind == "choice" else _ends(shown, inside)
        why = _CHECKS[kind](values)
        if why:
            raise ConfigError(shown, why, f"write {_FORMS}")
        whole = kind == "int"
        return cls(name, kind, tuple(map(int, values)) if whole else tuple(values))

    def __str__(self) -> str:
        shown = ("null" if value is None else str(value) for value in self.values)
        return f"{self.kind}({', '.join(shown)})"

    @property
    def size(self) -> float:
        """How many values there are."""
        if self.kind == "choice":
            return len(self.values)
        return self.values[1] - self.values[0] + 1 if self.kind == "int" else math.inf

    @property
    def samples(self) -> tuple[Any, ...]:
        """Values to check so that all values are valid: the ends and one in between."""
        if self.kind == "choice":
            return self.values
        low, high = self.values
        inner = low + (high - low) * _INNER
        return low, high, round(inner) if self.kind == "int" else inner

    def distribution(self) -> BaseDistribution:
        """The range as Optuna takes it."""
        from optuna.distributions import (
            CategoricalDistribution,
            FloatDistribution,
            IntDistribution,
        )

        if self.kind == "choice":
            return CategoricalDistribution(self.values)
        if self.kind == "int":
            return IntDistribution(*self.values)
        return FloatDistribution(*self.values, log=self.kind == "log")


def read_ranges(pairs: Iterable[str]) -> tuple[list[Range], Tree]:
    """Split the settings of a command into ranges and settings that all trials share.

    Args:
        pairs: The text after each `--set`.

    Returns:
        The ranges, and the other settings, nested.

    Raises:
        ConfigError: If one is malformed, or there is no range.

    Example:
        >>> ranges, fixed = read_ranges(["model.width=choice(8, 16)", "train.batch=32"])
        >>> str(ranges[0]), fixed
        ('choice(8, 16)', {'train': {'batch': 32}})
    """
    ranges: dict[str, Range] = {}
    fixed: list[str] = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        found = Range.read(name, text) if equals else None
        if found is None:
            fixed.append(pair)
            continue
        _refuse_pointless(name)
        if any(_overlap(name, other) for other in ranges):
            raise ConfigError(name, "has two ranges", "keep one of them")
        ranges[name] = found
    settings = read_settings(fixed)
    for name in ranges:
        if any(_overlap(name, other) for other in flat_config(settings)):
            raise ConfigError(name, "has a range and a value", "keep one of them")
    if not ranges:
        raise ConfigError("--set", "names no range, so there is nothing to try", f"write {_FORMS}")
    return list(ranges.values()), settings


def _refuse_pointless(name: str) -> None:
    """Refuse a range of what trials have in common, of what changes no score, or of a section."""
    one_value = "give it one value, or leave it out"
    if any(name == one or (one[-1] == "." and name.startswith(one)) for one in _SAME_FOR_ALL):
        why = "has to be the same for all trials, or their scores could not be compared"
        raise ConfigError(name, why, one_value)
    if name in _WITHOUT_SCORE:
        why = "changes no score, so there is no best value to find"
        raise ConfigError(name, why, one_value)
    if "." not in name:
        why = "is a section or no setting at all, so it has no range"
        raise ConfigError(name, why, "write section.key, for example train.lr")


def _overlap(one: str, other: str) -> bool:
    """Whether two names are the same setting, or one is a part of the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _ends(shown: str, inside: str) -> list[float]:
    try:
        values = [float(part) for part in inside.split(",")]
    except ValueError:
        values = []
    if len(values) != 2 or not all(map(math.isfinite, values)):
        raise ConfigError(shown, "needs two numbers, the lowest and the highest", f"write {_FORMS}")
    return values


def _choices(shown: str, inside: str) -> list[Any]:
    try:
        values = parse_yaml(f"[{inside}]")
    except ValueError as error:
        raise ConfigError(shown, f"the list {error}", f"write {_FORMS}") from None
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    """A choice as a number, if it is one; YAML takes 1e-4, which has no dot, for a word."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _not_a_choice(values: list[Any]) -> str:
    if len(values) < 2:
        return "needs two values or more"
    if any(isinstance(value, list | dict) for value in values):
        return "takes plain values only: numbers, words, true, false and null"
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        return "takes finite numbers only"
    # 1, 1.0 and true would be equal when looking up tried values.
    return "names a value twice" if len(set(values)) < len(values) else ""


def _not_ordered(values: list[float]) -> str:
    return "" if values[0] < values[1] else "the lowest value has to come first"


def _not_logarithmic(values: list[float]) -> str:
    return _not_ordered(values) if values[0] > 0 else "a logarithm needs values above 0"


def _not_whole(values: list[float]) -> str:
    is_whole = all(value == int(value) for value in values)
    return _not_ordered(values) if is_whole else "needs whole numbers"


# Why values are not a range of that kind; empty if they are.
_CHECKS = {
    "choice": _not_a_choice,
    "int": _not_whole,
    "log": _not_logarithmic,
    "uniform": _not_ordered,
}
