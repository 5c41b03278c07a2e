"""Tables whose runs all differ in the same settings from their experiments: kept apart by these."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["AS_DEFINED", "Variant", "variant_of"]

_PROTOCOL = "data.protocol"
# How all methods of a table are treated alike, and not what a single one is.
_SOLVER = ("method", "first_step", "land", "gradient", "rtol", "atol")
_OF_A_TABLE = {_PROTOCOL, "data.sets", *(f"solver.{name}" for name in _SOLVER)}


@dataclass(frozen=True)
class Variant:
    """The settings in which all runs of a table differ from their experiments.

    Attributes:
        changes: The settings as `--set` takes them, in the order of their names; none for the
            experiments as they are defined.

    Example:
        >>> variant = Variant(('data.protocol="published"', 'data.sets=["a", "b"]'))
        >>> variant.folder("cpu")
        'cpu-published-sets-a-b'
        >>> variant.title
        'protocol published, data.sets=a,b'
        >>> variant.words
        ['--protocol', 'published', '--set', 'data.sets=a,b']
    """

    changes: tuple[str, ...] = ()

    @classmethod
    def of(cls, changes: Iterable[str]) -> Variant:
        """The variant of settings in any order."""
        return cls(tuple(sorted(changes)))

    @property
    def protocol(self) -> str:
        """How data are divided and judged, where this is not as usual; else empty."""
        return dict(self._shown).get(_PROTOCOL, "")

    @property
    def settings(self) -> list[str]:
        """The other settings, as a person writes them."""
        return [f"{name}={value}" for name, value in self._shown if name != _PROTOCOL]

    @property
    def title(self) -> str:
        """What to add to a heading; empty for the experiments as they are defined."""
        protocol = [f"protocol {self.protocol}"] if self.protocol else []
        return ", ".join(protocol + self.settings)

    @property
    def words(self) -> list[str]:
        """The words of `bfno table` that ask for it."""
        protocol = ["--protocol", self.protocol] if self.protocol else []
        return protocol + [word for one in self.settings for word in ("--set", one)]

    def folder(self, scale: str) -> str:
        """Name of the folder of its runs at a scale."""
        parts = [f"{name.rpartition('.')[2]}-{value}" for name, value in self._shown]
        parts = [part.removeprefix("protocol-") for part in parts]
        return "-".join([scale, *(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)])

    @property
    def _shown(self) -> list[tuple[str, str]]:
        pairs = (change.partition("=") for change in self.changes)
        return [(name, _plain(value)) for name, _, value in pairs]


AS_DEFINED = Variant()
"""The experiments as they are defined."""


def variant_of(changes: Iterable[str]) -> Variant | None:
    """The variant of a table that a run with these changed settings can belong to, if any.

    Args:
        changes: Settings in which it differs from its experiment, as `--set` takes them.

    Example:
        >>> variant_of(["train.lr=0.5"])  # another method, so to speak
    """
    found = Variant.of(changes)
    names = {change.partition("=")[0] for change in found.changes}
    return found if names <= _OF_A_TABLE else None


def _plain(value: str) -> str:
    """A value without the quotes and brackets that JSON needs."""
    try:
        found = json.loads(value)
    except ValueError:
        return value
    if isinstance(found, list):
        return ",".join(map(str, found))
    return found if isinstance(found, str) else value
