"""Tables of runs that all have the same changed settings, separate from other runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["AS_DEFINED", "PROTOCOLS", "Protocol", "Variant", "variant_of"]


@dataclass(frozen=True)
class Protocol:
    """A named set of settings that turns a table into another experiment.

    Attributes:
        settings: The settings, nested.
        scales: The only scales they apply to; empty for all.
        measures: Name of the metric that it is for, which tables show and claims are about; empty
            for the table's own metrics.
    """

    settings: Mapping[str, Mapping[str, Any]]
    scales: tuple[str, ...] = ()
    measures: str = ""

    @property
    def changes(self) -> frozenset[str]:
        """Its settings as a record names them."""
        return frozenset(
            f"{section}.{name}={json.dumps(value)}"
            for section, values in self.settings.items()
            for name, value in values.items()
        )


PROTOCOLS: Mapping[str, Protocol] = {
    "published": Protocol({"data": {"protocol": "published"}}),
    # The paper's solver, tolerance and gradients. Many epochs, since a model that fits its images
    # closely may have a steep field, and the last of them, not the most accurate; few images, since
    # such runs are slow.
    "counted": Protocol(
        {
            "data": {"train_limit": 1000, "test_limit": 1000},
            "solver": {
                "method": "dopri5",
                "first_step": None,
                "land": False,
                "gradient": "adjoint",
                "rtol": 1e-3,
                "atol": 1e-3,
            },
            "train": {"epochs": 20, "select": "last"},
        },
        scales=("cpu",),
        measures="nfe",
    ),
}
"""Protocols besides the usual one, by name; `numbers.yaml` says which tables have them."""

# Settings that treat all methods of a table alike, and do not define a single one.
_OF_A_TABLE = re.compile(r"data\.sets|train\.epochs|solver\..*|evaluation\..*")


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

    def without(self, name: str) -> Variant:
        """The same without the change of one setting.

        Example:
            >>> Variant(("solver.rtol=0.1", "train.epochs=3")).without("train.epochs").changes
            ('solver.rtol=0.1',)
        """
        return Variant(tuple(one for one in self.changes if one.partition("=")[0] != name))

    @property
    def protocol(self) -> str:
        """Name of the protocol that the settings make; empty for the usual one."""
        names = (name for name, one in PROTOCOLS.items() if one.changes <= set(self.changes))
        return next(names, "")

    @property
    def measures(self) -> str:
        """Name of the metric that its protocol is for; empty for the table's own metrics."""
        return self._made_by.measures

    @property
    def settings(self) -> list[str]:
        """Settings beyond those of its protocol, as people write them."""
        return [f"{name}={value}" for name, value in self._shown]

    @property
    def title(self) -> str:
        """An addition to a heading; empty for the experiments as they are defined."""
        protocol = [f"protocol {self.protocol}"] if self.protocol else []
        return ", ".join(protocol + self.settings)

    @property
    def words(self) -> list[str]:
        """The options of `bfno table` that select it."""
        protocol = ["--protocol", self.protocol] if self.protocol else []
        return protocol + [word for one in self.settings for word in ("--set", one)]

    def folder(self, scale: str) -> str:
        """Name of the folder of its runs at a scale."""
        parts = [f"{_short(name)}-{value}" for name, value in self._shown]
        names = [re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts]
        return "-".join(filter(None, [scale, self.protocol, *names]))

    @property
    def _made_by(self) -> Protocol:
        return PROTOCOLS.get(self.protocol, Protocol({}))

    @property
    def _shown(self) -> list[tuple[str, str]]:
        known = self._made_by.changes
        pairs = (change.partition("=") for change in self.changes if change not in known)
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
    # A protocol may have any settings, but a run belongs to it only with all of them.
    others = (setting.partition("=")[0] for setting in found.settings)
    return found if all(map(_OF_A_TABLE.fullmatch, others)) else None


def _short(name: str) -> str:
    """A setting's name without its section; but the solver of evaluations has the same settings."""
    section, _, rest = name.partition(".")
    return f"{section}-{rest}" if section == "evaluation" else name.rpartition(".")[2]


def _plain(value: str) -> str:
    """A value without the quotes and brackets that JSON needs."""
    try:
        found = json.loads(value)
    except ValueError:
        return value
    if isinstance(found, list):
        return ",".join(map(str, found))
    return found if isinstance(found, str) else value
